# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures from room to room: two network namespaces, a link that loses frames, real DDS."""

import json
import os
import subprocess
import sys

import pytest
from rooms import Rooms, missing

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
