# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a store from its first record and goes on as it grows; any number of readers, no locks.

A frame whose bytes are not all there is waited for; one whose checksum is wrong and that has bytes
behind it is skipped and counted. Files only grow, except that a new writer cuts off a torn tail,
which no reader has passed, and that old segments are deleted, which a reader passes over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import struct
import zlib

from user_learning.row import BadRecordError, Label, Row, unpack

FRAME = struct.Struct('<4sII')
MAGIC = b'USR1'


def segment_path(folder: Path, number: int) -> Path:
    """File of one segment."""
    return folder / f'segment-{number:06d}.log'


def segments(folder: Path) -> list[int]:
    """Numbers of the segments that exist, in order."""
    return sorted(int(path.stem.partition('-')[2]) for path in folder.glob('segment-*.log'))


Place = tuple[int, int]
"""Segment and byte in it; places of one store compare in the order of its records."""


class Tail:
    """A place in a store. `rows` yields what is new since the last call and then returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
            # A writer opens the next segment only after the last frame of this one is complete, so
            # what is missing here when the next one exists will never come.
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
            with segment_path(self.folder, self.segment).open('rb') as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:  # none yet, or it was deleted
            return
        start, at = self.offset, 0
        while at < len(data) and (until is None or self.place < until):
            payload, end = _frame(data, at)
            if payload is None:
                # Look for the next good frame. Without one this is the tail: wait, or end when
                # nothing follows.
                end = _resync(data, at + 1)
                if end < 0:
                    if final:
                        self._set_aside(at + start, 'its checksum is wrong')
                        self.offset = start + len(data)
                    return
                self._set_aside(at + start, 'its checksum is wrong')
                at = end
                self.offset = start + at
                continue
            at = end
            self.offset = start + at
            try:
                record = unpack(payload, (self.segment, self.offset - len(payload)))
            except BadRecordError as error:
                self._set_aside(self.offset, str(error))
                continue
            self.records += 1
            yield record

    def _set_aside(self, offset: int, why: str) -> None:
        self.bad += 1
        self.last_bad = f'record at byte {offset} of segment {self.segment} was left out: {why}'


def _frame(data: bytes, at: int) -> tuple[memoryview | None, int]:
    """Payload of the frame at `at` and the end of it; None when it is incomplete or wrong."""
    if at + FRAME.size > len(data):
        return None, -1
    magic, length, crc = FRAME.unpack_from(data, at)
    end = at + FRAME.size + length
    if magic != MAGIC or end > len(data):
        return None, -1
    payload = memoryview(data)[at + FRAME.size : end]
    return (payload, end) if zlib.crc32(payload) == crc else (None, -1)


def _resync(data: bytes, at: int) -> int:
    """Start of the next complete frame at or after `at`, or -1."""
    at = data.find(MAGIC, at)
    while at >= 0 and _frame(data, at)[0] is None:
        at = data.find(MAGIC, at + 1)
    return at
