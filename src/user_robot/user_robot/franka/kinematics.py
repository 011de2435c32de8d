# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Forward kinematics and Jacobian of a Franka (Panda and FR3 share them).

libfranka's own model must not be asked while a control loop runs: it computes in scratch memory
that the loop's torque law uses at the same time.
Denavit-Hartenberg parameters (Craig): Franka's FCI documentation, "Robot limits and parameters".
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

from user_core.arm_config import Franka
from user_core.geometry import Array

HAND = Rotation.from_euler('z', -45, degrees=True)
"""Turns the TCP's axes into the flange's: how Franka mounts its hand."""

_A = (0.0, 0.0, 0.0, 0.0825, -0.0825, 0.0, 0.088)
_D = (0.333, 0.0, 0.316, 0.0, 0.384, 0.0, 0.0)
_ALPHA = np.array([0, -1, 1, 1, -1, 1, 1]) * np.pi / 2
_FLANGE_M = 0.107


def _links() -> Array:
    """(7, 4, 4): what stands before each joint's rotation about its z."""
    links = np.zeros((7, 4, 4))
    for link, a, d, alpha in zip(links, _A, _D, _ALPHA, strict=True):
        c, s = round(np.cos(alpha)), round(np.sin(alpha))
        link[:] = [[1, 0, 0, a], [0, c, -s, -s * d], [0, s, c, c * d], [0, 0, 0, 1]]
    return links


_LINKS = _links()


def joint_frames(q: Array) -> Array:
    """(7, 4, 4) frames of the joints in the base frame; q: (7,) rad."""
    turns = np.zeros((7, 4, 4))
    turns[:, 0, 0] = turns[:, 1, 1] = np.cos(q)
    turns[:, 1, 0] = np.sin(q)
    turns[:, 0, 1] = -turns[:, 1, 0]
    turns[:, 2, 2] = turns[:, 3, 3] = 1.0
    frames = _LINKS @ turns
    for i in range(1, 7):
        frames[i] = frames[i - 1] @ frames[i]
    return frames


def flange(q: Array) -> Array:
    """(4, 4) pose of the flange in the base frame, metres."""
    frame = joint_frames(q)[6]
    frame[:3, 3] += _FLANGE_M * frame[:3, 2]
    return frame


def tcp(config: Franka) -> Array:
    """(4, 4) the configured TCP in the flange's frame."""
    frame = np.eye(4)
    frame[:3, :3], frame[:3, 3] = HAND.as_matrix(), config.tcp_m
    return frame


def jacobian(q: Array, point: Array) -> Array:
    """(6, 7) twist of a point of the hand (base frame, metres) per joint speed: m, then rad."""
    frames = joint_frames(q)
    axes = frames[:, :3, 2]
    return np.concatenate((np.cross(axes, point - frames[:, :3, 3]), axes), axis=1).T
