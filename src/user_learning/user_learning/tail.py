# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a store from its first record and goes on as it grows; any number of readers, no locks.

A record whose bytes are not all there, or whose checksum is wrong, is waited for. It is set aside
and counted when it will never come: a later frame, or a later segment, says that it had been
synced. Files only grow, except that a new writer cuts off a torn tail, which no reader has passed,
and that old segments are deleted, which a reader passes over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import FileIO
import os
from pathlib import Path
from typing import NamedTuple
import zlib

import numpy as np

from user_learning.frame import marks, parse
from user_learning.row import BadRecordError, Label, Row, unpack

CHUNK = 1 << 20
"""Bytes of a log that are read at once, if no record is longer and none is damaged."""
_ALL = -1


def segment_path(folder: Path, number: int) -> Path:
    """The log of a segment: its records without pictures."""
    return folder / f'segment-{number:06d}.log'


def pictures_path(folder: Path, number: int) -> Path:
    """The bytes of the pictures of a segment."""
    return folder / f'segment-{number:06d}.pix'


def segments(folder: Path) -> list[int]:
    """Numbers of the segments that exist, in order."""
    return sorted(int(path.stem.partition('-')[2]) for path in folder.glob('segment-*.log'))


Place = tuple[int, int]
"""Segment and byte in its log; places of one store compare in the order of its records."""


class Damage(NamedTuple):
    """A record that was set aside: bytes of a segment's log, and why."""

    segment: int
    begin: int
    end: int
    why: str

    def __str__(self) -> str:
        name, size = segment_path(Path(), self.segment).name, self.end - self.begin
        return f'{name} byte {self.begin}: {size} bytes were left out: {self.why}'


class DamageError(BadRecordError):
    """Bytes of a record or of its pictures are not what was written."""


class Tail:
    """A place in a store. `rows` yields what is new since the last call and then returns.

    Pictures are read and checked while `pictures` is true. `tell` gets what is set aside.
    """

    def __init__(
        self, folder: Path, pictures: bool = True, tell: Callable[[Damage], object] | None = None
    ) -> None:
        self.folder, self.pictures, self.tell = folder, pictures, tell
        self.segment = 0
        self.offset = 0
        self.bad = 0
        self.last_bad = ''
        self.records = 0

    @property
    def place(self) -> Place:
        """The end of what was read."""
        return self.segment, self.offset

    def rows(self, limit: int | None = None, until: Place | None = None) -> Iterator[Row | Label]:
        """Records not read yet, `limit` at most, none that begins at or after `until`; the place
        moves on with each one that is yielded.
        """
        left = -1 if limit is None else limit
        while left:
            # A writer opens the next segment only after all of this one is synced, so what is
            # missing here when the next one exists will never come.
            following = self._following()
            for record in self._segment_rows(following is not None, until):
                yield record
                left -= 1
                if not left:
                    return
            if following is None or (until is not None and (following, 0) > until):
                return
            self.segment, self.offset = following, 0

    def _following(self) -> int | None:
        """The number of the next segment; None when this one is the newest."""
        if self.segment and segment_path(self.folder, self.segment + 1).exists():
            return self.segment + 1
        return next((n for n in segments(self.folder) if n > self.segment), None)

    def _segment_rows(self, final: bool, until: Place | None) -> Iterator[Row | Label]:
        try:
            with (
                segment_path(self.folder, self.segment).open('rb', buffering=0) as log,
                _Pictures(pictures_path(self.folder, self.segment)) as pictures,
            ):
                yield from self._records(log, pictures, final, until)
        except FileNotFoundError:  # none yet, or it was deleted
            return

    def _records(
        self, log: FileIO, pictures: _Pictures, final: bool, until: Place | None
    ) -> Iterator[Row | Label]:
        begin, data, more = self._read(log, CHUNK)
        while until is None or self.place < until:
            record, size = parse(data, self.offset - begin)
            if record is None and more:
                begin, data, more = self._read(log, CHUNK if self.offset > begin else _ALL)
                continue
            try:
                if record is None:
                    raise DamageError('its checksum is wrong')
                load = pictures.load if self.pictures else None
                row = unpack(record, self.segment, load) if record else None
            except BadRecordError as error:
                if isinstance(error, DamageError):
                    begin, data, more = self._read(log, _ALL)
                    later = list(marks(data))
                    if not data or not (final or any(mark > begin for _, mark in later)):
                        return
                    if record is None:
                        size = later[0][0] if later else len(data)
                if size:  # else it was only on its way, and has come
                    self._set_aside(size, str(error))
                continue
            self.offset += size
            if row is not None:
                self.records += 1
                yield row

    def _read(self, log: FileIO, size: int) -> tuple[int, bytes, bool]:
        """Bytes from the place on: where they begin, they, and whether there may be more."""
        log.seek(self.offset)
        data = log.read(size) or b''
        return self.offset, data, len(data) == size

    def _set_aside(self, size: int, why: str) -> None:
        damage = Damage(*self.place, self.offset + size, why)
        self.bad += 1
        self.last_bad = str(damage)
        self.offset += size
        if self.tell is not None:
            self.tell(damage)


class _Pictures:
    """Reads the pictures of a segment. The file is opened for the first one."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, -1

    def __enter__(self) -> _Pictures:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file >= 0:
            os.close(self.file)

    def load(self, at: int, size: int, crc: int) -> np.ndarray:
        """Raises DamageError, or FileNotFoundError: the segment was deleted."""
        if self.file < 0:
            try:
                self.file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                if not self.path.with_suffix('.log').exists():
                    raise
                raise DamageError(f'{self.path.name} is missing') from None
        data = os.pread(self.file, size, at)
        if len(data) != size or zlib.crc32(data) != crc:
            raise DamageError('the checksum of a picture is wrong')
        return np.frombuffer(data, np.uint8)
