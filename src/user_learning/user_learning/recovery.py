# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What the last writer of a store left: read, and cut to what is whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from user_learning.damage import Torn, report
from user_learning.frame import marks
from user_learning.row import Label, Row
from user_learning.tail import Damage, Tail, pictures_path, segment_path, segments


class Recovery:
    """`records` are those that the store holds; pictures are not read, but for the few rows of
    which no frame says that they were synced: the disk may have got parts of them, in any order.

    Attributes:
        sizes: bytes of each segment as it was found.
        number: the last segment, or the first one that there will be.
        sure, pictures_sure: bytes of its log, and of its pictures, that the last writer synced.
        bad: records that are set aside.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sizes = {n: _size(folder, n) for n in segments(folder)}
        self.number = max(self.sizes, default=1)
        self.log = segment_path(folder, self.number)
        self.pictures = pictures_path(folder, self.number)
        data = self.log.read_bytes() if self.sizes else b''
        self.sure = max((mark for _, mark in marks(data)), default=0)
        self.pictures_sure = self._pictures_end = 0
        self._damage: list[Damage] = []
        self._tail = Tail(folder, pictures=False, tell=self._damage.append)

    @property
    def bad(self) -> int:
        """Records that were set aside."""
        return len(self._damage)

    def records(self) -> Iterator[tuple[int, Row | Label]]:
        """Each one with its segment. Call it once."""
        for record in self._tail.rows(until=(self.number, self.sure)):
            yield self._tail.segment, self._seen(record)
        self.pictures_sure, self._tail.pictures = self._pictures_end, True
        for record in self._tail.rows():
            yield self._tail.segment, self._seen(record)

    def cut(self) -> list[str]:
        """Cuts off what follows the last record, after it was kept aside, and tells of all damage
        that was not told before. Raises OSError; then it can be done again.
        """
        ends = {self.log: self._tail.offset, self.pictures: self._pictures_end}
        torn = [Torn(path, end) for path, end in ends.items() if path.exists()]
        torn = [tear for tear in torn if tear.size]
        for tear in torn:
            tear.keep()
        texts = report(self.folder, map(str, self._damage), map(str, torn))
        for tear in torn:
            tear.cut()
        return texts

    def _seen(self, record: Row | Label) -> Row | Label:
        if isinstance(record, Row) and self._tail.segment == self.number:
            for picture in record.images:
                assert picture.place is not None
                self._pictures_end = max(self._pictures_end, picture.place[1] + picture.size)
        return record


def _size(folder: Path, number: int) -> int:
    paths = segment_path(folder, number), pictures_path(folder, number)
    return sum(path.stat().st_size for path in paths if path.exists())
