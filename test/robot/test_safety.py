# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever is asked for, the arm's target is finite, in the box and one step away at most."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from user_core import config as schema
from user_core.geometry import Pose, angle, from_relative, relative
from user_robot.safety import BOX, FORCE, REFUSED, STEP, Safety

FRAME = schema.PegTask().frame
LIMITS = schema.Safety(force_soft_n=20.0)
PEG_FRAME = Pose(np.array(FRAME.position_m), np.array(FRAME.quaternion_xyzw))
WEIRD_FRAME = Pose.from_rotvec(np.array([0.1, -0.4, 2.0]), np.array([-3.1, 0.1, 0.2]))
NO_FORCE = np.zeros(6)
wild = st.one_of(st.floats(-2, 2), st.floats(allow_nan=True, allow_infinity=True))
unit = st.floats(-1.0, 1.0)


def inside(frame, share):
    """A pose at this share (6 numbers in [-1, 1]) of the box."""
    low, high = np.array(LIMITS.box_min_m), np.array(LIMITS.box_max_m)
    middle, half = (low + high) / 2, (high - low) / 2
    turn = np.array(share[3:]) * LIMITS.box_rotation_rad
    return from_relative(frame, middle + half * share[:3], turn)


def assert_in_box(frame, pose):
    position, turn = relative(frame, pose)
    assert (position >= np.array(LIMITS.box_min_m) - 1e-9).all()
    assert (position <= np.array(LIMITS.box_max_m) + 1e-9).all()
    assert (np.abs(turn) <= np.array(LIMITS.box_rotation_rad) + 1e-9).all()


def assert_one_step(measured, pose):
    assert np.linalg.norm(pose.position - measured.position) <= LIMITS.max_step_m + 1e-9
    assert angle(measured, pose) <= LIMITS.max_step_rad + 1e-7


@pytest.mark.parametrize('frame', [PEG_FRAME, WEIRD_FRAME], ids=['peg', 'weird'])
def test_ten_thousand_random_targets_stay_in_the_box_and_within_a_step(frame):
    rng, safety = np.random.default_rng(0), Safety(LIMITS, frame)
    ugly = [math.nan, math.inf, -math.inf, 1e300, -1e300, 1e-300]
    for _ in range(5000):
        measured = inside(frame, rng.uniform(-1, 1, 6))
        numbers = np.concatenate(
            [rng.normal(0, 10.0 ** rng.uniform(-3, 2), 3), rng.normal(0, 1, 4)]
        )
        if rng.random() < 0.2:
            numbers[rng.integers(7)] = rng.choice(ugly)
        if rng.random() < 0.8:
            numbers[:3] += measured.position
            with np.errstate(all='ignore'):
                numbers[3:] /= np.linalg.norm(numbers[3:])
        wrench = np.r_[rng.normal(0, 1, 3) * rng.choice([0, 1, 30, 300]), np.zeros(3)]
        with np.errstate(over='ignore'):
            pose, limited = safety.apply(Pose(numbers[:3], numbers[3:]), measured, wrench)
        assert pose.isfinite()
        assert_in_box(frame, pose)
        assert_one_step(measured, pose)
        if not np.isfinite(numbers).all():
            assert limited == REFUSED
            assert pose is measured


@settings(max_examples=300, deadline=None)
@given(st.lists(unit, min_size=6, max_size=6), st.lists(st.floats(-3, 3), min_size=6, max_size=6))
def test_limiting_twice_is_limiting_once(here, there):
    safety = Safety(LIMITS, WEIRD_FRAME)
    measured = inside(WEIRD_FRAME, np.array(here))
    target = from_relative(WEIRD_FRAME, np.array(there[:3]), np.array(there[3:]))
    once, _ = safety.apply(target, measured, NO_FORCE)
    twice, limited = safety.apply(once, measured, NO_FORCE)
    np.testing.assert_allclose(twice.position, once.position, atol=1e-9)
    assert angle(twice, once) < 1e-7
    assert not limited & (STEP | FORCE | REFUSED)


def test_a_thousand_targets_inside_pass_untouched():
    rng, safety = np.random.default_rng(1), Safety(LIMITS, WEIRD_FRAME)
    for _ in range(1000):
        measured = inside(WEIRD_FRAME, rng.uniform(-0.8, 0.8, 6))
        nudge = from_relative(measured, rng.uniform(-0.004, 0.004, 3), rng.uniform(-0.01, 0.01, 3))
        pose, limited = safety.apply(nudge, measured, NO_FORCE)
        assert limited == 0
        assert pose is nudge


def test_a_quaternion_and_its_negative_are_the_same_target():
    safety, measured = Safety(LIMITS, PEG_FRAME), inside(PEG_FRAME, np.zeros(6))
    target = from_relative(PEG_FRAME, np.array([0.5, 0.0, 0.0]), np.array([0.0, 0.0, 2.0]))
    one, _ = safety.apply(target, measured, NO_FORCE)
    other, _ = safety.apply(Pose(target.position, -target.quaternion), measured, NO_FORCE)
    np.testing.assert_allclose(one.position, other.position)
    assert angle(one, other) < 1e-9


@pytest.mark.parametrize('sign', [1.0, -1.0], ids=['q', '-q'])
def test_a_target_across_half_a_turn_is_one_small_step(sign):
    """The box's centre is at yaw pi: 0.04 rad lie between the poses, not a turn less that."""
    safety = Safety(LIMITS, Pose.from_rotvec(np.zeros(3), np.array([0.0, 0.0, math.pi])))
    measured = Pose.from_rotvec(np.zeros(3), np.array([0.0, 0.0, math.pi - 0.02]))
    target = Pose.from_rotvec(np.zeros(3), np.array([0.0, 0.0, -math.pi + 0.02]))
    target = Pose(target.position, sign * target.quaternion)
    pose, limited = safety.apply(target, measured, NO_FORCE)
    assert limited == 0
    assert pose is target
    assert angle(measured, pose) < 0.05


@pytest.mark.parametrize('sign', [1.0, -1.0], ids=['q', '-q'])
def test_the_centre_of_a_box_where_roll_wraps_passes_untouched(sign):
    frame = Pose.from_rotvec(np.array([0.5, 0.0, 0.1]), np.array([-3.10, 0.0, 0.0]))
    limits = schema.Safety(box_rotation_rad=(0.2, 0.2, 0.2))
    centre = Pose(frame.position, sign * frame.quaternion)
    pose, limited = Safety(limits, frame).apply(centre, frame, NO_FORCE)
    assert limited == 0
    np.testing.assert_allclose(pose.position, frame.position, atol=1e-12)
    assert angle(pose, frame) < 1e-6


def test_an_arm_outside_the_box_is_led_back_by_one_step():
    safety = Safety(LIMITS, PEG_FRAME)
    measured = from_relative(PEG_FRAME, np.array([0.2, 0.0, -0.05]), np.zeros(3))
    pose, limited = safety.apply(measured, measured, NO_FORCE)
    position, _ = relative(PEG_FRAME, pose)
    np.testing.assert_allclose(position, [0.2 - LIMITS.max_step_m, 0.0, -0.05], atol=1e-12)
    assert limited == BOX | STEP


def push(newton, target_z=0.0, measured_z=-0.015):
    """The step (m, task frame) left of one along z, while the arm presses along z."""
    safety = Safety(LIMITS, PEG_FRAME)
    measured = from_relative(PEG_FRAME, np.array([0.0, 0.0, measured_z]), np.zeros(3))
    target = from_relative(PEG_FRAME, np.array([0.004, 0.0, target_z]), np.zeros(3))
    wrench = np.r_[PEG_FRAME.rotation.apply([0.0, 0.0, newton]), np.zeros(3)]
    pose, limited = safety.apply(target, measured, wrench)
    return relative(PEG_FRAME, pose)[0] - relative(PEG_FRAME, measured)[0], limited


def test_pushing_harder_allows_less_further_push_and_leaves_sideways_free():
    steps = [push(newton)[0] for newton in (0.0, 20.0, 40.0, 60.0, 79.0)]
    along = [step[2] for step in steps]
    assert along == sorted(along, reverse=True)
    assert along[0] == pytest.approx(0.015)
    assert along[-1] < 0.001
    assert all(step[0] == pytest.approx(0.004) for step in steps)
    assert push(60.0)[1] == FORCE
    assert push(500.0)[0][2] == pytest.approx(0.0, abs=1e-12)


def test_the_way_out_of_a_contact_is_never_shortened():
    step, limited = push(500.0, target_z=-0.03)
    assert step[2] == pytest.approx(-0.015)
    assert limited == 0


def test_a_wrench_that_is_not_finite_makes_the_arm_hold():
    measured = inside(PEG_FRAME, np.zeros(6))
    pose, limited = Safety(LIMITS, PEG_FRAME).apply(measured, measured, np.full(6, math.nan))
    assert pose is measured
    assert limited == REFUSED
