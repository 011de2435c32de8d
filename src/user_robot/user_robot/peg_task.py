# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Insert a held peg into a hole."""

from __future__ import annotations

import math

import numpy as np

from user_core import config as schema
from user_core.errors import UserError
from user_core.geometry import Pose, from_relative
from user_core.outcome import Boundary
from user_robot.arm import ArmState
from user_robot.task import TCP_STATE, StateSpec, TcpTask

RIM_Z_M = -0.028
"""Measured z at which the tip touches the block: fine motion matters there, and on the axis."""

PEG_SPEC = StateSpec(
    TCP_STATE,
    mean=np.array([0.016, *[0.0] * 8, -0.05, *[0.0] * 9], np.float32),
    scale=np.repeat(np.array([1, 10, 0.3, 0.05, 0.5, 0.1, 0.5], np.float32), [1, *[3] * 6]),
    squash=np.repeat([False, True, False], [1, 6, 12]),
    fine_index=np.arange(7, 13),
    fine_mean=np.array([0, 0, RIM_Z_M, 0, 0, 0], np.float32),
    fine_scale=np.array([0.004] * 3 + [0.05] * 3, np.float32),
    aim_index=np.arange(7, 10),
)
"""The two scales are what lets RLPD learn this task with a handful of demonstrations."""

CLEAR_SHARE = 0.5
"""At this share of the start's height the peg is out of the hole and above the block."""


class PegTask(TcpTask):
    """Insert a peg. The task's frame is the TCP at full insertion: z points into the hole.

    Success is judged on what the robot measures, not on the true hole: deep enough along z,
    upright and at the right yaw, close to the axis. No start pose is anywhere near it, and without
    the hole the peg rests on the rim, above the depth that counts.
    """

    spec = PEG_SPEC

    def __init__(self, config: schema.PegTask) -> None:
        super().__init__(config)
        self.config = config
        self.home = from_relative(
            self.frame, np.array([0.0, 0.0, -config.start_height_m]), np.zeros(3)
        )
        if config.start_height_m <= config.success_depth_m:
            raise UserError(
                'an episode could begin in success',
                f'it starts {config.start_height_m} m above the goal, within task.success_depth_m',
                'raise task.start_height_m or lower task.success_depth_m',
            )

    def judge(
        self, previous: ArmState, state: ArmState, step: int
    ) -> tuple[float, bool, Boundary]:
        """Sparse: 1 for the step that inserts the peg, less a price for pressing hard if set.

        reward = [success] - force_penalty_per_n max(0, F_peak - force_free_n)
        """
        del previous
        c = self.config
        price = c.force_penalty_per_n * max(0.0, state.peak_force_n - c.force_free_n)
        if self.success(state):
            return 1.0 - price, True, Boundary.SUCCESS
        return -price, False, Boundary.TIMEOUT if step >= self.max_steps else Boundary.NONE

    def success(self, state: ArmState) -> bool:
        """Measured pose within the tolerances of the goal."""
        position, rotation = self.see(state.pose)
        c = self.config
        return bool(
            abs(position[2]) <= c.success_depth_m
            and math.hypot(position[0], position[1]) <= c.success_lateral_m
            and float(np.linalg.norm(rotation)) <= c.success_angle_rad
        )

    def start(self, seed: int) -> Pose:
        """Uniform over the start box, upright, at a random yaw."""
        rng, c = np.random.default_rng([seed, 0x57A47]), self.config
        x, y = rng.uniform(-c.start_xy_m, c.start_xy_m, 2)
        yaw = rng.uniform(-c.start_yaw_rad, c.start_yaw_rad)
        return from_relative(
            self.frame, np.array([x, y, -c.start_height_m]), np.array([0.0, 0.0, yaw])
        )

    def reset_path(self, current: Pose, start: Pose) -> list[Pose]:
        """Straight out of the hole first, not turning; sideways only above the block."""
        position, rotation = self.see(current)
        clear = -CLEAR_SHARE * self.config.start_height_m
        if position[2] <= clear:
            return [start]
        return [
            from_relative(self.frame, np.array([position[0], position[1], clear]), rotation),
            start,
        ]
