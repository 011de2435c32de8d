# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What an arm measures and can do, and the arms there are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
import time
from typing import Any, Protocol

from user_core.errors import UserError
from user_core.geometry import Array, Pose
from user_robot.registry import look_up

ARMS = {
    'sim': 'user_sim.arm:SimArm',
    'franka': 'user_robot.franka.arm:FrankaArm',
    'franka_sim': 'user_robot.franka.arm:FrankaArm',
    'arx': 'user_robot.arx.arm:ArxArm',
    'arx_sim': 'user_robot.arx.arm:ArxArm',
    'topics': 'user_robot.foreign.arm:TopicsArm',
}
"""Where the class of each `cells.*.arm.kind` lives; imported on use, so none needs another."""

DEVICE_WITHIN_S = 30.0
"""A simulated device that the plan starts beside the arm answers by then (steady clock)."""


@dataclass(frozen=True, slots=True)
class ArmState:
    """One sample of an arm: base frame, SI units.

    Attributes:
        pose: measured TCP pose.
        twist: (6,) linear m/s, angular rad/s.
        wrench: (6,) force N, torque Nm at the TCP, base frame's axes, robot on environment
            positive, filtered.
        q: (joints,) rad.
        dq: (joints,) rad/s.
        tau: (joints,) Nm.
        gripper_m: distance of the fingers.
        stamp_s: when it was measured, on the arm's clock, which never goes back (simulated arm:
            simulated seconds; others: seconds since the epoch).
        peak_force_n: largest filtered contact force since the sample before.
        success_rate: share of the last control cycles that came in time; 1 where none is counted.
        fault: why the driver cannot move the arm, one sentence; '' when it can.
        reflex: the fault is the robot's own reaction to a contact or limit: backing out is right.
        moving: a motion that `move_joints` began goes on.
        grasped: the gripper holds something.
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
    success_rate: float = 1.0
    fault: str = ''
    reflex: bool = False
    moving: bool = False
    grasped: bool = False


@dataclass(frozen=True)
class Site:
    """Where a driver works: the name of its cell, folder and name of the run, and whether anybody
    looks at the scene of a simulated one.
    """

    cell: str = 'arm0'
    folder: Path = Path()
    run: str = 'by-hand'
    looked_at: bool = False


BY_HAND = Site()
"""No run: a check, a script."""


class Arm(Protocol):
    """A driver. One thread at a time calls it, and no call blocks: what takes longer than a
    millisecond happens in the driver's own thread or process.

    Its constructor takes (config, period_s, site), connects within seconds, moves nothing, and
    raises UserError when that fails.
    """

    slice_s: float
    """Realtime: how often `advance` and `state` are called."""

    def reset(self, pose: Pose, seed: int) -> None:
        """Ends a reset motion: a simulated arm is put there and draws the errors of the seed."""

    def state(self) -> ArmState:
        """The newest measurement. A fault of the driver is a field of it, not an exception."""

    def servo(self, target: Pose, gripper_m: float) -> None:
        """Sets the target (base frame) that the law pulls towards; NaN leaves the gripper. In a
        fault nothing happens.
        """

    def advance(self, seconds: float) -> None:
        """Lets simulated time pass; a real arm returns at once."""

    def hold(self) -> None:
        """Makes the present pose the target; ends a joint motion."""

    def recover(self) -> None:
        """Begins to leave a fault; `state().fault` is '' when that worked."""

    def move_joints(self, q: Array, speed_rad_s: float) -> None:
        """Begins a joint motion; `state().moving` until it is over. UserError where there is
        none.
        """

    def grip(self, width_m: float, speed_m_s: float, force_n: float) -> None:
        """Begins a motion of the gripper: a grasp when force_n > 0. UserError without a
        gripper.
        """

    def close(self, healthy: bool = True) -> None:
        """Holds, then lets go of the robot in the order that is safe for it; within 8 s. Where
        that includes a motion, it is made from health alone.
        """


def make_arm(config: Any, period_s: float, site: Site = BY_HAND) -> Arm:
    """The driver that `config.kind` names. The device of a simulated one may be a while coming."""
    driver = look_up(ARMS, config.kind, 'arm', 'cells.<cell>.arm.kind')
    patience_s = time.monotonic() + DEVICE_WITHIN_S
    while True:
        try:
            arm: Arm = driver(config, period_s, site)
            return arm
        except UserError:
            if not config.kind.endswith('_sim') or time.monotonic() > patience_s:
                raise
        time.sleep(0.2)
