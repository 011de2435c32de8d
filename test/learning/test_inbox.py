# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Which observations are answered together, which wait, and which are forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from user_learning.inbox import Inbox, Letter
from user_learning.policy import Answer, Question, Silence


class Mind:
    """A policy that knows versions up to `newest` and remembers what it was asked together."""

    def __init__(self) -> None:
        self.newest, self.held = 0, ''
        self.passes: list[list[int]] = []
        self.inbox = Inbox(self.hold, self.act)

    def hold(self, question: Question) -> Silence | None:
        return Silence('STALE', self.held) if self.held else None

    def act(self, questions: Sequence[Question]) -> list[Answer | Silence]:
        self.passes.append([q.step for q in questions])
        if not self.newest:
            return [Silence('WAIT_WEIGHTS', 'none', (q.policy, 0)) for q in questions]
        return [Answer(np.array([q.step]), q.policy, self.newest) for q in questions]

    def ask(self, cell: str, step: int) -> bool:
        question = Question('actor', 0, 0, np.zeros(1), 1, step)
        return self.inbox.put(Letter(cell, (cell, step), question))

    def said(self) -> dict[tuple[str, int], object]:
        """Version or state by the letter's id."""
        return {
            letter.id: answer.version if isinstance(answer, Answer) else answer.state
            for letter, answer in self.inbox.answers()
        }


def test_what_has_arrived_is_answered_together_and_once() -> None:
    mind = Mind()
    mind.newest = 3
    assert mind.ask('left', 1)
    assert not mind.ask('right', 1)  # somebody is at it already
    assert mind.said() == {('left', 1): 3, ('right', 1): 3}
    assert mind.said() == {}
    assert mind.passes == [[1, 1]]
    assert mind.inbox.passes == 1


def test_only_the_newest_question_of_a_cell_is_answered() -> None:
    mind = Mind()
    mind.newest = 3
    mind.ask('left', 1)
    mind.ask('left', 2)
    assert mind.said() == {('left', 2): 3}


def test_a_question_without_weights_waits_and_is_answered_when_they_come() -> None:
    mind = Mind()
    mind.ask('left', 1)
    assert mind.said() == {('left', 1): 'WAIT_WEIGHTS'}
    assert mind.said() == {}  # it is not asked again by itself
    mind.newest = 1
    mind.inbox.again()
    mind.inbox.again()
    assert mind.said() == {('left', 1): 1}
    mind.inbox.again()
    assert mind.said() == {}


def test_a_question_that_waits_is_forgotten_when_its_cell_asks_anew() -> None:
    mind = Mind()
    mind.ask('left', 1)
    mind.ask('right', 1)
    mind.said()
    mind.newest = 1
    mind.ask('left', 2)
    assert mind.said() == {('left', 2): 1}
    mind.inbox.again()
    assert mind.said() == {('right', 1): 1}


def test_a_held_question_is_kept_from_the_policy_and_answered_when_it_may() -> None:
    mind = Mind()
    mind.newest, mind.held = 4, 'the learner is away'
    mind.ask('left', 1)
    assert mind.said() == {('left', 1): 'STALE'}
    assert mind.passes == []
    mind.held = ''
    mind.inbox.again()
    assert mind.said() == {('left', 1): 4}


def test_a_refused_question_never_waits() -> None:
    mind = Mind()
    mind.newest = 1
    mind.inbox.put(Letter('left', 'bad', Silence('REFUSED', 'no picture')))
    mind.ask('right', 1)
    assert mind.said() == {'bad': 'REFUSED', ('right', 1): 1}
    mind.inbox.again()
    assert mind.said() == {}
