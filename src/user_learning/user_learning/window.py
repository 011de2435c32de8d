# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A ring of rows for sampling: each observation once, the next one by its slot, never by
neighbourhood.

What can be drawn, and in which order, follows from the rows in the ring and the order in which
they came, never from rows that are gone: a learner that comes back draws the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    'step',
    '_before',
    'acts',
    '_ready',
)
"""Arrays with one entry a slot."""


@dataclass(slots=True)
class Episode:
    """One episode of the ring: the slot of each of its steps."""

    key: Key
    slots: dict[int, int] = field(default_factory=dict)


class Window:
    """A ring of at most `capacity` rows that grows as it fills. Not thread-safe.

    `observation` names the arrays of an observation with shape and dtype; `acts` says whether a
    row has an action; `returns`, `discount`, `last` hold each row's n-step return, kept up to date
    as rows come and go. A row can be sampled when it acts, and the observation after it (same
    cell, same episode, next step) is in the window. Of rows of the same step the newest counts.
    `pictures` has the same slots.
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
        self.step = np.empty(0, np.int64)
        self.episode: list[Episode] = []
        self._before = np.empty(0, np.int64)
        self.acts = np.empty(0, bool)
        self._ready = np.empty(0, bool)
        self._taken = 0
        self.added = 0
        self._episodes: dict[Key, Episode] = {}
        # Which rows can be sampled: their numbers (how many came before each) in order.
        self._order = np.empty(_FIRST, np.int64)
        self._begin = self._end = 0

    def __len__(self) -> int:
        """Rows that can be sampled now."""
        return self._end - self._begin

    @property
    def rows(self) -> int:
        """Rows in the ring."""
        return min(self._taken, self.capacity)

    @property
    def slots(self) -> np.ndarray:
        """Slots of all rows in the order in which the rows came."""
        return np.arange(self._taken - self.rows, self._taken) % self.capacity

    @property
    def ready(self) -> np.ndarray:
        """Slots that can be sampled, in the order in which their rows came."""
        return self._order[self._begin : self._end] % self.capacity

    def pick(self, places: np.ndarray) -> np.ndarray:
        """Slots at [n] places of `ready`."""
        return np.take(self._order[self._begin : self._end], places, mode='clip') % self.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays but the pictures'."""
        arrays = (*self.observation.values(), *(getattr(self, name) for name in _ARRAYS))
        return sum(a.nbytes for a in arrays)

    def __contains__(self, row: Row) -> bool:
        episode = self._episodes.get((row.cell, row.episode))
        return episode is not None and row.step in episode.slots

    def add(
        self,
        row: Row,
        observation: Mapping[str, np.ndarray],
        raw: Mapping[str, np.ndarray] = _NO_PIXELS,
    ) -> int:
        """Copies one row in, over the oldest one when the ring is full; returns its slot.

        `raw` are the pixels of its pictures. Raises what `Pictures.put` does, before any change.
        """
        slot = self._taken % self.capacity
        if self.pictures is not None:
            self.pictures.put(slot, row.images, raw)
        if self._taken >= self.capacity:
            self._evict(slot)
        elif slot == len(self.action):
            self._grow()
        self._taken += 1
        for name, array in self.observation.items():
            array[slot] = observation[name]
        acts = row.valid and not row.closing
        self.action[slot] = row.executed_action if acts else 0.0
        self.reward[slot] = row.reward
        # Only the task's end cuts the bootstrap: a time-out or an abort does not.
        self.bootstrap[slot] = 0.0 if row.terminated else 1.0
        self.next[slot] = self._before[slot] = -1
        self.step[slot] = row.step
        self.acts[slot], self._ready[slot] = acts, False

        key = (row.cell, row.episode)
        episode = self._episodes.get(key)
        if episode is None:
            episode = self._episodes[key] = Episode(key)
        if slot < len(self.episode):
            self.episode[slot] = episode
        else:
            self.episode.append(episode)
        slots = episode.slots
        if row.step in slots:
            self._cut(slots[row.step])
        slots[row.step] = slot
        for first, second in ((slots.get(row.step - 1), slot), (slot, slots.get(row.step + 1))):
            if first is not None and second is not None:
                self._join(first, second)
        return slot

    def fill(
        self,
        keys: Sequence[Key],
        step: np.ndarray,
        observation: Mapping[str, np.ndarray],
        action: np.ndarray,
        reward: np.ndarray,
        bootstrap: np.ndarray,
        acts: np.ndarray,
    ) -> None:
        """Takes at most `capacity` rows into the empty window at once, as if `add` had got them
        one after the other.
        """
        n = len(keys)
        while len(self.action) < n:
            self._grow()
        self._taken = n
        for name, array in self.observation.items():
            array[:n] = observation[name]
        for mine, theirs in (
            (self.action, action), (self.reward, reward), (self.bootstrap, bootstrap),
            (self.acts, acts), (self.step, step),
        ):  # fmt: skip
            mine[:n] = theirs
        self.next[:n] = self._before[:n] = -1
        for slot, (key, at) in enumerate(zip(keys, step.tolist(), strict=True)):
            episode = self._episodes.get(key)
            if episode is None:
                episode = self._episodes[key] = Episode(key)
            self.episode.append(episode)
            episode.slots[at] = slot
        for episode in self._episodes.values():
            for at, slot in episode.slots.items():
                following = episode.slots.get(at + 1)
                if following is not None:
                    self.next[slot], self._before[following] = following, slot
        self._ready[:n] = self.acts[:n] & (self.next[:n] >= 0)
        order = np.flatnonzero(self._ready[:n])
        self._order, self._begin, self._end = order, 0, len(order)
        self.added = len(order)
        for slot in order.tolist():
            self._sum(slot)

    def _join(self, slot: int, following: int) -> None:
        self.next[slot], self._before[following] = following, slot
        if self.acts[slot] and not self._ready[slot]:
            self._ready[slot] = True
            self._insert(self._number(slot))
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
            if self._ready[slot]:
                self._sum(slot)
            slot = int(self._before[slot])

    def _sum(self, slot: int) -> None:
        total, discount, at = 0.0, 1.0, slot
        for _ in range(self.n_step):
            if discount == 0.0 or not self._ready[at]:
                break
            total += discount * float(self.reward[at])
            discount *= self.gamma * float(self.bootstrap[at])
            at = int(self.next[at])
        self.returns[slot], self.discount[slot], self.last[slot] = total, discount, at

    def _evict(self, slot: int) -> None:
        self._cut(slot)
        episode, step = self.episode[slot], int(self.step[slot])
        if episode.slots.get(step) == slot:
            del episode.slots[step]
        if not episode.slots:
            del self._episodes[episode.key]

    def _cut(self, slot: int) -> None:
        """Takes a row out of its episode."""
        following, before = int(self.next[slot]), int(self._before[slot])
        self.next[slot] = self._before[slot] = -1
        self._unready(slot)
        if following >= 0:
            self._before[following] = -1
        if before >= 0:
            self.next[before] = -1
            self._unready(before)
            self._refresh(before)

    def _unready(self, slot: int) -> None:
        if self._ready[slot]:
            self._ready[slot] = False
            self._remove(self._number(slot))

    # ------------------------------------------------------------------ the order of what is ready

    def _number(self, slot: int) -> int:
        """How many rows came before the one in `slot`."""
        newest = self._taken - 1
        return newest - (newest - slot) % self.capacity

    def _insert(self, number: int) -> None:
        """In its place, which is nearly always the last one or close to it."""
        if self._end == len(self._order):
            kept = self._order[self._begin : self._end]
            self._order = np.empty(max(_FIRST, 2 * len(kept)), np.int64)
            self._order[: len(kept)] = kept
            self._begin, self._end = 0, len(kept)
        order, at = self._order, self._end
        if at > self._begin and order[at - 1] > number:
            at = self._begin + int(np.searchsorted(order[self._begin : at], number))
            order[at + 1 : self._end + 1] = order[at : self._end]
        order[at] = number
        self._end += 1

    def _remove(self, number: int) -> None:
        """From its place, which is nearly always the first one."""
        order, at = self._order, self._begin
        if order[at] != number:
            at += int(np.searchsorted(order[at : self._end], number))
            order[self._begin + 1 : at + 1] = order[self._begin : at]
        self._begin += 1

    def _grow(self) -> None:
        size = min(self.capacity, max(_FIRST, 2 * len(self.action)))

        def longer(a: np.ndarray) -> np.ndarray:
            b = np.empty((size, *a.shape[1:]), a.dtype)
            b[: len(a)] = a
            return b

        self.observation = {name: longer(a) for name, a in self.observation.items()}
        for name in _ARRAYS:
            setattr(self, name, longer(getattr(self, name)))
