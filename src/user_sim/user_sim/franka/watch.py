# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that makes a Franka's control box stop the arm by itself."""

from __future__ import annotations

import time

from franky_sim.franka_robot_protocol import UDPCommand
import numpy as np

from user_core.geometry import Array
from user_sim.franka.arm import SimulatedFr3
from user_sim.franka.state import Fault, Motion

WINDOW = 100
"""Control cycles over which the success rate is taken."""
VELOCITY_LIMIT_RAD_S = np.array([2.62, 2.62, 2.62, 2.62, 5.26, 4.18, 5.26])
"""Of an FR3, far from its joint limits."""
TORQUE_RATE_NM = 1.0
"""Change of a commanded torque in 1 ms that a Franka accepts."""
NEAR_LIMIT_RAD = 0.01
"""No joint may be sent closer to the end of its range; half way from there, and moving on, the
arm itself is in violation."""
STILL_RAD_S = 0.05


class Watch:
    """Judges one motion, millisecond by millisecond.

    Attributes:
        force: (6,) N, Nm at the stiffness frame: contact from the first on, collision above the
            second.
        torque: (7,) Nm, the same in joints.
        lost_cycles: control cycles without a command that end a motion.
    """

    def __init__(self, arm: SimulatedFr3, lost_cycles: int) -> None:
        self.arm, self.lost_cycles = arm, lost_cycles
        self.force = np.full(6, 100.0), np.full(6, 100.0)
        self.torque = np.full(7, 100.0), np.full(7, 100.0)
        low, high = arm.scene.model.jnt_range.T
        self._low, self._high = low + NEAR_LIMIT_RAD, high - NEAR_LIMIT_RAD
        self._received = np.zeros(WINDOW, np.int16)
        self._sent = np.zeros((256, 7))
        self.begin()

    def begin(self) -> None:
        """A motion starts."""
        self._received[:] = 0
        self._cycles, self._silent, self._heard_s = 0, 0, time.monotonic()
        # An arm that came to rest beyond a limit may go back.
        q = self.arm.q
        self._goals = np.minimum(self._low, q - 1e-3), np.maximum(self._high, q + 1e-3)

    def sent(self, number: int) -> None:
        """The state of this number goes out."""
        self._sent[number & 255] = self.arm.tau

    def heard(self, command: UDPCommand, motion: Motion) -> Fault | None:
        """A command came; a fault when its torques jump.

        Seen from the state it answers or from the command before: late commands do not jump.
        """
        self._received[self._cycles % WINDOW] += 1
        self._heard_s = time.monotonic()
        if motion is not Motion.TORQUE:
            return None
        tau = np.array(command.tau_J_d)
        limit = TORQUE_RATE_NM * (self._silent + 1.5)
        for before in (self._sent[command.message_id & 255], self.arm.tau):
            if np.abs(tau - before).max() <= limit:
                return None
        return Fault.CONTROLLER_TORQUE_DISCONTINUITY

    def cycle(self, command: UDPCommand | None, motion: Motion, fresh: bool) -> Fault | None:
        """Judges this millisecond of a motion; `command` is its last one, None before the
        first.
        """
        if command is not None:
            self._cycles += 1
            self._silent = 0 if fresh else self._silent + 1
            self._received[self._cycles % WINDOW] = 0
            # By the clock as well: time that the box itself lost is not the client's fault.
            lost_s = time.monotonic() - self._heard_s
            if self._silent >= self.lost_cycles and lost_s >= self.lost_cycles * 0.001:
                return Fault.COMMUNICATION_CONSTRAINTS_VIOLATION
            fault = self._judge(command, motion)
            if fault is not None:
                return fault
        scene, q, dq = self.arm.scene, self.arm.q, self.arm.dq
        if (np.abs(scene.wrench) > self.force[1]).any():
            return Fault.CARTESIAN_REFLEX
        if (np.abs(scene.tau_ext) > self.torque[1]).any():
            return Fault.JOINT_REFLEX
        if (np.abs(dq) > VELOCITY_LIMIT_RAD_S).any():
            return Fault.JOINT_VELOCITY_VIOLATION
        return Fault.JOINT_POSITION_LIMITS_VIOLATION if self._leaves(q, dq) else None

    def success_rate(self) -> float:
        """Share of the last cycles with a command; 0 before the first."""
        cycles = min(self._cycles, WINDOW - 1)
        return min(1.0, float(self._received.sum()) / cycles) if cycles else 0.0

    def _leaves(self, q: Array, dq: Array) -> bool:
        beyond = NEAR_LIMIT_RAD / 2
        up = (q > self._high + beyond) & (dq > STILL_RAD_S)
        down = (q < self._low - beyond) & (dq < -STILL_RAD_S)
        return bool((up | down).any())

    def _judge(self, command: UDPCommand, motion: Motion) -> Fault | None:
        """Commands beyond the joints' limits, or no numbers at all."""
        if motion is Motion.JOINT_POSITION:
            low, high = self._goals
            goal = np.array(command.q_c)
            if not ((goal <= high) & (goal >= low)).all():
                return Fault.JOINT_MOTION_GENERATOR_POSITION_LIMITS_VIOLATION
        elif motion is Motion.JOINT_VELOCITY:
            if not (np.abs(command.dq_c) <= VELOCITY_LIMIT_RAD_S).all():
                return Fault.JOINT_MOTION_GENERATOR_VELOCITY_LIMITS_VIOLATION
        elif motion is not Motion.TORQUE:
            numbers = *command.O_T_EE_c, *command.O_dP_EE_c, *command.elbow_c
            if not np.isfinite(numbers).all():
                return Fault.CARTESIAN_MOTION_GENERATOR_VELOCITY_LIMITS_VIOLATION
        return None
