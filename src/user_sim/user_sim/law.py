# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Franky's Cartesian impedance law, and the wrench a Franka estimates, on a MuJoCo model.

Law (franky 2.0, src/motion/cartesian_impedance_base.cpp), e = target - pose, base frame:

    tau = J^T (K clip(e) - D J dq) + N (Kn (q_home - q) - Dn dq) + coriolis
    |tau_t - tau_(t-1)| <= max_delta_tau,   N = 1 - J^T (J J^T)^-1 J

The robot adds gravity below the law, so gravity is not part of the rate limit; MuJoCo gives it
together with coriolis, and both are added after it here.
Wrench (libfranka's O_F_ext_hat_K): J^T w = external joint torques, robot on environment positive.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from user_core.geometry import Array, Pose

TORQUE_LIMIT_NM = np.array([87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0])


@dataclass(frozen=True)
class Gains:
    """Gains of the law, all (6,) translational first.

    franky takes the same numbers: `CartesianImpedanceGains.diagonal(stiffness, damping)`,
    `translational_error_clip`, `rotational_error_clip`, `PostureTask`, `max_delta_tau`.

    Attributes:
        stiffness: N/m, Nm/rad.
        damping: Ns/m, Nms/rad.
        clip: m, rad; stiffness * clip bounds the push.
        posture: Nm/rad, pull to the home posture in the null space (damping 2 sqrt(posture)).
        rate_nm: largest change of a joint's torque in one step of the law.
    """

    stiffness: Array
    damping: Array
    clip: Array
    posture: float
    rate_nm: float


class ImpedanceLaw:
    """The law on one arm whose joints are all the model's degrees of freedom.

    Every step works in place: it runs 500 times a simulated second.
    """

    def __init__(
        self, model: mujoco.MjModel, data: mujoco.MjData, site: int, home: Array, gains: Gains
    ) -> None:
        self._model, self._data, self._site, self._home = model, data, site, home
        self._gains = gains
        self._damping_n = 2.0 * np.sqrt(gains.posture)
        self.tau = np.zeros(7)
        self._jac = np.zeros((6, 7))
        self._jac_p, self._jac_r, self._jac_t = self._jac[:3], self._jac[3:], self._jac.T
        self._chol = np.zeros((6, 6))
        self._error, self._force, self._v6 = np.zeros(6), np.zeros(6), np.zeros(6)
        self._error_p, self._error_r = self._error[:3], self._error[3:]
        self._t7, self._n7 = np.zeros(7), np.zeros(7)
        self._goal_q, self._q, self._dq = np.zeros(4), np.zeros(4), np.zeros(4)
        self._goal_p = np.zeros(3)
        self._site_p, self._site_r = data.site_xpos[site], data.site_xmat[site]

    def restart(self) -> None:
        """Forget the torque of the step before (a freshly placed arm carries no load)."""
        self.tau[:] = 0.0

    def aim(self, target: Pose) -> None:
        """Set the pose the law pulls to."""
        self._goal_p[:] = target.position
        x, y, z, w = target.quaternion
        self._goal_q[:] = w, x, y, z

    def step(self) -> None:
        """Write the torque into qfrc_applied; call between mj_step1 and mj_step2."""
        data, gains, jac = self._data, self._gains, self._jac
        mujoco.mj_jacSite(self._model, data, self._jac_p, self._jac_r, self._site)
        np.dot(jac, self._jac_t, out=self._chol)
        mujoco.mju_cholFactor(self._chol, 0.0)

        np.subtract(self._goal_p, self._site_p, out=self._error_p)
        mujoco.mju_mat2Quat(self._q, self._site_r)
        mujoco.mju_negQuat(self._q, self._q)
        mujoco.mju_mulQuat(self._dq, self._goal_q, self._q)
        mujoco.mju_quat2Vel(self._error_r, self._dq, 1.0)
        np.minimum(self._error, gains.clip, out=self._error)
        np.maximum(self._error, -gains.clip, out=self._error)

        force, v6 = self._force, self._v6
        np.multiply(self._error, gains.stiffness, out=force)
        np.dot(jac, data.qvel, out=v6)
        v6 *= gains.damping
        force -= v6

        null = self._n7
        np.subtract(self._home, data.qpos, out=null)
        null *= gains.posture
        np.multiply(data.qvel, self._damping_n, out=self._t7)
        null -= self._t7
        np.dot(jac, null, out=v6)
        mujoco.mju_cholSolve(self._error, self._chol, v6)
        force -= self._error

        tau = self._t7
        np.dot(self._jac_t, force, out=tau)
        tau += null
        tau -= self.tau
        np.minimum(tau, gains.rate_nm, out=tau)
        np.maximum(tau, -gains.rate_nm, out=tau)
        self.tau += tau
        np.minimum(self.tau, TORQUE_LIMIT_NM, out=self.tau)
        np.maximum(self.tau, -TORQUE_LIMIT_NM, out=self.tau)
        np.add(self.tau, data.qfrc_bias, out=data.qfrc_applied)

    def wrench(self, out: Array) -> None:
        """The contacts' wrench on the environment, base frame; call after mj_step2.

        Joint limits would show as contact too; the workspace keeps the arm far from them.
        """
        data = self._data
        # Rows of the constraints: joint friction first (one per joint), contacts after.
        self._n7[:] = data.qfrc_constraint
        self._n7[: data.nf] -= data.efc_force[: data.nf]
        np.dot(self._jac, self._n7, out=self._v6)
        mujoco.mju_cholSolve(out, self._chol, self._v6)
        np.negative(out, out=out)

    def twist(self) -> Array:
        """Measured TCP twist (6,), base frame."""
        mujoco.mj_jacSite(self._model, self._data, self._jac_p, self._jac_r, self._site)
        return np.asarray(self._jac @ self._data.qvel)
