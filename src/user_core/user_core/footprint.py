# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a run takes of memory and disk for its rows and pictures, before it takes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from user_core.config import RunConfig
from user_core.errors import UserError

GB = 1e9

ROW_BYTES = 2048
"""A row of the store without its pictures, at most."""
KEPT_BYTES = 512
"""A row of the window without its pictures, about."""
JPEG_SHARE = 0.25
"""A JPEG file beside its raw picture, at most, but for noise."""
SPARE_BYTES = 300 * 2**20
"""For checkpoints, curves and logs."""
SEGMENTS = 256
"""Segments that a full store has, about."""
SEGMENT_BYTES = 64 << 20
"""The smallest segment that is closed."""
MOST_SEGMENT_BYTES = 512 << 20
"""The largest one: it is deleted as a whole."""


@dataclass(frozen=True)
class Footprint:
    """Bytes that a run takes at most; memory is taken as rows come.

    `frames` are the training and the demonstration rows whose pictures stay in memory.
    """

    frames: tuple[int, int]
    picture_bytes: int
    stored_picture_bytes: int
    memory_bytes: int
    disk_bytes: int

    @classmethod
    def of(cls, config: RunConfig, input_n: int = 0) -> Footprint:
        """By the page alone; who knows the networks says how many values enter one (`input_n`):
        the window keeps them of each row whose encoders hindsight has taught.
        """
        replay, budget, steps = config.replay, config.budget, config.task.max_steps + 1
        demos = budget.max_demo_attempts * steps if budget.demos else 0
        train = budget.env_steps * 9 // 8  # with the closing rows
        online = min(replay.window_rows, train)
        raw, stored = config.picture_bytes, _stored_picture_bytes(config)

        policy = config.policy
        sees = raw if policy.kind == 'cnn' else 0
        taught = policy.kind == 'cnn' and policy.teacher == 'hindsight'
        fit = int(replay.memory_gb * GB) // max(sees, 1)
        kept_demos = max(min(demos, fit // 2), 1)
        kept = max(min(online, fit - kept_demos), 1)
        batches = 4 * config.algorithm.batch
        lesson = demos + min(config.learner.hindsight_rows, train)
        pictures = lesson if taught else kept + kept_demos + batches
        evaluated = 2 * (config.evaluation.consecutive + config.evaluation.fresh_episodes)
        rows = train + demos + evaluated * steps
        kept_row = KEPT_BYTES + 4 * input_n * taught
        disk = min(rows * (ROW_BYTES + stored), _old_bytes(config) + demos * (ROW_BYTES + stored))
        return cls(
            frames=(kept, kept_demos),
            picture_bytes=sees,
            stored_picture_bytes=stored,
            memory_bytes=pictures * sees + (online + demos) * kept_row,
            disk_bytes=round(disk) + segment_bytes(config) + SPARE_BYTES,
        )

    @property
    def memory_text(self) -> str:
        """What the learner's window takes."""
        text = f'at most {self.memory_bytes / GB:.1f} GB for rows to learn from'
        if self.picture_bytes:
            text += (
                f', of which {sum(self.frames)} keep raw pictures of'
                f' {self.picture_bytes / 1e3:.0f} kB there'
            )
        return text

    @property
    def text(self) -> str:
        """One line about memory and disk."""
        text = f'memory: {self.memory_text}; disk: at most {self.disk_bytes / GB:.1f} GB'
        if self.stored_picture_bytes:
            text += f', about {self.stored_picture_bytes / 1e3:.0f} kB of pictures a row'
        return text

    def refuse_memory(self, free: int | None = None) -> None:
        """Compares with the free memory of this machine in bytes.

        Raises:
            UserError: there is less, in GB.
        """
        free = available_memory() if free is None else free
        if self.memory_bytes > free:
            raise UserError(
                f'The rows take {self.memory_bytes / GB:.1f} GB of memory',
                f'{free / GB:.1f} GB are free',
                'Lower replay.memory_gb (older pictures are read from the disk) or'
                ' replay.window_rows',
            )


def segment_bytes(config: RunConfig) -> int:
    """Size at which the store closes a segment: few enough of them to keep all open."""
    return max(SEGMENT_BYTES, min(_old_bytes(config) // SEGMENTS, MOST_SEGMENT_BYTES))


def _stored_picture_bytes(config: RunConfig) -> int:
    away = any(cell.machine != config.replay.machine for cell in config.cells.values())
    return round(config.picture_bytes * JPEG_SHARE) if away else config.picture_bytes


def _old_bytes(config: RunConfig) -> int:
    """What the store keeps at least, beside demonstrations, before it deletes."""
    replay, row_bytes = config.replay, ROW_BYTES + _stored_picture_bytes(config)
    return max(round(replay.disk_gb * GB), replay.window_rows * row_bytes)


def available_memory() -> int:
    """Bytes that new allocations can have without swapping."""
    for line in Path('/proc/meminfo').read_text().splitlines():
        if line.startswith('MemAvailable:'):
            return int(line.split()[1]) * 1024
    raise RuntimeError('/proc/meminfo names no MemAvailable')
