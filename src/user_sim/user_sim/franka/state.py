# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The state that a Franka's control box sends a thousand times a second, and its error bits.

Layout of libfranka 0.21's robot state (server version 10); written in place, field by field.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from user_core.geometry import Array
from user_sim.franka.arm import SimulatedFr3
from user_sim.franka.scene import FrankaScene

_STATE = np.dtype(
    [
        ('O_T_EE', '<f4', 16),
        ('O_T_EE_d', '<f4', 16),
        ('F_T_EE', '<f4', 16),
        ('EE_T_K', '<f4', 16),
        ('F_T_NE', '<f4', 16),
        ('NE_T_EE', '<f4', 16),
        ('m_ee', '<f4'),
        ('I_ee', '<f4', 9),
        ('F_x_Cee', '<f4', 3),
        ('m_load', '<f4'),
        ('I_load', '<f4', 9),
        ('F_x_Cload', '<f4', 3),
        ('elbow', '<f4', 2),
        ('elbow_d', '<f4', 2),
        ('tau_J', '<f4', 7),
        ('tau_J_d', '<f4', 7),
        ('dtau_J', '<f4', 7),
        ('q', '<f4', 7),
        ('q_d', '<f4', 7),
        ('dq', '<f4', 7),
        ('dq_d', '<f4', 7),
        ('ddq_d', '<f4', 7),
        ('joint_contact', '<f4', 7),
        ('cartesian_contact', '<f4', 6),
        ('joint_collision', '<f4', 7),
        ('cartesian_collision', '<f4', 6),
        ('tau_ext_hat_filtered', '<f4', 7),
        ('O_F_ext_hat_K', '<f4', 6),
        ('K_F_ext_hat_K', '<f4', 6),
        ('O_dP_EE_d', '<f4', 6),
        ('O_ddP_O', '<f4', 3),
        ('elbow_c', '<f4', 2),
        ('delbow_c', '<f4', 2),
        ('ddelbow_c', '<f4', 2),
        ('O_T_EE_c', '<f4', 16),
        ('O_dP_EE_c', '<f4', 6),
        ('O_ddP_EE_c', '<f4', 6),
        ('theta', '<f4', 7),
        ('dtheta', '<f4', 7),
        ('accelerometer_top', '<f4', 18),
        ('accelerometer_bottom', '<f4', 18),
        ('motion_generator_mode', 'u1'),
        ('controller_mode', 'u1'),
        ('errors', 'u1', 41),
        ('reflex_reason', 'u1', 41),
        ('robot_mode', 'u1'),
        ('control_command_success_rate', '<f4'),
    ]
)


class Motion(IntEnum):
    """What the client commands; the numbers of `motion_generator_mode`."""

    IDLE = 0
    JOINT_POSITION = 1
    JOINT_VELOCITY = 2
    CARTESIAN_POSITION = 3
    CARTESIAN_VELOCITY = 4
    TORQUE = 5


class Fault(IntEnum):
    """Bits of `errors` that the simulated box can set, in the order of the wire."""

    JOINT_POSITION_LIMITS_VIOLATION = 0
    JOINT_VELOCITY_VIOLATION = 3
    JOINT_REFLEX = 6
    CARTESIAN_REFLEX = 7
    JOINT_MOTION_GENERATOR_POSITION_LIMITS_VIOLATION = 12
    JOINT_MOTION_GENERATOR_VELOCITY_LIMITS_VIOLATION = 13
    CARTESIAN_MOTION_GENERATOR_VELOCITY_LIMITS_VIOLATION = 18
    COMMUNICATION_CONSTRAINTS_VIOLATION = 25
    CONTROLLER_TORQUE_DISCONTINUITY = 32


def column_major(rotation: Array, position: Array) -> list[float]:
    """A pose as libfranka writes it: 4 x 4, columns first. `rotation` is (9,), rows first."""
    r, p = rotation.tolist(), position.tolist()
    return [
        r[0], r[3], r[6], 0.0, r[1], r[4], r[7], 0.0, r[2], r[5], r[8], 0.0, p[0], p[1], p[2], 1.0
    ]  # fmt: skip


class StateMessage:
    """One state, kept and overwritten.

    Attributes:
        field: view of each field by its name, to be written in place.
    """

    field: dict[str, NDArray[np.generic]]

    def __init__(self) -> None:
        message = np.zeros(1, _STATE)
        self._message = message
        self.field = {}
        for name in _STATE.names or ():
            view = message[name]
            self.field[name] = view[0] if view.ndim > 1 else view
        identity = np.eye(4).ravel()
        for name in _STATE.names or ():
            if '_T_' in name or name == 'EE_T_K':
                self.field[name][:] = identity
        self.field['O_ddP_O'][:] = 0.0, 0.0, -9.81

    def write_frames(self, arm: SimulatedFr3, ne_t_ee: Array, ee_t_k: Array) -> None:
        """What changes with the client's settings only: frames (4, 4), masses."""
        field, half = self.field, np.sqrt(0.5)
        nominal = np.eye(4)  # the hand is turned by -45 degrees on the flange
        nominal[:2, :2] = [[half, half], [-half, half]]
        nominal[:3, 3] = arm.robot_parameters.ee_tcp_xyz
        frames = {
            'F_T_NE': nominal,
            'NE_T_EE': ne_t_ee,
            'F_T_EE': nominal @ ne_t_ee,
            'EE_T_K': ee_t_k,
        }
        for name, frame in frames.items():
            field[name][:] = frame.ravel(order='F')
        field['m_ee'][0], field['m_load'][0] = arm.robot_parameters.ee_mass, arm.m_load
        field['F_x_Cee'][:], field['F_x_Cload'][:] = arm.robot_parameters.ee_com, arm.F_x_Cload
        field['I_ee'][:], field['I_load'][:] = arm.robot_parameters.ee_inertia, arm.I_load

    def write_arm(self, arm: SimulatedFr3, motion: Motion, pose_c: bool) -> None:
        """Pose and joints; `pose_c`: O_T_EE_c is a command, not to be overwritten."""
        field, data, tcp = self.field, arm.scene.data, arm.scene.tcp
        pose = column_major(data.site_xmat[tcp], data.site_xpos[tcp])
        field['O_T_EE'][:] = pose
        if not pose_c:
            field['O_T_EE_c'][:] = pose
        field['O_T_EE_d'][:] = field['O_T_EE_c']
        field['q'][:] = field['theta'][:] = arm.q
        field['dq'][:] = field['dtheta'][:] = arm.dq
        measured = motion is Motion.TORQUE
        field['q_d'][:] = arm.q if measured else arm.q_d
        field['dq_d'][:] = arm.dq if measured else arm.dq_d
        field['ddq_d'][:] = arm.ddq_d
        field['tau_J_d'][:] = arm.tau
        field['tau_J'][:] = arm.tau + data.qfrc_gravcomp
        elbow = arm.q[2], 1.0 if arm.q[3] > 0 else -1.0
        field['elbow'][:] = field['elbow_d'][:] = field['elbow_c'][:] = elbow

    def write_contact(
        self, scene: FrankaScene, force: tuple[Array, Array], torque: tuple[Array, Array]
    ) -> None:
        """External wrench and torques against their thresholds for contact and collision."""
        field, wrench, tau = self.field, scene.wrench, scene.tau_ext
        field['O_F_ext_hat_K'][:] = wrench
        turn = scene.data.site_xmat[scene.stiffness].reshape(3, 3)
        field['K_F_ext_hat_K'].reshape(2, 3)[:] = wrench.reshape(2, 3) @ turn
        field['tau_ext_hat_filtered'][:] = tau
        for name, value, (low, high) in (('cartesian', wrench, force), ('joint', tau, torque)):
            field[f'{name}_contact'][:] = np.abs(value) > low
            field[f'{name}_collision'][:] = np.abs(value) > high

    def tobytes(self) -> bytes:
        """What goes on the wire."""
        return self._message.tobytes()
