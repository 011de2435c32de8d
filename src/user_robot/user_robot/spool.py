# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Rows on their way to replay: on disk from the moment they exist until replay has them.

The disk is the buffer: a row is written (not synced: it survives the death of every process, not
of the machine) before it is sent, and read back when it has to be sent again. What a killed
process left is found by the next one. A row that the disk does not take stays in memory, in its
place; `full` says why until the disk takes rows again, which `poll` finds out.

    <folder>/<incarnation>-<first seq>.spool    records: magic, size, crc32, seq, the row's bytes

How far replay has come is replay's to know: a new process sends the first rows that it finds, and
the cumulative answer tells which of all are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
import errno
import os
from pathlib import Path
import struct
import time
import zlib

_HEAD = struct.Struct('<4sIIQ')
_MAGIC = b'ROW1'
WINDOW = 16
"""Rows in flight at most, as deep as the transition topic's queue."""
RESEND_S, RESEND_MOST_S = 1.0, 4.0
"""Rows in flight without an answer for this long (steady clock) are sent again; each time in vain
doubles it, so that a slow disk on the other side is not made slower.
"""
SEGMENT_BYTES = 1 << 23
"""A file is followed by the next one at this size and deleted when replay has all its rows."""
ROOM_BYTES = SEGMENT_BYTES
"""A disk that was full takes rows again when there is room for so much."""


@dataclass(slots=True)
class _Segment:
    path: Path
    size: int
    rows: int


@dataclass(slots=True)
class _Waiting:
    """A row that replay lacks: on disk, or, without a segment, in memory."""

    incarnation: int
    seq: int
    size: int
    segment: _Segment | None = None
    offset: int = 0
    row: bytes = b''


class Spool:
    """First in, first out, at most WINDOW rows in flight. One thread.

    In memory: about 150 bytes for each row on disk, and whole rows while the disk is full.

    Args:
        folder: of this cell alone.
        incarnation: names this process's sequence; larger than any before it.
        send: takes a row's bytes; may lose them.

    Attributes:
        full: why the disk takes no rows, one sentence with what to do; '' while it does.
        damaged: records that were torn by a kill or do not match their checksum, and rows behind
            one that replay can never take; those are left in `*.aside`.
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
        self.full = ''
        self._waiting: deque[_Waiting] = deque()
        self._moved_s, self._patience_s = steady(), RESEND_S
        self._segment: _Segment | None = None
        self._file = -1
        self._load()
        self._has_room()

    def __len__(self) -> int:
        """Rows that replay has not acknowledged."""
        return len(self._waiting)

    @property
    def in_memory(self) -> int:
        """Rows that no disk has: a kill would lose them."""
        return sum(w.segment is None for w in self._waiting)

    def put(self, row: bytes) -> None:
        """Keeps the row that carries the present `seq`, and sends it when there is room. A full
        disk is told by `full` alone.
        """
        waiting = _Waiting(self.incarnation, self.seq, len(row), row=row)
        self.seq += 1
        self._waiting.append(waiting)
        if not self.full:
            self._write(waiting)
        if self.in_flight == len(self._waiting) - 1 and self.in_flight < WINDOW:
            if not self.in_flight:
                self._moved_s, self._patience_s = self._steady(), RESEND_S
            self.in_flight += 1
            self._send(row)

    def acknowledge(self, incarnation: int, next_seq: int) -> None:
        """Replay has every row of the incarnation below `next_seq`."""
        first = self._waiting[0] if self._waiting else None
        if first is None or first.incarnation != incarnation:
            return
        if next_seq < first.seq and incarnation != self.incarnation:
            self._give_up(incarnation, next_seq)
        while self._waiting and self._waiting[0].incarnation == incarnation:
            if self._waiting[0].seq >= next_seq:
                break
            self._release()
            self._moved_s, self._patience_s = self._steady(), RESEND_S
        self._fill()

    def poll(self) -> None:
        """Sends again what was not answered and tries a full disk again; about once a second, not
        from the control tick.
        """
        if self.full and all(self._write(w) for w in self._waiting if w.segment is None):
            self._has_room()
        if self.in_flight and self._steady() - self._moved_s > self._patience_s:
            self._patience_s = min(2 * self._patience_s, RESEND_MOST_S)
            self._moved_s = self._steady()
            self.resent += self.in_flight
            self.in_flight = 0
        self._fill()

    def close(self) -> int:
        """Closes the file; rows that replay lacks stay on disk for the next process. Returns how
        many no disk took: they are lost.
        """
        lost = sum(not self._write(w) for w in self._waiting if w.segment is None)
        if self._segment is not None:
            os.close(self._file)
            if not self._segment.rows:
                self._segment.path.unlink(missing_ok=True)
        self._waiting.clear()
        self._segment = None
        return lost

    # ------------------------------------------------------------------ sending

    def _fill(self) -> None:
        while self.in_flight < min(WINDOW, len(self._waiting)):
            waiting = self._waiting[self.in_flight]
            self.in_flight += 1
            if waiting.segment is None:
                self._send(waiting.row)
                continue
            with waiting.segment.path.open('rb', buffering=0) as file:
                self._send(os.pread(file.fileno(), waiting.size, waiting.offset))

    def _release(self) -> None:
        """The oldest row is not needed any more."""
        segment = self._waiting.popleft().segment
        self.in_flight = max(0, self.in_flight - 1)
        if segment is None:
            return
        segment.rows -= 1
        if segment.rows:
            return
        if segment is not self._segment:
            segment.path.unlink(missing_ok=True)
            return
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            segment.size = 0

    def _give_up(self, incarnation: int, next_seq: int) -> None:
        """Replay waits for a row that an earlier process lost by damage. It passes such a gap when
        WINDOW rows lie behind it; fewer would wait for ever, and all others behind them.
        """
        rows = [w for w in self._waiting if w.incarnation == incarnation]
        if rows[-1].seq - next_seq >= WINDOW:
            return
        self.damaged += len(rows)
        for path in {w.segment.path for w in rows if w.segment}:
            path.rename(path.with_suffix('.aside'))
        for _ in rows:
            self._release()

    # ------------------------------------------------------------------ disk

    def _write(self, waiting: _Waiting) -> bool:
        """Puts a row of this process on disk, where the last one ends; False when it is full."""
        row = waiting.row
        head = _HEAD.pack(_MAGIC, len(row), _crc(row, waiting.seq), waiting.seq)
        segment = self._segment
        try:
            if segment is None or segment.size > SEGMENT_BYTES:
                segment = self._open(waiting.seq)
            written = os.pwritev(self._file, (head, row), segment.size)
            if written < len(head) + len(row):
                with suppress(OSError):  # a part that stays is overwritten by the next row
                    os.ftruncate(self._file, segment.size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._refused(error)
            return False
        waiting.segment, waiting.offset, waiting.row = segment, segment.size + _HEAD.size, b''
        segment.size += written
        segment.rows += 1
        return True

    def _open(self, seq: int) -> _Segment:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f'{self.incarnation}-{seq}.spool'
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if self._segment is not None:
            os.close(self._file)
        self._file, self._segment = file, _Segment(path, 0, 0)
        return self._segment

    def _has_room(self) -> None:
        """Sets `full` by what the disk gives, now."""
        probe = self.folder / 'room'
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with probe.open('wb') as file:
                os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
            self.full = ''
        except OSError as error:
            self._refused(error)
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)

    def _refused(self, error: OSError) -> None:
        room = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        self.full = (
            f'{self.folder} takes no rows ({error.strerror}): '
            f'{"free some space there" if room else "look at that disk"}, '
            'and it goes on by itself'
        )

    def _load(self) -> None:
        """Finds what earlier processes left, oldest first; a record torn by a kill is skipped."""
        left = self.folder.glob('*-*.spool')
        for path in sorted(left, key=lambda path: tuple(map(int, path.stem.split('-')))):
            self._read(path, int(path.stem.split('-')[0]))

    def _read(self, path: Path, incarnation: int) -> None:
        data = path.read_bytes()
        segment = _Segment(path, len(data), 0)
        at = 0
        while 0 <= at < len(data):
            head = data[at : at + _HEAD.size].ljust(_HEAD.size)
            magic, size, crc, seq = _HEAD.unpack(head)
            body = data[at + _HEAD.size : at + _HEAD.size + size]
            if magic != _MAGIC or len(body) < size or _crc(body, seq) != crc:
                self.damaged += 1
                at = data.find(_MAGIC, at + 1)
                continue
            offset = at + _HEAD.size
            self._waiting.append(_Waiting(incarnation, seq, size, segment, offset))
            segment.rows += 1
            at = offset + size
        if not segment.rows:
            path.unlink()


def _crc(row: bytes, seq: int) -> int:
    """Checksum of the row and its seq."""
    return zlib.crc32(row, seq & 0xFFFFFFFF)
