# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The last limits a target passes before the arm follows it."""

from __future__ import annotations

import numpy as np

from user_core import config as schema
from user_core.geometry import Array, Pose, clip_rotation, from_relative, relative

BOX, STEP, FORCE, REFUSED = 1, 2, 4, 8
"""Bits of RobotState.limited."""


class Safety:
    """Keeps targets finite, in the box and near the measured pose, and soft in contact.

    Everything happens in the task's frame. The box is one of positions and of rotation vectors
    about the frame's own orientation, so that no Euler angle can wrap. Pure: no state, no clock,
    any thread.
    """

    def __init__(self, config: schema.Safety, frame: Pose) -> None:
        self.config, self.frame = config, frame
        self._axes = frame.rotation
        self._low = np.array(config.box_min_m, float)
        self._high = np.array(config.box_max_m, float)
        self._turn = np.array(config.box_rotation_rad, float)

    def apply(self, target: Pose, measured: Pose, wrench: Array) -> tuple[Pose, int]:
        """The target after every limit, and which limits changed it.

        Args:
            target: wanted TCP pose, base frame.
            measured: TCP pose now, base frame.
            wrench: (6,) at the TCP, base frame, robot on environment positive.

        Returns:
            (pose, bits). With a measured pose inside the box the result is inside the box and at
            most one step away; from outside it leads one step back towards the box. A target that
            is not finite, or a measurement that is not, is REFUSED and the measured pose returned:
            hold.
        """
        if not (target.isfinite() and measured.isfinite() and np.isfinite(wrench).all()):
            return measured, REFUSED
        here, turned = relative(self.frame, measured)
        goal, turn = relative(self.frame, target)
        goal, forced = self._soften(here, goal, wrench)
        boxed = np.clip(goal, self._low, self._high)
        boxed_turn = clip_rotation(turn, self._turn)
        out, stepped = _toward(here, boxed, self.config.max_step_m)
        # |exp(a)^-1 exp(b)| <= |b - a|: a step in rotation vectors is never a longer turn.
        out_turn, rolled = _toward(turned, boxed_turn, self.config.max_step_rad)
        limited = FORCE * forced | STEP * (stepped or rolled)
        if not (np.array_equal(boxed, goal) and np.allclose(boxed_turn, turn, rtol=0, atol=1e-12)):
            limited |= BOX
        if not limited:
            return target, 0
        return from_relative(self.frame, out, out_turn), limited

    def _soften(self, here: Array, goal: Array, wrench: Array) -> tuple[Array, bool]:
        """Shortens the way further into a contact.

        Along the force F that the arm already exerts, a step may go at most
            max_step_m (force_limit_n - |F|) / (force_limit_n - force_soft_n),  within [0,
            max_step_m].
        The way out of the contact and across it stays free.
        """
        soft, limit = self.config.force_soft_n, self.config.force_limit_n
        force = float(np.linalg.norm(wrench[:3]))
        if soft is None or force <= soft:
            return goal, False
        allowed = self.config.max_step_m * max(0.0, (limit - force) / (limit - soft))
        along = self._axes.apply(wrench[:3], inverse=True) / force
        into = float((goal - here) @ along)
        if into <= allowed:
            return goal, False
        return goal - (into - allowed) * along, True


def _toward(here: Array, goal: Array, most: float) -> tuple[Array, bool]:
    """The point on the straight way from here to the goal that is at most `most` away."""
    way = goal - here
    length = float(np.linalg.norm(way))
    if length <= most * (1 + 1e-9):
        return goal, False
    return here + way * (most / length), True
