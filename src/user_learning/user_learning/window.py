# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A ring of rows for sampling: each observation once, the next one by its slot, never by
neighbourhood.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from user_learning.pictures import Pictures
from user_learning.row import Row

Key = tuple[str, int]
"""Cell and episode."""

_FIRST = 1024
_NO_PIXELS: Mapping[str, np.ndarray] = {}

_ARRAYS = (
    'action',
    'reward',
    'bootstrap',
    'returns',
    'discount',
    'last',
    'next',
    '_before',
    '_place',
    '_ready',
    '_acts',
)
"""Arrays with one entry a slot."""


class Window:
    """A ring of at most `capacity` rows that grows as it fills. Not thread-safe.

    `observation` names the arrays of an observation with shape and dtype; `returns`, `discount`,
    `last` hold each row's n-step return, kept up to date as rows come and go. A row can be sampled
    when it has an action, is valid, and the observation after it (same cell, same episode, next
    step) is in the window. `pictures` has the same slots.
    """

    def __init__(
        self,
        capacity: int,
        observation: Mapping[str, tuple[Sequence[int], np.dtype]],
        action_n: int,
        gamma: float = 0.96,
        n_step: int = 1,
        pictures: Pictures | None = None,
    ) -> None:
        self.capacity, self.gamma, self.n_step = capacity, gamma, n_step
        self.pictures = pictures
        self.observation: dict[str, np.ndarray] = {
            name: np.empty((0, *shape), dtype) for name, (shape, dtype) in observation.items()
        }
        self.action = np.empty((0, action_n), np.float32)
        self.reward = np.empty(0, np.float32)
        self.bootstrap = np.empty(0, np.float32)
        self.returns = np.empty(0, np.float32)
        self.discount = np.empty(0, np.float32)
        self.last = np.empty(0, np.int64)
        self.next = np.empty(0, np.int64)
        self._before = np.empty(0, np.int64)
        self._place = np.empty(0, np.int64)
        self._acts = np.empty(0, bool)
        self._ready = np.empty(0, np.int64)
        self._ready_n = 0
        self._head = 0
        self.rows = 0
        self.added = 0
        self._recent: dict[Key, dict[int, int]] = {}
        self._order: deque[Key] = deque()
        self._owner: list[tuple[Key, int] | None] = []

    def __len__(self) -> int:
        """Rows that can be sampled now."""
        return self._ready_n

    @property
    def ready(self) -> np.ndarray:
        """Slots that can be sampled."""
        return self._ready[: self._ready_n]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays but the pictures'."""
        arrays = (*self.observation.values(), *(getattr(self, name) for name in _ARRAYS))
        return sum(a.nbytes for a in arrays)

    def add(
        self,
        row: Row,
        observation: Mapping[str, np.ndarray],
        raw: Mapping[str, np.ndarray] = _NO_PIXELS,
    ) -> int:
        """Copies one row in, over the oldest one when the ring is full; returns its slot.

        `raw` are the pixels of its pictures. Raises what `Pictures.put` does, before any change.
        """
        slot = self._head
        if self.pictures is not None:
            self.pictures.put(slot, row.images, raw)
        if self.rows < self.capacity:
            if slot == len(self.action):
                self._grow()
            self.rows += 1
        else:
            self._evict(slot)
        self._head = (slot + 1) % self.capacity
        for name, array in self.observation.items():
            array[slot] = observation[name]
        acts = row.valid and not row.closing
        if acts:
            self.action[slot] = row.executed_action
        self.reward[slot] = row.reward
        # Only the task's end cuts the bootstrap: a time-out or an abort does not (D5).
        self.bootstrap[slot] = 0.0 if row.terminated else 1.0
        self.next[slot] = self._before[slot] = self._place[slot] = -1
        self._acts[slot] = acts

        key = (row.cell, row.episode)
        steps = self._recent.get(key)
        if steps is None:
            steps = self._recent[key] = {}
            self._order.append(key)
            if len(self._order) > 64:
                del self._recent[self._order.popleft()]
        steps[row.step] = slot
        self._owner[slot] = (key, row.step)
        for first, second in ((steps.get(row.step - 1), slot), (slot, steps.get(row.step + 1))):
            if first is not None and second is not None:
                self._join(first, second)
        return slot

    def _join(self, slot: int, following: int) -> None:
        self.next[slot], self._before[following] = following, slot
        if self._acts[slot] and self._place[slot] < 0:
            self._place[slot] = self._ready_n
            self._ready[self._ready_n] = slot
            self._ready_n += 1
            self.added += 1
        self._refresh(slot)

    def _refresh(self, slot: int) -> None:
        """Recomputes the n-step returns of the rows that can see past `slot`.

        R = r_0 + gamma r_1 + ... + gamma^(m-1) r_(m-1),  discount = gamma^m [not terminated]
        m is n_step, or less where the episode ends, an action is invalid or a row is missing;
        `last` is the slot of the observation that the sum ends at.
        """
        for _ in range(self.n_step):
            if slot < 0:
                return
            if self._place[slot] >= 0:
                total, discount, at = 0.0, 1.0, slot
                for _ in range(self.n_step):
                    if discount == 0.0 or self._place[at] < 0:
                        break
                    total += discount * float(self.reward[at])
                    discount *= self.gamma * float(self.bootstrap[at])
                    at = int(self.next[at])
                self.returns[slot], self.discount[slot], self.last[slot] = total, discount, at
            slot = int(self._before[slot])

    def _evict(self, slot: int) -> None:
        following, before = self.next[slot], self._before[slot]
        self._unready(slot)
        if following >= 0:
            self._before[following] = -1
        if before >= 0:
            self.next[before] = -1
            self._unready(before)
            self._refresh(before)
        owner = self._owner[slot]
        if owner is not None and owner[0] in self._recent:
            self._recent[owner[0]].pop(owner[1], None)

    def _unready(self, slot: int) -> None:
        place = self._place[slot]
        if place < 0:
            return
        self._ready_n -= 1
        moved = self._ready[self._ready_n]
        self._ready[place] = moved
        self._place[moved] = place
        self._place[slot] = -1

    def _grow(self) -> None:
        size = min(self.capacity, max(_FIRST, 2 * len(self.action)))

        def longer(a: np.ndarray) -> np.ndarray:
            b = np.empty((size, *a.shape[1:]), a.dtype)
            b[: len(a)] = a
            return b

        self.observation = {name: longer(a) for name, a in self.observation.items()}
        for name in _ARRAYS:
            setattr(self, name, longer(getattr(self, name)))
        self._owner += [None] * (size - len(self._owner))
