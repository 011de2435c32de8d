# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A reset motion: straight lines through waypoints at limited speed, in Cartesian space."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from scipy.spatial.transform import Rotation

from user_core.geometry import Array, Pose, angle

LEASH_M = 0.03
"""The moving target waits when the arm is this far behind it."""
NEAR_M, NEAR_RAD = 0.004, 0.06
"""The goal is reached within this."""
SETTLE_S = 1.0
"""At the end of the way the arm gets this long to come near the goal."""


class Motion:
    """A target that moves from waypoint to waypoint, in an arm's base frame.

    Args:
        begin: where the arm is.
        waypoints: the last one is the goal; at least one.
        speed_m_s: along each line.
        speed_rad_s: of the turn that goes with it, the short way round.
    """

    def __init__(
        self, begin: Pose, waypoints: Sequence[Pose], speed_m_s: float, speed_rad_s: float
    ) -> None:
        self.goal = waypoints[-1]
        self._speed_m_s, self._speed_rad_s = speed_m_s, speed_rad_s
        self._left = list(waypoints)
        self._target = begin
        self._settling_s = 0.0
        self._waited_s = 0.0

    def target(self, seconds: float, measured: Pose) -> Pose:
        """The target after these seconds more, while the arm is at `measured`."""
        if not self._left:
            self._settling_s += seconds
            return self._target
        if np.linalg.norm(self._target.position - measured.position) > LEASH_M:
            self._waited_s += seconds
            return self._target
        self._waited_s = 0.0
        here, there = self._target, self._left[0]
        way = there.position - here.position
        turn = (there.rotation * here.rotation.inv()).as_rotvec()
        needed_s = max(
            float(np.linalg.norm(way)) / self._speed_m_s,
            float(np.linalg.norm(turn)) / self._speed_rad_s,
        )
        if needed_s <= seconds:
            self._target = self._left.pop(0)
        else:
            share = seconds / needed_s
            turned = Rotation.from_rotvec(share * turn) * here.rotation
            self._target = Pose(here.position + share * way, turned.as_quat())
        return self._target

    def remaining_m(self, measured: Pose) -> float:
        """Distance to the goal along the way."""
        stops = [measured, *(self._left or [self.goal])]
        return sum(float(np.linalg.norm(b.position - a.position)) for a, b in pairwise(stops))

    def done(self, measured: Pose) -> bool:
        """True when the goal is reached, or the arm had its time to."""
        return not self._left and (self.near(measured) or self._settling_s > SETTLE_S)

    def stuck(self) -> bool:
        """True when something keeps the arm from following."""
        return self._waited_s > 3.0

    def near(self, measured: Pose) -> bool:
        """Whether the arm is at the goal."""
        off = float(np.linalg.norm(measured.position - self.goal.position))
        return off <= NEAR_M and angle(measured, self.goal) <= NEAR_RAD


class Travel:
    """The legs of a reset: lines, then perhaps a posture and the line from there to the goal.

    Attributes:
        line: the present leg; None while the joints move, or before the first leg.

    Args:
        waypoints: of the lines.
        joints: the posture, None for none.
        speeds: m/s, rad/s, joint rad/s.
    """

    def __init__(
        self,
        waypoints: Sequence[Pose],
        joints: Array | None,
        speeds: tuple[float, float, float],
    ) -> None:
        way = list(waypoints)
        self._legs: deque[list[Pose] | Array] = deque()
        if joints is not None:
            last = way[-1:]
            self._legs += [leg for leg in (way[:-1], joints, last) if len(leg)]
        else:
            self._legs.append(way)
        self.line: Motion | None = None
        self._speeds = speeds

    def more(self) -> bool:
        """Whether a leg is left."""
        return bool(self._legs)

    def next(self, here: Pose, move_joints: Callable[[Array, float], None]) -> None:
        """Begins the next leg at the measured pose."""
        leg, (speed_m_s, speed_rad_s, joint_speed_rad_s) = self._legs.popleft(), self._speeds
        if isinstance(leg, list):
            self.line = Motion(here, leg, speed_m_s, speed_rad_s)
        else:
            self.line = None
            move_joints(leg, joint_speed_rad_s)
