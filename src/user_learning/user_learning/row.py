# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Rows and labels as the store keeps them: a JSON header that names its arrays, then the arrays.

A record can be read without any ROS message: `schema` tells its shape, names tell its content. A
field that this version does not know is ignored, one that the record lacks takes its default. The
bytes of its pictures lie elsewhere; the header says where (`at`, `size`) and their `crc` (crc32).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
import json
import math
import struct
import zlib

import numpy as np

from user_core import jpeg
from user_core.outcome import Boundary, Mode

SCHEMA = 2
"""Version of the records written here; readers refuse later ones."""

_LENGTH = struct.Struct('<I')
_ALIGN = 8


@dataclass(frozen=True, slots=True)
class Picture:
    """One camera's image in a row, as msg/Image.msg describes it.

    `data` is uint8, raw pixels or one JPEG file as `encoding` says; empty when it was not read.
    `place` is where these bytes begin in the store, as (segment, byte of its pictures), and `size`
    their number; None and 0 when the picture is in no store.
    """

    name: str
    encoding: str
    height: int
    width: int
    stamp_ns: int
    data: np.ndarray
    age_s: float = 0.0
    repeated: bool = False
    place: tuple[int, int] | None = None
    size: int = 0

    def pixels(self) -> np.ndarray:
        """The picture as uint8 [height, width, 3], RGB; raw pictures are not copied.

        Raises:
            ValueError: its bytes are no picture of its size.
        """
        if self.encoding == 'jpeg':
            raw = jpeg.decode(self.data)
            if raw.shape == (self.height, self.width, 3):
                return raw
            raise ValueError(f'the JPEG file is {raw.shape[1]}x{raw.shape[0]}')
        if self.encoding != 'rgb8':
            raise ValueError(f'its encoding is {self.encoding}, neither rgb8 nor jpeg')
        return self.data.reshape(self.height, self.width, 3)


def _empty() -> np.ndarray:
    return np.zeros(0, np.float32)


@dataclass(slots=True, eq=False)
class Row:
    """One step of one episode, as msg/Transition.msg describes it field by field (SI units, raw
    state). Nobody changes one; that it is not frozen makes reading a store a fifth quicker.
    """

    run: str
    cell: str
    episode: int
    step: int
    incarnation: int = 0
    seq: int = 0
    captured_ns: int = 0
    arrived_ns: int = 0
    mode: int = Mode.TRAIN
    task: str = ''
    state: np.ndarray = field(default_factory=_empty)
    images: tuple[Picture, ...] = ()
    policy: str = ''
    policy_version: int = 0
    source: int = 0
    policy_action: np.ndarray = field(default_factory=_empty)
    executed_action: np.ndarray = field(default_factory=_empty)
    horizon: int = 1
    chunk_index: int = 0
    gripper: float = float('nan')
    intervention: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    boundary: int = Boundary.NONE
    closing: bool = False
    valid: bool = True
    lateness: float = 0.0
    peak_force: float = 0.0
    limited: int = 0


@dataclass(frozen=True, slots=True)
class Label:
    """A late judgement of a stored row by a person, classifier or VLM; the row itself never
    changes.
    """

    run: str
    cell: str
    episode: int
    step: int
    judge: str
    reward: float
    success: bool


_ARRAYS = ('state', 'policy_action', 'executed_action', 'intervention')
_KINDS: dict[str, type[Row] | type[Label]] = {'row': Row, 'label': Label}
_KNOWN = {kind: {f.name for f in fields(cls)} for kind, cls in _KINDS.items()}
_PLAIN = {
    kind: [name for name in (f.name for f in fields(cls)) if name not in (*_ARRAYS, 'images')]
    for kind, cls in _KINDS.items()
}
_PICTURE = [f.name for f in fields(Picture) if f.name not in ('data', 'place', 'size')]
_UNREAD = np.zeros(0, np.uint8)
_dtype = cache(np.dtype)
_encode = json.JSONEncoder(separators=(',', ':')).encode
_decode = json.JSONDecoder().raw_decode

Load = Callable[[int, int, int], np.ndarray]
"""Reads a picture's bytes by `at`, `size` and `crc`. Raises BadRecordError: they are others."""


class BadRecordError(ValueError):
    """A record that cannot be read; the text says why."""


def picture_bytes(record: Row | Label) -> list[memoryview]:
    """The pictures of a record, as `pack` expects them to lie: one after the other."""
    images = record.images if isinstance(record, Row) else ()
    return [np.ascontiguousarray(image.data).data for image in images]


def pack(record: Row | Label, at: int = 0) -> bytes:
    """The bytes of one record whose pictures begin at byte `at` of their file."""
    kind = 'row' if isinstance(record, Row) else 'label'
    header: dict[str, object] = {'kind': kind, 'schema': SCHEMA}
    header |= {name: getattr(record, name) for name in _PLAIN[kind]}
    arrays: list[tuple[str, np.ndarray]] = []
    if isinstance(record, Row):
        arrays = [(name, np.ascontiguousarray(getattr(record, name))) for name in _ARRAYS]
        if record.images:
            header['images'] = images = []
            for image, data in zip(record.images, picture_bytes(record), strict=True):
                lies = {'at': at, 'size': data.nbytes, 'crc': zlib.crc32(data)}
                images.append({name: getattr(image, name) for name in _PICTURE} | lies)
                at += data.nbytes
    header['arrays'] = [(name, a.dtype.str, a.shape) for name, a in arrays]
    text = _encode(header).encode()
    text += b' ' * (-(len(text) + _LENGTH.size) % _ALIGN)
    parts = [_LENGTH.pack(len(text)), text]
    for _, a in arrays:
        parts += [a.tobytes(), bytes(-a.nbytes % _ALIGN)]
    return b''.join(parts)


def unpack(data: bytes | memoryview, segment: int = 0, load: Load | None = None) -> Row | Label:
    """The record of `pack`; its arrays are read-only views of `data`.

    `segment` is the one that it lies in, 0 when it lies in none. Without `load` its pictures stay
    unread. Raises BadRecordError.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + length
        header, _ = _decode(str(data[_LENGTH.size : at], 'utf-8'))
        if (schema := header.pop('schema')) > SCHEMA:
            raise BadRecordError(
                f'it was written with schema {schema}, this version reads up to {SCHEMA}'
            )
        kind = header.pop('kind')
        for name, code, shape in header.pop('arrays'):
            n, dtype = math.prod(shape), _dtype(code)
            array = np.frombuffer(data, dtype, n, at)
            header[name] = array if len(shape) == 1 else array.reshape(shape)
            at += -(-n * dtype.itemsize // _ALIGN) * _ALIGN
        if 'images' in header:
            header['images'] = tuple(_picture(i, segment, load) for i in header['images'])
        try:
            return _KINDS[kind](**header)
        except TypeError:
            known = _KNOWN[kind] & header.keys()
            return _KINDS[kind](**{name: header[name] for name in known})
    except BadRecordError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, struct.error) as error:
        raise BadRecordError(f'its header is not readable: {error}') from error


def _picture(image: dict, segment: int, load: Load | None) -> Picture:
    at, size = image['at'], image['size']
    return Picture(
        data=load(at, size, image['crc']) if load else _UNREAD,
        place=(segment, at) if segment else None,
        size=size,
        **{name: image[name] for name in _PICTURE if name in image},
    )
