# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What an arm measures and can do, and the arms there are."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from user_core.errors import UserError
from user_core.geometry import Array, Pose

ARMS = {'sim': 'user_sim.arm:SimArm'}
"""Where the class of each `cells.*.arm.kind` lives; imported on use, so none needs another."""


@dataclass(frozen=True, slots=True)
class ArmState:
    """One sample of an arm: base frame, SI units.

    Attributes:
        pose: measured TCP pose.
        twist: (6,) linear m/s, angular rad/s.
        wrench: (6,) force N, torque Nm at the TCP, robot on environment positive, filtered.
        q: (joints,) rad.
        dq: (joints,) rad/s.
        tau: (joints,) Nm.
        gripper_m: distance of the fingers.
        stamp_s: the arm's clock.
        peak_force_n: largest filtered contact force since the sample before.
    """

    pose: Pose
    twist: Array
    wrench: Array
    q: Array
    dq: Array
    tau: Array
    gripper_m: float
    stamp_s: float
    peak_force_n: float


class Arm(Protocol):
    """A driver. One thread at a time calls it."""

    def reset(self, pose: Pose, seed: int) -> None:
        """Ends a reset motion: a simulated arm is put there and draws the errors of the seed."""

    def state(self) -> ArmState:
        """The newest measurement."""

    def servo(self, target: Pose, gripper_m: float) -> None:
        """Sets the target (base frame) that the law pulls towards; NaN leaves the gripper."""

    def advance(self, seconds: float) -> None:
        """Lets simulated time pass; a real arm returns at once."""

    def hold(self) -> None:
        """Makes the present pose the target."""


def make_arm(config: Any, period_s: float) -> Arm:
    """The driver that `config.kind` names."""
    if config.kind not in ARMS:
        raise UserError(
            f'there is no arm of kind {config.kind!r}',
            f'the kinds are: {", ".join(sorted(ARMS))}',
            'choose one of them for cells.<cell>.arm.kind',
        )
    module, _, name = ARMS[config.kind].partition(':')
    arm: Arm = getattr(import_module(module), name)(config, period_s)
    return arm
