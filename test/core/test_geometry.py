# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Rotations never wrap, never jump and never depend on a quaternion's sign."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from user_core.geometry import Pose, angle, clip_rotation, from_relative, relative

number = st.floats(-2.0, 2.0, allow_subnormal=False)
vector = st.tuples(number, number, number).map(np.array)
direction = vector.filter(lambda v: np.linalg.norm(v) > 0.1).map(lambda v: v / np.linalg.norm(v))
rotvec = st.builds(lambda axis, by: axis * by, direction, st.floats(0.0, np.pi - 1e-6))
pose = st.builds(Pose.from_rotvec, vector, rotvec)
extents = st.tuples(*[st.floats(0.05, 1.5)] * 3).map(np.array)


def same(a: Pose, b: Pose, tolerance: float = 1e-6) -> bool:
    return np.allclose(a.position, b.position, atol=tolerance) and angle(a, b) < tolerance


@given(pose, pose)
def test_relative_and_back_is_the_same_pose(frame, other):
    assert same(from_relative(frame, *relative(frame, other)), other)


@given(pose, pose, pose)
def test_poses_chain_like_matrices(a, b, c):
    assert np.allclose((a @ b).matrix(), a.matrix() @ b.matrix(), atol=1e-9)
    assert same((a @ b) @ c, a @ (b @ c))
    assert same(a @ a.inverse(), Pose.identity())


@given(pose, pose)
def test_a_negated_quaternion_is_the_same_pose(frame, other):
    flipped = Pose(other.position, -other.quaternion)
    position, rotation = relative(frame, other)
    position_2, rotation_2 = relative(frame, flipped)
    assert np.allclose(position, position_2)
    back = Rotation.from_rotvec(rotation).inv() * Rotation.from_rotvec(rotation_2)
    assert back.magnitude() < 1e-6
    assert angle(other, flipped) < 1e-6


@given(extents, direction, st.floats(0.0, np.pi - 1e-6))
def test_clipping_a_rotation_twice_is_clipping_it_once_and_ends_inside(half, axis, by):
    once = clip_rotation(axis * by, half)
    assert np.all(np.abs(once) <= half)
    assert np.allclose(clip_rotation(once, half), once, atol=1e-12)


@given(rotvec, extents, st.tuples(*[st.floats(-1.0, 1.0)] * 3))
def test_a_rotation_inside_the_box_is_left_alone_wherever_the_box_is(centre, half, share):
    """Also where Euler angles wrap: a centre at roll -3.1 with a box of +-0.2, say."""
    inside = np.array(share) * half
    frame = Pose.from_rotvec(np.zeros(3), centre)
    seen = relative(frame, from_relative(frame, np.zeros(3), inside))[1]
    if np.linalg.norm(inside) < np.pi - 1e-3:
        assert np.allclose(clip_rotation(seen, half), inside, atol=1e-6)


@pytest.mark.parametrize('roll', [-3.10, -np.pi, np.pi, 3.10])
def test_a_box_centred_where_roll_wraps_keeps_its_centre(roll):
    centre = Pose.from_rotvec(np.zeros(3), [roll, 0.0, 0.0])
    for quaternion in (centre.quaternion, -centre.quaternion):
        seen = relative(centre, Pose(np.zeros(3), quaternion))[1]
        clipped = clip_rotation(seen, np.full(3, 0.2))
        assert same(from_relative(centre, np.zeros(3), clipped), centre)


def test_a_yaw_across_pi_goes_the_short_way():
    start = Pose.from_rotvec(np.zeros(3), [0.0, 0.0, np.pi - 0.02])
    goal = Pose.from_rotvec(np.zeros(3), [0.0, 0.0, -np.pi + 0.02])
    turn = relative(start, goal)[1]
    poses = [from_relative(start, np.zeros(3), turn * share) for share in np.linspace(0, 1, 21)]
    summed = sum(angle(a, b) for a, b in pairwise(poses))
    assert summed == pytest.approx(0.04, abs=1e-6)


@given(pose, direction, st.floats(0.0, np.pi - 1e-6))
def test_the_angle_between_poses_is_the_rotation_between_them(start, axis, by):
    assert angle(start, from_relative(start, np.zeros(3), axis * by)) == pytest.approx(
        by, abs=1e-7
    )


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_a_pose_with_a_number_that_is_none_is_known(bad):
    good = Pose.identity()
    assert good.isfinite()
    for i in range(3):
        position = np.zeros(3)
        position[i] = bad
        assert not Pose(position, good.quaternion).isfinite()
    for i in range(4):
        quaternion = good.quaternion.copy()
        quaternion[i] = bad
        assert not Pose(good.position, quaternion).isfinite()
    assert not Pose(good.position, np.zeros(4)).isfinite()
