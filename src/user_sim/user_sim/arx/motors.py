# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The motors of an emulated ARX arm: Damiao's protocol in front of the MuJoCo arm."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from user_core.errors import UserError
from user_sim.arx.scene import arx_scene, motors

CLEAR, ENABLE, DISABLE, ZERO = 0xFB, 0xFC, 0xFD, 0xFE
"""Last byte of a frame whose others are 0xFF."""
OVERHEATED = 0xC
AMBIENT_C, HOTTEST_C, HEATING_C, HEATING_S = 25.0, 120.0, 110.0, 60.0
"""A motor at its torque limit approaches ambient + heating with this time constant."""


class ArxMotors:
    """Motors and physics: frames in, answers out.

    Args:
        robot: the SDK's `RobotConfig`.
        home_q: (joints,) rad where the arm stands at first.
        object_m: width of a thing between the fingers.
    """

    def __init__(self, robot: Any, home_q: tuple[float, ...], object_m: float = 0.0) -> None:
        self.motors = motors(robot)
        if len(home_q) != robot.joint_dof:
            raise UserError(
                f'home_q_rad has {len(home_q)} numbers',
                f'an ARX {robot.robot_model} has {robot.joint_dof} joints',
            )
        self.index = {motor.can_id: i for i, motor in enumerate(self.motors)}
        self.model = arx_scene(robot, object_m)
        self.data = mujoco.MjData(self.model)
        self.data.qpos[:] = [*home_q, max(0.0, self.model.jnt_range[-1, 0])]
        mujoco.mj_forward(self.model, self.data)
        self.qpos, self.qvel = self.data.qpos, self.data.qvel
        self.force, self.bias = self.data.actuator_force, self.model.actuator_biasprm
        self.enabled = [False] * len(self.motors)
        self.error = [0] * len(self.motors)
        self.celsius = [AMBIENT_C] * len(self.motors)
        self.zero = [0.0] * len(self.motors)
        self.propped = True
        self.limp()

    def frame(self, can_id: int, data: bytes) -> bytes | None:
        """What the motor with this id answers to 8 bytes; None: nobody has this id."""
        i = self.index.get(can_id)
        if i is None or len(data) != 8:
            return None
        if data[:7] == b'\xff' * 7 and data[7] >= CLEAR:
            self.special(i, data[7])
        elif self.enabled[i]:
            self.command(i, data)
        return self.answer(i)

    def special(self, i: int, code: int) -> None:
        """Clears an error, enables, disables, or makes the present angle zero."""
        if code == CLEAR:
            self.error[i] = 0
        elif code == ENABLE and not self.error[i]:
            self.enabled[i] = True
            self.propped = False
        elif code == DISABLE:
            self.enabled[i] = False
            self.bias[i, :3] = 0.0
        elif code == ZERO:
            self.zero[i] = float(self.qpos[i])

    def command(self, i: int, d: bytes) -> None:
        """MIT mode: torque = kp (p - q) + kd (v - dq) + t, in the motor's unit."""
        unit = self.motors[i].nm_per_unit
        p = (d[0] << 8 | d[1]) * (25 / 65535) - 12.5 + self.zero[i]
        v = (d[2] << 4 | d[3] >> 4) * (90 / 4095) - 45
        kp = ((d[3] & 15) << 8 | d[4]) * (500 / 4095) * unit
        kd = (d[5] << 4 | d[6] >> 4) * (5 / 4095) * unit
        t = ((d[6] & 15) << 8 | d[7]) * (36 / 4095) - 18
        row = self.bias[i]
        row[0], row[1], row[2] = kp * p + kd * v + t * unit, -kp, -kd

    def answer(self, i: int) -> bytes:
        """State of a motor: id and error, angle, speed, torque, temperatures."""
        p = _integer(float(self.qpos[i]) - self.zero[i], 12.5, 65535)
        v = _integer(float(self.qvel[i]), 45, 4095)
        t = _integer(float(self.force[i]) / self.motors[i].nm_per_unit, 18, 4095)
        first = (self.error[i] or int(self.enabled[i])) << 4 | self.motors[i].can_id
        warm = int(self.celsius[i])
        return bytes((first, p >> 8, p & 255, v >> 4, (v & 15) << 4 | t >> 8, t & 255, warm, warm))

    def table_force(self) -> tuple[float, float, float]:
        """Force of the arm on the table in N, world axes."""
        total, force = np.zeros(3), np.zeros(6)
        for i in range(self.data.ncon):
            mujoco.mj_contactForce(self.model, self.data, i, force)
            contact = self.data.contact[i]
            # The table is the first geom; a contact's frame points from it to the arm.
            total -= contact.frame.reshape(3, 3).T @ force[:3]
        return float(total[0]), float(total[1]), float(total[2])

    def advance(self, steps: int) -> None:
        """Lets physics go on by steps of STEP_S."""
        if not self.propped:
            mujoco.mj_step(self.model, self.data, steps)

    def heat(self, seconds: float) -> None:
        """Motors warm up with the square of their torque; one that is too hot gives up."""
        for i, motor in enumerate(self.motors):
            share = float(self.force[i]) / motor.torque_max_nm
            goal = AMBIENT_C + HEATING_C * share * share
            self.celsius[i] += (goal - self.celsius[i]) * seconds / HEATING_S
            if self.celsius[i] > HOTTEST_C:
                self.error[i] = OVERHEATED
                self.special(i, DISABLE)

    def limp(self) -> None:
        """All motors disabled."""
        for i in range(len(self.motors)):
            self.special(i, DISABLE)


def _integer(x: float, limit: float, top: int) -> int:
    return int((min(max(x, -limit), limit) + limit) * top / (2 * limit))
