# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Configuration of what stands beside the robot: arm, teleoperation, safety, task.

Registries: `Arm`, `Teleop` and `Task` list what can be chosen by `kind`.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from user_core.schema import NonNegative, Positive, Quaternion, Section, Vector


class PoseConfig(Section):
    """A pose in the arm's base frame."""

    position_m: Vector
    quaternion_xyzw: Quaternion
    """Unit quaternion, scalar last."""

    @model_validator(mode='after')
    def _is_unit(self) -> PoseConfig:
        if abs(math.hypot(*self.quaternion_xyzw) - 1.0) > 1e-3:
            raise ValueError('quaternion_xyzw must have length 1')
        return self


class SimArmConfig(Section):
    """The simulated FR3 with its peg. Unobserved errors are uniform within +- the number given."""

    kind: Literal['sim'] = 'sim'

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
    latency_s: NonNegative = 0.1
    """Time from the command until its target counts."""
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


Arm = SimArmConfig


class ScriptTeleop(Section):
    """A scripted expert gives the demonstrations; it answers observations as a policy does."""

    kind: Literal['script'] = 'script'


Teleop = ScriptTeleop


class Safety(Section):
    """Limits that the arm node enforces on every target; relative to the task's frame."""

    box_min_m: Vector = (-0.06, -0.06, -0.12)
    """Lowest corner of the box that the TCP's target stays in."""
    box_max_m: Vector = (0.06, 0.06, 0.005)
    """Highest corner of the box that the TCP's target stays in."""
    box_rotation_rad: tuple[Positive, Positive, Positive] = (0.1, 0.1, 0.7)
    """Largest rotation vector component about x, y, z of the task's frame, either way."""
    max_step_m: Positive = 0.02
    """Distance of the target from the measured position, at most."""
    max_step_rad: Positive = 0.2
    """Angle of the target from the measured orientation, at most."""
    force_soft_n: Positive | None = None
    """Above this contact force a target no longer moves further into the contact; null: off."""
    force_limit_n: Positive = 80.0
    """Above this contact force the episode is aborted."""
    deadline_s: Positive = 0.2
    """Realtime: the arm holds this long after its last command (steady clock)."""

    @model_validator(mode='after')
    def _box_has_room(self) -> Safety:
        if any(lo >= hi for lo, hi in zip(self.box_min_m, self.box_max_m, strict=True)):
            raise ValueError('box_min_m must be below box_max_m on every axis')
        if math.hypot(*self.box_rotation_rad) >= math.pi:
            raise ValueError('box_rotation_rad must stay below pi in length')
        return self


class Cell(Section):
    """One arm and what belongs to it; its key is its ROS namespace."""

    machine: str = 'local'
    """Where it stands: a key of `machines`."""
    control_hz: Positive = 10.0
    """Control steps a second, on the cell's clock."""
    arm: Arm = SimArmConfig()
    """The arm's driver."""
    teleop: Teleop | None = ScriptTeleop()
    """Who demonstrates and takes over; null: nobody."""
    safety: Safety = Safety()


class PegTask(Section):
    """Insert a held square peg into a square hole.

    The task's frame is the TCP's pose at full insertion: z points down into the hole.
    """

    kind: Literal['peg'] = 'peg'
    text: str = 'insert the peg into the hole'
    """What the task is, for language-conditioned policies."""
    frame: PoseConfig = PoseConfig(
        position_m=(0.5, 0.0, 0.132), quaternion_xyzw=(1.0, 0.0, 0.0, 0.0)
    )
    """The TCP's nominal pose at full insertion, in the arm's base frame."""
    start_height_m: Positive = 0.10
    """Height of a start above the frame."""
    start_xy_m: NonNegative = 0.05
    """Starts are uniform within +- this in x and y."""
    start_yaw_rad: NonNegative = math.radians(30)
    """Starts are uniform within +- this about z."""
    reset_speed_m_s: Positive = 0.1
    """Speed of the motion to a start."""
    reset_speed_rad_s: Positive = 0.6
    """Angular speed of the motion to a start."""
    max_steps: Annotated[int, Field(ge=1)] = 120
    """Steps after which an episode is truncated."""
    success_depth_m: Positive = 0.010
    """Success: at most this short of full insertion ..."""
    success_lateral_m: Positive = 0.005
    """... and this far off sideways ..."""
    success_angle_rad: Positive = 0.2
    """... and turned by this angle at most."""
    scale_m: Positive = 0.01
    """Translation of an action of 1, per axis of the task's frame."""
    scale_rad: Positive = 0.1
    """Rotation of an action of 1, per axis of the task's frame."""
    force_penalty_per_n: NonNegative = 0.0
    """Reward lost per newton of an action's peak contact force above force_free_n."""
    force_free_n: NonNegative = 20.0
    """Contact force that costs nothing."""


Task = PegTask
