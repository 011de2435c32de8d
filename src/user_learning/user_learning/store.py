# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The store's writer: checksummed records appended to segments, one writer per store.

    segment-000001.log   rows and labels, as frames        segment-000001.pix   their pictures

`write` appends; a thread syncs the disk soon after, and only then does `next_seq` say that rows
are stored: they survive a power loss, and `kill -9` of every process. A torn tail is cut off at
the next start and kept aside; `damage.log` tells of it. Beyond `disk_bytes` the oldest segments
are deleted that hold no demonstration and nothing that a learner needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
import contextlib
import errno
import math
import os
from pathlib import Path
import threading
import time

from user_core.errors import UserError
from user_core.footprint import GB, SEGMENT_BYTES
from user_learning.filesystem import lock, refuse_network
from user_learning.inventory import Inventory
from user_learning.recovery import Recovery
from user_learning.row import Label, Row
from user_learning.segment import Segment
from user_learning.stream import Stream
from user_learning.tail import Place, pictures_path, segment_path

GATHER_S = 0.02
"""What comes within this time shares a sync."""

AGAIN_S = 1.0
"""Time between two tries to sync a full disk, and between two looks for segments to delete."""

LABELS_N = 1024
"""Labels that wait for room on the disk at most."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors that room on the disk mends."""

Key = tuple[str, int]
"""Cell and incarnation."""


def _no_learner() -> Place:
    return 1 << 62, 0


def _nobody() -> None:
    pass


class Store:
    """Appends rows. Not thread-safe, except that its own thread syncs.

    The rows of an incarnation are stored once each and in the order of their seq (`Stream`); a row
    that was stored before is dropped. `refused` says why the disk takes nothing now, '' when it
    does; what it refused waits in memory, unacknowledged, and `retry` tries again. At most
    `window_n` rows of an incarnation wait: what comes beyond is dropped and counted, its sender
    has it.

    Args:
        held: the place from which a learner that is started anew would read on; None when it would
            begin with the first row. The `window_rows` training rows before it are needed, too.
        told: called in the syncing thread after `next_seq` or `failure` changed.
        fdatasync: makes what was written to a file descriptor durable.

    Raises:
        UserError: the store is in use, or lies on another machine's file system, or the disk
            failed.
    """

    def __init__(
        self,
        folder: Path,
        window_n: int = 16,
        segment_bytes: int = SEGMENT_BYTES,
        disk_bytes: float = math.inf,
        window_rows: int = 0,
        held: Callable[[], Place | None] = _no_learner,
        told: Callable[[], None] = _nobody,
        fdatasync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        refuse_network(folder)
        self.folder, self.window_n, self.segment_bytes = folder, window_n, segment_bytes
        self.disk_bytes, self.window_rows = disk_bytes, window_rows
        self.held, self.told, self._fdatasync = held, told, fdatasync
        self.streams: dict[Key, Stream] = {}
        self.inventory = Inventory()
        self.rows = self.duplicates = self.dropped = self.bad = 0
        self.damage: list[str] = []
        self.sync_s = 0.0
        self.failure: Exception | None = None
        self.crowded = ''
        self._full = self._unsynced = ''
        self._labels: deque[Label] = deque()
        self._moved: dict[Key, int] = {}
        self._lock = -1
        self._segment: Segment | None = None
        self._guard, self._disk = threading.Lock(), threading.Lock()
        self._dirty, self._closed = threading.Event(), threading.Event()
        self._syncer = threading.Thread(target=self._keep_synced, name='store-sync', daemon=True)
        self._open()

    # ------------------------------------------------------------------ use

    def write(self, records: Iterable[Row | Label]) -> int:
        """Takes records and returns how many are new. Raises `failure`: the disk has failed."""
        new = 0
        for record in records:
            if self.failure is not None:
                raise self.failure
            if isinstance(record, Row):
                new += self._take_row(record)
            else:
                new += self._take_label(record)
        return new

    def retry(self) -> None:
        """Stores what waits for room on the disk."""
        if self._segment is None:
            self._open()
        for key in list(self.streams):
            self._store_rows(key)
        self._store_labels()

    def next_seq(self, cell: str, incarnation: int) -> int:
        """The cumulative acknowledgement: rows of this incarnation below it are on the disk and
        need not be sent again.
        """
        stream = self.streams.get((cell, incarnation))
        return stream.synced if stream is not None else 0

    @property
    def refused(self) -> str:
        """Why the disk takes nothing."""
        return self._unsynced or self._full

    @property
    def lost(self) -> int:
        """Rows that never came."""
        return sum(stream.lost for stream in self.streams.values())

    @property
    def waiting(self) -> int:
        """Rows and labels that are in memory alone."""
        return sum(map(len, self.streams.values())) + len(self._labels)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self.inventory.size

    def sync(self) -> bool:
        """Returns when all that was written is on the disk and `next_seq` says so, which happens
        by itself, too; False when the disk refused. Thread-safe.
        """
        with self._disk:
            if self._segment is None:
                return False
            with self._guard:
                moved, self._moved = self._moved, {}
            begun = time.monotonic()
            try:
                self._segment.sync()
                self._unsynced = ''
                for key, next_seq in moved.items():
                    self.streams[key].synced = next_seq
            except OSError as error:
                self._unsynced = self._why(error, 'could not be synced')
                with self._guard:
                    self._moved = moved | self._moved
            self.sync_s = time.monotonic() - begun
        self.told()
        return not self._unsynced

    def close(self) -> None:
        """Syncs what was written and releases the store; `next_seq` then says what is kept."""
        self._closed.set()
        self._dirty.set()
        if self._syncer.ident is not None:
            self._syncer.join()
        if self._segment is not None:
            self.sync()
            self._prune()
            self._segment.end_with_mark()
            self._segment.close()
            self._segment = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # ------------------------------------------------------------------ write

    def _take_row(self, row: Row) -> bool:
        if self._segment is None:
            return False
        key = row.cell, row.incarnation
        stream = self.streams.setdefault(key, Stream(self.window_n))
        if row in stream:
            self.duplicates += 1
            return False
        if not stream.take(row):
            self.dropped += 1
            return False
        before = stream.next_seq
        self._store_rows(key)
        if before < self.window_n <= stream.next_seq:
            # The sender has a whole window of its own in flight: the one before it is done.
            for (cell, incarnation), other in list(self.streams.items()):
                if cell == row.cell and incarnation < row.incarnation:
                    other.over = True
                    self._store_rows((cell, incarnation))
        return True

    def _take_label(self, label: Label) -> bool:
        if len(self._labels) >= LABELS_N:
            self.dropped += 1
            return False
        self._labels.append(label)
        self._store_labels()
        return True

    def _store_rows(self, key: Key) -> None:
        stream = self.streams[key]
        while (row := stream.first()) is not None and self._append(row):
            stream.written()
            self.rows += 1
            with self._guard:
                self._moved[key] = stream.next_seq
            self._dirty.set()

    def _store_labels(self) -> None:
        while self._labels and self._append(self._labels[0]):
            self._labels.popleft()
            self._dirty.set()

    def _append(self, record: Row | Label) -> bool:
        if self._segment is None or self._unsynced:
            return False
        try:
            if self._segment.size >= self.segment_bytes and not self._next_segment():
                return False
            self._segment.append(record)
        except OSError as error:
            self._full = self._why(error, 'takes no more rows')
            return False
        self._full = ''
        self.inventory.resize(self._segment.number, self._segment.size)
        self.inventory.count(record, self._segment.number)
        return True

    def _next_segment(self) -> bool:
        """Opens one, after all of this one is synced. Raises OSError."""
        assert self._segment is not None
        if not self.sync():
            return False
        segment = Segment(self.folder, self._segment.number + 1, self._fdatasync)
        with self._disk:
            self._segment.close()
            self._segment = segment
        return True

    def _why(self, error: OSError, what: str) -> str:
        """The reason to give; an error that room on the disk would not mend is a failure."""
        why = f'the disk {what}: {error.strerror}'
        if error.errno not in FULL:
            self.failure = UserError(
                f'The store {self.folder} cannot be written',
                why,
                'Mend or replace the disk and resume: the cells keep what was not acknowledged',
            )
        return why

    # ------------------------------------------------------------------ sync

    def _keep_synced(self) -> None:
        looked_s = -math.inf
        try:
            while not self._closed.is_set() and self.failure is None:
                self._dirty.wait()
                self._closed.wait(GATHER_S)
                self._dirty.clear()
                if not self.sync():
                    self._dirty.set()
                    self._closed.wait(AGAIN_S)
                elif time.monotonic() - looked_s > AGAIN_S:
                    looked_s = time.monotonic()
                    self._prune()
        except Exception as error:
            self.failure = error
            self.told()

    def _prune(self) -> None:
        """Deletes the segments that nobody needs, while there are too many bytes."""
        if self.size > self.disk_bytes:
            held = self.held() or (0, 0)
            for number in self.inventory.spare(self.disk_bytes, self.window_rows, held):
                with contextlib.suppress(OSError):
                    segment_path(self.folder, number).unlink()
                    pictures_path(self.folder, number).unlink()
        self.crowded = ''
        if self.size > self.disk_bytes:
            self.crowded = (
                f'the store holds {self.size / GB:.2f} GB, more than replay.disk_gb: the rest is'
                ' demonstrations and what the learner needs behind its oldest checkpoint'
            )

    # ------------------------------------------------------------------ open

    def _open(self) -> None:
        """Reads what is there and opens the last segment; a full disk is a refusal."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._lock < 0:
                self._lock = lock(self.folder)
            self._segment = self._recover()
        except OSError as error:
            self._full = self._why(error, 'does not let the store be opened')
            if self.failure is not None:
                self.close()
                raise self.failure from error
            return
        self._full = ''
        self._syncer.start()

    def _recover(self) -> Segment:
        found = Recovery(self.folder)
        self.streams, self.inventory, self.rows = {}, Inventory(), 0
        for number, size in found.sizes.items():
            self.inventory.resize(number, size)
        for number, record in found.records():
            self.inventory.count(record, number)
            if isinstance(record, Row):
                key = record.cell, record.incarnation
                self.streams[key] = Stream(self.window_n, record.seq + 1)
                self.rows += 1
        self.bad, self.damage = found.bad, found.cut()
        segment = Segment(self.folder, found.number, self._fdatasync)
        try:
            segment.doubt(found.sure, found.pictures_sure)
            segment.sync()
        except OSError:
            segment.close()
            raise
        self.inventory.resize(segment.number, segment.size)
        return segment
