# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Rigid poses and rotations: metres, radians, quaternions x y z w, rotation vectors; never Euler.

A rotation and its negated quaternion are the same; nothing here depends on the sign.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Pose:
    """A frame seen from another one.

    Attributes:
        position: (3,) metres.
        quaternion: (4,) unit, x y z w.
    """

    position: Array
    quaternion: Array

    @classmethod
    def identity(cls) -> Pose:
        """The frame itself."""
        return cls(np.zeros(3), np.array([0.0, 0.0, 0.0, 1.0]))

    @classmethod
    def from_rotvec(cls, position: ArrayLike, rotvec: ArrayLike) -> Pose:
        """From metres (3,) and a rotation vector (3,) in radians."""
        return cls(np.array(position, float), Rotation.from_rotvec(rotvec).as_quat())

    @property
    def rotation(self) -> Rotation:
        """The orientation as scipy's object; normalises the quaternion."""
        return Rotation.from_quat(self.quaternion)

    def matrix(self) -> Array:
        """Homogeneous 4 x 4 matrix."""
        m = np.eye(4)
        m[:3, :3] = self.rotation.as_matrix()
        m[:3, 3] = self.position
        return m

    def rotvec(self) -> Array:
        """Rotation vector (3,) in radians, angle in [0, pi]."""
        return np.asarray(self.rotation.as_rotvec())

    def inverse(self) -> Pose:
        """The other frame seen from this one."""
        r = self.rotation.inv()
        return Pose(-r.apply(self.position), r.as_quat())

    def __matmul__(self, other: Pose) -> Pose:
        """Chains: (a seen from w) @ (b seen from a) = b seen from w."""
        r = self.rotation
        return Pose(self.position + r.apply(other.position), (r * other.rotation).as_quat())

    def isfinite(self) -> bool:
        """False when any number is NaN or infinite, or the quaternion is no rotation."""
        norm = float(self.quaternion @ self.quaternion)
        return bool(np.isfinite(self.position).all()) and 0.25 < norm < 4.0


def relative(frame: Pose, pose: Pose) -> tuple[Array, Array]:
    """The pose in the frame: position (3,) in m, rotation vector (3,) in rad, angle in [0, pi]."""
    inverse = frame.rotation.inv()
    position = inverse.apply(pose.position - frame.position)
    return position, np.asarray((inverse * pose.rotation).as_rotvec())


def from_relative(frame: Pose, position: ArrayLike, rotvec: ArrayLike) -> Pose:
    """Inverse of `relative`."""
    r = frame.rotation
    return Pose(frame.position + r.apply(position), (r * Rotation.from_rotvec(rotvec)).as_quat())


def clip_rotation(rotvec: ArrayLike, half_extents: ArrayLike) -> Array:
    """The rotation vector (3,) in rad, moved into the box |v_i| <= half_extents_i.

    `rotvec` is relative to the box's centre: the geodesic offset from it. So nothing wraps where
    an Euler angle would (a box centred at roll pi is as good as any), rotations inside come back
    unchanged, and clipping twice is clipping once.
    """
    limit = np.asarray(half_extents, float)
    shortest = np.asarray(Rotation.from_rotvec(rotvec).as_rotvec())
    return np.clip(shortest, -limit, limit)


def angle(a: Pose, b: Pose) -> float:
    """Angle in rad between two orientations, in [0, pi]."""
    dot = abs(float(a.quaternion @ b.quaternion))
    norm = float(np.linalg.norm(a.quaternion) * np.linalg.norm(b.quaternion))
    # 2 atan2(sqrt(1 - d^2), d) is accurate for small angles, where acos is not.
    cosine = min(dot / norm, 1.0)
    if cosine < 0.9:
        return 2.0 * float(np.arccos(cosine))
    return float((a.rotation.inv() * b.rotation).magnitude())
