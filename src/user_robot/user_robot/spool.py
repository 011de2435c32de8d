# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Rows on their way to replay: on disk from the moment they exist until replay has them.

The disk is the buffer: a row is written (not synced: it survives the death of every process)
before it is sent, and read back when it has to be sent again. What a killed process left is found
by the next one.

    <folder>/<incarnation>-<first seq>.spool    records: magic, size, crc32, seq, the row's bytes
    <folder>/<incarnation>.acked                next seq that replay lacks, uint64 little endian
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
import os
from pathlib import Path
import struct
import time
import zlib

from user_core.errors import UserError

_HEAD = struct.Struct('<4sIIQ')
_MAGIC = b'ROW1'
_CURSOR = struct.Struct('<Q')
WINDOW = 16
"""Rows in flight at most, as deep as the transition topic's queue."""
RESEND_S = 1.0
"""Rows in flight without an answer for this long (steady clock) are sent again."""
SEGMENT_BYTES = 1 << 23
"""A file is followed by the next one at this size and deleted when replay has all its rows."""


@dataclass(slots=True)
class _Segment:
    path: Path
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Waiting:
    incarnation: int
    seq: int
    segment: _Segment
    offset: int
    size: int


class Spool:
    """First in, first out, at most WINDOW rows in flight. One thread.

    Args:
        folder: of this cell alone.
        incarnation: names this process's sequence; larger than any before it.
        send: takes a row's bytes; may lose them.
    """

    def __init__(
        self,
        folder: Path,
        incarnation: int,
        send: Callable[[bytes], None],
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.incarnation, self._send, self._steady = folder, incarnation, send, steady
        self.seq = 0
        self.in_flight = 0
        self.resent = 0
        self.damaged = 0
        self._waiting: deque[_Waiting] = deque()
        self._cursors: dict[int, int] = {}
        self._moved_s = steady()
        self._segment: _Segment | None = None
        self._file = -1
        folder.mkdir(parents=True, exist_ok=True)
        self._load()

    def __len__(self) -> int:
        """Rows that replay has not acknowledged."""
        return len(self._waiting)

    def put(self, row: bytes) -> None:
        """Keeps the row that carries the present `seq`, and sends it when there is room."""
        segment = self._segment
        if segment is None or segment.size > SEGMENT_BYTES:
            segment = self._segment = self._open()
        head = _HEAD.pack(_MAGIC, len(row), zlib.crc32(row), self.seq)
        try:
            written = os.writev(self._file, (head, row))
        except OSError as error:
            raise self._full(error) from error
        if written != len(head) + len(row):
            os.ftruncate(self._file, segment.size)
            raise self._full(OSError('the disk took only a part of the row'))
        offset = segment.size + _HEAD.size
        self._waiting.append(_Waiting(self.incarnation, self.seq, segment, offset, len(row)))
        segment.size += written
        segment.rows += 1
        self.seq += 1
        if self.in_flight == len(self._waiting) - 1 and self.in_flight < WINDOW:
            if not self.in_flight:
                self._moved_s = self._steady()
            self.in_flight += 1
            self._send(row)

    def acknowledge(self, incarnation: int, next_seq: int) -> None:
        """Replay has every row of the incarnation below `next_seq`."""
        if next_seq <= self._cursors.get(incarnation, 0):
            return
        done = False
        while self._waiting and self._waiting[0].incarnation == incarnation:
            if self._waiting[0].seq >= next_seq:
                break
            self._release(self._waiting.popleft())
            self.in_flight = max(0, self.in_flight - 1)
            done = True
        if done:
            self._cursors[incarnation] = next_seq
            self._remember(incarnation, next_seq)
            self._moved_s = self._steady()
        self._fill()

    def poll(self) -> None:
        """Sends again what was not answered; about once a second, not from the control tick."""
        if self.in_flight and self._steady() - self._moved_s > RESEND_S:
            self.resend()
        else:
            self._fill()

    def resend(self) -> None:
        """A new replay is there: everything in flight is sent again, oldest first."""
        self.resent += self.in_flight
        self.in_flight = 0
        self._moved_s = self._steady()
        self._fill()

    def close(self) -> None:
        """Closes the file; rows that replay lacks stay on disk for the next process."""
        if self._segment is not None:
            os.close(self._file)
            if not self._segment.rows:
                self._segment.path.unlink(missing_ok=True)
        self._waiting.clear()
        self._segment = None

    # ------------------------------------------------------------------ disk

    def _fill(self) -> None:
        while self.in_flight < min(WINDOW, len(self._waiting)):
            waiting = self._waiting[self.in_flight]
            self.in_flight += 1
            with waiting.segment.path.open('rb', buffering=0) as file:
                self._send(os.pread(file.fileno(), waiting.size, waiting.offset))

    def _open(self) -> _Segment:
        if self._segment is not None:
            os.close(self._file)
        path = self.folder / f'{self.incarnation}-{self.seq}.spool'
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return _Segment(path, 0, 0)

    def _release(self, waiting: _Waiting) -> None:
        segment = waiting.segment
        segment.rows -= 1
        if segment.rows == 0 and (segment is not self._segment or segment.size > SEGMENT_BYTES):
            segment.path.unlink(missing_ok=True)
            if segment is self._segment:
                os.close(self._file)
                self._segment = None

    def _remember(self, incarnation: int, next_seq: int) -> None:
        path = self.folder / f'{incarnation}.acked'
        if (
            not any(w.incarnation == incarnation for w in self._waiting)
            and incarnation != self.incarnation
        ):
            path.unlink(missing_ok=True)
            return
        with path.open('r+b' if path.exists() else 'wb') as file:
            file.write(_CURSOR.pack(next_seq))

    def _load(self) -> None:
        """Finds what earlier processes left, oldest first; a record torn by a kill is skipped."""
        left = self.folder.glob('*-*.spool')
        for path in sorted(left, key=lambda path: tuple(map(int, path.stem.split('-')))):
            incarnation = int(path.stem.split('-')[0])
            cursor = self.folder / f'{incarnation}.acked'
            known = self._known(cursor)
            self._cursors[incarnation] = known
            self._read(path, incarnation, known)
        alive = {w.incarnation for w in self._waiting}
        for cursor in self.folder.glob('*.acked'):
            if int(cursor.stem) not in alive:
                cursor.unlink()

    def _read(self, path: Path, incarnation: int, known: int) -> None:
        data = path.read_bytes()
        segment = _Segment(path, len(data), 0)
        at = 0
        while at + _HEAD.size <= len(data):
            magic, size, crc, seq = _HEAD.unpack_from(data, at)
            body = data[at + _HEAD.size : at + _HEAD.size + size]
            if magic != _MAGIC or len(body) < size or zlib.crc32(body) != crc:
                self.damaged += 1
                at = data.find(_MAGIC, at + 1)
                if at < 0:
                    break
                continue
            if seq >= known:
                self._waiting.append(_Waiting(incarnation, seq, segment, at + _HEAD.size, size))
                segment.rows += 1
            at += _HEAD.size + size
        if not segment.rows:
            path.unlink()

    def _known(self, cursor: Path) -> int:
        data = cursor.read_bytes() if cursor.exists() else b''
        return int(_CURSOR.unpack(data)[0]) if len(data) == _CURSOR.size else 0

    def _full(self, error: OSError) -> UserError:
        return UserError(
            f'a row could not be written to {self.folder}',
            f'{error.strerror or error}',
            'free some space; the cell stops, nothing that was written is lost',
        )
