# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The driver of foreign cameras: any node that publishes sensor_msgs/Image or CompressedImage."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image

from user_core import jpeg
from user_core.camera_config import TopicsCameraConfig
from user_core.errors import UserError
from user_core.guest import Guest
from user_core.messages import NS, nanoseconds
from user_robot.camera.camera import Frame, Lens

CHANNELS = {
    'rgb8': (0, 1, 2),
    'bgr8': (2, 1, 0),
    'rgba8': (0, 1, 2),
    'bgra8': (2, 1, 0),
    '8UC3': (2, 1, 0),
    'mono8': (0, 0, 0),
}
"""Where red, green and blue lie in a pixel of each encoding that is understood."""
BYTES = {'rgba8': 4, 'bgra8': 4, 'mono8': 1}
"""Bytes of a pixel where they are not 3."""

KINDS = {'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'}

# Matches every writer; a picture that was overtaken is not looked at.
_READER = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)


class TopicsCamera:
    """A topic; a name that ends in /compressed is of CompressedImage. A zero stamp means: when it
    came. It joins the graph as a node of its own, spun by whoever reads, and stays there while it
    is closed only to be opened again: a topic that is silent costs no participant after another.
    """

    open_gap_s = 0.0
    resets = 0
    lens: Lens | None = None

    def __init__(self, config: TopicsCameraConfig) -> None:
        self.config = config
        self.title = f'the topic {config.topic}'
        self._guest: Guest | None = None
        self._message: Any = None

    def open(self) -> None:
        """Subscribes."""
        if self._guest is not None:
            return
        topic = self.config.topic
        kind = CompressedImage if topic.endswith('/compressed') else Image
        self._guest = Guest('foreign_camera')
        self._guest.node.create_subscription(kind, topic, self._keep, _READER)

    def _keep(self, message: Any) -> None:
        self._message = message

    def read(self, within_s: float) -> Frame | None:
        """The next message as a picture."""
        guest, self._message = self._guest, None
        assert guest is not None
        end = time.monotonic() + within_s
        while self._message is None:
            left_s = end - time.monotonic()
            if left_s <= 0:
                return None
            guest.executor.spin_once(left_s)
        message = self._message
        try:
            color = picture(message)
        except ValueError as error:
            raise UserError(f'{self.title} cannot be used', str(error)) from error
        number = nanoseconds(message.header.stamp) or time.time_ns()
        return Frame(color, number / NS, number)

    def present(self) -> bool:
        """A topic may speak at any time."""
        return True

    def others(self) -> list[str]:
        """The topics of pictures that somebody publishes."""
        assert self._guest is not None
        node = self._guest.node
        return [
            name
            for name, kinds in node.get_topic_names_and_types()
            if {*kinds} & KINDS and node.count_publishers(name)
        ]

    def reset(self) -> None:
        """There is none."""

    def close(self, again: bool = False) -> None:
        """Leaves the graph, unless it is opened again."""
        if self._guest is not None and not again:
            self._guest.close()
            self._guest = None


def picture(message: Any) -> NDArray[np.uint8]:
    """The RGB picture of an Image or CompressedImage, (height, width, 3).

    Raises:
        ValueError: its encoding is not understood, or its bytes are not what it says.
    """
    if isinstance(message, CompressedImage):
        return jpeg.decode(message.data)
    order = CHANNELS.get(message.encoding)
    if order is None:
        raise ValueError(f'its encoding is {message.encoding}, not one of {", ".join(CHANNELS)}')
    size = BYTES.get(message.encoding, 3)
    rows = np.frombuffer(message.data, np.uint8)
    fits = message.step >= size * message.width and rows.size == message.step * message.height
    if not fits or not message.width * message.height:
        raise ValueError(
            f'{rows.size} bytes are no {message.width}x{message.height} {message.encoding}'
        )
    rows = rows.reshape(message.height, message.step)[:, : size * message.width]
    pixels = rows.reshape(message.height, message.width, size)
    return np.ascontiguousarray(pixels[:, :, order])
