# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The answer that an episode acts by: which of its rows is for which step, when to ask again."""

from __future__ import annotations

from user_robot.row import Answer, Choice


class Chunk:
    """Row i of an answer to step s is meant for step s + i; one answer is in force at a time.

    Lockstep: the next question comes when all rows are used. Realtime: when half of them are, so
    that a slow policy leaves no gap; the answer's rows from the present step on take the place of
    the older ones.

    Attributes:
        answer: in force, or None.
        asked: the step of the newest question.
    """

    def __init__(self, realtime: bool) -> None:
        self.realtime = realtime
        self.clear()

    def clear(self) -> None:
        """Another episode: no answer of this one acts in it."""
        self.answer: Answer | None = None
        self.asked = -1

    def choice(self, step: int) -> Choice | None:
        """The row for a step, if there is one."""
        answer = self.answer
        return Choice(answer, step - answer.step) if answer and self._left(step) > 0 else None

    def due(self, step: int) -> bool:
        """Whether a step that begins needs a question."""
        answer, left = self.answer, self._left(step)
        if answer is None or left <= 0:
            return True
        return self.realtime and self.asked <= answer.step and 2 * left <= len(answer.chunk)

    def unwanted(self, answer: Answer, step: int, acting: bool) -> str:
        """'' for an answer that helps from `step` on (from the next one when `acting`), else how
        it is counted: it came late, or nobody asked for it.
        """
        rows = len(answer.chunk) if self.realtime and answer.chunk.ndim == 2 else 1
        newest = self.answer.step if self.realtime and self.answer else -1
        if newest < answer.step <= step < answer.step + max(rows, 1) - acting:
            return ''
        return 'late_actions' if answer.step < step else 'stray_actions'

    def _left(self, step: int) -> int:
        """Rows for this step and later ones."""
        return self.answer.step + len(self.answer.chunk) - step if self.answer else 0
