# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Frames of the store's log: what tells a whole record from a torn or a rotten one.

    frame = magic (4) | payload length (4) | crc32 of payload (4) | payload
    payload = mark (8) | record

Little endian. The mark is the byte of this segment up to which it was synced when the frame was
written. So a good frame proves that damage before its mark befell the disk later; damage that no
frame says this of was never acknowledged. A frame without a record is a mark alone.
"""

from __future__ import annotations

from collections.abc import Iterator
import struct
import zlib

MAGIC = b'USR2'
_HEAD = struct.Struct('<4sII')
_MARK = struct.Struct('<Q')


def frame(record: bytes, mark: int) -> bytes:
    """The frame of a record."""
    payload = _MARK.pack(mark) + record
    return _HEAD.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def parse(data: bytes, at: int) -> tuple[memoryview | None, int]:
    """Record of the frame that begins at byte `at`, and the frame's size; None and 0 when it is
    incomplete or wrong.
    """
    begin = at + _HEAD.size
    if begin + _MARK.size > len(data):
        return None, 0
    magic, length, crc = _HEAD.unpack_from(data, at)
    end = begin + length
    if magic != MAGIC or length < _MARK.size or end > len(data):
        return None, 0
    payload = memoryview(data)[begin:end]
    return (payload[_MARK.size :], end - at) if zlib.crc32(payload) == crc else (None, 0)


def marks(data: bytes) -> Iterator[tuple[int, int]]:
    """Beginning and mark of every good frame, past all that is damaged."""
    at = 0
    while (at := data.find(MAGIC, at)) >= 0:
        _, size = parse(data, at)
        if size:
            yield at, _MARK.unpack_from(data, at + _HEAD.size)[0]
        at += size or 1
