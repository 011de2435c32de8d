# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Moves the TCP key by key, slowly, under the same limits as any policy."""

from __future__ import annotations

import math

import numpy as np
from scipy.spatial.transform import Rotation

from user_core.geometry import Pose, angle
from user_robot.arm import ArmState
from user_robot.drive import Drive
from user_robot.latch import Mode
from user_robot.motion import Motion
from user_robot.row import Sample

STEPS_M = (0.0005, 0.001, 0.005, 0.01)
STEPS_RAD = tuple(math.radians(d) for d in (0.25, 0.5, 2.0, 5.0))
SPEED_M_S, SPEED_RAD_S = 0.03, 0.2
LEAD_M, LEAD_RAD = 0.01, 0.1
"""A held key wants no more than this and a step from the arm: it stops soon after the key."""
NEAR_M, NEAR_RAD = 0.0003, 0.003
STILL_M_S = 0.005
STILL_RAD_S = 0.003
LAPSE_S = 0.02
"""A sample proves no longer rest than this."""
SETTLE_S = 0.3
"""An arm that is soft or held back, and stands for this long, gets no nearer."""

MOVES = {
    'w': (0, 1), 's': (0, -1), 'a': (1, 1), 'd': (1, -1), 'q': (2, 1), 'e': (2, -1),
}  # fmt: skip
"""Key: (axis of the base frame, sign)."""
TURNS = {
    'j': (0, 1), 'l': (0, -1), 'i': (1, 1), 'k': (1, -1), 'u': (2, 1), 'o': (2, -1),
}  # fmt: skip


class Jog:
    """A target that follows keys. Not thread safe: `Teaching` guards it.

    Attributes:
        drive: the arm under its limits.
        goal: where the keys want the TCP; base frame.
        target: what the arm is told now.
        size: index into STEPS_M and STEPS_RAD.
    """

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self.size = 1
        self.rest()

    @property
    def step_m(self) -> float:
        """Metres for each press of a key."""
        return STEPS_M[self.size]

    def rest(self) -> None:
        """The goal is where the arm is."""
        self.goal = self.target = self.drive.sample().state.pose
        self._way: Motion | None = None
        self._waited_s = self._stamp_s = 0.0

    def press(self, key: str) -> bool:
        """Takes a key; False when it moves nothing here."""
        if key in '+=':
            self.size = min(self.size + 1, len(STEPS_M) - 1)
        elif key == '-':
            self.size = max(self.size - 1, 0)
        elif key == ' ':
            self.rest()
        elif key in MOVES or key in TURNS:
            self._go(self._wanted(key))
        else:
            return False
        return True

    def _wanted(self, key: str) -> Pose:
        goal, shift, turn = self.goal, np.zeros(3), np.zeros(3)
        if key in MOVES:
            axis, sign = MOVES[key]
            shift[axis] = sign * self.step_m
        else:
            axis, sign = TURNS[key]
            turn[axis] = sign * STEPS_RAD[self.size]
        rotation = Rotation.from_rotvec(turn) * goal.rotation
        return Pose(goal.position + shift, rotation.as_quat())

    def _go(self, wanted: Pose) -> None:
        here = self.drive.sample().state.pose
        far_m = float(np.linalg.norm(wanted.position - here.position))
        far_rad = angle(wanted, here)
        if far_m > LEAD_M + self.step_m or far_rad > LEAD_RAD + STEPS_RAD[self.size]:
            return
        self.goal, self._waited_s = wanted, 0.0
        self._way = Motion(self.target, [wanted], SPEED_M_S, SPEED_RAD_S)

    def advance(self, seconds: float) -> Sample:
        """One slice: the target goes on, the arm is told, time passes."""
        sample = self.drive.sample()
        if not self.drive.latch.allows():
            self.rest()
        else:
            measured = sample.state.pose
            if self._way is not None:
                self.target = self._way.target(seconds, measured)
            self.drive.follow(self.target)
            if self.target is self.goal:
                self._wait(sample.state)
        return self.drive.advance(seconds)

    def _wait(self, state: ArmState) -> None:
        """Counts how long the arm stands, on its own clock: one that is not heard may move."""
        passed_s = min(max(state.stamp_s - self._stamp_s, 0.0), LAPSE_S)
        self._stamp_s = state.stamp_s
        self._waited_s = self._waited_s + passed_s if _still(state) else 0.0

    def settled(self) -> bool:
        """The arm is at the goal, had its time to, or may not move."""
        if not self.drive.latch.allows():
            return True
        if self.target is not self.goal:
            return self._way is not None and self._way.stuck()
        state = self.drive.sample().state
        here = state.pose
        off_m = float(np.linalg.norm(here.position - self.goal.position))
        near = _still(state) and off_m <= NEAR_M and angle(here, self.goal) <= NEAR_RAD
        return near or self._waited_s > SETTLE_S

    def mode(self) -> tuple[Mode, str]:
        """Whether the arm may move, and why not."""
        return self.drive.latch.mode, self.drive.latch.reason


def _still(state: ArmState) -> bool:
    speed, turning = np.linalg.norm(state.twist[:3]), np.linalg.norm(state.twist[3:])
    return bool(speed < STILL_M_S and turning < STILL_RAD_S)
