# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""One connection to a Franka's control box.

Its calls block, for milliseconds when all is well and for seconds when the network is not: only
the driver's thread makes them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
import socket
import sys
import time

import franky
import numpy as np

from user_core.arm_config import Franka
from user_core.errors import UserError
from user_core.geometry import Array, Pose
from user_robot.franka import version as franka_version
from user_robot.franka.kinematics import tcp
from user_robot.franka.reading import trouble

LOST = (franky.NetworkException, RuntimeError)
"""What a broken connection raises; some of the network library's own errors pass libfranka."""
_ESTABLISHED = '01'
_RETRY_S = 0.05
"""The robot's answer to a recovery may be older than the recovery."""
_RECOVERY_S = 1.0


def affine(pose: Pose) -> franky.Affine:
    """The pose as franky's object; the quaternion is normalised."""
    return franky.Affine(pose.position, pose.quaternion / np.linalg.norm(pose.quaternion))


class FrankaLink:
    """A connected robot.

    Args:
        config: of the arm.

    UserError when the robot does not answer, speaks another version, or wants a realtime kernel
    that this computer lacks; within seconds.
    """

    def __init__(self, config: Franka) -> None:
        self._config = config
        franka_version.require(config.address)
        enforce = config.realtime == 'enforce'
        realtime = franky.RealtimeConfig.Enforce if enforce else franky.RealtimeConfig.Ignore
        try:
            self._robot = franky.Robot(config.address, realtime_config=realtime)
        except franky.RealtimeException as error:
            raise UserError(
                'this computer cannot control a Franka in real time',
                f'{error}'.removeprefix('libfranka: '),
                'boot a PREEMPT_RT kernel and allow realtime priorities, or set'
                ' cells.<cell>.arm.realtime: ignore to try anyway',
            ) from error
        except (franky.Exception, RuntimeError) as error:
            raise UserError(
                f'the robot at {config.address} does not let itself be controlled',
                f'{error}'.removeprefix('libfranka: '),
                'end other programs that control it and see Desk',
            ) from error
        number = int.from_bytes(
            socket.inet_aton(socket.gethostbyname(config.address)), sys.byteorder
        )
        self._place = f'{number:08X}:{franka_version.PORT:04X}'

    def hung_up(self) -> bool:
        """The control box closed the connection. The kernel knows it at once, libfranka's control
        loop only after a second without a state.
        """
        lines = Path('/proc/self/net/tcp').read_text().splitlines()[1:]
        return [self._place, _ESTABLISHED] not in [line.split()[2:4] for line in lines]

    def read(self) -> franky.RobotState:
        """The newest state: a copy while in control, else the next one (1 to 2 ms)."""
        return self._robot.state

    def in_control(self) -> bool:
        """A control loop of ours runs; never blocks while one does."""
        return bool(self._robot.is_in_control)

    def finish(self) -> None:
        """Takes leave of a control loop that has ended; raises what ended it."""
        self._robot.poll_motion()

    def set_up(self) -> None:
        """Load, TCP and collision thresholds; not while in control."""
        c, robot = self._config, self._robot
        # A sphere of 3 cm: the robot wants some inertia with every mass.
        inertia = np.eye(3) * 0.4 * c.load_kg * 0.03**2
        robot.set_load(c.load_kg, list(c.load_com_m), inertia.ravel().tolist())
        nominal = robot.state.F_T_NE.matrix
        robot.set_ee((np.linalg.inv(nominal) @ tcp(c)).ravel(order='F').tolist())
        force, torque = c.collision_force_n, c.collision_torque_nm
        robot.set_collision_behavior([torque] * 7, [force] * 3 + [torque] * 3)

    def track(self) -> franky.CartesianImpedanceTracker:
        """Starts the impedance law; its target is the present pose."""
        c = self._config
        return franky.CartesianImpedanceTracker(
            self._robot,
            translational_stiffness=c.stiffness_n_m,
            rotational_stiffness=c.stiffness_nm_rad,
            damping=np.repeat([c.damping_ns_m, c.damping_nms_rad], 3),
            translational_error_clip=np.full(3, c.clip_m),
            rotational_error_clip=np.array([c.clip_tilt_rad, c.clip_tilt_rad, c.clip_yaw_rad]),
            posture_task=franky.PostureTask(np.array(c.home_q_rad), c.posture_nm_rad),
            max_delta_tau=c.max_delta_tau_nm,
        )

    def rest(self) -> None:
        """Begins to end the impedance law: its torque fades, joint damping brings the arm to
        rest.
        """
        self._robot.move(franky.TorqueStopMotion(), asynchronous=True)

    def move_joints(self, q: Array, speed_rad_s: float) -> None:
        """Begins a joint motion (trapezoid, robot's stiff position control); not while in
        control. It holds its end until `end_joints`.
        """
        limit = self._robot.joint_velocity_limit
        limit.set(np.minimum(np.full(7, speed_rad_s), limit.max))
        # A tenth of the joints' accelerations and jerks: 1 rad/s^2 and more.
        gentle = franky.RelativeDynamicsFactor(1.0, 0.1, 0.1)
        self._robot.move(
            franky.JointMotion(
                franky.JointState(q),
                relative_dynamics_factor=gentle,
                return_when_finished=False,
            ),
            asynchronous=True,
        )

    def end_joints(self) -> None:
        """Begins to brake a joint motion."""
        self._robot.move(franky.JointStopMotion(), asynchronous=True)

    def clear_errors(self) -> tuple[str, bool]:
        """One attempt of the robot's own recovery; what `trouble` says after it."""
        deadline = time.monotonic() + _RECOVERY_S
        state = self.read()
        if trouble(state)[0] and state.robot_mode != franky.RobotMode.UserStopped:
            with suppress(franky.CommandException):  # the robot's mode and errors tell it better
                self._robot.recover_from_errors()
            while trouble(state)[0] and time.monotonic() < deadline:
                time.sleep(_RETRY_S)
                state = self.read()
        return trouble(state)
