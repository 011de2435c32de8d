# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The camera's shell: publishes its view, the rest while somebody listens, and how it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import Header

from user_core import jpeg
from user_core.diagnostics import Pulse
from user_core.messages import octets, stamp_s
from user_core.node import Shell, run_node
from user_robot.camera.camera import Frame, Lens, make_camera
from user_robot.camera.framing import Framing
from user_robot.camera.keeper import Keeper

LOOK_S = 0.1
"""How often the camera's state is looked at."""
TELL_S = 1.0
"""How often it is told."""
RAW = ('image_raw', 'image_raw/compressed', 'depth/image_raw', 'camera_info')


class CameraNode:
    """One camera. Pictures come from the keeper's thread and are published in the executor's.

    On the cell's machine the view goes out raw, from another one as JPEG.
    """

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        cell = shell.config.cells[shell.cell]
        config = cell.cameras[shell.camera]
        self.quality = config.jpeg_quality
        self.framing, self.state = Framing(config), 'OPENING'
        key = cell.view_topic(shell.camera)
        self.near = key == 'view'
        self.view_pub = shell.create_pub(key)
        self.raw = {key: shell.create_pub(key) for key in RAW}
        self.camera = make_camera(config)
        self.pulse, shell.hardware = Pulse(TELL_S), self.camera.title
        self.keeper = Keeper(
            self.camera, config.max_age_s, wake=lambda: shell.call_soon(self.publish)
        )
        shell.create_timer(LOOK_S, self.on_look)

    def publish(self) -> None:
        """The newest picture: the view first, then what somebody listens to."""
        frame = self.keeper.take()
        if frame is None:
            return
        header = Header(
            stamp=stamp_s(frame.stamp_s), frame_id=f'{self.shell.cell}_{self.shell.camera}'
        )
        view = self.framing.of(frame.color)
        if self.near:
            self.view_pub.publish(image(header, view))
        else:
            self.view_pub.publish(compressed(header, view, self.quality))
        wanted = {k: pub for k, pub in self.raw.items() if pub.get_subscription_count()}
        for key, pub in wanted.items():
            message = self.message(key, header, frame)
            if message is not None:
                pub.publish(message)

    def message(self, key: str, header: Header, frame: Frame) -> Any:
        """What goes out on a topic of RAW; None where the camera has nothing for it."""
        if key == 'image_raw':
            return image(header, frame.color)
        if key == 'image_raw/compressed':
            return compressed(header, frame.color, self.quality)
        if key == 'depth/image_raw':
            return None if frame.depth is None else image(header, frame.depth)
        height, width = frame.color.shape[:2]
        return camera_info(header, height, width, self.camera.lens)

    def on_look(self) -> None:
        """How the camera is, each second and at once when that changes."""
        health, before = self.keeper.health(), self.state
        if self.pulse.due('camera', health.state):
            self.shell.metrics(health.state, health.reason, **health.numbers)
        self.state = health.state
        if health.state != before:
            log, text = self.shell.get_logger(), f'{health.state} {health.reason}'.strip()
            if health.state in ('LOST', 'FAILED'):
                log.error(text)
            else:  # rclpy allows one severity a line
                log.info(text)

    def close(self) -> None:
        """Lets the camera go."""
        self.keeper.close()


def image(header: Header, picture: np.ndarray) -> Image:
    """(height, width, 3) uint8 RGB, or (height, width) uint16 depth in mm."""
    height, width = picture.shape[:2]
    message = Image(header=header, height=height, width=width, step=picture.strides[0])
    message.encoding = 'rgb8' if picture.ndim == 3 else '16UC1'
    message.data = octets(np.ascontiguousarray(picture).view(np.uint8))
    return message


def compressed(header: Header, picture: np.ndarray, quality: int) -> CompressedImage:
    """(height, width, 3) uint8 RGB."""
    data = octets(jpeg.encode(picture, quality))
    return CompressedImage(header=header, format='jpeg', data=data)


def camera_info(header: Header, height: int, width: int, lens: Lens | None) -> CameraInfo:
    """For image_raw; all zero where the lens is not known."""
    message = CameraInfo(header=header, height=height, width=width)
    if lens is not None:
        message.distortion_model = lens.model
        message.d = list(lens.coefficients)
        message.k = np.array((lens.fx, 0, lens.cx, 0, lens.fy, lens.cy, 0, 0, 1), float)
        message.r = np.eye(3).reshape(9)
        message.p = np.array((lens.fx, 0, lens.cx, 0, 0, lens.fy, lens.cy, 0, 0, 0, 1, 0), float)
    return message


def main() -> None:
    """Entry point."""
    run_node(CameraNode, 'camera')


if __name__ == '__main__':
    main()
