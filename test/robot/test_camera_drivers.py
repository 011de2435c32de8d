# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The drivers of cameras on the real libraries: recordings, films, topics; no hardware."""

import sys
import time

import cv2
from films import film, recorded
import numpy as np
import pytest
from sensor_msgs.msg import CompressedImage, Image

from user_core import jpeg
from user_core.config import RealsenseConfig, TopicsCameraConfig, V4l2Config
from user_core.errors import UserError
from user_core.guest import Guest
from user_core.messages import octets, stamp
from user_robot.camera.camera import CAMERAS, make_camera
from user_robot.camera.foreign import picture
from user_robot.camera.framing import Framing


@pytest.fixture(scope='module')
def recording(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp('camera'))


def frames(camera, number, seconds=30.0):
    """So many pictures of a camera that is opened for them."""
    camera.open()
    found, end = [], time.monotonic() + seconds
    try:
        while len(found) < number:
            assert time.monotonic() < end
            frame = camera.read(0.1)
            if frame is not None:
                found.append(frame)
    finally:
        camera.close()
    return found


def refusal(config) -> str:
    with pytest.raises(UserError) as caught:
        make_camera(config).open()
    return str(caught.value)


def test_a_recording_without_a_serial_is_a_camera_whose_end_is_no_end(recording):
    config = RealsenseConfig(recording=str(recording), depth=True)
    camera = make_camera(config)
    found = frames(camera, 40)  # of 12
    numbers = [f.number for f in found]
    assert numbers == sorted(numbers)
    assert numbers[-1] > 24
    stamps = np.array([f.stamp_s for f in found])
    assert (np.diff(stamps) > 0).all()
    assert abs(stamps[-1] - time.time()) < 5
    assert found[0].color.shape == (480, 640, 3)
    assert found[0].color.flags.owndata
    depth = next(f.depth for f in found if f.depth is not None)
    assert (depth.shape, depth.dtype) == ((480, 640), np.uint16)
    assert 300 <= np.median(depth) <= 900  # mm
    assert (camera.lens.fx, camera.lens.cx) == (600.0, 320.0)


def test_a_film_is_shown_at_its_pace_and_again(tmp_path):
    camera = make_camera(V4l2Config(device=str(film(tmp_path)), fps=30))
    began = time.monotonic()
    found = frames(camera, 25)  # of 10
    assert time.monotonic() - began > 0.7  # never faster than 30 Hz
    assert [f.number for f in found] == list(range(1, 26))
    reds = [int(f.color[..., 0].mean()) for f in found]
    blues = [int(f.color[..., 2].mean()) for f in found]
    assert max(reds) > 150 > 50 > max(blues)  # red is red
    assert abs(reds[0] - reds[10]) < 5  # it began anew
    assert abs(reds[0] - reds[5]) > 20


def test_a_camera_that_is_not_there_is_a_sentence_with_what_there_is(tmp_path):
    said = refusal(RealsenseConfig(serial='017322071690'))
    assert 'The RealSense 017322071690 is not connected. Connected are: none.' in said
    assert 'There is no recording nowhere.db3.' in refusal(
        RealsenseConfig(recording='nowhere.db3')
    )
    said = refusal(V4l2Config(device='/dev/nothing'))
    assert 'The camera /dev/nothing is not connected. There are: ' in said
    text = tmp_path / 'text.mp4'
    text.write_text('no film')
    assert 'does not begin. It is no camera or video' in refusal(V4l2Config(device=str(text)))


@pytest.mark.parametrize(
    ('stamped_s', 'behind_s'),
    [(1000.0, 0.0), (999.9, 0.1), (995.0, 5.0), (1000.1, 0.0), (0.0, 0.0), (1.7e9, 0.0), (10, 0)],
    ids=['now', 'fresh', 'after a stall', 'future', 'none', 'system clock', 'foreign'],
)
def test_a_device_picture_is_as_old_as_the_kernel_says_however_long_it_lay_there(
    stamped_s, behind_s
):
    from user_robot.camera import v4l2

    assert v4l2.behind_s(stamped_s, 1000.0) == pytest.approx(behind_s)


@pytest.mark.parametrize(
    ('kind', 'module', 'library', 'line'),
    [
        ('realsense', 'realsense', 'pyrealsense2', '--no-deps pyrealsense2'),
        ('v4l2', 'v4l2', 'cv2', '--no-deps opencv-python-headless'),
    ],
)
def test_a_library_that_is_missing_is_named_with_the_line_that_installs_it(
    monkeypatch, kind, module, library, line
):
    monkeypatch.delitem(sys.modules, f'user_robot.camera.{module}', raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    configs = {'realsense': RealsenseConfig(), 'v4l2': V4l2Config()}
    with pytest.raises(UserError) as caught:
        make_camera(configs[kind])
    assert f'{library}' in str(caught.value)
    assert line in str(caught.value)


def test_a_system_library_that_is_missing_is_named_with_its_apt_line():
    from user_robot.registry import missing

    error = ImportError('libusb-1.0.so.0: cannot open shared object file')
    assert 'sudo apt-get install -y libusb-1.0-0' in str(missing('camera', error))


def test_every_kind_of_camera_but_the_drawn_one_is_a_device():
    from typing import get_args

    from user_core.config import Camera

    kinds = {m.model_fields['kind'].default for m in get_args(get_args(Camera)[0])}
    assert kinds - {'sim'} == set(CAMERAS)
    with pytest.raises(UserError, match='realsense, topics, v4l2'):
        make_camera(type('Odd', (), {'kind': 'odd'}))


# ---------------------------------------------------------------------- topics


def message(encoding, channels, step=0):
    """A 4 x 2 picture whose pixels are (10, 20, 30, 40)."""
    row = np.tile(np.array((10, 20, 30, 40), np.uint8)[:channels], 4)
    rows = np.zeros((2, step or row.size), np.uint8)
    rows[:, : row.size] = row
    return Image(encoding=encoding, width=4, height=2, step=rows.shape[1], data=octets(rows))


@pytest.mark.parametrize(
    ('encoding', 'channels', 'pixel'),
    [
        ('rgb8', 3, (10, 20, 30)),
        ('bgr8', 3, (30, 20, 10)),
        ('rgba8', 4, (10, 20, 30)),
        ('bgra8', 4, (30, 20, 10)),
        ('mono8', 1, (10, 10, 10)),
    ],
)
def test_a_foreign_picture_is_rgb_whatever_its_encoding_and_padding(encoding, channels, pixel):
    for step in (0, 32):
        found = picture(message(encoding, channels, step))
        assert found.shape == (2, 4, 3)
        assert (found == pixel).all()


def test_a_foreign_picture_that_is_not_understood_is_named():
    with pytest.raises(ValueError, match='its encoding is yuv422_yuy2'):
        picture(message('yuv422_yuy2', 2))
    short = message('rgb8', 3)
    short.height = 3
    with pytest.raises(ValueError, match='24 bytes are no 4x3 rgb8'):
        picture(short)
    for height, width in ((0, 0), (2, 0), (0, 4)):
        with pytest.raises(ValueError, match=f'0 bytes are no {width}x{height} rgb8'):
            picture(Image(encoding='rgb8', height=height, width=width))


def test_a_foreign_jpeg_is_a_picture():
    color = np.full((8, 16, 3), (200, 100, 50), np.uint8)
    found = picture(CompressedImage(format='jpeg', data=octets(jpeg.encode(color, 95))))
    assert np.abs(found.astype(int) - color).max() < 6


def test_a_foreign_camera_of_any_quality_of_service_is_heard_once_a_picture():
    from rclpy.qos import qos_profile_sensor_data

    camera = make_camera(TopicsCameraConfig(topic='/lab/image'))
    camera.open()
    try:
        with Guest('lab') as guest:
            pub = guest.node.create_publisher(Image, '/lab/image', qos_profile_sensor_data)
            sent = message('bgr8', 3)
            sent.header.stamp = stamp(1_700_000_000_000_000_000)
            frame, end = None, time.monotonic() + 20
            while frame is None:
                assert time.monotonic() < end
                pub.publish(sent)
                frame = camera.read(0.1)
            assert (frame.stamp_s, tuple(frame.color[0, 0])) == (1_700_000_000, (30, 20, 10))
            assert camera.others() == ['/lab/image']
            pub.publish(sent)  # the same again: the keeper drops what has no higher number
            again = camera.read(1.0)
            assert again is None or again.number == frame.number
    finally:
        camera.close()


def test_a_topic_that_is_opened_again_and_again_stays_the_same_participant(monkeypatch, tmp_path):
    from user_robot.camera import keeper as module

    monkeypatch.setattr(module, 'FIRST_S', 0.2)
    monkeypatch.setattr(module, 'BACK_OFF_S', (0.05,))
    camera, guests, opened = make_camera(TopicsCameraConfig(topic='/lab/image')), set(), []
    open_it = camera.open

    def opening():
        open_it()
        opened.append(camera._guest)
        guests.add(camera._guest)

    camera.open = opening
    keeper = module.Keeper(camera, 0.3, lock=tmp_path / 'lock')
    end = time.monotonic() + 20
    while len(opened) < 4:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert len(guests) == 1
    keeper.close()
    assert camera._guest is None


# ---------------------------------------------------------------------- the view


def test_the_view_is_the_largest_middle_part_of_its_shape_or_the_one_that_is_named():
    assert Framing(V4l2Config()).part(480, 640) == (80, 0, 560, 480)
    assert Framing(V4l2Config(width=64, height=32)).part(480, 640) == (0, 80, 640, 400)
    assert Framing(V4l2Config(crop=(0.25, 0.5, 0.75, 1))).part(480, 640) == (160, 240, 480, 480)


@pytest.mark.parametrize('size', [(128, 128), (64, 48), (240, 240), (600, 600), (97, 31)])
def test_every_captured_pixel_of_the_part_counts_in_the_view(size):
    height, width = size
    rng = np.random.default_rng(0)
    color = rng.integers(0, 256, (480, 640, 3), np.uint8)
    framing = Framing(V4l2Config(height=height, width=width))
    left, top, right, bottom = framing.part(480, 640)
    found = framing.of(color)
    assert found.shape == (height, width, 3)
    assert found.flags.c_contiguous
    part = color[top:bottom, left:right].astype(float)
    assert np.abs(found.mean(axis=(0, 1)) - part.mean(axis=(0, 1))).max() < 1.5
    if height * 2 <= bottom - top:  # noise averages out, where dropped pixels would keep it
        exact = cv2.resize(part, (width, height), interpolation=cv2.INTER_AREA)
        assert found.std() < 1.2 * exact.std()
