# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The segment that a store's writer appends to: a log of rows, and their pictures beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
from dataclasses import dataclass
import os
from pathlib import Path

from user_learning.frame import frame
from user_learning.row import Label, Row, pack, picture_bytes
from user_learning.tail import pictures_path, segment_path

Bytes = bytes | memoryview


@dataclass
class _Part:
    """What was appended at once: where and what."""

    at: int
    frame: bytes
    pictures_at: int
    pictures: Sequence[Bytes]


class Segment:
    """Two open files. One thread appends, another one may sync meanwhile.

    What is not synced is kept in memory, too. A sync that failed proves nothing about a later one
    that does not: Linux tells of a page that could not be written once, and may drop it. So the
    next sync writes everything again.
    """

    def __init__(self, folder: Path, number: int, fdatasync: Callable[[int], None]) -> None:
        self.number, self._fdatasync = number, fdatasync
        self._files: list[int] = []
        try:
            for path in (pictures_path(folder, number), segment_path(folder, number)):
                self._files.append(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644))
            here = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(here)
            finally:
                os.close(here)
        except OSError:
            self.close()
            raise
        self._pictures, self._log = self._files
        self.pictures_end, self.end = (os.fstat(file).st_size for file in self._files)
        self.mark, self._records = self.end, 0
        self._fresh: list[_Part] = []
        self._doubtful = False

    @property
    def size(self) -> int:
        """Bytes of both files."""
        return self.end + self.pictures_end

    def doubt(self, begin: int, pictures_begin: int) -> None:
        """Nobody saw a sync of what lies behind these bytes: the next sync writes it again."""
        data = os.pread(self._log, self.end - begin, begin)
        pictures = os.pread(self._pictures, self.pictures_end - pictures_begin, pictures_begin)
        self._fresh = [_Part(begin, data, pictures_begin, [pictures])]
        self.mark, self._doubtful = begin, True

    def append(self, record: Row | Label) -> None:
        """Appends the record, its pictures first. Raises OSError; then nothing of it is left."""
        pictures = picture_bytes(record)
        data = frame(pack(record, self.pictures_end), self.mark)
        part = _Part(self.end, data, self.pictures_end, pictures)
        try:
            self._write(part)
        except OSError:
            with contextlib.suppress(OSError):  # a reader waits for the rest of what is left
                os.ftruncate(self._log, self.end)
                os.ftruncate(self._pictures, self.pictures_end)
            raise
        self.end += len(data)
        self.pictures_end += sum(picture.nbytes for picture in pictures)
        self._records += 1
        self._fresh.append(part)

    def sync(self) -> None:
        """Returns when all that was appended before is on the disk. Raises OSError."""
        fresh = list(self._fresh)
        for part in fresh if self._doubtful else ():
            self._write(part)
        self._doubtful = True
        for file in self._files:
            self._fdatasync(file)
        self._doubtful = False
        if fresh:
            self.mark = fresh[-1].at + len(fresh[-1].frame)
            del self._fresh[: len(fresh)]

    def end_with_mark(self) -> None:
        """Lets the log say what was synced of it, when nothing will be appended for now."""
        if self._records:
            with contextlib.suppress(OSError):
                os.pwrite(self._log, frame(b'', self.mark), self.end)

    def _write(self, part: _Part) -> None:
        at = part.pictures_at
        for data in part.pictures:
            at = _write(self._pictures, data, at)
        _write(self._log, part.frame, part.at)

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            os.close(file)
        self._files = []


def _write(file: int, data: Bytes, at: int) -> int:
    """Writes all of it at byte `at`; returns where it ends. Raises OSError."""
    written, size = os.pwrite(file, data, at), memoryview(data).nbytes
    while written < size:
        written += os.pwrite(file, memoryview(data).cast('B')[written:], at + written)
    return at + size
