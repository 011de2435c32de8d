# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Teaches encoders by hindsight: a demonstration's end says where its pictures should have led.

Nobody labels anything: a success ends where the task wanted it. Afterwards the encoders rest, and
a row's picture is encoded once, when the row comes (`RowEncoder`), instead of at every update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
import torch.nn.functional as F  # noqa: N812

from user_core.errors import UserError
from user_core.outcome import Boundary, Mode
from user_learning.augment import Shift
from user_learning.networks import Actor, Spec
from user_learning.pictures import seen
from user_learning.row import Row

BATCH = 64
"""Rows of a batch of lessons."""

ENCODED_AT_ONCE = 128
"""Rows that pass through the encoders together."""

AGAIN = 1 / 6
"""Share of the first time's updates that encoders learn when they learn anew, with a third of its
step size.
"""


@dataclass(frozen=True)
class Lesson:
    """Rows of successful episodes.

    Raw states [n, state_n], each row's uint8 pictures [height, width, 3] by camera, and the offset
    [n, k] of the episode's end from now, in the values at `spec.aim_index`.
    """

    state: np.ndarray
    pictures: Sequence[Mapping[str, np.ndarray]]
    offset: np.ndarray

    def __len__(self) -> int:
        return len(self.state)


def lesson_of(rows: Iterable[Row], spec: Spec, most: int = 0) -> Lesson:
    """The lesson of a store's rows: of all demonstrations and, up to `most` rows, of the newest
    training episodes.

    Raises UserError: no demonstration succeeded.
    """
    demos: list[Lesson] = []
    others: deque[Lesson] = deque()
    for episode in _successes(rows):
        try:  # copies: rows share the memory of a whole segment
            pictures = [{c: p.copy() for c, p in _pixels(row, spec).items()} for row in episode]
        except ValueError:
            continue  # who reads the rows for good refuses them by name
        state = np.stack([row.state for row in episode])
        at = state[:, spec.aim_index]
        lesson = Lesson(state, pictures, at[-1] - at)
        (demos if episode[0].mode == Mode.DEMO else others).append(lesson)
        while sum(map(len, others)) > most:
            others.popleft()
    if not demos:
        raise UserError(
            'the encoders have no demonstration to learn from',
            'no demonstration succeeded',
            'ask for demonstrations (budget.demos), or set policy.teacher=critics',
        )
    every = [*demos, *others]
    return Lesson(
        np.concatenate([lesson.state for lesson in every]),
        [pictures for lesson in every for pictures in lesson.pictures],
        np.concatenate([lesson.offset for lesson in every]),
    )


def _pixels(row: Row, spec: Spec) -> dict[str, np.ndarray]:
    """Each camera's pixels. Raises ValueError: state or pictures are not the task's."""
    if row.state.shape != (spec.state_n,):
        raise ValueError(f'its state has {row.state.size} values, the task has {spec.state_n}')
    if not np.isfinite(row.state).all():
        raise ValueError('its state holds a value that is not finite')
    return seen(row.images, spec.views)


def _successes(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Whole episodes of training or demonstration that succeeded; a cell has one at a time."""
    steps: dict[str, list[Row]] = {}
    for row in rows:
        if row.mode not in (Mode.TRAIN, Mode.DEMO):
            continue
        episode = steps.get(row.cell, [])
        if not episode or episode[0].episode != row.episode:
            episode = steps[row.cell] = []
        episode.append(row)
        if row.closing and row.boundary == Boundary.SUCCESS:
            yield episode


def stacked(
    pictures: Sequence[Mapping[str, np.ndarray]], device: torch.device | str
) -> dict[str, Tensor]:
    """Rows' pictures by camera, as uint8 [rows, height, width, 3]."""
    return {
        camera: torch.from_numpy(np.stack([some[camera] for some in pictures])).to(device)
        for camera in pictures[0]
    }


def aim_loss(predicted: Tensor, offset: Tensor, fine: Tensor) -> Tensor:
    """L = mean huber((p - d) / w),  w = fine / 2 + |d| / 10: far away a tenth of the way is close
    enough, near the end half the fine scale counts.
    """
    width = fine / 2 + 0.1 * offset.norm(dim=-1, keepdim=True)
    error = (predicted - offset) / width
    return F.smooth_l1_loss(error, torch.zeros_like(error))


def teach(
    actor: Actor,
    lesson: Lesson,
    updates: int,
    shift: Shift,
    seed: int,
    again: bool = False,
    tell: Callable[[], object] = lambda: None,
) -> float:
    """Fits the actor's encoders and aim in place, ends their learning, returns the last loss.

    Adam with a step size that falls from 0.001 to zero on a cosine. Those who learn `again` take a
    sixth of the updates and a third of the step. `tell` is called before each update.
    """
    assert actor.encoders is not None
    assert actor.aim is not None
    device = actor.aim.fine.device
    if again:
        updates = max(1, round(updates * AGAIN))
    rng = np.random.default_rng(seed)
    actor.rest(False)
    learned = [*actor.encoders.parameters(), *actor.aim.parameters()]
    optimizer = torch.optim.Adam(learned, 3e-4 if again else 1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    loss = torch.zeros(())
    for _ in range(updates):
        tell()
        places = rng.integers(len(lesson), size=BATCH)
        pictures = stacked([lesson.pictures[place] for place in places], device)
        state, offset = (
            torch.from_numpy(values[places]).to(device) for values in (lesson.state, lesson.offset)
        )
        _, guess = actor.look(state, shift(pictures))
        loss = aim_loss(guess, offset, actor.aim.fine)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    actor.rest()
    return loss.item()


class RowEncoder:
    """Encodes rows once: their state becomes the network's input, their pictures go."""

    def __init__(self, actor: Actor, spec: Spec, device: str = 'cpu') -> None:
        self.actor, self.spec, self.device = actor, spec, device

    def encode(self, rows: Iterable[Row], refuse: Callable[[Row, str], None]) -> Iterator[Row]:
        """The rows that a learner draws from, in their order; those that are not the task's go to
        `refuse` with the reason.
        """
        some: list[tuple[Row, dict[str, np.ndarray]]] = []
        for row in rows:
            if row.mode not in (Mode.TRAIN, Mode.DEMO):
                continue
            try:
                some.append((row, _pixels(row, self.spec)))
            except ValueError as error:
                refuse(row, str(error))
            if len(some) == ENCODED_AT_ONCE:
                yield from self._encoded(some)
                some = []
        if some:
            yield from self._encoded(some)

    @torch.no_grad()
    def _encoded(self, some: Sequence[tuple[Row, dict[str, np.ndarray]]]) -> Iterator[Row]:
        state = torch.from_numpy(np.stack([row.state for row, _ in some])).to(self.device)
        x = self.actor.see(state, stacked([raw for _, raw in some], self.device))
        for (row, _), seen_by_it in zip(some, x.cpu().numpy(), strict=True):
            yield replace(row, state=seen_by_it, images=())
