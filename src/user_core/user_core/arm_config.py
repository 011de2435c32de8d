# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Configuration of the arms. Registry: `Arm` lists what can be chosen by `kind`.

A kind that ends in `_sim` is the real driver on a simulated device that the plan starts beside it.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from user_core.schema import NonNegative, Positive, Section, Vector

Share = Annotated[float, Field(ge=0, le=1)]
Joints = tuple[float, float, float, float, float, float, float]


class ImpedanceLaw(Section):
    """Gains of the Cartesian impedance law that moves a Franka, real or simulated."""

    stiffness_n_m: Positive = 1500.0
    """Translational stiffness; stiffness times clip bounds the push."""
    stiffness_nm_rad: Positive = 60.0
    """Rotational stiffness."""
    damping_ns_m: Positive = 80.0
    """Translational damping."""
    damping_nms_rad: Positive = 5.0
    """Rotational damping."""
    clip_m: Positive = 0.01
    """Position error that the law answers at most, on each axis."""
    clip_tilt_rad: Positive = 0.03
    """The same for rotation about x and y."""
    clip_yaw_rad: Positive = 0.1
    """The same for rotation about z."""
    posture_nm_rad: NonNegative = 5.0
    """Stiffness of the null space towards the home posture."""
    max_delta_tau_nm: Positive = 1.0
    """Change of a joint's torque in 1 ms at most."""


class PegScene(Section):
    """The simulated peg and its block. Unobserved errors are uniform within +- the number."""

    joint_friction_nm: NonNegative = 0.3
    """Friction that a joint keeps after the robot's own compensation, at most."""
    peg_half_width_m: Positive = 0.008
    """Half the side of the square peg."""
    clearance_m: Positive = 0.0005
    """Gap on each side of the peg in the hole."""
    peg_edge_m: NonNegative = 0.0
    """Radius of the edges at the peg's tip; 0: sharp."""
    contact_time_s: Annotated[float, Field(ge=0.004)] = 0.004
    """Time constant of a contact; larger is softer."""
    contact_friction: NonNegative = 0.3
    """Sliding friction of the peg on the block."""
    hole_error_m: NonNegative = 0.001
    """Unobserved error of the hole in x and y."""
    hole_error_rad: NonNegative = math.radians(1)
    """Unobserved yaw of the hole."""
    grasp_error_m: NonNegative = 0.001
    """Unobserved error of the peg along and across the fingers."""
    grasp_error_rad: NonNegative = math.radians(1)
    """Unobserved rotation of the peg about the finger pads."""


class WrenchErrors(Section):
    """What an estimate of the external wrench is like."""

    wrench_cutoff_hz: Positive = 45.0
    """Low pass of the wrench estimate."""
    force_noise_n: NonNegative = 0.5
    """Standard deviation of the force estimate's noise."""
    torque_noise_nm: NonNegative = 0.02
    """Standard deviation of the torque estimate's noise."""
    force_bias_n: NonNegative = 0.5
    """Bias of the force estimate, constant through an episode."""
    torque_bias_nm: NonNegative = 0.02
    """Bias of the torque estimate, constant through an episode."""


class SimArmConfig(ImpedanceLaw, PegScene, WrenchErrors):
    """The simulated FR3 with its peg, in the arm node's own process; the only one that can run in
    lockstep.
    """

    kind: Literal['sim'] = 'sim'
    latency_s: NonNegative = 0.1
    """Time from the command until its target counts."""


class RealArm(Section):
    """What every arm that cannot be put somewhere has."""

    min_success_rate: Share = 0.9
    """Below this share of control cycles in time the arm does not start."""
    park_up_m: NonNegative = 0.0
    """When the node ends the arm retreats by this along the task's way out; 0: it holds where it
    is."""


class Jointed(RealArm):
    """What every arm that moves its joints to a posture has."""

    joint_speed_rad_s: Positive = 0.5
    """Speed of the fastest joint in a joint motion."""
    joint_reset_every: Annotated[int, Field(ge=0)] = 0
    """A reset goes through the home posture in the first of so many episodes; 0: never."""
    home_q_rad: tuple[float, ...]
    """Home posture: joint resets end in it."""


class Franka(Jointed, ImpedanceLaw):
    """What a Franka needs, real or behind a simulated control box."""

    address: str = '172.16.0.2'
    """Host name or IP of the robot's control box."""
    realtime: Literal['enforce', 'ignore'] = 'enforce'
    """enforce: refuse to control without a realtime kernel; ignore: try anyway."""
    gripper: bool = True
    """A Franka hand is mounted."""
    gripper_speed_m_s: Positive = 0.1
    """Speed of the fingers."""
    gripper_force_n: Positive = 20.0
    """Force of a grasp."""
    home_q_rad: Joints = (0.0, -0.3, 0.0, -2.2, 0.0, 1.9, 0.785)
    """Home posture: the null space is pulled to it, and the joint reset ends in it."""
    load_kg: NonNegative = 0.0
    """Mass of what the hand holds, beyond the hand itself."""
    load_com_m: Vector = (0.0, 0.0, 0.0)
    """Its centre of mass in the flange's frame."""
    tcp_m: Vector = (0.0, 0.0, 0.1034)
    """The TCP in the flange's frame (the hand's frame is turned by -45 degrees about z)."""
    collision_force_n: Positive = 60.0
    """External force on an axis above which the robot itself stops (cartesian reflex)."""
    collision_torque_nm: Positive = 30.0
    """External torque on an axis above which the robot itself stops."""


class FrankaConfig(Franka):
    """A Franka arm with Franka hand, through franky (libfranka)."""

    kind: Literal['franka'] = 'franka'


class FrankaSimConfig(Franka, PegScene):
    """The same driver on a simulated FR3 that speaks the robot's network protocol."""

    kind: Literal['franka_sim'] = 'franka_sim'
    address: str = '127.0.0.1'
    """Loopback address at which its control box is started."""
    realtime: Literal['enforce', 'ignore'] = 'ignore'
    """A simulated control box waits for nobody."""
    min_success_rate: Share = 0.5
    """A busy computer answers it late."""


class Arx(Jointed):
    """What an ARX arm needs, on a real CAN bus or an emulated one."""

    model: Literal['L5', 'X5', 'X7Left', 'X7Right'] = 'L5'
    """Which arm it is."""
    interface: str = 'can0'
    """CAN interface."""
    gain_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Joint stiffness and damping as a share of the SDK's own gains."""
    max_joint_speed_rad_s: Positive = 1.0
    """Speed of the joint targets on their way to the motors, at most."""
    max_joint_acceleration_rad_s2: Positive = 10.0
    """Their acceleration."""
    max_joint_jerk_rad_s3: Positive = 200.0
    """Their jerk."""
    home_q_rad: tuple[float, float, float, float, float, float] = (0, 0.6, 0.6, 0, 0, 0)
    """Where joint resets and parking end."""
    park: bool = True
    """When the node ends the arm goes home before its motors are damped; a damped arm sinks."""
    force_cutoff_hz: Positive = 10.0
    """Low pass of the contact force that is derived from joint torques."""


class ArxConfig(Arx):
    """An ARX arm through arx5-interface."""

    kind: Literal['arx'] = 'arx'


class ArxSimConfig(Arx):
    """The same driver and SDK on an emulated CAN bus with a MuJoCo arm behind it."""

    kind: Literal['arx_sim'] = 'arx_sim'


class TopicsConfig(RealArm):
    """A foreign arm that speaks target_pose, current_pose, current_twist, joint_states and
    external_wrench (CRISP's names).
    """

    kind: Literal['topics'] = 'topics'
    namespace: str = '/foreign'
    """Where its topics are."""
    tool_frame: str = ''
    """Name of the TCP's frame, when twist or wrench are given in it; else they are in the base."""
    max_age_s: Positive = 0.1
    """A pose older than this is a fault."""
    smooth: bool = True
    """Targets are jerk limited on their way to the arm: for arms that follow stiffly."""
    max_speed_m_s: Positive = 0.25
    """Speed of a smoothed target, at most, on each axis."""
    max_acceleration_m_s2: Positive = 1.0
    """Its acceleration."""
    max_jerk_m_s3: Positive = 20.0
    """Its jerk."""
    max_speed_rad_s: Positive = 1.0
    """Angular speed of a smoothed target, at most; acceleration and jerk in proportion."""


Arm = Annotated[
    SimArmConfig | FrankaConfig | FrankaSimConfig | ArxConfig | ArxSimConfig | TopicsConfig,
    Field(discriminator='kind'),
]
LOCKSTEP = ('sim',)
"""Kinds whose time can wait; all others need pace realtime."""
