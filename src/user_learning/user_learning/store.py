# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The store's writer: checksummed records appended to segment files, one writer per store.

    segment-000001.log = frame*      frame = magic (4) | payload length (4) | crc32 of payload (4)
    | payload

`write` survives `kill -9` of every process once it returns (the kernel has the bytes); a thread
syncs the disk at most `sync_s` later, for a power loss. A torn tail is cut off at the next start
and kept aside. Beyond `disk_bytes` the oldest segments are deleted that hold no demonstration and
nothing that the newest `window_rows` training rows need.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
import fcntl
import math
import os
from pathlib import Path
import threading
import zlib

from user_core.errors import UserError
from user_core.footprint import SEGMENT_BYTES
from user_core.outcome import Mode
from user_learning.filesystem import refuse_network
from user_learning.row import Label, Row, pack
from user_learning.tail import FRAME, MAGIC, Tail, segment_path, segments


@dataclass
class Segment:
    """What is known of one segment file."""

    size: int = 0
    train_rows: int = 0
    demos: bool = False


@dataclass
class Stream:
    """What is known of one incarnation of a cell: every seq below `next_seq` is stored or given up
    as lost; `early` rows wait in memory for the ones before them.
    """

    next_seq: int = 0
    early: dict[int, Row] = field(default_factory=dict)


class Store:
    """Appends rows. Not thread-safe, except that its own thread syncs.

    The rows of an incarnation are stored in the order of their seq. A row that was stored before
    is dropped; one that comes early is held, unacknowledged, until the gap before it is filled. A
    sender has at most `window_n` rows in flight, so one that is `window_n` or more ahead proves
    that the missing rows will never come: the gap is counted as lost and passed.
    """

    def __init__(
        self,
        folder: Path,
        window_n: int = 16,
        sync_s: float = 0.2,
        segment_bytes: int = SEGMENT_BYTES,
        disk_bytes: float = math.inf,
        window_rows: int = 0,
    ) -> None:
        refuse_network(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.window_n, self.segment_bytes = folder, window_n, segment_bytes
        self.disk_bytes, self.window_rows = disk_bytes, window_rows
        self.lock = os.open(folder / 'writer.lock', os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self.lock)
            raise UserError(
                f'the store {folder} is in use',
                'another process writes to it',
                'end that run, or choose another run name',
            ) from error
        self.streams: dict[tuple[str, int], Stream] = {}
        self.segments: dict[int, Segment] = {}
        self.demos: set[tuple[str, int]] = set()
        self.rows = self.duplicates = self.lost = 0
        self.refused = ''
        self.torn = 0
        self.bad = 0
        self._guard = threading.Lock()
        self._recover()
        self._sync_s, self._dirty, self._closed = sync_s, threading.Event(), threading.Event()
        self._syncer = threading.Thread(target=self._sync_loop, name='store-sync', daemon=True)
        self._syncer.start()

    def write(self, records: Iterable[Row | Label]) -> int:
        """Takes records and returns how many are new. `refused` says why the disk took none.

        After a refusal nothing of these records counts as stored; the sender keeps and resends
        them.
        """
        new = 0
        ready: list[Row | Label] = []
        for record in records:
            if isinstance(record, Row):
                stream = self.streams.setdefault((record.cell, record.incarnation), Stream())
                if record.seq < stream.next_seq or record.seq in stream.early:
                    self.duplicates += 1
                    continue
                stream.early[record.seq] = record
                ready += self._in_turn(stream)
            else:
                ready.append(record)
            new += 1
        payloads = [pack(record) for record in ready]
        data = b''.join(FRAME.pack(MAGIC, len(p), zlib.crc32(p)) + p for p in payloads)
        rows = [record for record in ready if isinstance(record, Row)]
        if ready and not self._append(data):
            for row in reversed(rows):
                self.streams[row.cell, row.incarnation].next_seq = row.seq
            return 0
        with self._guard:
            for record in ready:
                self._count(record, self._number)
        self.rows += len(rows)
        return new

    def next_seq(self, cell: str, incarnation: int) -> int:
        """The cumulative acknowledgement: rows of this incarnation below it need not be sent
        again.
        """
        return self.streams.get((cell, incarnation), _NO_STREAM).next_seq

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        with self._guard:
            return sum(segment.size for segment in self.segments.values())

    def close(self) -> None:
        """Syncs and releases the store."""
        self._closed.set()
        self._dirty.set()
        self._syncer.join()
        os.fdatasync(self._file)
        os.close(self._file)
        os.close(self.lock)

    # ------------------------------------------------------------------ means

    def _in_turn(self, stream: Stream) -> list[Row]:
        """Takes the early rows whose turn has come."""
        ready = []
        while stream.early:
            if stream.next_seq in stream.early:
                ready.append(stream.early.pop(stream.next_seq))
                stream.next_seq += 1
            elif max(stream.early) - stream.next_seq >= self.window_n:
                self.lost += min(stream.early) - stream.next_seq
                stream.next_seq = min(stream.early)
            else:
                break
        return ready

    def _append(self, data: bytes) -> bool:
        with self._guard:
            if self._size and self._size + len(data) > self.segment_bytes:
                os.fdatasync(self._file)
                os.close(self._file)
                self._open(self._number + 1)
            try:
                written = 0
                while written < len(data):
                    written += os.write(self._file, data[written:])
            except OSError as error:
                os.ftruncate(self._file, self._size)
                self.refused = f'the disk took no more rows: {error.strerror}'
                return False
            self._size += len(data)
            self.segments[self._number].size = self._size
            self.refused = ''
        self._dirty.set()
        return True

    def _count(self, record: Row | Label, number: int) -> None:
        segment, episode = self.segments[number], (record.cell, record.episode)
        if isinstance(record, Row) and record.mode == Mode.DEMO:
            self.demos.add(episode)
        elif isinstance(record, Row):
            segment.train_rows += record.mode == Mode.TRAIN
        segment.demos |= episode in self.demos

    def _prune(self) -> None:
        """Deletes the segments that nobody needs, while there are too many bytes."""
        with self._guard:
            size = sum(segment.size for segment in self.segments.values())
            newer = sum(segment.train_rows for segment in self.segments.values())
            gone = []
            for number, segment in sorted(self.segments.items())[:-1]:
                newer -= segment.train_rows
                if size <= self.disk_bytes or newer < self.window_rows:
                    break
                if not segment.demos:
                    size -= segment.size
                    gone.append(number)
            for number in gone:
                del self.segments[number]
        for number in gone:
            segment_path(self.folder, number).unlink(missing_ok=True)

    def _open(self, number: int) -> None:
        self._number = number
        self._file = os.open(
            segment_path(self.folder, number),
            os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC,
            0o644,
        )
        self._size = os.fstat(self._file).st_size
        self.segments.setdefault(number, Segment()).size = self._size
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def _recover(self) -> None:
        """Reads what is there, cuts a torn tail off and keeps it aside."""
        tail = Tail(self.folder)
        numbers = segments(self.folder)
        self.segments = {n: Segment(segment_path(self.folder, n).stat().st_size) for n in numbers}
        for record in tail.rows():
            self._count(record, tail.segment)
            if isinstance(record, Row):
                stream = self.streams.setdefault((record.cell, record.incarnation), Stream())
                stream.next_seq = record.seq + 1
                self.rows += 1
        self.bad = tail.bad
        if numbers:
            last = segment_path(self.folder, numbers[-1])
            size = last.stat().st_size
            end = tail.offset if tail.segment == numbers[-1] else size
            if size > end:
                self.torn = size - end
                with last.open('rb+') as file:
                    file.seek(end)
                    aside = last.with_suffix(f'.torn-{end}')
                    aside.write_bytes(file.read())
                    file.truncate(end)
                    os.fsync(file.fileno())
        self._open(numbers[-1] if numbers else 1)

    def _sync_loop(self) -> None:
        while not self._closed.is_set():
            self._dirty.wait()
            self._closed.wait(self._sync_s / 2)
            self._dirty.clear()
            with self._guard:
                file = os.dup(self._file)
            try:
                os.fdatasync(file)
                self._prune()
            except OSError as error:
                self.refused = f'the disk could not be synced or cleared: {error.strerror}'
            finally:
                os.close(file)


_NO_STREAM = Stream()
