# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated arm as its node sees it."""

from itertools import pairwise
import os

import numpy as np
import pytest

from user_core.config import PegTask, SimArmConfig
from user_core.errors import UserError
from user_core.geometry import Pose, angle
from user_core.outcome import Boundary
from user_robot.arm import ArmState, Site
from user_robot.peg_task import PegTask as Task
from user_sim.arm import SimArm
from user_sim.snapshot import Reader, place

MOVING = PegTask(success_lateral_m=0.03)
"""For a hole that is within +- 2 cm."""


def above(goal: Pose, x: float, y: float, up: float) -> Pose:
    return Pose(goal.position + np.array([x, y, up]), goal.quaternion)


def press(arm: SimArm, goal: Pose, x: float, y: float, steps: int) -> list[ArmState]:
    """Go down at (x, y) beside the nominal hole, step by step as a policy would."""
    arm.reset(above(goal, x, y, 0.04), 3)
    states = []
    for _ in range(steps):
        state = arm.state()
        down = state.pose.position[2] - 0.01 - goal.position[2]
        arm.servo(above(goal, x, y, down), np.nan)
        arm.advance(0.1)
        states.append(arm.state())
    return states


def values(states: list[ArmState]) -> np.ndarray:
    return np.array(
        [
            np.r_[s.pose.position, s.pose.quaternion, s.twist, s.wrench, s.q, s.dq, s.tau,
                  s.gripper_m, round(s.stamp_s - states[0].stamp_s, 6), s.peak_force_n]
            for s in states
        ]
    )  # fmt: skip


def test_the_same_seed_and_targets_give_the_same_states_bit_for_bit(goal: Pose) -> None:
    arm, other = SimArm(SimArmConfig()), SimArm(SimArmConfig())
    first = values(press(arm, goal, 0.001, 0.0, 12))
    press(other, goal, 0.02, 0.01, 5)
    assert np.array_equal(first, values(press(other, goal, 0.001, 0.0, 12)))
    assert np.array_equal(first, values(press(arm, goal, 0.001, 0.0, 12)))


def test_another_seed_draws_other_errors_that_no_measurement_shows(goal: Pose) -> None:
    arm = SimArm(SimArmConfig(force_noise_n=0, torque_noise_nm=0, force_bias_n=0))
    start = above(goal, 0.0, 0.0, 0.05)
    holes, pegs, poses = [], [], []
    for seed in range(40):
        arm.reset(start, seed)
        holes.append(arm.data.mocap_pos[0, :2] - goal.position[:2])
        pegs.append(arm.model.body_pos[arm.model.body('peg').id].copy())
        poses.append(arm.state().pose.position)
    assert np.abs(holes).max() <= 0.001
    assert np.abs(holes).max() > 0.0008
    assert np.ptp(pegs, axis=0)[0] > 0.0015
    assert np.ptp(poses, axis=0).max() < 1e-8


def test_a_reset_places_the_arm_at_rest_exactly_where_it_is_asked_to(exact_arm: SimArm) -> None:
    task = Task(PegTask())
    for seed in range(20):
        start = task.start(seed)
        exact_arm.reset(start, seed)
        state = exact_arm.state()
        assert np.abs(state.pose.position - start.position).max() < 1e-8
        assert angle(state.pose, start) < 1e-7
        assert not state.dq.any()
        assert not task.success(state)
        exact_arm.advance(0.5)
        drift = exact_arm.state().pose.position - start.position
        assert np.abs(drift).max() < 1e-4, 'without a command it stays'


def test_an_unreachable_start_is_refused_in_words(exact_arm: SimArm, goal: Pose) -> None:
    with pytest.raises(UserError, match='cannot start there'):
        exact_arm.reset(above(goal, 1.0, 0.0, 0.0), 0)


def test_a_target_counts_only_after_the_latency(goal: Pose) -> None:
    arm = SimArm(SimArmConfig(latency_s=0.1))
    start = above(goal, 0.0, 0.0, 0.08)
    arm.reset(start, 0)
    arm.servo(above(goal, 0.01, 0.0, 0.08), np.nan)
    arm.advance(0.1)
    assert np.abs(arm.state().pose.position - start.position).max() < 1e-5
    arm.advance(0.1)
    assert arm.state().pose.position[0] - start.position[0] > 1e-3


def test_hold_drops_targets_under_way_and_stays(goal: Pose) -> None:
    arm = SimArm(SimArmConfig())
    arm.reset(above(goal, 0.0, 0.0, 0.08), 0)
    arm.servo(above(goal, 0.03, 0.0, 0.08), np.nan)
    arm.advance(0.2)
    arm.servo(above(goal, 0.05, 0.0, 0.08), np.nan)
    held = arm.state().pose.position[0]
    arm.hold()
    arm.advance(0.5)
    assert arm.state().pose.position[0] == pytest.approx(held, abs=0.004)


def test_the_twist_is_the_motion_of_the_pose(exact_arm: SimArm, goal: Pose) -> None:
    exact_arm.reset(above(goal, 0.0, 0.0, 0.08), 0)
    exact_arm.servo(above(goal, 0.02, 0.01, 0.07), np.nan)
    exact_arm.advance(0.15)
    before = exact_arm.state()
    exact_arm.advance(0.002)
    after = exact_arm.state()
    moved = (after.pose.position - before.pose.position) / 0.002
    np.testing.assert_allclose(moved, (before.twist[:3] + after.twist[:3]) / 2, atol=2e-3)
    assert np.linalg.norm(moved) > 0.01


def test_pressing_on_the_block_pushes_with_stiffness_times_clip_downwards(goal: Pose) -> None:
    exact = dict.fromkeys(
        ('hole_error_m', 'grasp_error_m', 'force_noise_n', 'force_bias_n', 'joint_friction_nm'), 0
    )
    arm = SimArm(SimArmConfig(stiffness_n_m=2000, clip_m=0.006, damping_ns_m=180, **exact))
    state = press(arm, goal, 0.012, 0.0, 30)[-1]
    assert state.wrench[2] == pytest.approx(-12.0, abs=1.0), 'base z points up'
    assert np.abs(state.wrench[:2]).max() < 2.0
    assert state.pose.position[2] - goal.position[2] == pytest.approx(0.028, abs=0.002)


def test_the_peak_force_is_what_happened_between_two_samples(goal: Pose) -> None:
    arm = SimArm(SimArmConfig(force_noise_n=0, force_bias_n=0))
    states = press(arm, goal, 0.012, 0.0, 30)
    free = [s.peak_force_n for s in states if s.pose.position[2] - goal.position[2] > 0.034]
    assert max(free, default=0.0) == 0.0
    assert all(s.peak_force_n >= np.linalg.norm(s.wrench[:3]) - 1e-9 for s in states)
    touch = max(s.peak_force_n for s in states)
    assert touch > states[-1].peak_force_n > 0, 'the first touch is harder than the rest'
    assert arm.raw_peak_n >= states[-1].peak_force_n - 1e-9


def test_beside_the_hole_no_press_ever_looks_like_success(goal: Pose) -> None:
    task = Task(PegTask())
    strong = SimArmConfig(stiffness_n_m=3000, clip_m=0.02, damping_ns_m=110)
    arm = SimArm(strong)
    for x, y in ((0.004, 0.0), (0.0, -0.004), (-0.004, 0.004), (0.02, 0.01)):
        states = press(arm, goal, x, y, 15)
        for step, (before, after) in enumerate(pairwise(states), 1):
            assert task.judge(before, after, step)[2] == Boundary.NONE
        assert min(s.pose.position[2] for s in states) - goal.position[2] > 0.02


@pytest.mark.parametrize('corner', [(1, 1), (1, -1), (-1, 1), (-1, -1)])
def test_beside_a_hole_that_has_moved_no_press_looks_like_success_either(
    goal: Pose, corner: tuple[int, int]
) -> None:
    task = Task(MOVING)
    arm = SimArm(SimArmConfig(stiffness_n_m=3000, clip_m=0.02, damping_ns_m=110))
    hole = 0.02 * np.array(corner)
    beside = [np.zeros(2), -hole, hole * (0, 1), hole * 0.8, 0.021 * np.array(corner) * (-1, 1)]
    reset = arm.reset

    def moved(pose: Pose, seed: int) -> None:
        reset(pose, seed)
        arm.data.mocap_pos[0, :2] = goal.position[:2] + hole

    arm.reset = moved  # type: ignore[method-assign]
    for x, y in beside:
        assert np.hypot(x, y) < MOVING.success_lateral_m
        states = press(arm, goal, x, y, 15)
        assert not any(task.success(s) for s in states)
        assert min(s.pose.position[2] for s in states) - goal.position[2] > 0.02
    assert any(task.success(s) for s in press(arm, goal, *hole, 25))


def test_who_looks_at_the_scene_finds_it_as_each_sample_measured_it(goal: Pose) -> None:
    site = Site(run=f'arm-{os.getpid()}', looked_at=True)
    path = place(site.run, site.cell)
    arm = SimArm(SimArmConfig(), site=site)
    for state in press(arm, goal, 0.001, 0.0, 3):
        scene = Reader(path).read()
        assert scene is not None
        assert scene.time_s >= state.stamp_s
    np.testing.assert_array_equal(scene.q, state.q)
    np.testing.assert_array_equal(scene.block[:3], arm.data.mocap_pos[0])
    assert scene.time_s == state.stamp_s, 'the very same number: stamps are compared'
    arm.close()
    assert not path.exists()


def test_no_two_scenes_have_the_same_stamp_not_even_around_a_reset(goal: Pose) -> None:
    arm, stamps = SimArm(SimArmConfig()), []
    for seed in range(3):
        arm.reset(above(goal, 0.0, 0.0, 0.04), seed)
        stamps.append(arm.state().stamp_s)
        arm.advance(0.1)
        stamps.append(arm.state().stamp_s)
    assert stamps == sorted(set(stamps))


def test_where_nobody_looks_nothing_is_written(goal: Pose) -> None:
    site = Site(run=f'arm-{os.getpid()}')
    press(SimArm(SimArmConfig(), site=site), goal, 0.0, 0.0, 1)
    assert not place(site.run, site.cell).exists()


def test_a_peg_over_the_true_hole_goes_in(exact_arm: SimArm, goal: Pose) -> None:
    task = Task(PegTask())
    assert any(task.success(s) for s in press(exact_arm, goal, 0.0, 0.0, 25))
