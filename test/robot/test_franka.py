# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The Franka's driver on the simulated control box, through libfranka's network protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import math
from pathlib import Path
import subprocess
import sys
import time
from typing import Any

from boxes import Box, box
import franky
import numpy as np
import pytest

from user_core.arm_config import FrankaSimConfig
from user_core.errors import UserError
from user_core.geometry import Pose
from user_robot.arm import ArmState, make_arm
from user_robot.franka.arm import FrankaArm
from user_robot.franka.kinematics import flange, jacobian

PATIENCE_S = 20.0
"""Simulated time may run at half speed on a busy machine."""
NEAR_M = 0.003
"""Joint friction keeps the arm from a target by up to this."""
ABOVE = (0.0, 0.0, 0.03)


@pytest.fixture(scope='module')
def robot() -> Iterator[Box]:
    """One box for the tests that leave its arm above the block."""
    with box() as running:
        yield running


@contextmanager
def driver(robot: Box, **settings: Any) -> Iterator[FrankaArm]:
    arm = make_arm(FrankaSimConfig(address=robot.address, **settings), 0.1)
    assert isinstance(arm, FrankaArm)
    try:
        if arm.state().fault:  # an earlier test failed
            arm.recover()
            assert wait(lambda: arm.state().fault == '')
        yield arm
    finally:
        began_s = time.monotonic()
        arm.close()
        assert time.monotonic() - began_s < 5.0


def wait(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def go(arm: FrankaArm, goal: Pose, lead_m: float = 0.01, until: float = -math.inf) -> float:
    """Targets that lead the arm by so much, until it stands at the goal, is in a fault, or pushes
    with the force `until` (N, along z); metres left.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        state = arm.state()
        way = goal.position - state.pose.position
        left_m = float(np.linalg.norm(way))
        done = left_m < NEAR_M or state.fault or state.wrench[2] < until
        if done or time.monotonic() > deadline:
            return left_m
        lead = way * min(1.0, lead_m / left_m)
        arm.servo(Pose(state.pose.position + lead, goal.quaternion), math.nan)
        time.sleep(0.03)


def beside(pose: Pose, *offset: float) -> Pose:
    return Pose(pose.position + np.array(offset), pose.quaternion)


def press(arm: FrankaArm, home: Pose) -> ArmState:
    """Pushes the peg onto the block beside the hole; the state after it, or when a fault came."""
    go(arm, beside(home, 0.012, 0, -0.045), 0.005)
    go(arm, beside(home, 0.012, 0, -0.1), 0.003, until=-1.5)
    began_s, low = time.monotonic(), arm.config.clip_m
    while not arm.state().fault and time.monotonic() < began_s + 2.0:
        arm.servo(beside(arm.state().pose, 0, 0, -low), math.nan)
        time.sleep(0.03)
    return arm.state()


def test_the_arm_holds_where_it_is_and_follows_targets(robot: Box) -> None:
    with driver(robot) as arm:
        first = arm.state()
        assert first.fault == ''
        time.sleep(0.3)
        still = arm.state()
        assert np.linalg.norm(still.pose.position - first.pose.position) < NEAR_M
        assert still.stamp_s > first.stamp_s
        assert abs(still.stamp_s - time.time()) < 1.0
        assert still.success_rate > 0.5
        assert go(arm, beside(first.pose, 0, 0.02, 0.02)) < NEAR_M
        speeds = []
        arm.servo(beside(first.pose, *ABOVE), math.nan)
        for _ in range(40):
            time.sleep(0.005)
            speeds.append(arm.state().twist)
        assert min(s[1] for s in speeds) < -0.01
        assert go(arm, beside(first.pose, *ABOVE)) < NEAR_M
        assert go(arm, first.pose) < NEAR_M


def test_hold_gives_up_the_target(robot: Box) -> None:
    with driver(robot) as arm:
        home = arm.state().pose
        arm.servo(beside(home, 0, 0, 0.02), math.nan)
        assert wait(lambda: arm.state().pose.position[2] > home.position[2] + 0.005)
        arm.hold()
        held = arm.state().pose.position[2]
        time.sleep(0.5)
        assert arm.state().pose.position[2] < held + 0.006
        assert go(arm, home) < NEAR_M


def test_a_target_that_is_no_number_moves_nothing(robot: Box) -> None:
    with driver(robot) as arm:
        home = arm.state().pose
        arm.servo(Pose(np.full(3, math.nan), home.quaternion), math.nan)
        time.sleep(0.2)
        state = arm.state()
        assert state.fault == ''
        assert np.linalg.norm(state.pose.position - home.position) < NEAR_M


def test_pressing_down_is_a_negative_force_bounded_by_the_clip(robot: Box) -> None:
    with driver(robot) as arm:
        home = arm.state().pose
        state = press(arm, home)
        config = arm.config
        assert state.fault == ''
        push_n = config.stiffness_n_m * config.clip_m
        assert -1.3 * push_n < state.wrench[2] < -0.7 * push_n
        assert state.peak_force_n >= -state.wrench[2] - 1e-6
        assert go(arm, beside(home, *ABOVE)) < NEAR_M
        assert abs(arm.state().wrench[2]) < 3.0
        assert go(arm, home) < NEAR_M


def test_a_reflex_is_a_fault_with_a_reason_that_recover_leaves(robot: Box) -> None:
    with driver(robot, collision_force_n=9.0) as arm:
        home = arm.state().pose
        state = press(arm, home)
        assert 'cartesian_reflex, a contact above the collision thresholds' in state.fault
        assert state.reflex
        arm.servo(beside(state.pose, 0, 0, 0.03), math.nan)
        time.sleep(0.3)
        assert np.linalg.norm(arm.state().pose.position - state.pose.position) < NEAR_M
        arm.recover()
        assert wait(lambda: arm.state().fault == '')
        assert go(arm, beside(home, *ABOVE)) < NEAR_M
        assert go(arm, home) < NEAR_M


def test_a_released_button_is_named_and_no_recovery_moves_past_it(robot: Box) -> None:
    with driver(robot) as arm:
        home = arm.state().pose
        robot.press_button()
        assert wait(lambda: 'enabling button' in arm.state().fault)
        arm.recover()
        assert wait(lambda: 'recovery did not clear it' in arm.state().fault)
        assert not arm.state().reflex
        robot.press_button()
        time.sleep(0.1)
        assert arm.state().fault
        arm.recover()
        assert wait(lambda: arm.state().fault == '')
        assert go(arm, beside(home, *ABOVE)) < NEAR_M
        assert go(arm, home) < NEAR_M


def test_a_joint_motion_ends_where_it_should_and_the_law_goes_on(robot: Box) -> None:
    with driver(robot) as arm:
        first = arm.state()
        goal = first.q + np.array([0.25, -0.1, 0, 0, 0, 0.1, 0])
        arm.move_joints(goal, 0.5)
        assert arm.state().moving
        fastest = 0.0
        while (state := arm.state()).moving:
            fastest = max(fastest, float(np.abs(state.dq).max()))
            time.sleep(0.005)
        assert state.fault == ''
        assert 0.2 < fastest < 0.7
        assert np.abs(state.q - goal).max() < 0.02
        assert go(arm, beside(state.pose, 0, 0, 0.01)) < NEAR_M
        arm.move_joints(first.q, 0.5)
        assert wait(lambda: not arm.state().moving)
        assert go(arm, first.pose) < NEAR_M


def test_hold_ends_a_joint_motion(robot: Box) -> None:
    with driver(robot) as arm:
        first = arm.state()
        arm.move_joints(first.q + np.array([0.8, 0, 0, 0, 0, 0, 0]), 0.4)
        assert wait(lambda: arm.state().q[0] > first.q[0] + 0.05)
        for _ in range(1000):  # a node says it in every slice
            arm.hold()
            if not arm.state().moving:
                break
            time.sleep(0.005)
        state = arm.state()
        assert not state.moving
        assert state.fault == ''
        assert state.q[0] < first.q[0] + 0.5
        arm.move_joints(first.q, 0.5)
        assert wait(lambda: not arm.state().moving)


def test_a_joint_motion_cut_off_by_the_robot_is_a_fault(robot: Box) -> None:
    with driver(robot) as arm:
        first = arm.state()
        arm.move_joints(first.q + np.array([0.8, 0, 0, 0, 0, 0, 0]), 0.4)
        assert wait(lambda: arm.state().q[0] > first.q[0] + 0.05)
        robot.press_button()
        assert wait(lambda: 'enabling button' in arm.state().fault)
        assert not arm.state().moving
        robot.press_button()
        time.sleep(0.1)
        arm.recover()
        assert wait(lambda: arm.state().fault == '')
        arm.move_joints(first.q, 0.5)
        assert wait(lambda: not arm.state().moving)
        assert arm.state().fault == ''


def test_the_hand_takes_its_time_and_the_arm_none_of_it(robot: Box) -> None:
    with driver(robot) as arm:
        home = arm.state().pose
        calls = []
        widths = (0.05, 0.07, 0.03)
        for width in widths:
            for _ in range(10):
                began_s = time.thread_time()
                arm.servo(home, width)
                arm.state()
                calls.append(time.thread_time() - began_s)
        assert max(calls) < 0.1
        assert wait(lambda: abs(arm.state().gripper_m - widths[-1]) < 0.002)
        arm.grip(0.0, 0.1, 20.0)
        assert wait(lambda: arm.state().grasped)
        assert arm.state().gripper_m == pytest.approx(0.016, abs=0.002)
    with driver(robot, gripper=False) as arm, pytest.raises(UserError, match='no hand'):
        arm.grip(0.03, 0.1, 0)


def test_the_tcp_of_the_configuration_is_the_point_that_is_measured(robot: Box) -> None:
    with driver(robot) as arm:
        short = arm.state().pose.position
    with driver(robot, tcp_m=(0.0, 0.0, 0.1334)) as arm:
        long = arm.state().pose.position
    assert short[2] - long[2] == pytest.approx(0.03, abs=0.002)


def test_a_second_driver_of_the_same_robot_is_refused_in_plain_words(robot: Box) -> None:
    with driver(robot) as arm:
        with pytest.raises(UserError, match='another program'):
            FrankaArm(FrankaSimConfig(address=robot.address), 0.1)
        assert arm.state().fault == ''


@pytest.mark.skipif(Path('/sys/kernel/realtime').exists(), reason='this kernel is a realtime one')
def test_without_a_realtime_kernel_enforce_says_what_to_do(robot: Box) -> None:
    with pytest.raises(UserError, match=r'realtime.*arm\.realtime: ignore'):
        FrankaArm(FrankaSimConfig(address=robot.address, realtime='enforce'), 0.1)


def test_an_error_that_never_clears_stays_a_fault_and_two_robots_are_two(robot: Box) -> None:
    with (
        box('--sticky-reflex') as other,
        driver(other, collision_force_n=9.0) as sticky,
        driver(robot) as arm,
    ):
        home = arm.state().pose
        press(sticky, sticky.state().pose)
        began_s = time.monotonic()
        sticky.recover()
        assert wait(lambda: 'recovery did not clear it' in sticky.state().fault)
        assert time.monotonic() - began_s < 5.0
        before = sticky.state()
        time.sleep(0.2)
        assert sticky.state().stamp_s > before.stamp_s
        assert 'cartesian_reflex' in sticky.state().fault
        assert arm.state().fault == ''
        assert go(arm, beside(home, *ABOVE)) < NEAR_M
        assert go(arm, home) < NEAR_M


LEAVING = """
import sys
from user_core.arm_config import FrankaSimConfig
from user_robot.franka.arm import FrankaArm
arm = FrankaArm(FrankaSimConfig(address=sys.argv[1]), 0.1)
arm.grip(0.08, 0.01, 0.0)
print('grips', flush=True)
sys.stdin.readline()
print(arm.state().fault, flush=True)
arm.close()
"""


def test_a_box_that_dies_is_a_fault_and_recover_finds_the_new_one() -> None:
    with box() as robot:
        with driver(robot) as arm:
            home = arm.state().pose
            robot.kill()
            assert wait(lambda: 'does not answer' in arm.state().fault)
            arm.recover()
            assert wait(lambda: 'refuses the connection' in arm.state().fault)
            robot.start()
            arm.recover()
            assert wait(lambda: arm.state().fault == '')
            assert go(arm, beside(home, *ABOVE)) < NEAR_M
        with subprocess.Popen(
            [sys.executable, '-c', LEAVING, robot.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as leaving:
            assert leaving.stdout is not None
            assert leaving.stdout.readline() == 'grips\n'
            time.sleep(0.3)
            robot.kill()
            time.sleep(1.5)
            out, _ = leaving.communicate('\n', timeout=PATIENCE_S)
            assert 'does not answer' in out
            assert leaving.returncode == 0


def test_kinematics_agree_with_libfrankas_model(robot: Box) -> None:
    idle = franky.Robot(robot.address, realtime_config=franky.RealtimeConfig.Ignore)
    tcp, nothing = idle.state.F_T_EE, franky.Affine()
    for q in np.random.default_rng(0).uniform(-1.5, 1.5, (20, 7)):
        pose = idle.model.pose(franky.Frame.EndEffector, q, tcp, nothing)
        assert np.allclose(flange(q) @ tcp.matrix, pose.matrix, atol=1e-6)
        there = idle.model.zero_jacobian(franky.Frame.EndEffector, q, tcp, nothing)
        assert np.allclose(jacobian(q, pose.translation), there, atol=1e-6)
