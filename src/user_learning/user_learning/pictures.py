# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The pictures of a window's rows: each one once, the newest in memory, older ones in the store.

Memory is taken when it is first written. What no longer fits, or was not read when its row came
(those of a learner that came back), is read from the store's segments, straight into the batch. A
segment stays open while a row refers to it, so that it can be read even after the store deleted
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import os
from pathlib import Path
import weakref

import numpy as np

from user_core import jpeg
from user_core.errors import UserError
from user_learning.row import Picture
from user_learning.tail import pictures_path

Views = Mapping[str, tuple[int, int]]
"""Height and width of each camera's view, in the order of their names."""

_PLACE = np.dtype(
    [('segment', np.int64), ('begin', np.int64), ('size', np.int64), ('jpeg', np.bool_)]
)
"""Where the bytes of a picture lie in the store."""

_UNREAD = np.zeros(0, np.uint8)
_IN_STORE = np.iinfo(np.int64).min
"""Number of a row whose pictures never were in memory."""


def seen(pictures: Sequence[Picture], views: Views) -> dict[str, np.ndarray]:
    """Each camera's pixels.

    Raises:
        ValueError: a camera is missing, or its picture is not the one of its view.
    """
    named = {picture.name: picture for picture in pictures}
    found = {}
    for camera, (height, width) in views.items():
        picture = named.get(camera)
        if picture is None:
            raise ValueError(f'it has no picture of camera {camera}')
        if (picture.height, picture.width) != (height, width):
            raise ValueError(
                f'camera {camera} is {picture.width}x{picture.height}, its view {width}x{height}'
            )
        try:
            found[camera] = picture.pixels()
        except ValueError as error:
            raise ValueError(f'the picture of camera {camera} is unreadable: {error}') from error
    return found


class Segments:
    """The open files of a store's segments, by how many rows refer to them. Not thread-safe."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self._files: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        weakref.finalize(self, _close, self._files)

    def hold(self, number: int) -> None:
        """One more row refers to this segment. Raises FileNotFoundError when it was deleted."""
        if number not in self._files:
            file = os.open(pictures_path(self.store, number), os.O_RDONLY | os.O_CLOEXEC)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            self._files[number], self._rows[number] = file, 0
        self._rows[number] += 1

    def release(self, number: int) -> None:
        """One row less."""
        self._rows[number] -= 1
        if not self._rows[number]:
            os.close(self._files.pop(number))

    def file(self, number: int) -> int:
        """The descriptor of a segment that is held."""
        return self._files[number]


def _close(files: dict[int, int]) -> None:
    for file in files.values():
        os.close(file)


def _places(pictures: Sequence[Picture], views: Views) -> list[tuple[int, int, int, bool]]:
    named = {picture.name: picture for picture in pictures}
    places = []
    for picture in (named[camera] for camera in views):
        if picture.place is None:
            raise RuntimeError('a picture that is in no store cannot be put aside')
        places.append((*picture.place, picture.size, picture.encoding == 'jpeg'))
    return places


class Pictures:
    """The pictures of the rows in a ring of `capacity` slots, the newest `frames` rows in memory.

    Without `segments` every row comes with its pixels and stays in memory, and `frames` must not
    be less than `capacity`. Not thread-safe; `take` may run in another thread while nobody puts.
    """

    def __init__(
        self, views: Views, capacity: int, frames: int, segments: Segments | None = None
    ) -> None:
        self.views, self.frames = views, min(frames, capacity)
        if self.frames < capacity and segments is None:
            raise ValueError('pictures that do not fit in memory need a store to be read from')
        self.segments = segments
        self.memory = {
            camera: np.empty((self.frames, *size, 3), np.uint8) for camera, size in views.items()
        }
        self._put = 0
        self._number = np.zeros(capacity, np.int64)
        self._place = np.zeros((capacity, len(views)) if segments else (0, 0), _PLACE)

    def put(self, slot: int, pictures: Sequence[Picture], raw: Mapping[str, np.ndarray]) -> None:
        """Takes one row's pictures in, in place of those in its slot; `raw` are their pixels
        (`seen`), empty if they were left in the store.

        Raises:
            FileNotFoundError: the store deleted them already; nothing was taken in.
        """
        if self.segments is not None:
            places = _places(pictures, self.views)
            self.segments.hold(places[0][0])
            if before := int(self._place[slot, 0]['segment']):
                self.segments.release(before)
            self._place[slot] = places
        if not raw:
            self._number[slot] = _IN_STORE
            return
        self._number[slot] = self._put
        for camera, memory in self.memory.items():
            memory[self._put % self.frames] = raw[camera]
        self._put += 1

    def places(self, slots: np.ndarray) -> np.ndarray:
        """Where the pictures of [n] slots lie in the store, as bytes [n, k]."""
        return self._place[slots].view(np.uint8).reshape(len(slots), -1)

    def place_of(self, pictures: Sequence[Picture]) -> np.ndarray:
        """The same of one row's pictures, [k]."""
        return np.array(_places(pictures, self.views), _PLACE).view(np.uint8)

    def of_place(self, place: np.ndarray) -> tuple[Picture, ...]:
        """One row's pictures, left in the store."""
        return tuple(
            Picture(
                camera, 'jpeg' if coded else 'rgb8', height, width, 0, _UNREAD,
                place=(segment, begin), size=size,
            )
            for (camera, (height, width)), (segment, begin, size, coded) in zip(
                self.views.items(), place.view(_PLACE).tolist(), strict=True
            )
        )  # fmt: skip

    def fill(self, places: np.ndarray) -> None:
        """Takes rows in whose pictures are left in the store, into the first slots.

        Raises FileNotFoundError: the store has lost one of their segments.
        """
        assert self.segments is not None
        n = len(places)
        self._place[:n] = places.view(_PLACE).reshape(n, len(self.views))
        self._number[:n] = _IN_STORE
        for number in self._place[:n, 0]['segment'].tolist():
            self.segments.hold(number)

    def take(self, slots: np.ndarray, out: Mapping[str, np.ndarray]) -> None:
        """Copies the pictures of [n] slots into `out`, uint8 [n, height, width, 3] by camera."""
        number = self._number[slots]
        kept = number >= self._put - self.frames
        index = np.where(kept, number % self.frames, 0)
        for camera, memory in self.memory.items():
            np.take(memory, index, axis=0, out=out[camera], mode='clip')
        if not kept.all():
            self._read(slots, np.flatnonzero(~kept), out)

    def _read(self, slots: np.ndarray, where: np.ndarray, out: Mapping[str, np.ndarray]) -> None:
        """Reads the pictures of slots[where] in the order of the disk, after it was told of all of
        them. Raises UserError: it gave something else.
        """
        assert self.segments is not None
        wanted = sorted(zip(self._place[slots[where]].tolist(), where.tolist(), strict=True))
        for places, _ in wanted:
            (segment, begin, *_), (_, last, size, _) = places[0], places[-1]
            file = self.segments.file(segment)
            os.posix_fadvise(file, begin, last + size - begin, os.POSIX_FADV_WILLNEED)
        for places, row in wanted:
            for camera, (segment, begin, size, coded) in zip(self.views, places, strict=True):
                file, picture = self.segments.file(segment), out[camera][row]
                try:
                    if coded:
                        picture[:] = jpeg.decode(os.pread(file, size, begin))
                    elif os.preadv(file, [picture], begin) != size:
                        raise ValueError('the file ends within it')
                except (OSError, ValueError) as error:
                    raise UserError(
                        'a picture of the store cannot be read',
                        f'at byte {begin} of segment {segment}: {error}',
                        'look at the disk; what was learned is in the checkpoints',
                    ) from error
