# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Batches for the learner: half from demonstrations, by an index that depends on seed and update
number alone, filled into preallocated arrays; with pictures, one batch is read ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from user_core.errors import UserError
from user_learning.rlpd import Batch
from user_learning.rows import Rows
from user_learning.window import Window

_BLOCK = 64
"""Updates whose random numbers are drawn at once: a generator costs more than a batch."""


class Sampler:
    """Fills batches: `demo_fraction` of the rows from demonstrations, the rest from training rows.

    Update k of seed s always draws the same places, whatever was drawn before (for a resumed run).
    While there are no training rows, or the caller says `demos_only`, every row is a
    demonstration's. The tensors of a batch share memory with the sampler: they are good until the
    next call. `pin` puts them where a GPU copies from directly.
    """

    def __init__(
        self, rows: Rows, batch: int, demo_fraction: float, seed: int, pin: bool = False
    ) -> None:
        self.rows, self.batch, self.seed = rows, batch, seed
        self.demos_n = round(batch * demo_fraction)
        self._block, self._uniform = -1, np.empty((0, batch))
        self._sheets = [_Sheet(rows, batch, pin) for _ in range(2 if rows.views else 1)]
        self._ahead = ThreadPoolExecutor(1, 'read-ahead') if rows.views else None

    def __call__(self, update: int, demos_only: bool = False) -> Batch:
        """The batch of one update. Raises UserError when there is nothing to sample."""
        return self._fill(self._sheets[0], update, demos_only)

    def batches(self, updates: Sequence[int], demos_only: bool = False) -> Iterator[Batch]:
        """The batches of these updates; each is good until the next one is asked for.

        While one is used, a thread reads the next: add no rows before the loop has ended.
        """
        if self._ahead is None or len(updates) < 2:
            for update in updates:
                yield self(update, demos_only)
            return
        sheets = [self._sheets[k % 2] for k in range(len(updates))]
        coming = self._ahead.submit(self._fill, sheets[0], updates[0], demos_only)
        try:
            for k in range(1, len(updates) + 1):
                batch = coming.result()
                if k < len(updates):
                    coming = self._ahead.submit(self._fill, sheets[k], updates[k], demos_only)
                yield batch
        finally:
            coming.exception()

    def _fill(self, sheet: _Sheet, update: int, demos_only: bool) -> Batch:
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
        sheet.take(demos, chance, slice(0, demos_n))
        sheet.take(online, chance, slice(demos_n, self.batch))
        state, action, reward, discount, next_state = sheet.tensors
        return Batch(
            state, action, reward, discount, next_state, demos_n,
            sheet.pictures, sheet.next_pictures,
        )  # fmt: skip

    def _chance(self, update: int) -> np.ndarray:
        """Uniform numbers of one update, [batch]; drawn for `_BLOCK` updates at a time."""
        block, place = divmod(update, _BLOCK)
        if block != self._block:
            rng = np.random.default_rng((self.seed, block))
            self._block, self._uniform = block, rng.random((_BLOCK, self.batch))
        return self._uniform[place]


class _Sheet:
    """The arrays of one batch, and the tensors that share their memory."""

    def __init__(self, rows: Rows, batch: int, pin: bool) -> None:
        def empty(*shape: int, kind: type = np.float32) -> Tensor:
            tensor = torch.from_numpy(
                np.empty((batch, *shape), kind)
            )  # NumPy asks for large pages
            return tensor.pin_memory() if pin else tensor

        def pixels() -> dict[str, Tensor]:
            return {c: empty(*size, 3, kind=np.uint8) for c, size in rows.views.items()}

        n, m = rows.state_n, rows.action_n
        self.tensors = (empty(n), empty(m), empty(), empty(), empty(n))
        self.pictures, self.next_pictures = pixels(), pixels()
        self._arrays = [t.numpy() for t in self.tensors]
        self._pixels, self._next_pixels = (
            {camera: t.numpy() for camera, t in some.items()}
            for some in (self.pictures, self.next_pictures)
        )

    def take(self, window: Window, chance: np.ndarray, part: slice) -> None:
        """Fills one part from a window, by uniform numbers of [0, 1), [batch]."""
        if part.start == part.stop:
            return
        state_out, action_out, reward_out, discount_out, next_out = (a[part] for a in self._arrays)
        slots = window.pick((chance[part] * len(window)).astype(np.int64))
        last = window.last[slots]
        state = window.observation['state']
        np.take(state, slots, axis=0, out=state_out, mode='clip')
        np.take(window.action, slots, axis=0, out=action_out, mode='clip')
        np.take(window.returns, slots, out=reward_out, mode='clip')
        np.take(window.discount, slots, out=discount_out, mode='clip')
        np.take(state, last, axis=0, out=next_out, mode='clip')
        if window.pictures is not None:
            window.pictures.take(slots, {c: a[part] for c, a in self._pixels.items()})
            window.pictures.take(last, {c: a[part] for c, a in self._next_pixels.items()})
