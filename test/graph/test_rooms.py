# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures and weights from room to room: two network namespaces, a link that loses and delays
frames or is narrow, real DDS.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time

import pytest
from rooms import Rooms, missing

from user_core.config import RunConfig
from user_learning.weights import LEASES_N

pytestmark = [
    pytest.mark.needs_ros,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

PICTURES_N, HZ = 240, 30

SENDER = f"""
import time
import numpy as np
from array import array
import rclpy
from sensor_msgs.msg import CompressedImage
from user_core import jpeg, topics
rclpy.init()
node = rclpy.create_node('camera', namespace='/arm0/wrist')
row = topics.TOPICS['view/compressed']
publisher = node.create_publisher(row.type, topics.name('view/compressed', 'arm0', 'wrist'),
                                  row.writer)
y, x = np.mgrid[:128, :128]
noise = np.random.default_rng(0).integers(0, 24, (128, 128, 3))
picture = (np.stack([x, y, 255 - x], -1) + noise).clip(0, 255).astype(np.uint8)
data = array('B', jpeg.encode(picture, 90))
while not publisher.get_subscription_count():
    time.sleep(0.05)
time.sleep(0.5)
for number in range({PICTURES_N}):
    message = CompressedImage(format='jpeg', data=data)
    message.header.stamp.sec = number
    publisher.publish(message)
    time.sleep(1 / {HZ})
time.sleep(1.0)
"""

RECEIVER = """
import json, time
import rclpy
from user_core import topics
rclpy.init()
node = rclpy.create_node('episode', namespace='/arm0')
row = topics.TOPICS['view/compressed']
seen, last = {}, [time.monotonic()]
def on_view(message):
    seen[message.header.stamp.sec] = len(message.data)
    last[0] = time.monotonic()
node.create_subscription(row.type, topics.name('view/compressed', 'arm0', 'wrist'), on_view,
                         row.reader)
while time.monotonic() - last[0] < (20.0 if not seen else 3.0):
    rclpy.spin_once(node, timeout_sec=0.2)
print(json.dumps([len(seen), max(seen.values(), default=0)]))
"""


def delivered(loss: float) -> tuple[int, int]:
    """Pictures that came through, and the bytes of one."""
    env = os.environ | {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'}
    with Rooms(loss=loss) as rooms:
        receiver = rooms.start(
            'right', sys.executable, '-c', RECEIVER, env=env, stdout=subprocess.PIPE, text=True
        )
        sender = rooms.start('left', sys.executable, '-c', SENDER, env=env)
        try:
            out = receiver.communicate(timeout=90)[0]
        finally:
            sender.kill()
            receiver.kill()
    count, size = json.loads(out.splitlines()[-1])
    return count, size


@pytest.mark.parametrize(('loss', 'share'), [(0.0, 0.95), (0.01, 0.9)])
def test_pictures_for_another_room_are_small_and_arrive_through_a_lossy_link(loss, share):
    count, size = delivered(loss)
    assert size < 64_000
    assert count >= share * PICTURES_N


LEARNER = """
import json, pathlib, sys, time
from types import SimpleNamespace
import numpy as np
import rclpy
import torch
from user_msgs.msg import Observation, StepId
from user_core import topics
from user_core.config import from_json, weights_hash
from user_core.messages import floats
from user_learning.learner_node import LearnerNode
from user_learning.networks import Actor
from user_learning.row_message import weights_msg
from user_learning.spec import spec_of
from user_learning.weights import Publisher
torch.set_num_threads(1)
folder, every_s = pathlib.Path(sys.argv[1]), float(sys.argv[2])
config = from_json((folder / 'config.json').read_text(), 'the test')
publisher = Publisher(folder / 'shm', folder / 'versions.json', weights_hash(config))
actor = Actor(spec_of(config), config.policy.hidden)
rclpy.init()
node = rclpy.create_node('learner', namespace='/learning')
def pub(key):
    return node.create_publisher(topics.interface(key), topics.name(key, 'arm0'),
                                 topics.TOPICS[key].writer)
def sub(key, callback):
    node.create_subscription(topics.interface(key), topics.name(key, 'arm0'), callback,
                             topics.TOPICS[key].reader)
weights, observations = pub('weights'), pub('observation')
side = SimpleNamespace(publisher=publisher)
node.create_service(topics.interface('fetch_weights'), topics.of_run('fetch_weights', 'rooms'),
                    lambda q, r: LearnerNode.on_fetch(side, q, r),
                    qos_profile=topics.FETCH_WEIGHTS)
def publish():
    message = weights_msg('rooms', publisher.publish('actor', actor.state_dict(), 0, 0))
    message.host = 'another'
    weights.publish(message)
asked = 0
def ask():
    global asked
    asked += 1
    identity = StepId(run='rooms', cell='arm0', episode=1, step=asked)
    observations.publish(Observation(id=identity, policy='actor', state=floats(np.zeros(19))))
def say(what, version=0):
    files = sum(1 for _ in (folder / 'shm').iterdir())
    print(json.dumps([what, time.monotonic(), version, files]), flush=True)
sub('action', lambda m: say('action', m.policy_version))
sub('metrics', lambda m: say('word') if m.node == '/learning/policy' else None)
publish()
node.create_timer(every_s, publish)
node.create_timer(0.1, ask)
rclpy.spin(node)
"""


class Apart:
    """A learner and a cell in the left room, a policy in the right one."""

    def __init__(self, folder, rooms: Rooms, hidden: tuple[int, ...], every_s: float) -> None:
        self.folder, self.rooms = folder, rooms
        config = RunConfig.model_validate(
            {'name': 'rooms', 'cells': {'arm0': {}}, 'policy': {'hidden': hidden}}
        )
        (folder / 'config.json').write_text(config.to_json())
        values = {'config': config.to_json(), 'run': 'rooms', 'run_folder': str(folder)}
        self.page = folder / 'policy.yaml'
        self.page.write_text(json.dumps({'/**': {'ros__parameters': values}}))
        self.env = os.environ | {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET', 'OMP_NUM_THREADS': '1'}
        self.learner = rooms.start(
            'left', sys.executable, '-c', LEARNER, str(folder), str(every_s),
            env=self.env, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.policy: subprocess.Popen | None = None
        self.said: queue.Queue = queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        for line in self.learner.stdout:
            self.said.put(json.loads(line))

    def start(self) -> float:
        """Starts the policy; when that was, on the steady clock."""
        names = ['-r', '__node:=policy', '-r', '__ns:=/learning', '--params-file', str(self.page)]
        self.policy = self.rooms.start(
            'right', sys.executable, '-m', 'user_learning.policy_node', '--ros-args', *names,
            env=self.env,
        )  # fmt: skip
        return time.monotonic()

    def next(self, what: str) -> tuple[float, int, int]:
        """When the policy did this next, with which version, and how many files there were."""
        while True:
            said, *numbers = self.said.get(timeout=60)
            if said == what:
                return tuple(numbers)

    def kill(self) -> None:
        """Kill -9 of the policy; waits until nothing of it is under way."""
        self.policy.kill()
        self.policy.wait()
        while True:
            try:
                self.said.get(timeout=2.0)
            except queue.Empty:
                return

    def close(self) -> None:
        for process in (self.policy, self.learner):
            if process is not None:
                process.kill()
                process.wait()


def test_a_policy_that_replaces_a_killed_one_has_weights_within_ten_seconds(tmp_path):
    """From its first word on; a hundred kilobytes through a link that loses and delays."""
    with Rooms(loss=0.01, delay_s=0.05) as rooms:
        apart = Apart(tmp_path, rooms, (128, 128), every_s=1.0)
        try:
            apart.start()
            apart.next('action')
            apart.kill()
            begun = apart.start()
            word = apart.next('word')[0]
            action = apart.next('action')[0]
        finally:
            apart.close()
    print(f'word {word - begun:.1f} s, action {action - begun:.1f} s after the start')
    assert action - word < 10.0


def test_a_link_too_slow_for_every_version_brings_one_after_the_other_whole(tmp_path):
    """A version takes some four seconds on the way and would be gone after one and a half."""
    with Rooms(rate=100_000) as rooms:
        apart = Apart(tmp_path, rooms, (280, 280), every_s=0.3)
        try:
            apart.start()
            acted, files = set(), 0
            while len(acted) < 4:
                _, version, now = apart.next('action')
                acted.add(version)
                files = max(files, now)
        finally:
            apart.close()
    print(f'versions {sorted(acted)} acted, {files} files')
    assert files <= 5 + LEASES_N
