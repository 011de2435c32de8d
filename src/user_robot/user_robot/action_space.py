# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What an action means: the one place that turns six numbers into a target pose and back."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from user_core.errors import UserError
from user_core.geometry import Array, Pose

DIMENSION = 6


class ActionSpace:
    """A delta in the axes of the task's frame, relative to the pose in the observation it answers.

        p' = p + R_f (scale_m a[0:3])
        R' = R_f exp(scale_rad a[3:6]) R_f^T R

    with p, R the observed TCP pose and R_f the task frame, both in the arm's base frame. The
    policy's range is [-1, 1] in every dimension; the map itself is defined, and inverted, outside
    of it too.
    """

    def __init__(self, scale_m: float, scale_rad: float, frame: Pose) -> None:
        for name, scale in (('scale_m', scale_m), ('scale_rad', scale_rad)):
            if not (math.isfinite(scale) and scale > 0):
                raise UserError(
                    f'the action scale task.{name} is {scale}',
                    'the bounds of an action have to be finite and larger than zero',
                    f'set task.{name} to the motion that one step may ask for',
                )
        self.scale_m, self.scale_rad, self.frame = scale_m, scale_rad, frame
        self._axes = frame.rotation

    def to_target(self, action: ArrayLike, observed: Pose) -> Pose:
        """Target pose (base frame) of action (6,) taken at the observed pose (base frame)."""
        a = np.asarray(action, float)
        turn = Pose.from_rotvec(np.zeros(3), self._axes.apply(self.scale_rad * a[3:]))
        turned = turn.rotation * observed.rotation
        position = observed.position + self._axes.apply(self.scale_m * a[:3])
        return Pose(position, turned.as_quat())

    def from_target(self, target: Pose, observed: Pose) -> Array:
        """Action (6,) that asks for the target at the observed pose; exact for turns below pi."""
        turn = (target.rotation * observed.rotation.inv()).as_rotvec()
        back = self._axes.apply(
            np.stack([target.position - observed.position, turn]), inverse=True
        )
        return np.concatenate([back[0] / self.scale_m, back[1] / self.scale_rad])
