# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a learner draws from: a store's rows in a window of memory, and batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import os
from pathlib import Path

from torch import Tensor

from user_core.config import RunConfig
from user_core.errors import UserError
from user_core.footprint import Footprint
from user_learning import tables
from user_learning.hindsight import ENCODED_AT_ONCE, RowEncoder
from user_learning.networks import Spec
from user_learning.row import Label, Row
from user_learning.rows import Rows
from user_learning.sampler import Sampler
from user_learning.tail import Place, Tail, pictures_path, segment_path, segments

Tell = Callable[[], object]
"""Called every `ENCODED_AT_ONCE` records; what it raises ends the reading."""


def _nobody() -> None:
    pass


class Experience:
    """Follows one store. Not thread-safe.

    With an `encoder` the window holds what it made of a row, else its raw state and its pictures.
    """

    encoder: RowEncoder | None
    tail: Tail
    rows: Rows
    sample: Sampler

    def __init__(self, config: RunConfig, spec: Spec, store: Path) -> None:
        self.config, self.spec, self.store = config, spec, store
        self.footprint = Footprint.of(config, spec.input_n)
        self.footprint.refuse_memory()
        self.begin(None)

    def begin(self, encoder: RowEncoder | None) -> None:
        """Empties the window and goes back to the store's first row."""
        config, spec, algorithm = self.config, self.spec, self.config.algorithm
        self.tail = Tail(self.store)
        self.rows = Rows(
            config.replay.window_rows,
            spec.input_n if encoder else spec.state_n,
            spec.action_n,
            algorithm.gamma,
            algorithm.n_step,
            views={} if spec.taught else spec.views,
            frames=self.footprint.frames,
            store=self.store,
        )
        pin = config.learner.device == 'cuda'
        self.sample = Sampler(
            self.rows, algorithm.batch, algorithm.demo_fraction, config.seed, pin
        )
        self.encoder = encoder
        self.tail.pictures = encoder is not None if spec.taught else bool(spec.views)

    def read(self, until: Place | None = None, tell: Tell = _nobody) -> None:
        """Takes new rows in, up to a place in the store."""
        new = _rows(self.tail.rows(until=until), tell)
        for row in self.encoder.encode(new, self.rows.refuse) if self.encoder else new:
            self.rows.add(row)

    def encode_again(self, encoder: RowEncoder, tell: Tell = _nobody) -> None:
        """Reads the rows of the window anew from the store, through another encoder."""
        rows, place = self.rows, self.tail.place
        self.begin(encoder)
        for row in encoder.encode(self.held(rows, place, tell), self.rows.refuse):
            self.rows.add(row)
        self.tail.segment, self.tail.offset = place
        self.rows.counted = rows.train_rows - self.rows.online.added
        self.rows.refused, self.rows.last_refused = rows.refused, rows.last_refused

    def held(self, rows: Rows, place: Place, tell: Tell = _nobody) -> Iterator[Row]:
        """Those of `rows` as the store has them, pictures and all; they lie before `place`. What
        else it has, another learner may find deleted.
        """
        return (row for row in _rows(Tail(self.store).rows(until=place), tell) if row in rows)

    def restore(
        self,
        place: Place,
        counts: Mapping[str, int],
        tensors: Mapping[str, Tensor],
        cells: list[str],
    ) -> None:
        """Fills the window as it was at a checkpoint's place. Raises UserError: a segment with
        pictures of its rows is gone.
        """
        self.tail.segment, self.tail.offset = place
        try:
            tables.take_in(self.rows, tensors, cells)
        except FileNotFoundError as error:
            raise UserError(
                'the store has lost pictures of rows to learn from',
                str(error),
                f'bring {self.store} back as it was, or start a new run',
            ) from error
        self.rows.demo_episodes = counts['demos']
        self.rows.newest_version = counts['newest_version']
        self.rows.counted = counts['train_rows'] - self.rows.online.added

    def refuse_lost(self, place: Place) -> None:
        """Compares the store's end with a place that a checkpoint names. Raises UserError: it is
        before it.
        """
        newest = segments(self.store)[-1:]
        end = (newest[0], segment_path(self.store, newest[0]).stat().st_size) if newest else (0, 0)
        if end < place:
            raise UserError(
                f'the store ends at byte {end[1]} of segment {end[0]}, the checkpoint is of byte'
                f' {place[1]} of segment {place[0]}',
                'a learner that goes on without its rows forgets what it knew',
                f'bring {self.store} back as it was, or start a new run',
            )

    def sync(self) -> None:
        """Brings what was read to the disk, so that no checkpoint outlives rows that it counts.
        Older segments were synced when they were closed. Raises OSError.
        """
        number = self.tail.segment
        for path in (pictures_path(self.store, number), segment_path(self.store, number)):
            with contextlib.suppress(FileNotFoundError):
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fdatasync(file)
                finally:
                    os.close(file)


def _rows(records: Iterable[Row | Label], tell: Tell) -> Iterator[Row]:
    for k, record in enumerate(records):
        if k % ENCODED_AT_ONCE == 0:
            tell()
        if isinstance(record, Row):
            yield record
