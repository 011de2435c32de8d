# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""An action is a delta in the task's axes on the observed pose; a target gives it back."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from user_core.errors import UserError
from user_core.geometry import Pose, angle
from user_robot.action_space import ActionSpace

number = st.floats(-1.0, 1.0)
vectors = st.tuples(number, number, number).map(np.array)
poses = st.builds(
    Pose.from_rotvec, vectors, vectors.map(lambda v: 3.0 * v / max(1.0, np.linalg.norm(v)))
)
actions = st.lists(st.floats(-3.0, 3.0), min_size=6, max_size=6).map(np.array)


@settings(max_examples=300, deadline=None)
@given(actions, poses, poses)
def test_an_action_comes_back_from_its_target_even_outside_of_the_range(action, observed, frame):
    space = ActionSpace(0.01, 0.1, frame)
    back = space.from_target(space.to_target(action, observed), observed)
    np.testing.assert_allclose(back, action, atol=1e-6)


@settings(max_examples=200, deadline=None)
@given(poses, poses, poses)
def test_a_target_comes_back_from_its_action(target, observed, frame):
    space = ActionSpace(0.02, 0.3, frame)
    again = space.to_target(space.from_target(target, observed), observed)
    np.testing.assert_allclose(again.position, target.position, atol=1e-9)
    assert angle(again, target) < 1e-6


def test_the_delta_runs_along_the_axes_of_the_frame_and_not_of_the_tool():
    turned = Pose.from_rotvec(np.array([0.5, 0.0, 0.1]), np.array([0.0, 0.0, math.pi / 4]))
    observed = Pose.from_rotvec(np.array([0.4, 0.1, 0.3]), np.array([0.3, -0.2, 1.0]))
    target = ActionSpace(0.01, 0.1, turned).to_target([1, 0, 0, 0, 0, 0], observed)
    half = 0.01 * math.sqrt(0.5)
    np.testing.assert_allclose(target.position - observed.position, [half, half, 0.0], atol=1e-12)
    assert angle(target, observed) < 1e-9


def test_a_full_action_at_45_degrees_yaw_is_stored_as_it_was_executed():
    frame = Pose.from_rotvec(np.zeros(3), np.array([0.0, 0.0, math.pi / 4]))
    space, observed = ActionSpace(0.01, 0.1, frame), Pose.identity()
    back = space.from_target(space.to_target(np.ones(6), observed), observed)
    np.testing.assert_allclose(back, np.ones(6), atol=1e-6)


def test_the_sign_of_a_quaternion_does_not_matter():
    space, observed = ActionSpace(0.01, 0.1, Pose.identity()), Pose.identity()
    target = space.to_target([0, 0, 0, 0.5, 0.2, -1.0], observed)
    flipped = Pose(target.position, -target.quaternion)
    np.testing.assert_allclose(
        space.from_target(flipped, observed), space.from_target(target, observed), atol=1e-9
    )


@pytest.mark.parametrize('scale', [math.inf, math.nan, 0.0, -1.0])
def test_bounds_that_are_not_finite_are_refused_by_name(scale):
    with pytest.raises(UserError, match='scale_m'):
        ActionSpace(scale, 0.1, Pose.identity())
