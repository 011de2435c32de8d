# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a learner draws from: a store's rows in a window of memory, and batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from user_core.config import RunConfig
from user_core.errors import UserError
from user_core.footprint import Footprint
from user_learning.hindsight import ENCODED_AT_ONCE, RowEncoder
from user_learning.networks import Spec
from user_learning.row import Label, Row
from user_learning.rows import Rows
from user_learning.sampler import Sampler
from user_learning.tail import Place, Tail, segments

Tell = Callable[[], object]


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
        self.encoder, self.tail = encoder, Tail(self.store)
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

    def read(self, until: Place | None = None, tell: Tell = _nobody) -> None:
        """Takes new rows in, up to a place in the store, and calls `tell` now and then."""
        new = _rows(self.tail.rows(until=until), tell)
        for row in self.encoder.encode(new, self.rows.refuse) if self.encoder else new:
            self.rows.add(row)

    def read_again(self, place: Place, train_rows: int, tell: Tell = _nobody) -> None:
        """Reads, from its beginning, a store that has given this many training rows up to `place`.

        Those of segments that are gone count, too. Raises UserError: it ends before `place`.
        """
        self.read(place, tell)
        if self.tail.place < place and segments(self.store)[-1:] <= [place[0]]:
            raise UserError(
                f'the store ends at byte {self.tail.offset} of segment {self.tail.segment} and has'
                f' held more: byte {place[1]} of segment {place[0]}',
                'a learner that goes on without its rows forgets what it knew',
                'bring the store back, or start a new run',
            )
        self.rows.counted = train_rows - self.rows.online.added
        self.read(tell=tell)

    def stored(self, tell: Tell = _nobody) -> Iterator[Row]:
        """All rows that the store holds now, of every kind."""
        return _rows(Tail(self.store).rows(), tell)


def _rows(records: Iterable[Row | Label], tell: Tell) -> Iterator[Row]:
    for k, record in enumerate(records):
        if k % ENCODED_AT_ONCE == 0:
            tell()
        if isinstance(record, Row):
            yield record
