# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A task of pictures: a bright square on a dim, noisy ground; its place tells what to do.

State: 3 values of no use but the first two, which are the place of the hand. Action: 2 values.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from user_core.config import CnnPolicy
from user_core.outcome import Boundary, Mode
from user_learning.encoder import Sight
from user_learning.networks import Spec
from user_learning.rlpd import Batch
from user_learning.row import Picture, Row

VIEWS = {'side': (32, 40), 'wrist': (32, 32)}


def sighted(views: Mapping[str, tuple[int, int]] = VIEWS, **fields: object) -> Spec:
    """A task of 3 state and 2 action values whose policy sees by `views`."""
    small = {'channels': (8, 8), 'kernels': (5, 3), 'strides': (2, 2), 'features': 8}
    return Spec(
        mean=np.zeros(3, np.float32),
        scale=np.ones(3, np.float32),
        squash=np.zeros(3, bool),
        action_n=2,
        fine_index=np.array([0, 1]),
        fine_mean=np.zeros(2, np.float32),
        fine_scale=np.full(2, 0.1, np.float32),
        aim_index=np.array([0, 1]),
        sight=Sight(views, CnnPolicy.model_validate({**small, **fields})),
    )


def square(place: np.ndarray, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """A picture [height, width, 3] with its square at `place` (x, y in [-1, 1])."""
    height, width = size
    picture = rng.integers(0, 60, (height, width, 3), np.uint8)
    x, y = ((place + 1) / 2 * (width - 7, height - 7)).round().astype(int)
    picture[y : y + 7, x : x + 7] = 230
    return picture


def squares(
    places: np.ndarray, views: Mapping[str, tuple[int, int]] = VIEWS, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Pictures of [n, 2] places by camera."""
    rng = np.random.default_rng(seed)
    return {
        camera: torch.from_numpy(np.stack([square(p, size, rng) for p in places]))
        for camera, size in views.items()
    }


def batch(
    rows: int = 16, seed: int = 3, views: Mapping[str, tuple[int, int]] = VIEWS, **fields: object
) -> Batch:
    """Random rows; some are the task's end."""
    rng = np.random.default_rng(seed)
    tensors = {
        'state': torch.from_numpy(rng.normal(size=(rows, 3)).astype(np.float32)),
        'action': torch.from_numpy(rng.uniform(-0.9, 0.9, (rows, 2)).astype(np.float32)),
        'reward': torch.from_numpy(rng.random(rows, np.float32)),
        'discount': torch.from_numpy(0.96 * (rng.random(rows) > 0.3).astype(np.float32)),
        'next_state': torch.from_numpy(rng.normal(size=(rows, 3)).astype(np.float32)),
        'pictures': squares(rng.uniform(-1, 1, (rows, 2)), views, seed),
        'next_pictures': squares(rng.uniform(-1, 1, (rows, 2)), views, seed + 1),
    }
    return Batch(**{**tensors, 'demos_n': rows // 2, **fields})


def reaching(
    number: int,
    seq: int = 0,
    mode: Mode = Mode.DEMO,
    boundary: Boundary = Boundary.SUCCESS,
    views: Mapping[str, tuple[int, int]] = VIEWS,
    steps: int = 5,
) -> list[Row]:
    """An episode in which the hand goes to the square."""
    rng = np.random.default_rng(number)
    goal, at = rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 2)
    rows = []
    for step in range(steps + 1):
        closing, last = step == steps, step == steps - 1
        images = tuple(
            Picture(c, 'rgb8', *size, step, square(goal, size, rng).reshape(-1))
            for c, size in views.items()
        )
        move = np.clip((goal - at) / (steps - step) if not closing else np.zeros(2), -0.9, 0.9)
        rows.append(
            Row(
                run='run',
                cell='arm0',
                episode=number,
                step=step,
                incarnation=7,
                seq=seq + step,
                mode=mode,
                state=np.array([*at, 0.5], np.float32),
                images=images,
                policy='actor',
                policy_version=1,
                executed_action=np.zeros(0, np.float32) if closing else move.astype(np.float32),
                reward=float(last and boundary == Boundary.SUCCESS),
                terminated=last and boundary == Boundary.SUCCESS,
                boundary=boundary if last or closing else Boundary.NONE,
                closing=closing,
                valid=not closing,
            )
        )
        at = at + move
    return rows
