# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The camera's node on a real graph: what it publishes, to whom, and how it says that it fails."""

from contextlib import contextmanager
import json
import os
import re
import signal
import subprocess
import sys
import time

import cv2
from films import film, recorded
import numpy as np
import pytest
from rclpy.qos import QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage, Image

from user_core import jpeg, topics
from user_core.config import load
from user_core.guest import Guest
from user_core.messages import NS, nanoseconds, octets

PAGE = """
name: seen
machines: {robot: {}, far: {}}
cells:
  arm0:
    machine: robot
    cameras: {wrist: CAMERA}
policy: {kind: mlp, machine: robot}
replay: {machine: robot}
learner: {machine: robot}
"""


def page(folder, camera: dict):
    """A configuration with this camera."""
    file = folder / 'seen.yaml'
    file.write_text(PAGE.replace('CAMERA', json.dumps(camera)))
    return load(str(file))


def path(python) -> str:
    """PYTHONPATH with a folder that comes first."""
    return os.pathsep.join([str(p) for p in (python, os.environ.get('PYTHONPATH')) if p])


class Eye:
    """A camera node in a process of its own, and a guest on its graph."""

    def __init__(self, folder, guest, camera: dict, python=None) -> None:
        self.guest, self.config = guest, page(folder, camera)
        values = {'config': self.config.to_json(), 'run': 'r', 'run_folder': str(folder)}
        lines = [f'    {key}: {json.dumps(value)}\n' for key, value in values.items()]
        params = folder / 'params.yaml'
        params.write_text(f'/**:\n  ros__parameters:\n{"".join(lines)}')
        self.log = folder / 'log.txt'
        command = [sys.executable, '-m', 'user_robot.camera.node', '--ros-args']
        command += [
            '-r',
            '__node:=camera',
            '-r',
            '__ns:=/arm0/wrist',
            '--params-file',
            str(params),
        ]
        self.process = subprocess.Popen(
            command, env=os.environ | {'PYTHONPATH': path(python)},
            stdin=subprocess.DEVNULL, stdout=self.log.open('w'), stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.heard: dict[str, list] = {}

    def listen(self, key: str):
        """Subscribes as the table says; what comes is kept."""
        topic, kept = topics.TOPICS[key], self.heard.setdefault(key, [])
        return self.guest.node.create_subscription(
            topic.type, topics.name(key, 'arm0', 'wrist'), kept.append, topic.reader
        )

    def until(self, true, seconds: float = 30.0) -> None:
        """Spins until `true()`."""
        begun = time.monotonic()
        while not true():
            assert time.monotonic() - begun < seconds, self.log.read_text()[-2000:]
            self.guest.executor.spin_once(0.05)

    def hears(self, key: str):
        """The next message of a topic that is listened to."""
        self.heard[key].clear()
        self.until(lambda: self.heard[key])
        return self.heard[key][-1]

    def health(self):
        """The newest diagnostics of the camera, as (level, message, numbers)."""
        status = next(iter(self.heard['diagnostics'][-1].status))
        assert status.name == '/arm0/wrist/camera'
        return int.from_bytes(status.level, 'little'), status.message, {
            v.key: float(v.value) for v in status.values if v.key != 'run'
        }  # fmt: skip


@pytest.fixture
def guest():
    with Guest('looker') as guest:
        yield guest


@contextmanager
def eye(folder, **camera):
    with Guest('looker') as guest:
        running = Eye(folder, guest, camera)
        try:
            yield running
        finally:
            running.process.send_signal(signal.SIGINT)
            code = running.process.wait(20)
        assert code == 0, running.log.read_text()[-2000:]


def test_the_view_goes_out_raw_and_everything_else_only_while_somebody_listens(tmp_path):
    file = str(recorded(tmp_path))
    with eye(tmp_path, kind='realsense', recording=file, depth=True, width=96, height=64) as it:
        it.listen('view')
        view = it.hears('view')
        assert isinstance(view, Image)
        assert (view.height, view.width, view.encoding, view.step) == (64, 96, 'rgb8', 288)
        assert view.header.frame_id == 'arm0_wrist'
        age_s = time.time() - nanoseconds(view.header.stamp) / NS
        assert 0 <= age_s < 2
        pixels = np.frombuffer(view.data, np.uint8).reshape(64, 96, 3)
        assert 90 < np.median(pixels) < 100  # the grey of the recording
        stamps = [nanoseconds(it.hears('view').header.stamp) for _ in range(5)]
        assert stamps == sorted(set(stamps))
        subs = [it.listen(k) for k in ('image_raw', 'camera_info', 'depth/image_raw')]
        subs.append(it.listen('image_raw/compressed'))
        raw, info, depth = (it.hears(k) for k in ('image_raw', 'camera_info', 'depth/image_raw'))
        assert (raw.height, raw.width, len(raw.data)) == (480, 640, 921600)
        assert (depth.encoding, depth.step, len(depth.data)) == ('16UC1', 1280, 614400)
        assert (info.k[0], info.k[2], info.distortion_model) == (600.0, 320.0, 'plumb_bob')
        assert jpeg.decode(it.hears('image_raw/compressed').data).shape == (480, 640, 3)
        for sub in subs:
            it.guest.node.destroy_subscription(sub)
        it.hears('view')


def test_a_film_on_another_machine_comes_as_jpeg_without_end_and_with_its_numbers(tmp_path):
    with eye(tmp_path, kind='v4l2', device=str(film(tmp_path)), machine='far') as it:
        for key in ('view/compressed', 'view', 'diagnostics'):
            it.listen(key)
        view = it.hears('view/compressed')
        assert isinstance(view, CompressedImage)
        assert jpeg.decode(view.data).shape == (128, 128, 3)
        assert it.heard['view'] == []
        it.until(
            lambda: (
                it.heard['diagnostics']
                and it.health()[:2] == (0, 'STREAMING')
                and it.health()[2]['frames'] > 20
            )  # of 10
        )
        numbers = it.health()[2]
        assert 0 < numbers['fps'] < 40
        assert numbers['age_s'] < 0.3


def test_a_frozen_camera_is_told_with_its_age_and_asks_nobody(tmp_path):
    """Its standard input is closed; the foreign camera repeats its last picture for ever."""
    with (
        eye(tmp_path, kind='topics', topic='/lab/image', max_age_s=0.3) as it,
        Guest('lab') as lab,
    ):
        pub = lab.node.create_publisher(Image, '/lab/image', qos_profile_sensor_data)
        picture = Image(encoding='rgb8', height=8, width=8, step=24)
        picture.data = octets(np.full(8 * 8 * 3, 90, np.uint8))
        it.listen('diagnostics')
        it.listen('view')

        def say(new):
            if new:
                picture.header.stamp.sec, picture.header.stamp.nanosec = divmod(time.time_ns(), NS)
            pub.publish(picture)

        def streams():
            say(new=True)
            return it.heard['diagnostics'] and it.health()[1] == 'STREAMING'

        it.until(streams)
        last = nanoseconds(picture.header.stamp)

        def lost():
            say(new=False)
            return it.health()[0] == 2 and it.health()[1].startswith('LOST no picture for ')

        it.until(lost)
        assert it.health()[2]['age_s'] > 0.3
        stamps = [nanoseconds(v.header.stamp) for v in it.heard['view']]
        assert stamps.count(last) <= 1
        it.until(streams)


def test_a_pair_that_does_not_match_is_named(tmp_path):
    """Both ends are reliable; here a reader wants what only latched topics give."""
    with eye(tmp_path, kind='v4l2', device=str(film(tmp_path))) as it:
        it.listen('view')
        it.hears('view')
        name = topics.name('view', 'arm0', 'wrist')
        late = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
        late.durability = topics.TOPICS['weights'].reader.durability  # transient local
        it.guest.node.create_subscription(Image, name, lambda m: None, late)
        it.until(lambda: 'do not match' in it.log.read_text())
        assert f'/looker do not match on {name}' in it.log.read_text()


def test_a_missing_library_ends_the_node_with_the_install_line_and_exit_code_2(tmp_path, guest):
    (tmp_path / 'pyrealsense2.py').write_text(
        'raise ImportError("libusb-1.0.so.0: cannot open shared object file")'
    )
    it = Eye(tmp_path, guest, {'kind': 'realsense', 'serial': '017322071690'}, python=tmp_path)
    assert it.process.wait(60) == 2
    line = 'Install it: sudo apt-get install -y libusb-1.0-0.'
    assert line in it.log.read_text()
    ((good, text),) = check(it.config, python=tmp_path)
    assert not good
    assert text.startswith('wrist: ')
    assert "kind 'realsense' needs a library that is missing." in text
    assert line in text


def test_the_check_saves_a_picture_and_names_a_camera_that_is_too_slow_or_not_there(tmp_path):
    seen = film(tmp_path)
    config = page(tmp_path, {'kind': 'v4l2', 'device': str(seen), 'fps': 10})
    ((good, text),) = check(config, temporary=tmp_path)
    assert good, text
    assert re.search(r'wrist: 640x480 at \d+ Hz', text)
    (file,) = tmp_path.glob('user-check-*/arm0_wrist.png')
    assert str(file) in text
    saved = cv2.imread(str(file))
    assert saved.shape == (480, 640, 3)
    assert tuple(saved[240, 80]) == (0, 0, 255)  # the edge of the view, red
    config = page(tmp_path, {'kind': 'realsense', 'serial': '017322071690'})
    ((good, text),) = check(config, temporary=tmp_path)
    assert not good
    assert 'The RealSense 017322071690 is not connected. Connected are: none.' in text


def check(config, python=None, temporary=None) -> list[tuple[bool, str]]:
    """What `user check` shows of the cameras."""
    env = {'PYTHONPATH': path(python)}
    if temporary:
        env['TMPDIR'] = str(temporary)
    done = subprocess.run(
        [sys.executable, '-m', 'user_robot.camera.check', 'arm0', 'robot'],
        input=config.to_json(), capture_output=True, text=True, timeout=60, env=os.environ | env,
    )  # fmt: skip
    return [(v['good'], v['text']) for v in map(json.loads, done.stdout.splitlines())]
