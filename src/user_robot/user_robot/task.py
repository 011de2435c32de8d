# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What is to be done: the observed state, the reward, the start and the way back to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from user_core import config as schema
from user_core.geometry import Array, Pose, relative
from user_core.outcome import Boundary
from user_robot.action_space import ActionSpace
from user_robot.arm import ArmState
from user_robot.registry import look_up

State = NDArray[np.float32]

TASKS = {
    'peg': 'user_robot.peg_task:PegTask',
    'reach': 'user_robot.reach_task:ReachTask',
}
"""Where the class of each `task.kind` lives; imported on use."""


@dataclass(frozen=True)
class StateSpec:
    """The observed state's values and the constants that normalise them: they ride in the weights.

    A network sees (x - mean) / scale, through tanh where `squash`. The values at `fine_index` it
    sees once more, as tanh((x - fine_mean) / fine_scale): what is far away at one scale decides at
    the other. The values at `aim_index` tell where a success ended, for those who learn to see it.
    """

    names: tuple[str, ...]
    mean: State
    scale: State
    squash: NDArray[np.bool_]
    fine_index: NDArray[np.int64]
    fine_mean: State
    fine_scale: State
    aim_index: NDArray[np.int64]


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
TCP_STATE = (
    'gripper_m',
    *(f'force_{a}_n' for a in _AXES),
    *(f'torque_{a}_nm' for a in _AXES),
    *(f'position_{a}_m' for a in _AXES),
    *(f'rotation_{a}_rad' for a in _AXES),
    *(f'velocity_{a}_m_s' for a in _AXES),
    *(f'angular_velocity_{a}_rad_s' for a in _AXES),
)
"""Names of the values that `TcpTask.observe` gives."""


class TcpTask:
    """What tasks have in common that bring the TCP to a goal: the task's frame is its pose there.

    Sees and acts in the frame's axes. A subclass adds spec, home, start, reset_path and success.
    """

    def __init__(self, config: schema.PegTask | schema.ReachTask) -> None:
        self.text = config.text
        self.max_steps = config.max_steps
        self.frame = Pose(
            np.array(config.frame.position_m, float), np.array(config.frame.quaternion_xyzw, float)
        )
        self.actions = ActionSpace(config.scale_m, config.scale_rad, self.frame)
        self._to_task = self.frame.rotation.inv().as_matrix()
        self._seen = (self.frame, (np.zeros(3), np.zeros(3)))

    def observe(self, state: ArmState) -> State:
        """(19,) gripper width, wrench, pose and twist of the TCP, all in the task's frame."""
        position, rotation = self.see(state.pose)
        turned = self._to_task @ np.stack(
            [state.wrench[:3], state.wrench[3:], state.twist[:3], state.twist[3:]], axis=1
        )
        out = np.empty(len(TCP_STATE), np.float32)
        out[0] = state.gripper_m
        out[1:4], out[4:7] = turned[:, 0], turned[:, 1]
        out[7:10], out[10:13] = position, rotation
        out[13:16], out[16:19] = turned[:, 2], turned[:, 3]
        return out

    def see(self, pose: Pose) -> tuple[Array, Array]:
        """Position (3,) in m and rotation vector (3,) in rad in the task's frame, worked out once
        for all who ask about the pose in a step.
        """
        seen = self._seen
        if seen[0] is not pose:
            seen = self._seen = (pose, relative(self.frame, pose))
        return seen[1]

    def distance(self, state: ArmState) -> float:
        """Metres between the TCP and the goal."""
        return float(np.linalg.norm(state.pose.position - self.frame.position))


def make_task(config: schema.Task) -> Task:
    """The task that `config.kind` names."""
    task: Task = look_up(TASKS, config.kind, 'task', 'task.kind')(config)
    return task
