# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Jerk-limited target followers, on ruckig: what stands between 10 Hz targets and a stiff arm.

Speed, acceleration and jerk stay within their limits at every instant, whenever the target is
swapped, and the motion is time-optimal within them. Not thread-safe; nothing here blocks.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from numpy.typing import ArrayLike
import ruckig
from scipy.spatial.transform import Rotation

from user_core.geometry import Array, Pose

TURN_RAD = 0.3
"""A pose follower's rotation vectors begin anew after a turn of this much."""


PLANNED = (ruckig.Result.Working, ruckig.Result.Finished)


class Follower:
    """Follows a target of n coordinates.

    Args:
        start: (n,) where it rests at first.
        max_speed: units/s, a number or one for each coordinate.
        max_acceleration: units/s^2.
        max_jerk: units/s^3.

    Attributes:
        position, velocity, acceleration: (n,) the present state.
    """

    def __init__(
        self,
        start: ArrayLike,
        max_speed: ArrayLike,
        max_acceleration: ArrayLike,
        max_jerk: ArrayLike,
    ) -> None:
        self.position = np.array(start, float)
        n = self.position.size
        self._otg = ruckig.Ruckig(n)
        self._input = ruckig.InputParameter(n)
        self.limit(max_speed, max_acceleration, max_jerk)
        self.place(start)

    def limit(
        self, max_speed: ArrayLike, max_acceleration: ArrayLike, max_jerk: ArrayLike
    ) -> None:
        """Sets new limits from the next `aim` or `stop` on."""
        n = self.position.size
        self._input.max_velocity = np.broadcast_to(max_speed, n).tolist()
        self._input.max_acceleration = np.broadcast_to(max_acceleration, n).tolist()
        self._input.max_jerk = np.broadcast_to(max_jerk, n).tolist()

    def place(self, position: ArrayLike) -> None:
        """Rests at a position at once: a jump, for an arm that was moved by others."""
        self.position = np.array(position, float)
        self.velocity = np.zeros_like(self.position)
        self.acceleration = np.zeros_like(self.position)
        self._trajectory: ruckig.Trajectory | None = None
        self._time = 0.0

    def aim(self, target: ArrayLike) -> None:
        """Sets the target (n,); it is reached at rest.

        Raises:
            ValueError: a number is not finite; the old target stays.
        """
        goal = np.asarray(target, float)
        if goal.shape != self.position.shape or not np.isfinite(goal).all():
            raise ValueError(f'not a target of {self.position.size} finite numbers: {goal}')
        self._input.control_interface = ruckig.ControlInterface.Position
        self._input.target_position = goal.tolist()
        self._plan()

    def stop(self) -> None:
        """Brakes within the limits and rests where that ends."""
        self._input.control_interface = ruckig.ControlInterface.Velocity
        self._plan()

    def step(self, seconds: float) -> Array:
        """Lets time pass; the position (n,) then."""
        if self._trajectory is not None:
            self._time += seconds
            state = self._trajectory.at_time(self._time)
            self.position, self.velocity, self.acceleration = map(np.array, state)
            if self._time >= self._trajectory.duration:
                self.place(self.position)
        return self.position

    @property
    def resting(self) -> bool:
        """Nothing moves, and nothing will until the next target."""
        return self._trajectory is None

    def _plan(self) -> None:
        now = self._input
        now.current_position = self.position.tolist()
        now.current_velocity = self.velocity.tolist()
        now.current_acceleration = self.acceleration.tolist()
        # Together when that can be computed; each coordinate by itself nearly always can. Without
        # a plan the old one goes on, which ends at rest, too.
        for mode in (ruckig.Synchronization.Time, ruckig.Synchronization.No):
            now.synchronization = mode
            trajectory = ruckig.Trajectory(self.position.size)
            with suppress(ruckig.RuckigError):
                if self._otg.calculate(now, trajectory) in PLANNED:
                    self._trajectory, self._time = trajectory, 0.0
                    return


class PoseFollower:
    """Follows a target pose: position and rotation vector, relative to a reference orientation.

    The reference moves along, so speeds are true angular speeds in turns of any size.

    Args:
        start: where it rests at first.
        speed: (m/s, rad/s) on each axis at most.
        acceleration: (m/s^2, rad/s^2).
        jerk: (m/s^3, rad/s^3).
    """

    def __init__(
        self,
        start: Pose,
        speed: tuple[float, float],
        acceleration: tuple[float, float],
        jerk: tuple[float, float],
    ) -> None:
        limits = (np.repeat(limit, 3) for limit in (speed, acceleration, jerk))
        self._follower = Follower(np.zeros(6), *limits)
        self.place(start)

    def place(self, pose: Pose) -> None:
        """Rests at a pose at once."""
        self._reference = pose.rotation
        self._target: Pose | None = pose
        self._follower.place([*pose.position, 0.0, 0.0, 0.0])

    def aim(self, target: Pose) -> None:
        """Sets the target, reached at rest the short way round.

        Raises:
            ValueError: a number is not finite; the old target stays.
        """
        if not target.isfinite():
            raise ValueError('not a finite pose')
        self._target = target
        self._refer()
        turn = (target.rotation * self._reference.inv()).as_rotvec()
        self._follower.aim([*target.position, *turn])

    def stop(self) -> None:
        """Brakes within the limits and rests where that ends."""
        self._refer()
        self._follower.stop()
        self._target = None

    def step(self, seconds: float) -> Pose:
        """Lets time pass; the pose then."""
        self._follower.step(seconds)
        turn = self._follower.position[3:]
        if not self.resting and float(turn @ turn) > TURN_RAD**2:
            if self._target is None:
                self.stop()
            else:
                self.aim(self._target)
        return self.pose

    @property
    def pose(self) -> Pose:
        """The present pose."""
        position = self._follower.position
        rotation = Rotation.from_rotvec(position[3:]) * self._reference
        return Pose(position[:3].copy(), rotation.as_quat())

    @property
    def twist(self) -> Array:
        """(6,) linear m/s and angular rad/s, base axes."""
        f = self._follower
        return np.r_[f.velocity[:3], _jacobian(f.position[3:]) @ f.velocity[3:]]

    @property
    def resting(self) -> bool:
        """Nothing moves, and nothing will until the next target."""
        return self._follower.resting

    def _refer(self) -> None:
        """Makes the present orientation the reference; angular speed and acceleration go on."""
        f = self._follower
        r, v, a = f.position[3:], f.velocity[3:], f.acceleration[3:]
        h = 1e-4
        bent = (_jacobian(r + h * v) - _jacobian(r - h * v)) @ v / (2 * h)
        f.velocity[3:], f.acceleration[3:] = _jacobian(r) @ v, _jacobian(r) @ a + bent
        self._reference = Rotation.from_rotvec(r) * self._reference
        f.position[3:] = 0.0


def _jacobian(r: Array) -> Array:
    """J with angular velocity = J(r) dr/dt for a rotation vector r (Chirikjian, left Jacobian)."""
    angle = float(np.linalg.norm(r))
    cross = np.array([[0, -r[2], r[1]], [r[2], 0, -r[0]], [-r[1], r[0], 0]])
    if angle < 1e-4:
        return np.eye(3) + cross / 2 + cross @ cross / 6
    a = (1 - np.cos(angle)) / angle**2
    b = (angle - np.sin(angle)) / angle**3
    return np.asarray(np.eye(3) + a * cross + b * cross @ cross)
