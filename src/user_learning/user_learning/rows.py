# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Which stored rows a learner may draw from."""

from __future__ import annotations

from collections.abc import Mapping
import math
from pathlib import Path

import numpy as np

from user_core.errors import UserError
from user_core.outcome import Boundary, Mode
from user_learning.pictures import Pictures, Segments, Views, seen
from user_learning.row import Row
from user_learning.window import Key, Window

Pixels = Mapping[str, np.ndarray]
"""Each camera's picture of one row, uint8 [height, width, 3]."""

NO_VIEWS: Views = {}


class Rows:
    """Sorts stored rows into windows and counts what the learner's budget needs.

    `online`: rows of training episodes. `demos`: rows of successful demonstrations, taken in when
    the episode has ended. Evaluation rows go nowhere. Rows of another size are refused by name.
    With `views`, `frames` rows of either keep their pictures in memory (null: all of them); those
    of the others are read from the segments of `store`.
    """

    def __init__(
        self,
        capacity: int,
        state_n: int,
        action_n: int,
        gamma: float = 0.96,
        n_step: int = 1,
        views: Views = NO_VIEWS,
        frames: tuple[int, int] | None = None,
        store: Path | None = None,
    ) -> None:
        self.state_n, self.action_n, self.views = state_n, action_n, views
        layout = {'state': ((state_n,), np.dtype(np.float32))}
        segments = Segments(store) if store is not None else None
        self.online, self.demos = (
            Window(
                capacity,
                layout,
                action_n,
                gamma,
                n_step,
                Pictures(views, capacity, n, segments) if views else None,
            )
            for n in frames or (capacity, capacity)
        )
        self.counted = 0
        self.demo_episodes = 0
        self.newest_version = 0
        self.refused = 0
        self.last_refused = ''
        self._open: dict[Key, list[tuple[Row, Pixels]]] = {}

    @property
    def train_rows(self) -> int:
        """Training rows that could ever be sampled; the update budget counts them. `counted` of
        them were in segments that the store has deleted.
        """
        return self.counted + self.online.added

    @property
    def begun(self) -> list[Row]:
        """Rows of demonstrations that have not ended."""
        return [row for steps in self._open.values() for row, _ in steps]

    def __contains__(self, row: Row) -> bool:
        if row.mode == Mode.TRAIN:
            return row in self.online
        return row.mode == Mode.DEMO and (
            row in self.demos or (row.cell, row.episode) in self._open
        )

    def begin(self, row: Row) -> None:
        """Takes back in one of `begun`; its pictures are left in the store."""
        self._open.setdefault((row.cell, row.episode), []).append((row, {}))

    def add(self, row: Row) -> None:
        """Takes one row of the store in, in the store's order.

        Raises UserError: a segment that the row's pictures are in cannot be kept open.
        """
        if row.mode not in (Mode.TRAIN, Mode.DEMO):
            return
        try:
            self._check(row)
            raw = seen(row.images, self.views)
            if row.mode == Mode.DEMO:
                self._demonstrate(row, raw)
                return
            self.online.add(row, {'state': row.state}, raw)
        except (ValueError, FileNotFoundError) as error:
            self.refuse(row, str(error))
            return
        except OSError as error:
            raise UserError(
                'the pictures of a row cannot be kept',
                str(error),
                'allow more open files (ulimit -n), or lower replay.window_rows',
            ) from error
        self.newest_version = max(self.newest_version, row.policy_version)

    def refuse(self, row: Row, why: str) -> None:
        """Counts a row that nobody learns from."""
        self.refused += 1
        self.last_refused = f'a row of {row.cell} was left out: {why}'

    def _demonstrate(self, row: Row, raw: Pixels) -> None:
        key = (row.cell, row.episode)
        steps = self._open.setdefault(key, [])
        steps.append((row, raw))
        if not row.closing:
            return
        for other in [k for k in self._open if k[0] == row.cell]:
            del self._open[other]
        if row.boundary == Boundary.SUCCESS:
            self.demo_episodes += 1
            for step, its in sorted(steps, key=lambda s: s[0].step):
                self.demos.add(step, {'state': step.state}, its)

    def _check(self, row: Row) -> None:
        """Raises ValueError with what is wrong."""
        if row.state.shape != (self.state_n,):
            raise ValueError(f'its state has {row.state.size} values, the task has {self.state_n}')
        acts = row.valid and not row.closing
        if acts and row.executed_action.shape != (self.action_n,):
            raise ValueError(
                f'its action has {row.executed_action.size} values, the task has {self.action_n}'
            )
        if not _finite(row.state) or (acts and not _finite(row.executed_action)):
            raise ValueError('it holds a value that is not finite')
        if not math.isfinite(row.reward):
            raise ValueError('its reward is not finite')


def _finite(values: np.ndarray) -> bool:
    # The first look is quick, and wrong only about values whose squares are too large.
    return math.isfinite(values.dot(values)) or bool(np.isfinite(values).all())
