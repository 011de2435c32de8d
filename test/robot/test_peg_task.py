# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The peg task: where it starts, what it sees, when it is done, how it goes back."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from user_core import config as schema
from user_core.errors import UserError
from user_core.geometry import from_relative, relative
from user_core.outcome import Boundary
from user_robot.arm import ArmState
from user_robot.peg_task import PegTask

TASK = PegTask(schema.PegTask())
seeds = st.integers(0, 2**63)


def state(position=(0.0, 0.0, 0.0), rotation=(0.0, 0.0, 0.0), peak=0.0):
    """An arm state at a pose given in the task's frame."""
    return ArmState(
        from_relative(TASK.frame, np.array(position), np.array(rotation)),
        np.zeros(6), np.zeros(6), np.zeros(7), np.zeros(7), np.zeros(7), 0.016, 0.0, peak,
    )  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(seeds)
def test_no_episode_begins_in_success(seed):
    start = TASK.start(seed)
    begun = state(*relative(TASK.frame, start))
    assert not TASK.success(begun)
    assert TASK.judge(begun, begun, 1) == (0.0, False, Boundary.NONE)


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_a_start_is_the_same_for_the_same_seed_and_inside_the_start_box(seed):
    position, rotation = relative(TASK.frame, TASK.start(seed))
    again, _ = relative(TASK.frame, TASK.start(seed))
    np.testing.assert_array_equal(position, again)
    assert np.abs(position[:2]).max() <= 0.05
    assert position[2] == pytest.approx(-0.10)
    assert np.abs(rotation[:2]).max() < 1e-6
    assert abs(rotation[2]) <= math.radians(30) + 1e-9


def test_starts_fill_the_box():
    found = np.array([relative(TASK.frame, TASK.start(seed))[0][:2] for seed in range(300)])
    assert (found.min(0) < -0.04).all()
    assert (found.max(0) > 0.04).all()


def test_inserting_the_peg_is_success_and_ends_the_task():
    assert TASK.judge(state((0, 0, -0.03)), state((0.001, 0, -0.009)), 7) == (
        1.0, True, Boundary.SUCCESS,
    )  # fmt: skip


@pytest.mark.parametrize(
    'pose',
    [
        {'position': (0.0, 0.0, -0.028)},
        {'position': (0.0, 0.0, -0.011)},
        {'position': (0.008, 0.0, 0.0)},
        {'rotation': (0.0, 0.0, math.pi)},
        {'rotation': (math.pi, 0.0, 0.0)},
        {'rotation': (0.0, 0.0, math.pi / 2)},
        {'rotation': (0.0, 0.25, 0.0)},
        {'position': (0.0, 0.0, 0.02)},
    ],
    ids=[
        'on the rim',
        'too shallow',
        'beside',
        'half a turn',
        'upside down',
        'quarter',
        'tilted',
        'below',
    ],
)
def test_a_peg_that_is_not_in_the_hole_as_it_should_be_is_no_success(pose):
    assert not TASK.success(state(**pose))


def test_the_last_step_without_success_is_a_timeout_and_not_an_end_of_the_task():
    task = PegTask(schema.PegTask(max_steps=5))
    away = state((0.0, 0.0, -0.05))
    assert task.judge(away, away, 4)[2] is Boundary.NONE
    assert task.judge(away, away, 5) == (0.0, False, Boundary.TIMEOUT)


def test_pressing_hard_costs_reward_where_the_config_says_so():
    task = PegTask(schema.PegTask(force_penalty_per_n=0.01, force_free_n=20.0))
    away = state((0.0, 0.0, -0.05))
    assert task.judge(away, state((0.0, 0.0, -0.05), peak=30.0), 1)[0] == pytest.approx(-0.1)
    assert task.judge(away, state((0.0, 0.0, -0.05), peak=20.0), 1)[0] == 0.0
    assert task.judge(away, state(peak=50.0), 1)[0] == pytest.approx(0.7)


@settings(max_examples=200, deadline=None)
@given(seeds, st.tuples(*[st.floats(-1, 1)] * 3), st.tuples(*[st.floats(-0.2, 0.2)] * 3))
def test_a_reset_leaves_the_hole_before_it_moves_sideways(seed, where, turn):
    current = from_relative(TASK.frame, np.array(where) * (0.06, 0.06, 0.11), np.array(turn))
    start = TASK.start(seed)
    path = TASK.reset_path(current, start)
    assert path[-1] is start
    begin, rotation = relative(TASK.frame, current)
    first, turned = relative(TASK.frame, path[0])
    if begin[2] > -0.05:
        np.testing.assert_allclose(first[:2], begin[:2], atol=1e-9)
        np.testing.assert_allclose(turned, rotation, atol=1e-7)
        assert first[2] == pytest.approx(-0.05)
    else:
        assert len(path) == 1


def test_a_start_that_would_already_be_success_is_refused():
    with pytest.raises(UserError, match='begin in success'):
        PegTask(schema.PegTask(start_height_m=0.008))
