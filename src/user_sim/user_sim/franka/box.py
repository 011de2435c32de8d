# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A Franka's control box as its clients see it: motions, states, reflexes, recovery.

franky-sim carries the protocol; this adds what its stock server leaves out: the external wrench,
collision thresholds, limits, lost commands, errors that have to be cleared, a busy answer for a
second client, and a hold that nothing but a motion ends.
"""

from __future__ import annotations

from contextlib import suppress
import struct

from franky_sim.franka_robot_protocol import (
    MoveCommandControllerMode,
    MoveCommandMotionGeneratorMode,
    MoveStatus,
    RobotCommand,
    RobotMode,
    StateControllerMode,
    UDPCommand,
)
from franky_sim.franka_server import BaseCommand, FrankaServer
import mujoco
import numpy as np

from user_sim.franka.arm import SimulatedFr3
from user_sim.franka.command import COMMANDS
from user_sim.franka.hand import Hand, refuse_others
from user_sim.franka.state import Fault, Motion, StateMessage
from user_sim.franka.watch import Watch

PORT, VERSION = 1337, 10
REFUSE_EVERY, HAND_EVERY, HAND_STATE_EVERY = 50, 2, 10
"""Ticks between two looks for a second client, for the hand's commands, two states of the hand."""
_GENERATED = {
    MoveCommandMotionGeneratorMode.kJointPosition: Motion.JOINT_POSITION,
    MoveCommandMotionGeneratorMode.kJointVelocity: Motion.JOINT_VELOCITY,
    MoveCommandMotionGeneratorMode.kCartesianPosition: Motion.CARTESIAN_POSITION,
    MoveCommandMotionGeneratorMode.kCartesianVelocity: Motion.CARTESIAN_VELOCITY,
}


class ControlBox(FrankaServer):
    """Serves one client at a time on ports 1337 and 1338. One thread.

    Each millisecond: `process_commands`, then the physics, then `send_state`.

    Attributes:
        robot: the arm, by the name that franky-sim's commands use.
        watch: thresholds and limits.
        fault: the error that holds the arm, None without.
        faults: errors since the start.
        stopped: the enabling button is released.
    """

    def __init__(
        self, arm: SimulatedFr3, address: str, lost_cycles: int = 200, sticky: bool = False
    ) -> None:
        """Binds nothing yet: `init` does, and raises OSError where the address cannot be had.

        Args:
            arm: what is controlled.
            address: host name or IP to serve at.
            lost_cycles: control cycles without a command after which the motion is aborted; a
                real box takes 20.
            sticky: errors cannot be cleared.
        """
        self.robot, self.sticky = arm, sticky
        self.watch = Watch(arm, lost_cycles)
        self.fault: Fault | None = None
        self.faults, self.stopped = 0, False
        self.current_motion_id = 0
        self._state = StateMessage()
        self._motion = Motion.IDLE
        self._controller: int = StateControllerMode.kOther
        self._command: UDPCommand | None = None
        self._fresh = False
        self._tick, self._number = 0, 0
        self._twist, self._accel = np.zeros(6), np.zeros(6)
        self.hand: Hand | None = None
        super().__init__([address], PORT, dict(COMMANDS), VERSION)
        arm._set_server(self)
        self.set_frames()

    def process_commands(self) -> None:
        """Reads what the clients sent and works out this millisecond's torque."""
        self._tick += 1
        self._serve(self)
        if self.hand is not None and self._tick % HAND_EVERY == 0:
            self._serve(self.hand)

    def send_state(self) -> None:
        """Sends what was measured after the step."""
        self._measure()
        if self.udp_connected:
            self.watch.sent(self._number)
            self._number += 1
            with suppress(OSError):
                super().send_state()
        if self.hand is not None and self._tick % HAND_STATE_EVERY == 0:
            with suppress(OSError):
                self.hand.send_state()

    def cleanup(self) -> None:
        """Closes all sockets."""
        if self.hand is not None:
            self.hand.reset_state()
            self.hand.cleanup()
        self.reset_state()
        super().cleanup()

    def start_motion(
        self,
        controller: MoveCommandControllerMode,
        generator: MoveCommandMotionGeneratorMode,
        motion_id: int,
    ) -> None:
        """Begins what a Move command asks for."""
        self.current_motion_id, self._controller = motion_id, controller
        torque = controller == MoveCommandControllerMode.kExternalController
        self._motion = Motion.TORQUE if torque else _GENERATED[generator]
        self._command = None
        self._twist[:] = self._accel[:] = 0.0
        self._state.field['reflex_reason'][:] = 0
        self.watch.begin()

    def stop_motion(self, status: MoveStatus = MoveStatus.kPreempted) -> None:
        """Ends the motion, if there is one, and tells its client how; the arm holds."""
        self._motion, self._command = Motion.IDLE, None
        self._controller = StateControllerMode.kOther
        self.robot.hold()
        if self.current_motion_id and self.tcp_connected:
            BaseCommand.send_response(
                self._tcp_socket, RobotCommand.kMove, self.current_motion_id, status
            )
        self.current_motion_id = 0

    def raise_fault(self, fault: Fault) -> None:
        """The box stops the arm: reflex mode until the error is cleared."""
        if self.fault is not None:
            return
        print(f'reflex: {fault.name.lower()}', flush=True)
        self.fault, self.faults = fault, self.faults + 1
        field = self._state.field
        field['errors'][fault] = field['reflex_reason'][fault] = 1
        self.send_state()  # libfranka takes the reason from the state before the answer
        self.stop_motion(MoveStatus.kReflexAborted)

    def clear_fault(self) -> bool:
        """Automatic error recovery; False when the error stays."""
        if self.sticky and self.fault is not None:
            return False
        self.fault = None
        self._state.field['errors'][:] = 0
        return True

    def press_stop(self, stopped: bool) -> None:
        """The enabling button: while it is released nothing moves."""
        self.stopped = stopped
        if stopped:
            self.stop_motion(MoveStatus.kPreemptedDueToActivatedSafetyFunctions)

    def set_frames(self) -> None:
        """Takes over TCP, stiffness frame and load from the arm's settings."""
        arm = self.robot
        ne_t_ee, ee_t_k = (
            np.array(frame).reshape(4, 4, order='F') for frame in (arm.ne_t_ee, arm.EE_T_K)
        )
        arm.scene.set_frames(ne_t_ee, ee_t_k)
        self._state.write_frames(arm, ne_t_ee, ee_t_k)

    def _serve(self, server: FrankaServer) -> None:
        try:
            FrankaServer.process_commands(server)
            if self._tick % REFUSE_EVERY == 0:
                refuse_others(server)
        except (KeyError, ValueError, struct.error, OSError) as error:
            print(f'the client is dropped: {type(error).__name__}: {error}', flush=True)
            server.reset_state()

    def _bind_children(self, hostname: str) -> None:
        self.hand = Hand(self.robot, hostname)
        self.hand.init()
        self.hand._is_grasping = True

    def _reset_state(self) -> None:
        self.current_motion_id, self._number = 0, 0
        self.stop_motion()

    def _pre_process_commands(self) -> None:
        self._fresh = False

    def _handle_udp_command(self, command_data: bytes) -> None:
        command = UDPCommand.from_bytes(command_data)
        if command.message_id == 0 or self._motion is Motion.IDLE:
            return
        if command.motion_generation_finished or command.torque_command_finished:
            self.stop_motion(MoveStatus.kSuccess)
            return
        self._fresh = True
        fault = self.watch.heard(command, self._motion)
        if fault is None:
            self._command = command
        else:
            self.raise_fault(fault)

    def _post_process_commands(self) -> None:
        if self._motion is not Motion.IDLE:
            fault = self.watch.cycle(self._command, self._motion, self._fresh)
            if fault is not None:
                self.raise_fault(fault)
        arm, command, motion = self.robot, self._command, self._motion
        if command is None:
            arm.keep()
        elif motion is Motion.TORQUE:
            arm.torque_control(np.array(command.tau_J_d))
        elif motion is Motion.JOINT_POSITION:
            arm.joint_position_control(np.array(command.q_c), self._fresh)
        elif motion is Motion.JOINT_VELOCITY:
            arm.joint_velocity_control(np.array(command.dq_c), self._fresh)
        else:
            self._cartesian_control(command)

    def _cartesian_control(self, command: UDPCommand) -> None:
        elbow = np.array(command.elbow_c) if command.valid_elbow else None
        twist, before = self._twist, self._twist.copy()
        if self._motion is Motion.CARTESIAN_VELOCITY:
            twist[:] = command.O_dP_EE_c
            self.robot.cartesian_velocity_control(twist, elbow, self._fresh)
        else:
            pose, old = np.array(command.O_T_EE_c), self._state.field['O_T_EE_c']
            rotation = pose.reshape(4, 4)[:3, :3].T
            if self._fresh:
                turn = rotation @ old.reshape(4, 4)[:3, :3]
                twist[:3] = (pose[12:15] - old[12:15]) * 1000
                skew = (turn - turn.T) * 500
                twist[3:] = skew[2, 1], skew[0, 2], skew[1, 0]
            old[:] = pose
            quat = np.zeros(4)
            mujoco.mju_mat2Quat(quat, rotation.ravel())
            goal = np.concatenate([pose[12:15], quat[[1, 2, 3, 0]]])
            self.robot.cartesian_position_control(goal, elbow, self._fresh)
        self._accel[:] = (twist - before) * 1000

    def _mode(self) -> RobotMode:
        if self.stopped:
            return RobotMode.kUserStopped
        if self.fault is not None:
            return RobotMode.kReflex
        return RobotMode.kMove if self.current_motion_id else RobotMode.kIdle

    def _measure(self) -> None:
        """Writes the present sample into the state."""
        state, arm, motion = self._state, self.robot, self._motion
        commanded = motion is Motion.CARTESIAN_POSITION and self._command is not None
        state.write_arm(arm, motion, commanded)
        state.write_contact(arm.scene, self.watch.force, self.watch.torque)
        field = state.field
        if motion is Motion.TORQUE:
            field['O_dP_EE_c'][:] = arm.scene.jacobian @ arm.dq
        else:
            cartesian = motion in (Motion.CARTESIAN_POSITION, Motion.CARTESIAN_VELOCITY)
            field['O_dP_EE_c'][:] = self._twist if cartesian else 0.0
            field['O_ddP_EE_c'][:] = self._accel if cartesian else 0.0
        field['O_dP_EE_d'][:] = field['O_dP_EE_c']
        field['robot_mode'][0] = self._mode()
        field['motion_generator_mode'][0] = motion
        field['controller_mode'][0] = self._controller
        rate = 0.0 if motion is Motion.IDLE else self.watch.success_rate()
        field['control_command_success_rate'][0] = rate

    def _get_state_bytes(self) -> bytes:
        return self._state.tobytes()
