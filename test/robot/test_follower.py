# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Followers: limits at every millisecond, continuity through swapped targets, exact turns."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from user_core.geometry import Pose, angle
from user_robot.follower import Follower, PoseFollower

MS = 0.001
SPEED, ACCELERATION, JERK = 1.0, 10.0, 200.0
targets = st.lists(
    st.tuples(
        st.lists(st.floats(-2, 2), min_size=3, max_size=3),
        st.integers(1, 400),
        st.sampled_from(('aim', 'aim', 'aim', 'stop')),
    ),
    min_size=1,
    max_size=6,
)


def within(samples: np.ndarray) -> None:
    """Finite differences of positions (ms, n) bound the true values from below."""
    velocity = np.diff(samples, axis=0) / MS
    acceleration = np.diff(velocity, axis=0) / MS
    jerk = np.diff(acceleration, axis=0) / MS
    assert np.abs(velocity).max() <= SPEED * (1 + 1e-6)
    assert np.abs(acceleration).max() <= ACCELERATION * (1 + 1e-4)
    assert np.abs(jerk).max() <= JERK * (1 + 1e-2)


def follow(follower: Follower, commands, rest_ms: int = 3000) -> np.ndarray:
    samples = [follower.position] * 4
    for target, ms, kind in commands:
        if kind == 'aim':
            follower.aim(target)
        else:
            follower.stop()
        samples += [follower.step(MS) for _ in range(ms)]
    samples += [follower.step(MS) for _ in range(rest_ms)]
    return np.array(samples)


@settings(max_examples=20, deadline=None)
@given(targets)
def test_limits_hold_at_every_millisecond_while_targets_are_swapped(commands) -> None:
    samples = follow(Follower(np.zeros(3), SPEED, ACCELERATION, JERK), commands, rest_ms=500)
    within(samples)


@settings(max_examples=10, deadline=None)
@given(targets)
def test_the_last_target_is_reached_at_rest(commands) -> None:
    follower = Follower(np.zeros(3), SPEED, ACCELERATION, JERK)
    follow(follower, commands, rest_ms=0)
    follower.aim([0.1, -0.2, 0.3])
    for _ in range(60):
        follower.step(0.1)
    assert follower.resting
    np.testing.assert_allclose(follower.position, [0.1, -0.2, 0.3], atol=1e-9)


def test_a_step_of_the_commanded_speed_becomes_a_smooth_start() -> None:
    """A stream of targets begins to run away at 5 cm/s, 10 times a second."""
    follower = Follower(np.zeros(3), SPEED, ACCELERATION, JERK)
    ramp = [([0.005 * k, 0, 0], 100, 'aim') for k in range(1, 21)]
    samples = follow(follower, ramp)
    within(samples)
    assert samples[-1, 0] == pytest.approx(0.1, abs=1e-9)
    assert np.abs(samples[2000, 0] - 0.1) < 0.006, 'it lags by a target, not more'


def test_a_stop_brakes_within_limits_and_goes_no_further() -> None:
    follower = Follower(np.zeros(3), SPEED, ACCELERATION, JERK)
    samples = follow(follower, [([2, 0, 0], 600, 'aim'), ([0, 0, 0], 1, 'stop')], rest_ms=1000)
    within(samples)
    brake_m = SPEED**2 / (2 * ACCELERATION) + SPEED * ACCELERATION / JERK
    assert samples[-1, 0] - samples[600, 0] < brake_m
    assert follower.resting


def test_a_target_that_is_no_number_changes_nothing() -> None:
    follower = Follower(np.zeros(3), SPEED, ACCELERATION, JERK)
    follower.aim([0.1, 0, 0])
    with pytest.raises(ValueError, match='finite'):
        follower.aim([float('nan'), 0, 0])
    for _ in range(2000):
        follower.step(MS)
    assert follower.position[0] == pytest.approx(0.1)


def test_steps_of_any_length_give_the_same_way() -> None:
    fine, coarse = (Follower(np.zeros(2), SPEED, ACCELERATION, JERK) for _ in range(2))
    fine.aim([0.5, 0.1])
    coarse.aim([0.5, 0.1])
    for _ in range(20):
        for _ in range(10):
            fine.step(MS)
        coarse.step(10 * MS)
        np.testing.assert_allclose(fine.position, coarse.position, atol=1e-9)


def pose_follower() -> PoseFollower:
    limits = (SPEED, SPEED), (ACCELERATION, ACCELERATION), (JERK, JERK)
    return PoseFollower(Pose.identity(), *limits)


def turns(follower: PoseFollower, ms: int) -> list[Pose]:
    return [follower.step(MS) for _ in range(ms)]


def angular(poses: list[Pose]) -> np.ndarray:
    rotations = Rotation.from_quat([p.quaternion for p in poses])
    return (rotations[1:] * rotations[:-1].inv()).as_rotvec() / MS


@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(-1.8, 1.8), min_size=3, max_size=3),
            st.integers(20, 600),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_turns_of_any_size_keep_angular_speed_and_acceleration_in_limits(commands) -> None:
    follower = pose_follower()
    poses = [follower.pose] * 3
    for rotvec, ms in commands:
        follower.aim(Pose.from_rotvec(np.zeros(3), rotvec))
        poses += turns(follower, ms)
    goal = Pose.from_rotvec(np.zeros(3), commands[-1][0])
    poses += turns(follower, 6000)
    assert angle(poses[-1], goal) < 1e-6
    velocity = angular(poses)
    # Between two references a turn about changing axes bends by up to speed^2 TURN_RAD / 2.
    assert np.abs(velocity).max() <= SPEED * 1.05
    assert np.abs(np.diff(velocity, axis=0) / MS).max() <= ACCELERATION * 1.1
    assert np.abs(np.diff(velocity, 2, axis=0) / MS**2).max() <= JERK * 1.5


def test_a_turn_by_nearly_half_a_circle_ends_exactly() -> None:
    follower = pose_follower()
    goal = Pose.from_rotvec([0.1, 0.2, 0.3], [0.0, 3.1, 0.2])
    follower.aim(goal)
    end = turns(follower, 6000)[-1]
    assert follower.resting
    assert angle(end, goal) < 1e-9
    np.testing.assert_allclose(end.position, goal.position, atol=1e-9)


def test_a_target_for_which_no_joint_plan_is_found_is_followed_all_the_same():
    """Seen on an arm: the library found no plan that ends in all coordinates at once."""
    follower = Follower(np.zeros(6), 0.6, 6.0, 200.0)
    follower.position = np.array([
        0.2369367780277283, 1.138165426613896, 1.098362385092525,
        0.03942939910031792, 0.236924404428996, 6.941307256930633e-05,
    ])  # fmt: skip
    follower.velocity = np.array([
        0.2570486161270858, -0.004424563526468636, 0.2996239000760844,
        -0.2935226196804062, 0.2576033818795309, -0.001280854913566859,
    ])  # fmt: skip
    follower.acceleration = np.array(
        [-1.873244182217771, 0, -6, 5.827494339540619, -1.900218630387536, 0]
    )
    goal = np.array([
        0.2443501551512448, 1.137898918221053, 1.106068591883925,
        0.03183109447069229, 0.2443434863243233, -1.052079153874611e-05,
    ])  # fmt: skip
    follower.aim(goal)
    for _ in range(3000):
        follower.step(0.001)
    np.testing.assert_allclose(follower.position, goal, atol=1e-6)
