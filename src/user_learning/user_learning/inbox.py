# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Observations on their way to an answer: one a cell, its newest; those that have arrived are
answered together, those that cannot be answered yet are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from user_learning.policy import Answer, Question, Silence


@dataclass(frozen=True)
class Letter:
    """A cell's question, or why it is none; `id` goes back with the answer."""

    cell: str
    id: Any
    question: Question | Silence


class Inbox:
    """Keeps at most one question a cell. One thread.

    `hold` says why a question must not be answered now although there are weights, None if it may.
    `act` answers questions in one pass.
    """

    def __init__(
        self,
        hold: Callable[[Question], Silence | None],
        act: Callable[[Sequence[Question]], list[Answer | Silence]],
    ) -> None:
        self.hold, self.act = hold, act
        self.arrived: dict[str, Letter] = {}
        self.waiting: dict[str, Letter] = {}
        self.passes = 0

    def put(self, letter: Letter) -> bool:
        """A cell asks; what it asked before is forgotten. True when nothing else has arrived."""
        self.waiting.pop(letter.cell, None)
        self.arrived[letter.cell] = letter
        return len(self.arrived) == 1

    def again(self) -> None:
        """What waits has arrived anew."""
        self.arrived = self.waiting | self.arrived
        self.waiting = {}

    def answers(self) -> list[tuple[Letter, Answer | Silence]]:
        """Answers what has arrived. A refused question is gone, any other without an answer
        waits.
        """
        letters, self.arrived = list(self.arrived.values()), {}
        said: dict[str, Answer | Silence] = {}
        asked: list[Question] = []
        cells: list[str] = []
        for letter in letters:
            question = letter.question
            silence = question if isinstance(question, Silence) else self.hold(question)
            if silence is not None:
                said[letter.cell] = silence
            elif isinstance(question, Question):
                asked.append(question)
                cells.append(letter.cell)
        if asked:
            self.passes += 1
            said |= zip(cells, self.act(asked), strict=True)
        for letter in letters:
            answer = said[letter.cell]
            if isinstance(answer, Silence) and answer.state != 'REFUSED':
                self.waiting[letter.cell] = letter
        return [(letter, said[letter.cell]) for letter in letters]
