# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""How the simulated control box answers the commands that franky-sim only acknowledges."""

from __future__ import annotations

from typing import Any

from franky_sim import franka_robot_protocol as protocol
from franky_sim.franka_robot_protocol import AutomaticErrorRecoveryStatus, MoveStatus, RobotCommand
import numpy as np

# Servers are ControlBox; typed as Any, for it imports this table.


class Move(protocol.MoveCommand):
    """Begins a motion unless the box stands still for a reason."""

    def handle(self, server: Any) -> None:
        """Starts, or says why not."""
        if server.stopped:
            self.reply(MoveStatus.kCommandRejectedDueToActivatedSafetyFunctions)
        elif server.fault is not None:
            self.reply(MoveStatus.kCommandNotPossibleRejected)
        else:
            if server.current_motion_id:
                server.stop_motion(MoveStatus.kPreempted)
            server.start_motion(self.controller_mode, self.motion_generator_mode, self.command_id)
            self.reply(MoveStatus.kMotionStarted)


class StopMove(protocol.StopMoveCommand):
    """Ends the running motion; the arm holds."""

    def handle(self, server: Any) -> None:
        """Answers first the stop, then the motion."""
        self.reply(0)
        server.stop_motion(MoveStatus.kPreempted)


class SetCollisionBehavior(protocol.SetCollisionBehaviorCommand):
    """Thresholds of contact and collision: N, Nm."""

    def handle(self, server: Any) -> None:
        """Takes the nominal ones; the box has none for phases of acceleration."""
        server.watch.force = (
            np.array(self.lower_force_thresholds_nominal),
            np.array(self.upper_force_thresholds_nominal),
        )
        server.watch.torque = (
            np.array(self.lower_torque_thresholds_nominal),
            np.array(self.upper_torque_thresholds_nominal),
        )
        self.reply(0)


class AutomaticErrorRecovery(protocol.AutomaticErrorRecoveryCommand):
    """Clears the errors."""

    def handle(self, server: Any) -> None:
        """Success, or that a person is needed."""
        if server.stopped:
            status = AutomaticErrorRecoveryStatus.kCommandRejectedDueToActivatedSafetyFunctions
        elif server.clear_fault():
            status = AutomaticErrorRecoveryStatus.kSuccess
        else:
            status = AutomaticErrorRecoveryStatus.kManualErrorRecoveryRequiredRejected
        self.reply(status)


class SetGuidingMode(protocol.BaseCommand):
    """Axes that a person may guide; there is no person here."""

    command_type = RobotCommand.kSetGuidingMode

    @classmethod
    def from_bytes(cls, data: bytes, command_id: int, client_socket: Any) -> SetGuidingMode:
        """Its content does not matter."""
        del data
        return cls(command_id, client_socket)

    def handle(self, server: Any) -> None:
        """Acknowledges."""
        del server
        self.reply(0)


class SetEEToK(protocol.SetEEToKCommand):
    """Moves the stiffness frame, where the external wrench is given."""

    def handle(self, server: Any) -> None:
        """Takes it over."""
        server.robot.EE_T_K = self.EE_T_K
        server.set_frames()
        self.reply(0)


class SetNEToEE(protocol.SetNEToEECommand):
    """Moves the TCP."""

    def handle(self, server: Any) -> None:
        """Takes it over."""
        server.robot.set_NE_T_EE(self.NE_T_EE)
        server.set_frames()
        self.reply(0)


class SetLoad(protocol.SetLoadCommand):
    """What the hand holds; the box compensates the peg's weight whatever this says."""

    def handle(self, server: Any) -> None:
        """Keeps it for the state."""
        server.robot.set_load(self.m_load, self.F_x_Cload, self.I_load)
        server.set_frames()
        self.reply(0)


COMMANDS = {
    RobotCommand.kMove: Move,
    RobotCommand.kStopMove: StopMove,
    RobotCommand.kSetCollisionBehavior: SetCollisionBehavior,
    RobotCommand.kSetJointImpedance: protocol.SetJointImpedanceCommand,
    RobotCommand.kSetCartesianImpedance: protocol.SetCartesianImpedanceCommand,
    RobotCommand.kSetGuidingMode: SetGuidingMode,
    RobotCommand.kSetEEToK: SetEEToK,
    RobotCommand.kSetNEToEE: SetNEToEE,
    RobotCommand.kSetLoad: SetLoad,
    RobotCommand.kGetRobotModel: protocol.GetRobotModelCommand,
    RobotCommand.kAutomaticErrorRecovery: AutomaticErrorRecovery,
}
"""Handler of each command of libfranka's protocol, version 10."""
