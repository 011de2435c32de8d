# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Kinematics and gravity of a serial arm from its URDF, on pinocchio."""

from __future__ import annotations

import numpy as np
import pinocchio as pin

from user_core.geometry import Array, Pose

DAMPING = 0.02
"""Of the least squares in inverse kinematics: near a singularity joints stay slow."""
STEP_RAD = 0.15
"""One iteration turns no joint further: the solution stays on the branch where it began."""
ITERATIONS = 20
CLOSE_M = 2e-5
"""An error (metres and radians together) that needs no further iteration."""
WRENCH_DAMPING = 0.02
"""Of the least squares from joint torques to a wrench: directions that joints hardly feel."""


class Chain:
    """An open chain of revolute joints.

    Poses are of `frame` in the base frame; Jacobians give twists at its origin.

    Args:
        urdf: path.
        frame: name of the link whose pose counts.
        lower, upper: (n,) joint limits in rad.
    """

    def __init__(self, urdf: str, frame: str, lower: Array, upper: Array) -> None:
        self.model = pin.buildModelFromUrdf(urdf)
        self.data = self.model.createData()
        self.frame = self.model.getFrameId(frame)
        self.lower, self.upper = lower, upper

    def pose(self, q: Array) -> Pose:
        """Where the frame is."""
        placement = self._placement(q)
        quaternion = pin.Quaternion(placement.rotation).coeffs()
        return Pose(np.array(placement.translation), np.array(quaternion))

    def jacobian(self, q: Array) -> Array:
        """(6, n) twist = J dq; linear first, base axes."""
        return np.asarray(
            pin.computeFrameJacobian(
                self.model, self.data, q, self.frame, pin.ReferenceFrame.LOCAL_WORLD_ALIGNED
            )
        )

    def bias(self, q: Array, dq: Array) -> Array:
        """(n,) Nm that gravity and Coriolis forces ask for."""
        return np.asarray(pin.nonLinearEffects(self.model, self.data, q, dq)).copy()

    def inverse(self, target: Pose, seed: Array) -> Array:
        """(n,) joints near the seed, within limits, whose pose is the target or close to it.

        Damped least squares. What cannot be reached is approached; no branch is changed.
        """
        q = np.clip(seed, self.lower, self.upper)
        goal = pin.SE3(target.rotation.as_matrix(), target.position)
        for _ in range(ITERATIONS):
            here = self._placement(q)
            error = np.r_[
                goal.translation - here.translation, pin.log3(goal.rotation @ here.rotation.T)
            ]
            size = float(np.linalg.norm(error))
            if size < CLOSE_M:
                break
            J = self.jacobian(q)
            # Damping fades with the error, so that the end is exact where it can be reached.
            damped = J @ J.T + DAMPING**2 * min(size, 1.0) * np.eye(6)
            step = J.T @ np.linalg.solve(damped, error)
            step *= min(1.0, STEP_RAD / max(float(np.abs(step).max()), 1e-9))
            q = np.clip(q + step, self.lower, self.upper)
        return q

    def wrench(self, q: Array, torque: Array) -> Array:
        """(6,) N and Nm at the frame that these joint torques (n,) balance: torque = J^T wrench.

        Damped least squares: what no joint feels comes out as 0.
        """
        J = self.jacobian(q)
        return np.asarray(np.linalg.solve(J @ J.T + WRENCH_DAMPING**2 * np.eye(6), J @ torque))

    def _placement(self, q: Array) -> pin.SE3:
        pin.framesForwardKinematics(self.model, self.data, q)
        return self.data.oMf[self.frame]
