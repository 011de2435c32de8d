# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Messages to numpy and back, on the fast path: one copy of memory, never one check per element.

rclpy checks every element of a list or ndarray that is assigned to a sequence field (154 ms for a
640 x 480 picture); an `array.array` of the right type it takes as it is.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
import math
from typing import Any

from builtin_interfaces.msg import Time
from geometry_msgs.msg import Point, Quaternion
from geometry_msgs.msg import Pose as PoseMsg
import numpy as np
from numpy.typing import ArrayLike, NDArray
from user_msgs.msg import Image

from user_core import jpeg
from user_core.geometry import Pose

NS = 1_000_000_000


def pose_msg(pose: Pose) -> PoseMsg:
    """A pose in metres, quaternion x y z w."""
    x, y, z = pose.position.tolist()
    qx, qy, qz, qw = pose.quaternion.tolist()
    return PoseMsg(position=Point(x=x, y=y, z=z), orientation=Quaternion(x=qx, y=qy, z=qz, w=qw))


def pose(msg: PoseMsg) -> Pose:
    """Inverse of `pose_msg`; does not normalise."""
    p, q = msg.position, msg.orientation
    return Pose(np.array((p.x, p.y, p.z)), np.array((q.x, q.y, q.z, q.w)))


def floats(values: ArrayLike) -> array[float]:
    """For a float32[] field."""
    return _sequence('f', np.ascontiguousarray(values, np.float32))


def doubles(values: ArrayLike) -> array[float]:
    """For a float64[] field (not for a fixed size such as float64[6]: assign the ndarray)."""
    return _sequence('d', np.ascontiguousarray(values, np.float64))


def octets(values: NDArray[np.uint8] | bytes | memoryview) -> array[int]:
    """For a uint8[] field."""
    if isinstance(values, np.ndarray):
        return _sequence('B', np.ascontiguousarray(values, np.uint8))
    return array('B', bytes(values)) if isinstance(values, memoryview) else array('B', values)


def numbers(field: Any) -> NDArray[Any]:
    """A numeric field as an ndarray that shares its memory; copy what outlives the message."""
    if isinstance(field, np.ndarray):
        return field
    return np.frombuffer(field, field.typecode)


def image_msg(
    name: str,
    picture: NDArray[np.uint8] | bytes,
    stamp: Time,
    size: tuple[int, int] = (0, 0),
) -> Image:
    """A picture: raw, (height, width, 3) uint8 RGB, or one JPEG file with its (height, width)."""
    raw = isinstance(picture, np.ndarray)
    height, width = picture.shape[:2] if isinstance(picture, np.ndarray) else size
    return Image(
        stamp=stamp,
        name=name,
        encoding='rgb8' if raw else 'jpeg',
        height=height,
        width=width,
        data=octets(picture),
    )


def image(msg: Image) -> NDArray[np.uint8]:
    """The picture of a message, (height, width, 3) RGB; a raw one shares the message's memory.

    Raises:
        UserError: it is a JPEG and OpenCV is missing.
        ValueError: its bytes are not what it says.
    """
    shape = msg.height, msg.width, 3
    if msg.encoding == 'rgb8' and len(msg.data) == math.prod(shape):
        return np.frombuffer(msg.data, np.uint8).reshape(shape)
    if msg.encoding == 'jpeg':
        with suppress(ValueError):
            picture = jpeg.decode(msg.data)
            if picture.shape == shape:
                return picture
    raise ValueError(f'image {msg.name} is no {msg.encoding} of {msg.width} x {msg.height} pixels')


def stamp(nanoseconds: int) -> Time:
    """Nanoseconds since the epoch of whichever clock."""
    seconds, rest = divmod(nanoseconds, NS)
    return Time(sec=seconds, nanosec=rest)


def stamp_s(seconds: float) -> Time:
    """Seconds of a simulated clock."""
    return stamp(round(seconds * NS))


def nanoseconds(msg: Time) -> int:
    """Inverse of `stamp`."""
    return int(msg.sec) * NS + int(msg.nanosec)


def _sequence(typecode: str, values: NDArray[Any]) -> Any:
    out = array(typecode)
    out.frombytes(values.reshape(-1).view(np.uint8).data)
    return out
