# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Rows and labels as the store keeps them: a JSON header that names its arrays, then the arrays.

A record can be read without any ROS message: `schema` tells its shape, names tell its content. A
field that this version does not know is ignored, one that the record lacks takes its default.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
import json
import math
import struct

import numpy as np

from user_core import jpeg
from user_core.outcome import Boundary, Mode

SCHEMA = 1
"""Version of the rows written here; readers accept every version up to it."""

_LENGTH = struct.Struct('<I')
_ALIGN = 8


@dataclass(frozen=True, slots=True)
class Picture:
    """One camera's image in a row, as msg/Image.msg describes it.

    `data` is uint8, raw pixels or one JPEG file as `encoding` says; `place` is where these bytes
    begin in the store, as (segment, byte), and is no part of the record.
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


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One step of one episode, as msg/Transition.msg describes it field by field (SI units, raw
    state).
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


_ARRAYS = {'state', 'policy_action', 'executed_action', 'intervention'}
_KINDS: dict[str, type[Row] | type[Label]] = {'row': Row, 'label': Label}
_KNOWN = {kind: {f.name for f in fields(cls)} for kind, cls in _KINDS.items()}
_PICTURE = tuple(f.name for f in fields(Picture) if f.name not in ('data', 'place'))


class BadRecordError(ValueError):
    """A record that cannot be read; the text says why."""


def pack(record: Row | Label) -> bytes:
    """The bytes of one record."""
    header: dict[str, object] = {
        'kind': 'row' if isinstance(record, Row) else 'label',
        'schema': SCHEMA,
    }
    arrays: list[tuple[str, np.ndarray]] = []
    for f in fields(record):
        value = getattr(record, f.name)
        if f.name in _ARRAYS:
            arrays.append((f.name, np.ascontiguousarray(value)))
        elif f.name == 'images':
            header['images'] = [{k: getattr(image, k) for k in _PICTURE} for image in value]
            arrays += [
                (f'images.{k}', np.ascontiguousarray(image.data)) for k, image in enumerate(value)
            ]
        else:
            header[f.name] = value
    header['arrays'] = [(name, a.dtype.str, a.shape) for name, a in arrays]
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-(len(text) + _LENGTH.size) % _ALIGN)
    parts = [_LENGTH.pack(len(text)), text]
    for _, a in arrays:
        parts += [a.tobytes(), bytes(-a.nbytes % _ALIGN)]
    return b''.join(parts)


def unpack(data: bytes | memoryview, place: tuple[int, int] | None = None) -> Row | Label:
    """The record of `pack`; its arrays are read-only views of `data`.

    `place` is where `data` begins in the store, as (segment, byte); its pictures say theirs by it.
    Raises BadRecordError.
    """
    try:
        view = memoryview(data)
        (length,) = _LENGTH.unpack_from(view)
        at = _LENGTH.size + length
        header = json.loads(bytes(view[_LENGTH.size : at]))
        if header['schema'] > SCHEMA:
            raise BadRecordError(
                f'it was written with schema {header["schema"]}, this version reads up to {SCHEMA}'
            )
        arrays: dict[str, np.ndarray] = {}
        begins: dict[str, int] = {}
        for name, dtype, shape in header.pop('arrays'):
            kind = np.dtype(dtype)
            n = math.prod(shape)
            begins[name] = at
            arrays[name] = np.frombuffer(view, kind, n, at).reshape(shape)
            at += n * kind.itemsize
            at += -at % _ALIGN
        pictures = tuple(
            Picture(
                data=arrays.pop(f'images.{k}'),
                place=place and (place[0], place[1] + begins[f'images.{k}']),
                **{name: value for name, value in image.items() if name in _PICTURE},
            )
            for k, image in enumerate(header.pop('images', ()))
        )
        if pictures:
            arrays['images'] = pictures  # type: ignore[assignment]
        kind_name = header['kind']
        content = {k: v for k, v in (header | arrays).items() if k in _KNOWN[kind_name]}
        return _KINDS[kind_name](**content)
    except (KeyError, TypeError, ValueError, struct.error) as error:
        if isinstance(error, BadRecordError):
            raise
        raise BadRecordError(f'its header is not readable: {error}') from error
