# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Control of an ARX arm through the SDK's joint controller: poses and joints in, samples out.

A target pose goes through inverse kinematics, a jerk-limited follower and the SDK's 500 Hz
thread, which adds gravity and sends position, speed and torque to the motors. Used in the host
process alone: the SDK may stop answering for ever.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
import math
import time
from typing import Any

import arx5_interface as sdk
import numpy as np

from user_core.arm_config import Arx
from user_core.errors import UserError
from user_core.geometry import Array, Pose
from user_robot.arm import ArmState
from user_robot.arx.arm import sdk_model
from user_robot.arx.chain import Chain
from user_robot.follower import Follower

TORQUE_SHARE = 0.6
"""A joint's target leads its angle so far that stiffness asks for this share of its limit: above
the limit the SDK gives up for good."""
SPEED_OFFSET_RAD_S = 45 / 4095
"""Motors round their speed down, by half of this much more than to nearest."""
GRIPPER_SPEED_M_S, GRIPPER_FORCE_N = 0.2, 40.0
GRIPPER_NM_PER_UNIT = 0.424
STILL_M_S, STILL_S, SHORT_M = 0.005, 0.1, 0.002
"""Fingers at rest for so long, so far from their goal, hold something."""
SETTLED_RAD, SETTLE_S = 0.02, 1.0
"""A joint motion is over when all joints are so close, or so long after its target rests."""
FRESH_S = 0.006
"""The SDK's sample is in time when it is not older."""


class Control:
    """The SDK and what stands before it. One thread; `step` as often as `period_s` says.

    Starts damped with gravity compensated; `engage` makes the motors hold.

    Raises:
        UserError: the arm cannot be reached.
    """

    def __init__(self, config: Arx, period_s: float) -> None:
        self.config, self.period_s = config, period_s
        self.robot = sdk.RobotConfigFactory.get_instance().get_config(sdk_model(config.model))
        n = self.robot.joint_dof
        if len(config.home_q_rad) != n:
            raise UserError(
                f'home_q_rad has {len(config.home_q_rad)} numbers',
                f'an ARX {config.model} has {n} joints',
            )
        self.gains = sdk.ControllerConfigFactory.get_instance().get_config('joint_controller', n)
        lower, upper = self.robot.joint_pos_min, self.robot.joint_pos_max
        self.chain = Chain(self.robot.urdf_path, self.robot.eef_link_name, lower, upper)
        self._kp, self._kd = (
            config.gain_share * np.array(gain)
            for gain in (self.gains.default_kp, self.gains.default_kd)
        )
        self._reach = TORQUE_SHARE * np.array(self.robot.joint_torque_max) / self._kp
        self._metre_per_rad = abs(self.robot.gripper_width / self.robot.gripper_open_readout)
        try:
            self.sdk: Any = sdk.Arx5JointController(self.robot, self.gains, config.interface)
        except RuntimeError as error:
            raise UserError(
                f'the ARX {config.model} on {config.interface} does not answer',
                str(error),
                'switch the arm on and check the CAN cable',
            ) from error
        self.sdk.set_log_level(sdk.LogLevel.WARNING)
        self._grip_goal = self._grip_lead = 0.0
        self._epoch_s = time.time() - self.sdk.get_timestamp()
        self.engaged, self.moving, self.holding = False, False, False
        self._follower = Follower(
            np.zeros(n),
            config.max_joint_speed_rad_s,
            config.max_joint_acceleration_rad_s2,
            config.max_joint_jerk_rad_s3,
        )
        self._alpha = 1 - math.exp(-2 * math.pi * config.force_cutoff_hz * period_s)
        self._wrench, self._in_time = np.zeros(6), deque([1.0], maxlen=200)
        self._rested_s = 0.0
        self._measure()
        self._goal = self.q
        self._grip(self._gripper.gripper_pos, GRIPPER_SPEED_M_S, GRIPPER_FORCE_N)

    # ------------------------------------------------------------------ commands

    def engage(self) -> None:
        """The motors hold the present posture."""
        self._measure()
        self._settle(self.q)
        self._follower.place(self.q)
        self._grip(self._gripper.gripper_pos, GRIPPER_SPEED_M_S, GRIPPER_FORCE_N)
        self._send(self.q, np.zeros_like(self.q), 0.0)
        k = self.gains
        gain = sdk.Gain(self._kp, self._kd, k.default_gripper_kp, k.default_gripper_kd)
        self.sdk.set_gain(gain)
        self.engaged = True

    def servo(self, target: Pose, gripper_m: float) -> None:
        """Sets the target pose; NaN leaves the gripper."""
        self._speed(self.config.max_joint_speed_rad_s)
        self.moving, self.holding = False, False
        self._goal = self.chain.inverse(target, self._goal)
        self._follower.aim(self._goal)
        if not math.isnan(gripper_m) and abs(gripper_m - self._grip_goal) > 1e-4:
            self._grip(gripper_m, GRIPPER_SPEED_M_S, GRIPPER_FORCE_N)

    def move_joints(self, q: Array, speed_rad_s: float) -> None:
        """Begins a joint motion; `moving` until it is over."""
        self._speed(min(speed_rad_s, self.config.max_joint_speed_rad_s))
        self._goal = np.clip(q, self.chain.lower, self.chain.upper)
        self._follower.aim(self._goal)
        self.moving, self.holding, self._rested_s = True, False, 0.0

    def grip(self, width_m: float, speed_m_s: float, force_n: float) -> None:
        """Begins a motion of the gripper; 0 N: as hard as it may."""
        self._grip(width_m, speed_m_s, force_n or GRIPPER_FORCE_N)
        self._grasping = force_n > 0

    def hold(self) -> None:
        """Makes the present posture the target; once, so that nothing creeps."""
        if not self.holding:
            self._speed(self.config.max_joint_speed_rad_s)
            self._grip_goal = self._grip_lead  # keeps the squeeze of a grasp
            self._settle(np.clip(self.q, self.chain.lower, self.chain.upper))
            self._follower.aim(self._goal)

    def damp(self) -> None:
        """Position stiffness off; the arm floats with gravity compensated."""
        self.engaged = False
        self.sdk.set_to_damping()

    def release(self) -> None:
        """Damps without gravity compensation, for good: the arm sinks. Blocks for 4 s."""
        self.engaged = False
        del self.sdk

    # ------------------------------------------------------------------ the cycle

    def step(self) -> ArmState:
        """Measures, moves the target on, and returns the sample."""
        self._measure()
        if self.engaged:
            lead = self._follower.step(self.period_s)
            near = np.clip(lead, self.q - self._reach, self.q + self._reach)
            speed = np.where(near == lead, self._follower.velocity, 0.0)
            self._send(near, speed, self.period_s)
            self._watch_motion()
        torque = self.tau - self.chain.bias(self.q, self.dq)
        self._wrench += self._alpha * (self.chain.wrench(self.q, torque) - self._wrench)
        return ArmState(
            pose=self.chain.pose(self.q),
            twist=self.chain.jacobian(self.q) @ self.dq,
            wrench=self._wrench,
            q=self.q,
            dq=self.dq,
            tau=self.tau,
            gripper_m=self._gripper.gripper_pos,
            stamp_s=self._stamp_s,
            peak_force_n=float(np.linalg.norm(self._wrench[:3])),
            success_rate=sum(self._in_time) / len(self._in_time),
            moving=self.moving,
            grasped=self._grasped(),
        )

    def _measure(self) -> None:
        sample = self.sdk.get_joint_state()
        self._gripper = sample
        self.q = np.array(sample.pos())
        self.dq = np.array(sample.vel()) + SPEED_OFFSET_RAD_S
        self.tau = np.array(sample.torque())
        self._stamp_s = self._epoch_s + sample.timestamp
        self._in_time.append(float(self.sdk.get_timestamp() - sample.timestamp <= FRESH_S))

    def _send(self, q: Array, dq: Array, ahead_s: float) -> None:
        """One waypoint, reached in a straight line `ahead_s` from now; 0: at once."""
        command = sdk.JointState(q.size)
        command.pos()[:], command.vel()[:] = q, dq
        far = self._grip_goal - self._grip_lead
        step = max(-self._grip_speed * ahead_s, min(self._grip_speed * ahead_s, far))
        self._grip_lead += step
        width = self._gripper.gripper_pos
        command.gripper_pos = max(
            width - self._squeeze, min(width + self._squeeze, self._grip_lead)
        )
        command.timestamp = self.sdk.get_timestamp() + ahead_s if ahead_s else 0.0
        # Refused when this process lost the CPU since the line above; the next one counts.
        with suppress(ValueError):
            self.sdk.set_joint_cmd(command)

    def _speed(self, speed_rad_s: float) -> None:
        c = self.config
        self._follower.limit(speed_rad_s, c.max_joint_acceleration_rad_s2, c.max_joint_jerk_rad_s3)

    def _settle(self, q: Array) -> None:
        self._goal, self.moving, self.holding = q, False, True

    def _watch_motion(self) -> None:
        if self.moving and self._follower.resting:
            self._rested_s += self.period_s
            close = float(np.abs(self._goal - self.q).max()) < SETTLED_RAD
            if close or self._rested_s > SETTLE_S:
                self.moving = False

    def _grip(self, width_m: float, speed_m_s: float, force_n: float) -> None:
        stiffness = self.gains.default_gripper_kp * GRIPPER_NM_PER_UNIT
        self._squeeze = force_n * self._metre_per_rad**2 / stiffness
        self._grip_goal = max(0.0, min(width_m, float(self.robot.gripper_width)))
        self._grip_lead, self._grip_speed = self._gripper.gripper_pos, speed_m_s
        self._grasping, self._still_s = False, 0.0

    def _grasped(self) -> bool:
        """The fingers have stood still for a while, short of their goal: against something."""
        still = abs(self._gripper.gripper_vel) < STILL_M_S
        self._still_s = self._still_s + self.period_s if still else 0.0
        short = self._gripper.gripper_pos - self._grip_goal > SHORT_M
        return self._grasping and short and self._still_s > STILL_S
