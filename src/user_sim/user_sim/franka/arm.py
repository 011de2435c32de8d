# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The FR3 as franky-sim's control modes see it: torque, position and velocity, hand, hold."""

from __future__ import annotations

from franky_sim.base_simulator import BaseRobot, InnerRobotState
import mujoco
import numpy as np

from user_core.geometry import Array
from user_sim.franka.scene import STEP_S, FrankaScene
from user_sim.law import TORQUE_LIMIT_NM

TRACKING_RAD_S = 100.0
"""Bandwidth of the box's own joint controller, which is also what holds the arm."""
HAND_SPEED_M_S = 0.1


class SimulatedFr3(BaseRobot):
    """The scene's arm behind franky-sim's interface; one thread, one call of `step` a millisecond.

    The hand is a width that moves at the asked speed and stops at the peg. The peg is never
    dropped: an opened hand keeps it.

    Attributes:
        scene: the physics.
        tau: (7,) commanded torques without gravity, what libfranka calls tau_J_d.
        q_d, dq_d, ddq_d: (7,) where position and velocity control want the joints; measured ones
            under torque control.
    """

    def __init__(self, scene: FrankaScene) -> None:
        super().__init__()
        self.scene = scene
        self.ne_t_ee: tuple[float, ...] = tuple(np.eye(4).ravel().tolist())
        self.tau = np.zeros(7)
        self.q_d, self.dq_d, self.ddq_d = scene.data.qpos.copy(), np.zeros(7), np.zeros(7)
        self._peg_m = 2 * scene.config.peg_half_width_m
        self._width_m = self._goal_m = self._peg_m
        self._speed_m_s = HAND_SPEED_M_S
        self._accel, self._track = np.zeros(7), np.zeros(7)
        self._silent = 0
        scene.open_fingers(self._width_m)

    def set_NE_T_EE(self, ne_t_ee: tuple[float, ...]) -> None:  # noqa: N802  # franky-sim's name
        """Moves the TCP; (16,) columns first, from the hand's nominal TCP."""
        super().set_NE_T_EE(ne_t_ee)
        self.ne_t_ee = ne_t_ee

    @property
    def q(self) -> Array:
        """(7,) joint angles, rad."""
        return np.asarray(self.scene.data.qpos)

    @property
    def dq(self) -> Array:
        """(7,) joint velocities, rad/s."""
        return np.asarray(self.scene.data.qvel)

    def step(self) -> None:
        """One millisecond with the torque that the last control call left."""
        self.scene.step(self.tau)
        if self._width_m != self._goal_m:
            room = self._speed_m_s * STEP_S
            self._width_m += min(max(self._goal_m - self._width_m, -room), room)
            self.scene.open_fingers(self._width_m)

    def hold(self) -> None:
        """Stay at the present joint angles from now on."""
        self.q_d[:] = self.q
        self.dq_d[:] = self.ddq_d[:] = 0.0

    def keep(self) -> None:
        """One millisecond's torque that holds where `hold` was called."""
        self._drive(self.q_d, self.dq_d)

    def torque_control(self, torques: Array, has_new_command: bool = True) -> None:
        """Torques (7,) beyond gravity, cut at the limits of the motors."""
        del has_new_command
        np.clip(torques, -TORQUE_LIMIT_NM, TORQUE_LIMIT_NM, out=self.tau)
        self.q_d[:], self.dq_d[:], self.ddq_d[:] = self.q, self.dq, 0.0

    def joint_position_control(self, target_q: Array, has_new_command: bool = True) -> None:
        """Follow joint angles (7,) that come every millisecond."""
        self._silent += 1
        if has_new_command:
            velocity = (target_q - self.q_d) / (self._silent * STEP_S)
            self.ddq_d[:] = (velocity - self.dq_d) / (self._silent * STEP_S)
            self.q_d[:], self.dq_d[:] = target_q, velocity
            self._silent = 0
        elif self._silent > 20:
            self.dq_d[:] = self.ddq_d[:] = 0.0
        self._drive(self.q_d, self.dq_d)

    def joint_velocity_control(self, target_dq: Array, has_new_command: bool = True) -> None:
        """Follow joint velocities (7,)."""
        if has_new_command:
            self.ddq_d[:] = (target_dq - self.dq_d) / STEP_S
            self.dq_d[:] = target_dq
        self.q_d[:] = self.q
        self._drive(self.q_d, self.dq_d)

    def _drive(self, q: Array, dq: Array) -> None:
        """Computed torque: M (w^2 e + 2 w de) + coriolis, critically damped on every joint."""
        data = self.scene.data
        np.subtract(q, data.qpos, out=self._accel)
        self._accel *= TRACKING_RAD_S**2
        self._accel += (dq - data.qvel) * (2 * TRACKING_RAD_S)
        mujoco.mj_mulM(self.scene.model, data, self._track, self._accel)
        self._track += data.qfrc_bias
        self._track -= data.qfrc_gravcomp
        np.clip(self._track, -TORQUE_LIMIT_NM, TORQUE_LIMIT_NM, out=self.tau)

    def set_hand_goal(self, width: float, max_velocity: float, max_force: float) -> None:
        """Fingers this far apart, m, at most at max_velocity, m/s; the peg is in between."""
        del max_force
        self._goal_m = min(max(float(width), self._peg_m), 0.08)
        self._speed_m_s = min(max(float(max_velocity), 1e-4), HAND_SPEED_M_S)

    def _get_hand_width(self) -> float:
        return self._width_m

    def _get_state(self) -> InnerRobotState:
        return InnerRobotState(
            q=tuple(self.q.tolist()), dq=tuple(self.dq.tolist()), tau_j=tuple(self.tau.tolist())
        )

    def _torque_control(self, torques: Array) -> None:
        raise NotImplementedError  # torque_control is its own
