# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Records of the store, read without any ROS message."""

from __future__ import annotations

import dataclasses
import json
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np
import pytest

from user_core.outcome import Boundary, Mode
from user_learning.row import (
    SCHEMA,
    BadRecordError,
    Label,
    Picture,
    Row,
    pack,
    picture_bytes,
    unpack,
)

floats = hnp.arrays(np.float32, st.integers(0, 30), elements=st.floats(width=32, allow_nan=False))


def same(a: Row, b: Row) -> bool:
    for f in dataclasses.fields(Row):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if isinstance(x, np.ndarray):
            if x.dtype != y.dtype or not np.array_equal(x, y):
                return False
        elif f.name == 'images':
            if any(
                p.name != q.name or not np.array_equal(p.data, q.data)
                for p, q in zip(x, y, strict=True)
            ):
                return False
        elif x != y and not (x != x and y != y):
            return False
    return True


@settings(max_examples=60, deadline=None)
@given(
    state=floats,
    action=floats,
    episode=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**32 - 1),
    reward=st.floats(allow_nan=False, width=32),
    text=st.text(max_size=30),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    boundary=st.sampled_from(list(Boundary)),
    mode=st.sampled_from(list(Mode)),
)
def test_a_row_comes_back_from_its_bytes_as_it_was(
    state, action, episode, step, reward, text, flags, boundary, mode
) -> None:
    row = Row(
        run=text,
        cell='arm0',
        episode=episode,
        step=step,
        state=state,
        executed_action=action,
        task=text,
        policy_action=action,
        intervention=action > 0,
        reward=reward,
        terminated=flags[0],
        truncated=flags[1],
        closing=flags[2],
        valid=flags[3],
        boundary=boundary,
        mode=mode,
    )
    assert same(unpack(pack(row)), row)


def test_a_row_says_where_its_pictures_lie() -> None:
    side, wrist = np.arange(12, dtype=np.uint8), np.arange(6, dtype=np.uint8)
    pictures = (Picture('side', 'rgb8', 2, 2, 5, side, 0.5, True),
                Picture('wrist', 'jpeg', 1, 2, 6, wrist))  # fmt: skip
    row = Row('r', 'c', 1, 0, images=pictures)
    file = bytes(100) + b''.join(picture_bytes(row))

    def load(at: int, size: int, crc: int) -> np.ndarray:
        assert zlib.crc32(file[at : at + size]) == crc
        return np.frombuffer(file, np.uint8, size, at)

    bare, back = unpack(pack(row, 100), 3), unpack(pack(row, 100), 3, load)
    assert isinstance(bare, Row)
    assert isinstance(back, Row)
    for one, other, picture in zip(bare.images, back.images, pictures, strict=True):
        assert dataclasses.replace(one, data=other.data) == other
        assert one.data.size == 0
        assert np.array_equal(other.data, picture.data)
        assert dataclasses.replace(other, data=picture.data, place=None, size=0) == picture
    assert [(p.place, p.size) for p in bare.images] == [((3, 100), 12), ((3, 112), 6)]


def test_a_label_is_a_record_of_its_own() -> None:
    label = Label('r', 'c', 1, 3, 'classifier/v3', 1.0, True)
    assert unpack(pack(label)) == label


def test_a_record_says_itself_what_it_holds() -> None:
    data = pack(Row('r', 'arm0', 1, 2, state=np.zeros(3, np.float32)))
    length = int.from_bytes(data[:4], 'little')
    header = json.loads(data[4 : 4 + length])
    assert header['kind'] == 'row'
    assert header['schema'] == SCHEMA
    assert ['state', '<f4', [3]] in header['arrays']
    assert header['cell'] == 'arm0'


def edited(data: bytes, change) -> bytes:
    length = int.from_bytes(data[:4], 'little')
    header = json.loads(data[4 : 4 + length])
    change(header)
    text = json.dumps(header).encode()
    text += b' ' * (-(len(text) + 4) % 8)
    return len(text).to_bytes(4, 'little') + text + data[4 + length :]


def test_a_field_of_a_later_version_is_ignored_and_a_missing_one_has_its_default() -> None:
    data = pack(Row('r', 'arm0', 1, 2, reward=1.0, lateness=0.5))
    back = unpack(edited(data, lambda h: (h.update(colour='red'), h.pop('lateness'))))
    assert back.reward == 1.0
    assert back.lateness == 0.0


def test_a_record_of_a_newer_schema_is_refused_by_number() -> None:
    data = pack(Row('r', 'arm0', 1, 2))
    with pytest.raises(BadRecordError, match='schema 9'):
        unpack(edited(data, lambda h: h.update(schema=9)))


@pytest.mark.parametrize(
    'data',
    [b'', b'\x05', b'\xff\xff\xff\x7f{}', b'\x02\x00\x00\x00[]', pack(Row('r', 'c', 1, 0))[:20]],
)
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(BadRecordError):
        unpack(data)
