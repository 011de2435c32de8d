# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Bring the TCP to a goal and stop there, as on a button."""

from __future__ import annotations

import numpy as np

from user_core import config as schema
from user_core.geometry import Pose, from_relative
from user_core.outcome import Boundary
from user_robot.arm import ArmState
from user_robot.task import TCP_STATE, StateSpec, TcpTask

REACH_SPEC = StateSpec(
    TCP_STATE,
    mean=np.zeros(19, np.float32),
    scale=np.repeat(np.array([0.1, 100, 10, 0.05, 0.2, 0.3, 2], np.float32), [1, *[3] * 6]),
    squash=np.repeat([False, True, False], [1, 6, 12]),
    fine_index=np.arange(7, 10),
    fine_mean=np.zeros(3, np.float32),
    fine_scale=np.full(3, 0.015, np.float32),
    aim_index=np.arange(7, 10),
)
"""Position decides, so it is seen large and the rest small: a clone that may look at its own speed
learns to rest because it rests."""


class ReachTask(TcpTask):
    """Reach a goal in free space. The task's frame is the TCP there, in an orientation that stays.

    Success is nearness and rest, so that flying through the goal is none.
    """

    spec = REACH_SPEC

    def __init__(self, config: schema.ReachTask) -> None:
        super().__init__(config)
        self.config = config
        low, high = np.array(config.start_min_m), np.array(config.start_max_m)
        self.home = from_relative(self.frame, (low + high) / 2, np.zeros(3))

    def judge(
        self, previous: ArmState, state: ArmState, step: int
    ) -> tuple[float, bool, Boundary]:
        """Sparse: 1 for the step that ends at rest on the goal, else 0."""
        del previous
        if self.success(state):
            return 1.0, True, Boundary.SUCCESS
        return 0.0, False, Boundary.TIMEOUT if step >= self.max_steps else Boundary.NONE

    def success(self, state: ArmState) -> bool:
        """Measured position near the goal and measured speed near zero."""
        near = self.distance(state) <= self.config.success_m
        return near and float(np.linalg.norm(state.twist[:3])) <= self.config.success_speed_m_s

    def start(self, seed: int) -> Pose:
        """Uniform over the start box, in the orientation of the frame."""
        rng, c = np.random.default_rng([seed, 0x57A47]), self.config
        return from_relative(self.frame, rng.uniform(c.start_min_m, c.start_max_m), np.zeros(3))

    def reset_path(self, current: Pose, start: Pose) -> list[Pose]:
        """Straight: nothing stands between the goal and a start."""
        return [start]
