# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The control law against its formula, and the wrench against MuJoCo's own contacts."""

import mujoco
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from user_core.config import SimArmConfig
from user_core.geometry import Pose
from user_sim.arm import STEP_S, SimArm
from user_sim.law import Gains, ImpedanceLaw
from user_sim.scene import HOME_Q_RAD


def test_the_torque_is_the_formula_of_the_impedance_law(exact_arm: SimArm) -> None:
    model, data = exact_arm.model, exact_arm.data
    rng = np.random.default_rng(0)
    home = np.array(HOME_Q_RAD)
    site = model.site('tcp').id
    gains = Gains(
        stiffness=np.array([2000.0, 2000, 2000, 80, 80, 80]),
        damping=np.array([180.0, 180, 180, 5, 5, 5]),
        clip=np.array([0.005, 0.005, 0.005, 0.01, 0.01, 0.03]),
        posture=5.0,
        rate_nm=1e9,
    )
    for _ in range(20):
        data.qpos[:] = home + rng.normal(0, 0.05, 7)
        data.qvel[:] = rng.normal(0, 0.05, 7)
        mujoco.mj_forward(model, data)
        position, matrix = data.site_xpos[site], data.site_xmat[site].reshape(3, 3)
        now = Rotation.from_matrix(matrix)
        turn = rng.normal(0, 0.02, 3)
        target = Pose(
            position + rng.normal(0, 0.005, 3), (Rotation.from_rotvec(turn) * now).as_quat()
        )
        law = ImpedanceLaw(model, data, site, home, gains)
        law.aim(target)
        law.step()

        jac = np.zeros((6, 7))
        mujoco.mj_jacSite(model, data, jac[:3], jac[3:], site)
        error = np.clip(np.r_[target.position - position, turn], -gains.clip, gains.clip)
        force = gains.stiffness * error - gains.damping * (jac @ data.qvel)
        null = np.eye(7) - jac.T @ np.linalg.pinv(jac.T)
        posture = 5.0 * (home - data.qpos) - 2 * np.sqrt(5.0) * data.qvel
        limit = np.array([87.0, 87, 87, 87, 12, 12, 12])
        expected = np.clip(jac.T @ force + null @ posture, -limit, limit)
        np.testing.assert_allclose(law.tau, expected, atol=1e-8)
        np.testing.assert_allclose(data.qfrc_applied, expected + data.qfrc_bias, atol=1e-8)


def test_no_joint_torque_ever_jumps_faster_than_the_rate_limit(goal: Pose) -> None:
    arm = SimArm(SimArmConfig(max_delta_tau_nm=0.2))
    arm.reset(Pose(goal.position + np.array([0.0, 0.0, 0.06]), goal.quaternion), 0)
    rng = np.random.default_rng(0)
    before, worst = arm.law.tau.copy(), 0.0
    for i in range(300):
        if i % 10 == 0:
            target = Pose(goal.position + rng.uniform(-0.05, 0.05, 3), goal.quaternion)
            arm.servo(target, np.nan)
        arm.advance(STEP_S)
        worst = max(worst, float(np.abs(arm.law.tau - before).max()))
        before = arm.law.tau.copy()
    assert worst <= 0.4 + 1e-9
    assert worst == pytest.approx(0.4, rel=1e-6), 'these targets have to reach the limit'


def test_the_wrench_is_the_sum_of_the_contacts(exact_arm: SimArm, goal: Pose) -> None:
    arm = exact_arm
    data, model = arm.data, arm.model
    arm.reset(Pose(goal.position + np.array([0.006, 0.004, 0.029]), goal.quaternion), 0)
    arm.servo(Pose(goal.position + np.array([0.010, -0.003, 0.020]), goal.quaternion), np.nan)
    seen = 0
    out, force = np.zeros(6), np.zeros(6)
    for _ in range(250):
        arm.advance(STEP_S)
        arm.law.step()
        mujoco.mj_forward(model, data)
        if not data.ncon:
            continue
        arm.law.wrench(out)
        expected = np.zeros(6)
        tcp = data.site_xpos[model.site('tcp').id]
        block = model.body('block').id
        for i in range(data.ncon):
            contact = data.contact[i]
            mujoco.mj_contactForce(model, data, i, force)
            f = contact.frame.reshape(3, 3).T @ force[:3]
            m = contact.frame.reshape(3, 3).T @ force[3:]
            on_block = 1.0 if model.geom_bodyid[contact.geom2] == block else -1.0
            expected[:3] += on_block * f
            expected[3:] += on_block * (np.cross(contact.pos - tcp, f) + m)
        np.testing.assert_allclose(out, expected, atol=1e-5)
        seen += 1
    assert seen > 20
