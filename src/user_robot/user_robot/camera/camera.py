# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a camera gives and can do, and the cameras there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from user_robot.registry import look_up

CAMERAS = {
    'realsense': 'user_robot.camera.realsense:RealsenseCamera',
    'v4l2': 'user_robot.camera.v4l2:V4l2Camera',
    'topics': 'user_robot.camera.foreign:TopicsCamera',
}
"""Where the class of each `cells.*.cameras.*.kind` lives; imported on use, so none needs another's
library. Those of kind sim are drawn by user_sim.
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """One captured picture; its memory is its own.

    Attributes:
        color: (height, width, 3) RGB.
        stamp_s: instant of exposure, system clock.
        number: grows with each new picture of one opening, so that a repeated one is known.
        depth: (height, width) mm, aligned to color; None without.
    """

    color: NDArray[np.uint8]
    stamp_s: float
    number: int
    depth: NDArray[np.uint16] | None = None


@dataclass(frozen=True, slots=True)
class Lens:
    """Pinhole model of the captured picture, in pixels; `coefficients` as `model` of
    sensor_msgs/CameraInfo orders them.
    """

    fx: float
    fy: float
    cx: float
    cy: float
    model: str
    coefficients: tuple[float, ...]


class Camera(Protocol):
    """A driver. One thread calls it, which may wait in `open` and `read`."""

    title: str
    """What it is, for people: the make and what tells it from others."""
    open_gap_s: float
    """Time between the openings of two cameras of this machine."""
    resets: int
    """Resets in a row that may be tried."""
    lens: Lens | None
    """Known once it is open; None where nothing tells it."""

    def open(self) -> None:
        """Begins to capture.

        Raises:
            UserError: it is not there, or does not begin.
        """

    def read(self, within_s: float) -> Frame | None:
        """The newest picture that was not read yet; None when none came in time.

        Raises:
            UserError: it is gone.
        """

    def present(self) -> bool:
        """Whether it is plugged in, and no other program has it."""

    def others(self) -> list[str]:
        """What of its kind there is, for people."""

    def reset(self) -> None:
        """Restarts the device; it may be gone for seconds. Only when closed."""

    def close(self, again: bool = False) -> None:
        """Ends capturing; nothing happens when it is not open. `again`: it will be opened anew."""


def make_camera(config: Any) -> Camera:
    """The driver that `config.kind` names; it is not open yet.

    Raises:
        UserError: no such kind, or its library does not load.
    """
    key = 'cells.<cell>.cameras.<camera>.kind'
    camera: Camera = look_up(CAMERAS, config.kind, 'camera device', key)(config)
    return camera
