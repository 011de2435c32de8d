# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The codec of pictures: RGB stays RGB, and what is no picture is said."""

from contextlib import suppress
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np
import pytest

from user_core import jpeg

SIDE = st.integers(1, 40)


@given(st.tuples(SIDE, SIDE).flatmap(lambda s: hnp.arrays(np.uint8, (*s, 3))))
def test_any_picture_becomes_a_file_of_its_size_and_back(picture):
    file = jpeg.encode(picture)
    assert jpeg.size(file) == picture.shape[:2]
    assert jpeg.decode(file).shape == picture.shape


@pytest.mark.parametrize('colour', [(255, 0, 0), (0, 255, 0), (0, 0, 255), (10, 120, 230)])
def test_colours_keep_their_order(colour):
    picture = np.full((16, 16, 3), colour, np.uint8)
    back = jpeg.decode(jpeg.encode(picture, 95))
    assert np.abs(back.astype(int) - picture).max() <= 4


def test_a_smooth_picture_survives_nearly_unchanged_in_a_fraction_of_its_bytes():
    y, x = np.mgrid[:128, :128]
    picture = np.stack((x * 2, y * 2, x + y), axis=-1).astype(np.uint8)
    file = jpeg.encode(picture)
    assert len(file) < picture.nbytes / 10
    assert np.abs(jpeg.decode(file).astype(int) - picture).mean() < 2
    assert len(jpeg.encode(picture, 50)) < len(file)


def test_a_part_of_an_array_is_encoded_as_it_looks():
    whole = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    part = whole[5:30:2, ::-3]
    assert jpeg.encode(part) == jpeg.encode(part.copy())


def test_a_decoded_picture_is_memory_of_its_own():
    picture = jpeg.decode(jpeg.encode(np.zeros((8, 8, 3), np.uint8)))
    assert picture.flags.writeable
    assert picture.flags.c_contiguous


@pytest.mark.parametrize('data', [b'', b'abc', b'\xff\xd8\xff\xe0', bytes(500)], ids=len)
def test_bytes_that_are_no_picture_are_refused(data):
    with pytest.raises(ValueError, match='no picture'):
        jpeg.decode(data)
    with pytest.raises(ValueError, match='no JPEG file'):
        jpeg.size(data)


@given(st.binary(max_size=60), st.integers(0, 400))
def test_a_damaged_file_never_does_more_than_raise(tail, cut):
    data = jpeg.encode(np.zeros((16, 16, 3), np.uint8))[:cut] + tail
    for read in (jpeg.size, jpeg.decode):
        with suppress(ValueError):
            read(data)


@pytest.mark.parametrize(
    'picture',
    [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)],
    ids=['grey', 'float', 'empty'],
)
def test_only_rgb_pictures_are_encoded(picture):
    with pytest.raises(ValueError, match='no RGB picture'):
        jpeg.encode(picture)


def test_opencv_is_loaded_on_first_use_and_its_absence_is_a_sentence():
    program = """
import sys
import user_core.jpeg, user_core.messages
assert 'cv2' not in sys.modules
sys.modules['cv2'] = None
try:
    user_core.jpeg.decode(b'')
except user_core.jpeg.UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
    assert 'Install it: pip install opencv-python-headless' in done.stdout, done.stderr
