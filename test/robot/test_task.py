# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What every task promises: its starts, what it sees, the constants that ride in the weights."""

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from user_core import config as schema
from user_core.errors import UserError
from user_core.geometry import from_relative, relative
from user_core.outcome import Boundary
from user_robot.arm import ArmState
from user_robot.task import TASKS, TCP_STATE, make_task

CONFIGS = {'peg': schema.PegTask(), 'reach': schema.ReachTask()}
MADE = {kind: make_task(config) for kind, config in CONFIGS.items()}
every_task = pytest.mark.parametrize('task', MADE.values(), ids=MADE)
seeds = st.integers(0, 2**63)


def at(pose, wrench=None, twist=None):
    """An arm state at this pose (base frame), at rest and without contact unless said."""
    zero = np.zeros(6)
    return ArmState(
        pose, zero if twist is None else twist, zero if wrench is None else wrench,
        np.zeros(7), np.zeros(7), np.zeros(7), 0.016, 0.0, 0.0,
    )  # fmt: skip


def test_every_kind_of_task_that_a_page_can_choose_is_made():
    assert set(TASKS) == set(CONFIGS)
    assert {kind: type(task).__name__ for kind, task in MADE.items()} == {
        'peg': 'PegTask',
        'reach': 'ReachTask',
    }


def test_a_task_that_does_not_exist_lists_the_good_ones():
    with pytest.raises(UserError, match='peg, reach'):
        make_task(SimpleNamespace(kind='fold'))


@every_task
@settings(max_examples=200, deadline=None)
@given(seed=seeds)
def test_no_episode_begins_in_success(task, seed):
    begun = at(task.start(seed))
    assert not task.success(begun)
    assert task.judge(begun, begun, 1) == (0.0, False, Boundary.NONE)


@every_task
@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_a_start_is_the_same_for_the_same_seed_and_another_for_another(task, seed):
    start, again, other = task.start(seed), task.start(seed), task.start(seed + 1)
    np.testing.assert_array_equal(start.position, again.position)
    np.testing.assert_array_equal(start.quaternion, again.quaternion)
    assert np.linalg.norm(start.position - other.position) > 0


@every_task
def test_the_frame_is_the_goal_and_the_way_to_a_start_ends_there(task):
    goal, start = at(task.frame), task.start(1)
    assert task.success(goal)
    assert task.distance(goal) == 0.0
    assert task.distance(at(start)) > 0.05
    assert task.reset_path(task.frame, start)[-1] is start


@every_task
def test_the_observed_state_is_in_the_axes_of_the_task(task):
    push = np.r_[
        task.frame.rotation.apply([1.0, 2.0, 3.0]), task.frame.rotation.apply([4.0, 5.0, 6.0])
    ]
    pose = from_relative(task.frame, np.array([0.01, -0.02, -0.1]), np.array([0.0, 0.1, 0.4]))
    seen = task.observe(at(pose, wrench=push, twist=2 * push))
    assert seen.dtype == np.float32
    assert seen.shape == (19,) == (len(TCP_STATE),)
    np.testing.assert_allclose(seen[1:7], [1, 2, 3, 4, 5, 6], atol=1e-6)
    np.testing.assert_allclose(seen[7:13], [0.01, -0.02, -0.1, 0.0, 0.1, 0.4], atol=1e-6)
    np.testing.assert_allclose(seen[13:], [2, 4, 6, 8, 10, 12], atol=1e-5)
    assert seen[0] == pytest.approx(0.016)


@every_task
def test_two_poses_in_turn_are_each_seen_where_they_are(task):
    poses = [task.start(1), task.start(2)]
    for pose in (*poses, *poses):
        expected = np.concatenate(relative(task.frame, pose))
        np.testing.assert_allclose(task.observe(at(pose))[7:13], expected, atol=1e-6)


@every_task
def test_every_observed_value_has_a_name_and_a_finite_scale(task):
    spec = task.spec
    assert spec.names == TCP_STATE
    assert len(set(spec.names)) == 19
    assert spec.mean.shape == spec.scale.shape == spec.squash.shape == (19,)
    assert (spec.scale > 0).all()
    assert spec.fine_index.shape == spec.fine_mean.shape == spec.fine_scale.shape
    assert (spec.fine_scale > 0).all()
    assert [n for n, s in zip(spec.names, spec.squash, strict=True) if s] == list(TCP_STATE[1:7])


@every_task
def test_a_start_and_the_goal_are_of_the_size_of_one_for_the_network(task):
    for pose in (task.frame, *(task.start(seed) for seed in range(20))):
        seen = (task.observe(at(pose)) - task.spec.mean) / task.spec.scale
        assert np.abs(seen).max() < 3


def test_the_fine_values_are_those_in_which_millimetres_decide():
    fine = {k: [t.spec.names[i] for i in t.spec.fine_index] for k, t in MADE.items()}
    assert fine == {'peg': list(TCP_STATE[7:13]), 'reach': list(TCP_STATE[7:10])}
    assert MADE['peg'].spec.mean[9] == pytest.approx(-0.05)
