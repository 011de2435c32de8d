# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Rows in memory for sampling: each observation once, the next one by its slot, never by
neighbourhood.

`Window` is a ring of rows. `Rows` decides which rows belong to which window. `Sampler` fills one
preallocated batch, half from demonstrations, by an index that depends on seed and update number
alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from user_core.errors import UserError
from user_core.outcome import Boundary, Mode
from user_learning.rlpd import Batch
from user_learning.row import Row

Key = tuple[str, int]
"""Cell and episode."""

_FIRST = 1024

_BLOCK = 64
"""Updates whose random numbers are drawn at once: a generator costs more than a batch."""

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
    step) is in the window.
    """

    def __init__(
        self,
        capacity: int,
        observation: Mapping[str, tuple[Sequence[int], np.dtype]],
        action_n: int,
        gamma: float = 0.96,
        n_step: int = 1,
    ) -> None:
        self.capacity, self.gamma, self.n_step = capacity, gamma, n_step
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
        """Bytes of all arrays."""
        arrays = (*self.observation.values(), *(getattr(self, name) for name in _ARRAYS))
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


class Rows:
    """Sorts stored rows into windows and counts what the learner's budget needs.

    `online`: rows of training episodes. `demos`: rows of successful demonstrations, taken in when
    the episode has ended. Evaluation rows go nowhere. Rows of another size are refused by name.
    """

    def __init__(
        self, capacity: int, state_n: int, action_n: int, gamma: float = 0.96, n_step: int = 1
    ) -> None:
        self.state_n, self.action_n = state_n, action_n
        layout = {'state': ((state_n,), np.dtype(np.float32))}
        self.online = Window(capacity, layout, action_n, gamma, n_step)
        self.demos = Window(capacity, layout, action_n, gamma, n_step)
        self.demo_episodes = 0
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

    Update k of seed s always draws the same places, whatever was drawn before (for a resumed run).
    While there are no training rows, or the caller says `demos_only`, every row is a
    demonstration's. The tensors of a batch share memory with the sampler: they are good until the
    next call.
    """

    def __init__(self, rows: Rows, batch: int, demo_fraction: float, seed: int) -> None:
        self.rows, self.batch, self.seed = rows, batch, seed
        self.demos_n = round(batch * demo_fraction)
        self._block, self._uniform = -1, np.empty((0, batch))
        n, m = rows.state_n, rows.action_n
        self._arrays = [np.empty((batch, n), np.float32), np.empty((batch, m), np.float32),
                        np.empty(batch, np.float32), np.empty(batch, np.float32),
                        np.empty((batch, n), np.float32)]  # fmt: skip
        self._tensors = [torch.from_numpy(a) for a in self._arrays]

    def __call__(self, update: int, demos_only: bool = False) -> Batch:
        """The batch of one update. Raises UserError when there is nothing to sample."""
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
        chance = self._chance(update)
        self._take(demos, chance, slice(0, demos_n))
        self._take(online, chance, slice(demos_n, self.batch))
        state, action, reward, discount, next_state = self._tensors
        return Batch(state, action, reward, discount, next_state, demos_n)

    def _chance(self, update: int) -> np.ndarray:
        """Uniform numbers of one update, [batch]; drawn for `_BLOCK` updates at a time."""
        block, place = divmod(update, _BLOCK)
        if block != self._block:
            rng = np.random.default_rng((self.seed, block))
            self._block, self._uniform = block, rng.random((_BLOCK, self.batch))
        return self._uniform[place]

    def _take(self, window: Window, chance: np.ndarray, part: slice) -> None:
        if part.start == part.stop:
            return
        state_out, action_out, reward_out, discount_out, next_out = (a[part] for a in self._arrays)
        slots = window.ready[(chance[part] * len(window)).astype(np.int64)]
        state = window.observation['state']
        np.take(state, slots, axis=0, out=state_out, mode='clip')
        np.take(window.action, slots, axis=0, out=action_out, mode='clip')
        np.take(window.returns, slots, out=reward_out, mode='clip')
        np.take(window.discount, slots, out=discount_out, mode='clip')
        np.take(state, window.last[slots], axis=0, out=next_out, mode='clip')
