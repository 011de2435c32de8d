# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's curves of one node: an event file that a full disk does not end.

TensorBoard's own writer has a thread that dies of a full disk and takes the next caller with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
import mmap
import os
from pathlib import Path
import socket
import struct
import threading
import time

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

FLUSH_S = 5.0
"""Points reach the disk at most this long after the next one came."""
LOOK_BACK_N = 1000
"""Newest points of a former process that say how far each curve has come."""

_HEAD = struct.Struct('<QI')


class Curves:
    """Appends points to a new event file in the folder; any thread.

    Points that the disk does not take are dropped and counted; the next ones are tried again. A
    point left of its curve's end is dropped, too: a process that goes on from a checkpoint tells a
    part of its story twice.

    Attributes:
        dropped: points that the disk did not take.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.dropped = folder, 0
        place = f'{time.time():.0f}.{socket.gethostname()}.{os.getpid()}'
        self._path = folder / f'events.out.tfevents.{place}.{time.monotonic_ns()}'
        self._size = 0
        self._waiting: list[bytes] = []
        self._ends = _ends(folder)
        self._flushed_s = time.monotonic()
        self._lock = threading.Lock()

    def point(self, name: str, value: float, step: int) -> None:
        """Adds a point; its step is never below that of the one before."""
        with self._lock:
            if step < self._ends.get(name, step):
                return
            self._ends[name] = step
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
            event = Event(wall_time=time.time(), step=step, summary=summary)
            self._waiting.append(_record(event))
            due = time.monotonic() - self._flushed_s > FLUSH_S
        if due:
            self.flush()

    def flush(self) -> None:
        """Writes what waits, or drops it: a file that ends within a record is read no further."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._flushed_s = time.monotonic()
            if not waiting:
                return
            try:
                self._write(waiting)
            except OSError:
                self.dropped += len(waiting)
                with suppress(OSError):
                    os.truncate(self._path, self._size)

    def close(self) -> None:
        """Writes the last points."""
        self.flush()

    def _write(self, records: list[bytes]) -> None:
        if not self._size:
            self.folder.mkdir(parents=True, exist_ok=True)
            records = [
                _record(Event(wall_time=time.time(), file_version='brain.Event:2')),
                *records,
            ]
        data = b''.join(records)
        with self._path.open('ab', buffering=0) as file:
            if file.write(data) != len(data):
                raise OSError('the disk took only a part')
        self._size += len(data)


def _record(event: Event) -> bytes:
    """As tensorboard's own files hold it."""
    record = BytesIO()
    RecordWriter(record).write(event.SerializeToString())
    return record.getvalue()


def _ends(folder: Path) -> dict[str, int]:
    """The last step of each curve, from the newest points of the newest file that has any."""
    for path in sorted(folder.glob('events.out.tfevents.*'), key=_made, reverse=True):
        ends: dict[str, int] = {}
        with suppress(OSError, ValueError):  # an empty file cannot be mapped
            for event in _newest(path):
                for value in event.summary.value:
                    ends[value.tag] = max(event.step, ends.get(value.tag, 0))
        if ends:
            return ends
    return {}


def _made(path: Path) -> tuple[int, str]:
    return path.stat().st_mtime_ns, path.name


def _newest(path: Path) -> Iterator[Event]:
    with path.open('rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        places, at = [], 0
        while at + _HEAD.size <= len(data):
            length = _HEAD.unpack_from(data, at)[0]
            if at + _HEAD.size + length + 4 > len(data):
                break
            places.append((at + _HEAD.size, length))
            at += _HEAD.size + length + 4
        for start, length in places[-LOOK_BACK_N:]:
            with suppress(Exception):  # a torn file
                yield Event.FromString(data[start : start + length])
