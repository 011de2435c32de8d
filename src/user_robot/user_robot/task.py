# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What is to be done: the observed state, the reward, the start and the way back to it."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from user_core import config as schema
from user_core.errors import UserError
from user_core.geometry import Array, Pose, from_relative, relative
from user_core.outcome import Boundary
from user_robot.action_space import ActionSpace
from user_robot.arm import ArmState

State = NDArray[np.float32]


@dataclass(frozen=True)
class StateSpec:
    """The observed state's values and the constants that normalise them: they ride in the weights.

    A network sees (x - mean) / scale, through tanh where `squash`. The values at `fine_index` it
    sees once more, as tanh((x - fine_mean) / fine_scale): what is far away at one scale decides at
    the other.
    """

    names: tuple[str, ...]
    mean: State
    scale: State
    squash: NDArray[np.bool_]
    fine_index: NDArray[np.int64]
    fine_mean: State
    fine_scale: State


class Task(Protocol):
    """One task of one cell. Pure: no clock, any thread; poses are in the arm's base frame."""

    spec: StateSpec
    text: str
    max_steps: int
    frame: Pose
    home: Pose
    actions: ActionSpace

    def observe(self, state: ArmState) -> State:
        """The state vector a policy sees, raw SI units in the task's frame."""

    def judge(
        self, previous: ArmState, state: ArmState, step: int
    ) -> tuple[float, bool, Boundary]:
        """(reward, terminated, boundary) of action number `step`, from 1, between two states."""

    def start(self, seed: int) -> Pose:
        """Where an episode of this seed begins."""

    def reset_path(self, current: Pose, start: Pose) -> list[Pose]:
        """Waypoints from here to the start, free of collisions."""

    def success(self, state: ArmState) -> bool:
        """True when the task is done."""

    def distance(self, state: ArmState) -> float:
        """Metres between the TCP and the goal."""


_AXES = 'xyz'
PEG_STATE = (
    'gripper_m',
    *(f'force_{a}_n' for a in _AXES),
    *(f'torque_{a}_nm' for a in _AXES),
    *(f'position_{a}_m' for a in _AXES),
    *(f'rotation_{a}_rad' for a in _AXES),
    *(f'velocity_{a}_m_s' for a in _AXES),
    *(f'angular_velocity_{a}_rad_s' for a in _AXES),
)


RIM_Z_M = -0.028
"""Measured z at which the tip touches the block: fine motion matters there, and on the axis."""

PEG_SPEC = StateSpec(
    PEG_STATE,
    mean=np.array([0.016, *[0.0] * 8, -0.05, *[0.0] * 9], np.float32),
    scale=np.repeat(np.array([1, 10, 0.3, 0.05, 0.5, 0.1, 0.5], np.float32), [1, *[3] * 6]),
    squash=np.repeat([False, True, False], [1, 6, 12]),
    fine_index=np.arange(7, 13),
    fine_mean=np.array([0, 0, RIM_Z_M, 0, 0, 0], np.float32),
    fine_scale=np.array([0.004] * 3 + [0.05] * 3, np.float32),
)
"""The two scales are what lets RLPD learn this task with a handful of demonstrations."""

CLEAR_SHARE = 0.5
"""At this share of the start's height the peg is out of the hole and above the block."""


class PegTask:
    """Insert a peg. The task's frame is the TCP at full insertion: z points into the hole.

    Success is judged on what the robot measures, not on the true hole: deep enough along z,
    upright and at the right yaw, close to the axis. No start pose is anywhere near it, and without
    the hole the peg rests on the rim, above the depth that counts.
    """

    def __init__(self, config: schema.PegTask) -> None:
        self.config = config
        self.text = config.text
        self.max_steps = config.max_steps
        self.frame = Pose(
            np.array(config.frame.position_m, float), np.array(config.frame.quaternion_xyzw, float)
        )
        self.home = from_relative(
            self.frame, np.array([0.0, 0.0, -config.start_height_m]), np.zeros(3)
        )
        self.actions = ActionSpace(config.scale_m, config.scale_rad, self.frame)
        self.spec = PEG_SPEC
        self._to_task = self.frame.rotation.inv().as_matrix()
        self._seen = (self.home, relative(self.frame, self.home))
        if config.start_height_m <= config.success_depth_m:
            raise UserError(
                'an episode could begin in success',
                f'it starts {config.start_height_m} m above the goal, within task.success_depth_m',
                'raise task.start_height_m or lower task.success_depth_m',
            )

    def observe(self, state: ArmState) -> State:
        """(19,) gripper width, wrench, pose and twist of the TCP, all in the task's frame."""
        position, rotation = self._see(state.pose)
        turned = self._to_task @ np.stack(
            [state.wrench[:3], state.wrench[3:], state.twist[:3], state.twist[3:]], axis=1
        )
        out = np.empty(len(PEG_STATE), np.float32)
        out[0] = state.gripper_m
        out[1:4], out[4:7] = turned[:, 0], turned[:, 1]
        out[7:10], out[10:13] = position, rotation
        out[13:16], out[16:19] = turned[:, 2], turned[:, 3]
        return out

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
        position, rotation = self._see(state.pose)
        c = self.config
        return bool(
            abs(position[2]) <= c.success_depth_m
            and math.hypot(position[0], position[1]) <= c.success_lateral_m
            and float(np.linalg.norm(rotation)) <= c.success_angle_rad
        )

    def _see(self, pose: Pose) -> tuple[Array, Array]:
        """The pose in the task's frame, worked out once for all who ask about it in a step."""
        seen = self._seen
        if seen[0] is not pose:
            seen = self._seen = (pose, relative(self.frame, pose))
        return seen[1]

    def distance(self, state: ArmState) -> float:
        """Metres between the TCP and full insertion."""
        return float(np.linalg.norm(state.pose.position - self.frame.position))

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
        position, rotation = relative(self.frame, current)
        clear = -CLEAR_SHARE * self.config.start_height_m
        if position[2] <= clear:
            return [start]
        return [
            from_relative(self.frame, np.array([position[0], position[1], clear]), rotation),
            start,
        ]


def make_task(config: schema.Task) -> Task:
    """The task that `config.kind` names."""
    tasks = {'peg': PegTask}
    if config.kind not in tasks:
        raise UserError(
            f'There is no task of kind {config.kind!r}',
            f'the kinds are: {", ".join(sorted(tasks))}',
            'Choose one of them for task.kind',
        )
    return tasks[config.kind](config)
