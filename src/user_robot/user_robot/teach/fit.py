# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Least squares that find the tool of an arm: its tip from a pivot, its load from wrenches in air.

Pure: poses are of the present TCP in the base frame, SI units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import itertools
import math

import numpy as np

from user_core.errors import UserError
from user_core.geometry import Array, Pose, angle

GRAVITY_M_S2 = 9.81
SPREAD_RAD = math.radians(15)
"""Orientations closer to each other than this say the same."""
PIVOTS_N = 4
_MORE = 'turn it further, by 30 degrees and more about different axes'


@dataclass(frozen=True)
class Tip:
    """What a pivot says.

    Attributes:
        offset_m: (3,) of the tip from the present TCP, in its frame.
        spot_m: (3,) where the tip stood, base frame.
        rms_m: how far the poses disagree.
    """

    offset_m: Array
    spot_m: Array
    rms_m: float


@dataclass(frozen=True)
class Load:
    """What wrenches in air say of a mass that the arm does not know of.

    Attributes:
        mass_kg: negative when the arm reckons with more than there is.
        com_m: (3,) its centre from the present TCP, in its frame.
        rms_n: how far the forces disagree.
        rms_nm: how far the torques do.
    """

    mass_kg: float
    com_m: Array
    rms_n: float
    rms_nm: float


def pivot(poses: Sequence[Pose]) -> Tip:
    """The tip that stood in one spot while the hand turned about it.

    For each pose (p_i, R_i) the tip t and the spot s obey  p_i + R_i t = s:  3 n linear equations
    in 6 unknowns.

    Raises:
        UserError: fewer than four poses, or they hardly turn.
    """
    if len(poses) < PIVOTS_N:
        raise UserError(f'the tip needs {PIVOTS_N} orientations', f'there are {len(poses)}')
    a = np.concatenate([np.hstack([p.rotation.as_matrix(), -np.eye(3)]) for p in poses])
    b = -np.concatenate([p.position for p in poses])
    if _spread(poses) < SPREAD_RAD or np.linalg.svd(a, compute_uv=False)[-1] < 0.1:
        raise UserError('the orientations of the pivot are too much alike', '', _MORE)
    solution = np.linalg.lstsq(a, b, rcond=None)[0]
    off = (a @ solution - b).reshape(-1, 3)
    return Tip(solution[:3], solution[3:], math.sqrt(float(np.mean(np.sum(off**2, axis=1)))))


def load(poses: Sequence[Pose], wrenches: Sequence[Array]) -> Load:
    """The mass that hangs on the arm in air, beyond the one it reckons with.

    Wrenches are (6,) at the TCP in the base frame's axes, robot on environment positive, so that
    gravity shows as  F_i = m g z  and  tau_i = (R_i c) x F_i = m g [-z]x R_i c.  The mass is the
    mean of F_iz / g; then the torques are 3 n linear equations in c. A bias of the estimate that
    is constant in the base frame's z cannot be told from mass.

    Raises:
        UserError: fewer than two orientations that differ in tilt, or no mass to speak of.
    """
    tilts = [p.rotation.inv().apply([0.0, 0.0, 1.0]) for p in poses]
    pairs = itertools.combinations(tilts, 2)
    widest = max((math.acos(float(np.clip(a @ b, -1, 1))) for a, b in pairs), default=0.0)
    if widest < SPREAD_RAD:
        raise UserError(
            'the load needs two orientations or more that differ in tilt',
            f'the widest difference is {math.degrees(widest):.0f} deg',
            'tilt the hand by 20 degrees or more and measure again',
        )
    forces = np.array([w[:3] for w in wrenches])
    weight = float(forces[:, 2].mean())
    mass = weight / GRAVITY_M_S2
    rms_n = math.sqrt(float(np.mean(np.sum((forces - [0, 0, weight]) ** 2, axis=1))))
    if abs(mass) < 0.02:
        return Load(mass, np.zeros(3), rms_n, 0.0)
    down = weight * np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    a = np.concatenate([down @ p.rotation.as_matrix() for p in poses])
    b = np.concatenate([w[3:] for w in wrenches])
    com = np.linalg.lstsq(a, b, rcond=None)[0]
    off = (a @ com - b).reshape(-1, 3)
    return Load(mass, com, rms_n, math.sqrt(float(np.mean(np.sum(off**2, axis=1)))))


def joined(mass_kg: float, com_m: Array, more: Load, more_com_m: Array) -> tuple[float, Array]:
    """The known load and what was found beyond it, as one: (kg, (3,) m in one common frame).

    Raises:
        UserError: the sum is negative.
    """
    total = mass_kg + more.mass_kg
    if total < -0.02:
        raise UserError(
            f'the load comes out as {total:.2f} kg',
            'the arm reckons with a mass that is not there',
            'set the load in Desk to what is mounted, then measure again',
        )
    if total < 0.02:
        return 0.0, np.zeros(3)
    return total, (mass_kg * com_m + more.mass_kg * more_com_m) / total


def _spread(poses: Sequence[Pose]) -> float:
    """The smallest angle between a pose and the first one's farthest neighbours, rad."""
    return max(angle(a, b) for a, b in itertools.combinations(poses, 2))
