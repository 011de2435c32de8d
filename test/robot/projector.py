# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A camera of a test's own: real messages on the view's topic, as a camera node sends them."""

import threading
import time

import numpy as np
from sensor_msgs.msg import CompressedImage, Image

from user_core import jpeg, topics
from user_core.messages import nanoseconds, octets, stamp


class Projector:
    """Publishes pictures, each of one grey of its own: with `fps` from a thread on the system
    clock, else one for every sample of the arm, with that sample's stamp.
    """

    def __init__(self, graph, name, fps=0.0, cell='arm0'):
        camera = graph.config.cells[cell].cameras[name]
        key = graph.config.cells[cell].view_topic(name)
        self.shape, self.compressed = (camera.height, camera.width, 3), key != 'view'
        self.publisher = graph.node.create_publisher(
            topics.TOPICS[key].type, topics.name(key, cell, name), topics.TOPICS[key].writer
        )
        self.shining, self.closing, self.fps = True, threading.Event(), fps
        self.thread = threading.Thread(target=self.run, daemon=True)
        if fps:
            self.thread.start()
        else:
            graph._sub('robot_state', cell, lambda m: self.show(nanoseconds(m.stamp)))

    def show(self, stamp_ns) -> None:
        """Publishes the picture of an instant."""
        if self.shining:
            self.publisher.publish(self.picture(stamp_ns))

    def picture(self, stamp_ns):
        """The message."""
        height, width, _ = self.shape
        pixels = np.full(self.shape, grey(stamp_ns), np.uint8)
        if self.compressed:
            message = CompressedImage(format='jpeg', data=octets(jpeg.encode(pixels)))
        else:
            message = Image(
                encoding='rgb8', height=height, width=width, step=3 * width, data=octets(pixels)
            )
        message.header.stamp = stamp(stamp_ns)
        return message

    def run(self) -> None:
        """The thread."""
        due = time.monotonic()
        while not self.closing.wait(max(0.0, due - time.monotonic())):
            self.show(time.time_ns())
            due = max(due + 1 / self.fps, time.monotonic())

    def close(self) -> None:
        """Ends the thread."""
        self.closing.set()
        if self.fps:
            self.thread.join()


def grey(stamp_ns) -> int:
    """What every pixel of the picture of an instant is."""
    return stamp_ns // 10_000_000 % 251
