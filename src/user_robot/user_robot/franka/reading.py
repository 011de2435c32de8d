# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a Franka's state says: how it stands and pushes, and why it does not let itself move."""

from __future__ import annotations

import franky
import numpy as np

from user_core.geometry import Array, Pose
from user_robot.arm import ArmState
from user_robot.franka.kinematics import jacobian

CONTACT = {
    'cartesian_reflex': 'a contact above the collision thresholds',
    'joint_reflex': "a contact above a joint's collision threshold",
    'joint_position_limits_violation': "a joint is past its limit; guide it back by hand in Desk's"
    ' joint position recovery',
    'joint_velocity_violation': 'a joint is too fast',
    'cartesian_velocity_violation': 'the hand is too fast',
    'cartesian_position_limits_violation': 'the hand went through a virtual wall of Desk',
    'self_collision_avoidance_violation': 'the arm came too close to itself',
    'power_limit_violation': 'the motion needs too much power',
    'force_control_safety_violation': 'the force is above the safety threshold',
    'tau_j_range_violation': 'a joint torque is out of range',
}
"""Reactions of the robot to a contact or a limit."""
OTHER = {
    'communication_constraints_violation': 'too many commands came late: the control computer or'
    ' its network is too slow',
    'controller_torque_discontinuity': 'the torque command jumped',
    'joint_motion_generator_velocity_discontinuity': 'the joint command jumped',
    'joint_motion_generator_acceleration_discontinuity': 'the joint command jumped',
    'instability_detected': 'the arm oscillates; wrong load or too stiff',
}
"""Other errors that are worth a word."""
_ERRORS = tuple(name for name in dir(franky.Errors) if not name.startswith('_'))


def trouble(state: franky.RobotState) -> tuple[str, bool]:
    """Why the robot does not let itself be moved ('' when it does), and whether that is its own
    reaction to a contact or limit. The mode counts even where no error says why.
    """
    mode, names = state.robot_mode, _names(state.current_errors)
    if mode == franky.RobotMode.UserStopped:
        return 'the enabling button is released or the external stop is pressed', False
    if mode == franky.RobotMode.Reflex or names:
        names = names or _names(state.last_motion_errors)
        told = ', '.join(f'{n}, {t}' if (t := (CONTACT | OTHER).get(n)) else n for n in names)
        reflex = not names or any(name in CONTACT for name in names)
        return f'the robot stopped itself: {told or "it names no reason"}', reflex
    if mode == franky.RobotMode.Guiding:
        return 'the arm is being guided by hand', False
    if mode == franky.RobotMode.AutomaticErrorRecovery:
        return 'the robot is recovering from an error', False
    if mode == franky.RobotMode.Other:
        return 'the joints are locked or FCI is not active; unlock them in Desk', False
    return '', False


def _names(errors: franky.Errors) -> list[str]:
    return [name for name in _ERRORS if getattr(errors, name)]


def wrench_at_tcp(raw: franky.RobotState) -> Array:
    """(6,) external wrench at the TCP, base axes, robot on environment positive, N and Nm.

    libfranka gives it at the stiffness frame's point, which may lie elsewhere.
    """
    wrench = np.array(raw.O_F_ext_hat_K)
    lever = raw.O_T_EE.matrix[:3, :3] @ raw.EE_T_K.translation
    wrench[3:] += np.cross(lever, wrench[:3])
    return wrench


def measurement(raw: franky.RobotState, stamp_s: float) -> ArmState:
    """The sample without what only the driver knows: hand, peak force, faults, motions."""
    position = np.array(raw.O_T_EE.translation)
    q, dq = np.array(raw.q), np.array(raw.dq)
    wrench = wrench_at_tcp(raw)
    in_control = raw.robot_mode == franky.RobotMode.Move
    return ArmState(
        pose=Pose(position, np.array(raw.O_T_EE.quaternion)),
        twist=jacobian(q, position) @ dq,
        wrench=wrench,
        q=q,
        dq=dq,
        tau=np.array(raw.tau_J),
        gripper_m=0.0,
        stamp_s=stamp_s,
        peak_force_n=float(np.linalg.norm(wrench[:3])),
        success_rate=float(raw.control_command_success_rate) if in_control else 1.0,
    )
