# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Configuration of what stands beside the robot: teleoperation, safety, task; arms: arm_config.

Registries: `Teleop` and `Task` list what can be chosen by `kind`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from user_core.arm_config import Arm, PegScene, SimArmConfig
from user_core.camera_config import Camera, SimCameraConfig
from user_core.schema import Name, NonNegative, Positive, Quaternion, Section, Vector, of_kind


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


class ScriptTeleop(Section):
    """A scripted expert gives the demonstrations; it answers observations as a policy does."""

    kind: Literal['script'] = 'script'


Teleop = ScriptTeleop


FEELS_M = 0.003
"""Who cannot see still feels the way to a hole that is off by this."""


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
    max_speed_m_s: Positive = 0.5
    """Above this measured speed of the TCP the arm holds and the episode is aborted."""
    max_speed_rad_s: Positive = 3.0
    """The same for its angular speed."""
    recoveries_in_a_row: Annotated[int, Field(ge=0)] = 5
    """A reset recovers the arm from a contact this often without a clean episode between; then a
    person has to look at it and call `recover`."""

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
    cameras: dict[Name, Camera] = Field(default={})
    """Cameras by name; every cell of a run has the same ones, of the same size."""
    teleop: Teleop | None = ScriptTeleop()
    """Who demonstrates and takes over; null: nobody."""
    safety: Safety = Safety()
    ready: Literal['auto', 'ask'] = 'auto'
    """ask: an episode begins when a person has prepared the scene and calls `ready`."""
    ready_within_s: Positive = 900.0
    """Nobody said so for this long: the reset is done again. No row is lost, the run goes on."""

    @property
    def expert_sees(self) -> bool:
        """The scripted expert has to look where the hole is: feeling does not reach that far."""
        return (
            self.teleop is not None
            and isinstance(self.arm, PegScene)
            and self.arm.hole_error_m > FEELS_M
        )

    @property
    def looked_at(self) -> bool:
        """Somebody looks at the simulated scene, to draw it or to demonstrate."""
        return self.expert_sees or any(c.kind == 'sim' for c in self.cameras.values())

    @model_validator(mode='before')
    @classmethod
    def _parts_have_a_kind(cls, content: Any) -> Any:
        content = of_kind(content, 'arm', 'sim')
        cameras = content.get('cameras') if isinstance(content, dict) else None
        for name in cameras if isinstance(cameras, dict) else ():
            cameras = of_kind(cameras, name, 'sim')
        return content if not cameras else {**content, 'cameras': cameras}

    @model_validator(mode='after')
    def _cameras_can_be(self) -> Cell:
        taken = {'arm', 'episode', 'expert', 'cameras', 'teleop'}
        for name, camera in self.cameras.items():
            if name in taken:
                raise ValueError(f'a camera cannot be named {name}: a node of the cell is')
            if not isinstance(camera, SimCameraConfig):
                continue
            if not isinstance(self.arm, PegScene):
                raise ValueError(
                    f'camera {name} is drawn from a simulated scene, and an arm of kind'
                    f' {self.arm.kind} has none: choose another kind for it, or arm=franka_sim'
                )
            if (camera.scene or name) not in ('wrist', 'side'):
                raise ValueError(f'camera {name} needs a scene: wrist or side')
        return self

    def view_topic(self, camera: str) -> str:
        """Key of the topic on which the camera's view comes: a JPEG from another machine."""
        section = self.cameras[camera]  # a drawn one stands where the scene is
        away = section.kind != 'sim' and section.machine not in (None, self.machine)
        return 'view/compressed' if away else 'view'


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


class ReachTask(Section):
    """Bring the TCP to a goal in free space and stop there.

    The task's frame is the TCP's pose at the goal.
    """

    kind: Literal['reach'] = 'reach'
    text: str = 'move to the goal and stop there'
    """What the task is, for language-conditioned policies."""
    frame: PoseConfig = PoseConfig(
        position_m=(0.45, 0.0, 0.35), quaternion_xyzw=(1.0, 0.0, 0.0, 0.0)
    )
    """The goal, in the arm's base frame; the default suits an FR3."""
    start_min_m: Vector = (-0.08, -0.08, -0.12)
    """Starts are uniform in a box in the task's frame; its lowest corner ..."""
    start_max_m: Vector = (0.02, 0.08, -0.06)
    """... and its highest."""
    reset_speed_m_s: Positive = 0.1
    """Speed of the motion to a start."""
    reset_speed_rad_s: Positive = 0.6
    """Angular speed of the motion to a start."""
    max_steps: Annotated[int, Field(ge=1)] = 60
    """Steps after which an episode is truncated."""
    success_m: Positive = 0.01
    """Success: at most this far from the goal ..."""
    success_speed_m_s: Positive = 0.05
    """... and no faster than this."""
    scale_m: Positive = 0.015
    """Translation of an action of 1, per axis of the task's frame."""
    scale_rad: Positive = 0.05
    """Rotation of an action of 1, per axis of the task's frame."""

    @model_validator(mode='after')
    def _starts_are_away(self) -> ReachTask:
        corners = list(zip(self.start_min_m, self.start_max_m, strict=True))
        if any(low > high for low, high in corners):
            raise ValueError('start_min_m must not be above start_max_m on any axis')
        if math.hypot(*(max(low, -high, 0.0) for low, high in corners)) <= self.success_m:
            raise ValueError(
                'an episode could begin in success: keep the box of starts further than success_m'
                ' from the frame'
            )
        return self


Task = Annotated[PegTask | ReachTask, Field(discriminator='kind')]
