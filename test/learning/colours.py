# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Rows with pictures in which every pixel says which row it is of."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from user_core import jpeg
from user_core.outcome import Boundary, Mode
from user_learning.row import Picture, Row
from user_learning.rows import Rows
from user_learning.store import Store
from user_learning.tail import Tail

VIEWS = {'side': (9, 10), 'wrist': (16, 8)}
"""Odd sizes: the store pads them."""


def tone(episode: int, step: int, camera: int) -> np.ndarray:
    """The colour of one row's picture, [3] uint8."""
    return np.array([episode % 251, step % 251, 40 * camera + 7], np.uint8)


def look(episode: int, step: int, encoding: str = 'rgb8') -> tuple[Picture, ...]:
    """One picture of each camera."""
    pictures = []
    for k, (camera, (height, width)) in enumerate(VIEWS.items()):
        raw = np.empty((height, width, 3), np.uint8)
        raw[:] = tone(episode, step, k)
        data = raw.reshape(-1)
        if encoding == 'jpeg':
            data = np.frombuffer(jpeg.encode(raw, 100), np.uint8)
        pictures.append(Picture(camera, encoding, height, width, step, data))
    return tuple(pictures)


def episode(
    number: int, steps: int = 5, mode: Mode = Mode.TRAIN, encoding: str = 'rgb8', seq: int = 0
) -> list[Row]:
    """Rows of one successful episode whose states and pictures name its number and the step."""
    rows = []
    for step in range(steps + 1):
        closing, last = step == steps, step == steps - 1
        rows.append(
            Row(
                'run',
                'arm0',
                number,
                step,
                incarnation=7,
                seq=seq + step,
                mode=mode,
                policy='' if closing else 'actor',
                policy_version=0 if closing else 3,
                state=np.array([number, step, 0], np.float32),
                executed_action=np.zeros(0 if closing else 2, np.float32),
                images=look(number, step, encoding),
                reward=float(last),
                terminated=last,
                boundary=Boundary.SUCCESS if last or closing else Boundary.NONE,
                closing=closing,
                valid=not closing,
            )
        )
    return rows


def run_of(episodes: int, demos: int = 2, steps: int = 7, encoding: str = 'rgb8') -> list[Row]:
    """Demonstrations, then training episodes, as one cell sends them."""
    rows: list[Row] = []
    for number in range(episodes):
        mode = Mode.DEMO if number < demos else Mode.TRAIN
        rows += episode(number, steps, mode, encoding, seq=len(rows))
    return rows


def stored(folder: Path, rows: list[Row], **settings: float) -> Path:
    """Writes rows into a store of small segments."""
    store = Store(folder, **({'segment_bytes': 20_000} | settings))
    for row in rows:
        assert store.write([row]) == 1
    store.close()
    return folder


def window_of(store: Path, capacity: int = 10_000, frames: tuple[int, int] | None = None) -> Rows:
    """What a learner keeps of a store; `frames` None: everything in memory."""
    rows = Rows(capacity, 3, 2, n_step=3, views=VIEWS, frames=frames, store=store)
    for record in Tail(store).rows():
        assert isinstance(record, Row)
        rows.add(record)
    return rows


def without(row: Row, camera: str) -> Row:
    """The row as if this camera had sent nothing."""
    return dataclasses.replace(row, images=tuple(p for p in row.images if p.name != camera))
