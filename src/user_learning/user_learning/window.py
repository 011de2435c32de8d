# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Rows in memory for sampling: each observation once, the next one by its slot, never by neighbourhood.

`Window` is a ring of rows. `Rows` decides which rows belong to which window. `Sampler` fills one preallocated
batch, half from demonstrations, by an index that depends on seed and update number alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from user_core.errors import UserError
from user_learning.rlpd import Batch
from user_learning.row import Boundary, Mode, Row

Key = tuple[str, int]
"""Cell and episode."""

_FIRST = 1024


class Window:
    """A ring of at most `capacity` rows that grows as it fills. Not thread-safe.

    `observation` names the arrays of an observation with shape and dtype. A row can be sampled when it has an
    action, is valid, and the observation after it (same cell, same episode, step + 1) is in the window.
    """

    def __init__(
        self,
        capacity: int,
        observation: Mapping[str, tuple[Sequence[int], np.dtype]],
        action_n: int,
    ) -> None:
        self.capacity = capacity
        self.observation: dict[str, np.ndarray] = {
            name: np.empty((0, *shape), dtype) for name, (shape, dtype) in observation.items()
        }
        self.action = np.empty((0, action_n), np.float32)
        self.reward = np.empty(0, np.float32)
        self.bootstrap = np.empty(0, np.float32)
        self._link = np.empty(
            (0, 4), np.int64
        )  # next slot, slot before, place in _ready, has an action
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
    def next(self) -> np.ndarray:
        """Slot of the observation after each row, -1 when it is not there."""
        return self._link[:, 0]

    @property
    def ready(self) -> np.ndarray:
        """Slots that can be sampled."""
        return self._ready[: self._ready_n]

    def is_ready(self, slots: np.ndarray) -> np.ndarray:
        """Which of these slots can be sampled."""
        return self._link[slots, 2] >= 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (
            *self.observation.values(),
            self.action,
            self.reward,
            self.bootstrap,
            self._link,
            self._ready,
        )
        return sum(a.nbytes for a in arrays)

    def add(self, row: Row, observation: Mapping[str, np.ndarray]) -> int:
        """Copies one row in, over the oldest one when the ring is full; returns its slot."""
        slot = self._head
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
        self._link[slot] = (-1, -1, -1, acts)

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
        self._link[slot, 0], self._link[following, 1] = following, slot
        if self._link[slot, 3] and self._link[slot, 2] < 0:
            self._link[slot, 2] = self._ready_n
            self._ready[self._ready_n] = slot
            self._ready_n += 1
            self.added += 1

    def _evict(self, slot: int) -> None:
        following, before = self._link[slot, 0], self._link[slot, 1]
        self._unready(slot)
        if following >= 0:
            self._link[following, 1] = -1
        if before >= 0:
            self._link[before, 0] = -1
            self._unready(before)
        owner = self._owner[slot]
        if owner is not None and owner[0] in self._recent:
            self._recent[owner[0]].pop(owner[1], None)

    def _unready(self, slot: int) -> None:
        place = self._link[slot, 2]
        if place < 0:
            return
        self._ready_n -= 1
        last = self._ready[self._ready_n]
        self._ready[place] = last
        self._link[last, 2] = place
        self._link[slot, 2] = -1

    def _grow(self) -> None:
        size = min(self.capacity, max(_FIRST, 2 * len(self.action)))

        def longer(a: np.ndarray) -> np.ndarray:
            b = np.empty((size, *a.shape[1:]), a.dtype)
            b[: len(a)] = a
            return b

        self.observation = {name: longer(a) for name, a in self.observation.items()}
        self.action, self.reward, self.bootstrap = (
            longer(self.action),
            longer(self.reward),
            longer(self.bootstrap),
        )
        self._link, self._ready = longer(self._link), longer(self._ready)
        self._owner += [None] * (size - len(self._owner))


class Rows:
    """Sorts stored rows into windows and counts what the learner's budget needs.

    `online`: rows of training episodes. `demos`: rows of successful demonstrations, taken in when the episode
    has ended. Evaluation rows go nowhere. Rows of another size are refused by name.
    """

    def __init__(self, capacity: int, state_n: int, action_n: int) -> None:
        self.state_n, self.action_n = state_n, action_n
        layout = {'state': ((state_n,), np.dtype(np.float32))}
        self.online = Window(capacity, layout, action_n)
        self.demos = Window(capacity, layout, action_n)
        self.demo_episodes = 0
        self.demo_attempts = 0
        self.newest_version = 0
        self.refused = 0
        self.last_refused = ''
        self._open: dict[Key, list[Row]] = {}

    @property
    def train_rows(self) -> int:
        """Training rows that could ever be sampled; the update budget counts them."""
        return self.online.added

    def add(self, row: Row) -> None:
        """Takes one row of the store in, in the store's order."""
        if row.mode not in (Mode.TRAIN, Mode.DEMO):
            return
        if why := self._wrong(row):
            self.refused += 1
            self.last_refused = f'a row of {row.cell} was left out: {why}'
            return
        if row.mode == Mode.TRAIN:
            self.newest_version = max(self.newest_version, row.policy_version)
            self.online.add(row, {'state': row.state})
            return
        key = (row.cell, row.episode)
        steps = self._open.setdefault(key, [])
        steps.append(row)
        if not row.closing:
            return
        self.demo_attempts += 1
        for other in [k for k in self._open if k[0] == row.cell]:
            del self._open[other]
        if row.boundary == Boundary.SUCCESS:
            self.demo_episodes += 1
            for step in sorted(steps, key=lambda r: r.step):
                self.demos.add(step, {'state': step.state})

    def _wrong(self, row: Row) -> str:
        if row.state.shape != (self.state_n,):
            return f'its state has {row.state.size} values, the task has {self.state_n}'
        acts = row.valid and not row.closing
        if acts and row.executed_action.shape != (self.action_n,):
            return (
                f'its action has {row.executed_action.size} values, the task has {self.action_n}'
            )
        if not np.isfinite(row.state).all() or (
            acts and not np.isfinite(row.executed_action).all()
        ):
            return 'it holds a value that is not finite'
        return '' if np.isfinite(row.reward) else 'its reward is not finite'


class Sampler:
    """Fills batches: `demo_fraction` of the rows from demonstrations, the rest from training rows.

    Update k of seed s always draws the same places, whatever was drawn before (for a resumed run). While there
    are no training rows, or the caller says `demos_only`, every row is a demonstration's. The tensors of a
    batch share memory with the sampler: they are good until the next call.
    """

    def __init__(
        self,
        rows: Rows,
        batch: int,
        demo_fraction: float,
        seed: int,
        gamma: float = 0.96,
        n_step: int = 1,
    ) -> None:
        self.rows, self.batch, self.seed = rows, batch, seed
        self.gamma, self.n_step = np.float32(gamma), n_step
        self.demos_n = round(batch * demo_fraction)
        n, m = rows.state_n, rows.action_n
        self._arrays = [np.empty((batch, n), np.float32), np.empty((batch, m), np.float32),
                        np.empty(batch, np.float32), np.empty(batch, np.float32),
                        np.empty((batch, n), np.float32)]  # fmt: skip
        self._tensors = [torch.from_numpy(a) for a in self._arrays]

    def __call__(self, update: int, demos_only: bool = False) -> Batch:
        """The batch of one update. Raises UserError when there is nothing to sample."""
        rng = np.random.default_rng((self.seed, update))
        online, demos = self.rows.online, self.rows.demos
        demos_n = self.demos_n
        if demos_only or not len(online):
            demos_n = self.batch
        elif not len(demos):
            demos_n = 0
        if (demos_n and not len(demos)) or not self.batch:
            raise UserError(
                'there is nothing to learn from',
                'the window holds no row',
                'collect demonstrations first',
            )
        self._take(demos, rng, slice(0, demos_n))
        self._take(online, rng, slice(demos_n, self.batch))
        return Batch(*self._tensors, demos_n=demos_n)

    def _take(self, window: Window, rng: np.random.Generator, part: slice) -> None:
        n = part.stop - part.start
        if not n:
            return
        state_out, action_out, reward_out, discount_out, next_out = (a[part] for a in self._arrays)
        slots = window.ready[rng.integers(len(window), size=n)]
        last = self._returns(window, slots, reward_out, discount_out)
        state = window.observation['state']
        np.take(state, slots, axis=0, out=state_out, mode='clip')
        np.take(window.action, slots, axis=0, out=action_out, mode='clip')
        np.take(state, last, axis=0, out=next_out, mode='clip')

    def _returns(
        self, window: Window, slots: np.ndarray, reward: np.ndarray, discount: np.ndarray
    ) -> np.ndarray:
        """Fills reward and discount of n-step returns; returns the slots of the observations they end at.

        R = r_0 + gamma r_1 + ... + gamma^(m-1) r_(m-1),  discount = gamma^m [not terminated]
        m is n_step, or less where the episode ends, an action is invalid or a row is missing.
        """
        np.take(window.reward, slots, out=reward, mode='clip')
        np.multiply(window.bootstrap[slots], self.gamma, out=discount)
        last = window.next[slots]
        for _ in range(self.n_step - 1):
            on = np.flatnonzero((discount > 0) & window.is_ready(last))
            # A row that stopped once stays stopped: its `last` never becomes ready again.
            if not on.size:
                break
            here = last[on]
            reward[on] += discount[on] * window.reward[here]
            discount[on] *= self.gamma * window.bootstrap[here]
            last[on] = window.next[here]
        return last
