# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated FR3 through franky: motion, contact, reflexes, the hand, its twin in process."""

from contextlib import suppress
import time

from franka_rig import (
    DOWN,
    HOME,
    HOME_Q,
    Server,
    connect,
    errors,
    follow,
    home,
    tracker,
    wait_for,
)
import franky
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from user_core.config import FrankaSimConfig, SimArmConfig
from user_core.geometry import Array, Pose
from user_sim.arm import SimArm


def test_the_arm_waits_above_the_block_and_follows_targets(server: Server) -> None:
    robot = connect(server)
    state = robot.state
    assert state.robot_mode == franky.RobotMode.Idle
    np.testing.assert_allclose(state.O_T_EE.translation, HOME, atol=2e-4)
    law = tracker(robot)
    there = home(0.03, -0.02, 0.01)
    assert follow(law, HOME, there)
    state = robot.state
    assert np.linalg.norm(state.O_T_EE.translation - there) < 2e-3
    assert state.robot_mode == franky.RobotMode.Move
    assert 0.2 < state.control_command_success_rate <= 1.0
    np.testing.assert_allclose(state.O_F_ext_hat_K, 0.0, atol=1e-3)
    assert follow(law, there, HOME)
    law.stop()
    before = robot.state.q
    time.sleep(0.3)
    np.testing.assert_allclose(robot.state.q, before, atol=1e-3)


def test_an_aligned_peg_goes_30_mm_into_the_hole(server: Server) -> None:
    robot = connect(server)
    law = tracker(robot)
    deep = home(0.0, 0.0, -0.102)
    assert follow(law, HOME, deep)
    assert robot.state.O_T_EE.translation[2] < 0.132
    assert follow(law, deep, HOME)
    law.stop()
    assert robot.state.O_T_EE.translation[2] > 0.22


def test_a_peg_beside_the_hole_rests_on_the_block_and_the_wrench_says_so(server: Server) -> None:
    robot = connect(server)
    law = tracker(robot)
    above, into = home(0.012, 0.0, 0.0), home(0.012, 0.0, -0.092)
    assert follow(law, HOME, above)
    assert follow(law, above, into)
    state = robot.state
    push = FrankaSimConfig().stiffness_n_m * FrankaSimConfig().clip_m
    assert state.O_T_EE.translation[2] == pytest.approx(0.16, abs=1e-3)
    assert -1.2 * push < state.O_F_ext_hat_K[2] < -0.8 * push
    # The TCP's z points down, so the same push is positive there.
    assert 0.8 * push < state.K_F_ext_hat_K[2] < 1.2 * push
    jacobian = np.asarray(robot.model.zero_jacobian(franky.Frame.EndEffector, state))
    expected = jacobian.T @ state.O_F_ext_hat_K
    np.testing.assert_allclose(state.tau_ext_hat_filtered, expected, atol=0.1)
    assert follow(law, into, above)
    assert follow(law, above, HOME)
    law.stop()


def test_a_contact_above_the_threshold_is_a_reflex_until_it_is_cleared(server: Server) -> None:
    robot = connect(server, force_n=8.0)
    law = tracker(robot)
    above, into = home(0.012, 0.0, 0.0), home(0.012, 0.0, -0.092)
    assert follow(law, HOME, above)
    assert not follow(law, above, into)
    state = robot.state
    assert state.robot_mode == franky.RobotMode.Reflex
    assert errors(state) == {'cartesian_reflex'}
    with pytest.raises(franky.ControlException, match='cartesian_reflex'):
        law.stop()
    with pytest.raises(franky.CommandException):
        robot.move(franky.JointMotion(franky.JointState(HOME_Q.tolist())))
    robot.recover_from_errors()
    robot.set_collision_behavior(250.0, 250.0)
    assert robot.state.robot_mode == franky.RobotMode.Idle
    law = tracker(robot)
    now = np.asarray(robot.state.O_T_EE.translation)
    assert follow(law, now, above)
    assert follow(law, above, HOME)
    law.stop()


def test_joints_move_and_impossible_ones_are_refused(server: Server) -> None:
    robot = connect(server)
    robot.move(franky.JointMotion(franky.JointState(HOME_Q.tolist())))
    np.testing.assert_allclose(robot.state.q, HOME_Q, atol=5e-3)
    beyond = HOME_Q.copy()
    beyond[6] = 3.01
    with pytest.raises(franky.ControlException, match='motion_generator_position_limits'):
        robot.move(franky.JointMotion(franky.JointState(beyond.tolist())))
    robot.recover_from_errors()
    robot.move(franky.JointMotion(franky.JointState(HOME_Q.tolist())))
    robot.move(franky.CartesianMotion(franky.Affine(HOME, DOWN)))
    np.testing.assert_allclose(robot.state.O_T_EE.translation, HOME, atol=2e-3)


def test_frames_set_by_the_client_move_pose_and_wrench_point(server: Server) -> None:
    robot = connect(server)
    longer = np.eye(4)
    longer[2, 3] = 0.05
    robot.set_ee(longer.ravel(order='F').tolist())

    def at(point: Array) -> bool:
        return bool(np.allclose(robot.state.O_T_EE.translation, point, atol=2e-3))

    wait_for(lambda: at(home(0, 0, -0.05)))
    robot.set_ee(np.eye(4).ravel().tolist())
    wait_for(lambda: at(HOME))
    robot.set_load(0.1, [0.0, 0.0, 0.1], [0.0] * 9)
    wait_for(lambda: robot.state.m_load == pytest.approx(0.1))
    robot.set_load(0.0, [0.0] * 3, [0.0] * 9)
    robot.set_guiding_mode([True] * 6, True)
    assert robot.state.robot_mode == franky.RobotMode.Idle


def test_the_hand_opens_grasps_the_peg_and_answers_a_motion_that_is_cut_off(
    server: Server,
) -> None:
    hand = franky.Gripper(server.address)
    assert hand.width == pytest.approx(0.016, abs=1e-4)
    assert hand.is_grasped
    assert hand.move(0.03, 0.1)
    assert hand.width == pytest.approx(0.03, abs=1e-4)
    running = hand.move_async(0.08, 0.005)
    end = time.monotonic() + 10
    while hand.width < 0.031:  # it has begun
        assert time.monotonic() < end
    hand.stop()
    assert running.wait(5.0)
    with suppress(franky.CommandException):
        running.get()
    assert hand.width < 0.06
    assert hand.grasp(0.016, 0.1, 20.0, epsilon_inner=0.005, epsilon_outer=0.005)
    assert hand.width == pytest.approx(0.016, abs=1e-4)


def test_the_same_motion_ends_where_the_arm_in_process_ends(server: Server) -> None:
    robot = connect(server)
    robot.move(franky.CartesianMotion(franky.Affine(home(0, 0, 0.03), DOWN)))
    time.sleep(0.3)
    start_q = np.array(robot.state.q)
    rng = np.random.default_rng(3)
    offsets = np.clip(np.cumsum(rng.uniform(-0.01, 0.01, (20, 3)), 0), -0.04, 0.04)
    yaws = np.cumsum(rng.uniform(-0.05, 0.05, 20))
    targets = [
        Pose(
            home(0, 0, 0.03) + offset,
            (Rotation.from_rotvec([0, 0, yaw]) * Rotation.from_quat(DOWN)).as_quat(),
        )
        for offset, yaw in zip(offsets, yaws, strict=True)
    ]
    law = tracker(robot)
    switched = []
    for target in targets:
        for _ in range(2):
            assert law.tick()
        switched.append(robot.state.time.to_sec())
        law.set_target(franky.Affine(target.position, target.quaternion))
    for _ in range(12):
        assert law.tick()
    state = robot.state
    law.stop()

    arm = SimArm(SimArmConfig(latency_s=0.0))
    arm.reset(Pose(home(0, 0, 0.03), DOWN), 0)
    arm.data.qpos[:] = start_q
    spans = np.diff([*switched, state.time.to_sec()])
    for target, span in zip(targets, spans, strict=True):
        arm.servo(target, float('nan'))
        arm.advance(round(span / 0.002) * 0.002)
    twin = arm.state()
    distance = np.linalg.norm(state.O_T_EE.translation - twin.pose.position)
    angle = (Rotation.from_quat(state.O_T_EE.quaternion).inv() * twin.pose.rotation).magnitude()
    print(f'server and in-process arm differ by {distance * 1e3:.2f} mm, {angle * 1e3:.2f} mrad')
    assert distance < 2e-3
    assert angle < 0.01
    robot.move(franky.CartesianMotion(franky.Affine(HOME, DOWN)))
