# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What wrenches in air and a tip that stays put tell of the tool: against known ones."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from user_core import page
from user_core.config import load
from user_core.errors import UserError
from user_core.geometry import Pose
from user_robot.teach.fit import GRAVITY_M_S2, joined, pivot
from user_robot.teach.fit import load as weigh
from user_robot.teach.record import Records

DOWN = Rotation.from_quat([1.0, 0.0, 0.0, 0.0])


def tilts() -> list[Rotation]:
    angles = [(0, 0), (0.5, 0), (-0.3, 0.4), (0, -0.5), (0.2, 0.6), (0.4, -0.4)]
    return [Rotation.from_rotvec((x, y, 0.3 * i)) * DOWN for i, (x, y) in enumerate(angles)]


def test_a_pivot_finds_the_tip_and_how_far_it_can_be_trusted():
    rng, tip, spot = np.random.default_rng(0), np.array([0.004, -0.002, 0.11]), [0.5, 0.1, 0.05]
    poses = [Pose(spot - r.apply(tip) + rng.normal(0, 0.0003, 3), r.as_quat()) for r in tilts()]
    found = pivot(poses)
    assert found.offset_m == pytest.approx(tip, abs=0.002)
    assert found.spot_m == pytest.approx(np.array(spot), abs=0.002)
    assert 0.0001 < found.rms_m < 0.001


@pytest.mark.parametrize('poses', [3, 5])
def test_a_pivot_of_too_few_or_too_like_orientations_is_refused(poses):
    alike = [
        Pose(np.zeros(3), (Rotation.from_rotvec((0.01 * i, 0, 0)) * DOWN).as_quat())
        for i in range(poses)
    ]
    with pytest.raises(UserError, match='orientations'):
        pivot(alike)


def test_turns_about_one_axis_do_not_tell_a_tip():
    poses = [
        Pose(np.zeros(3), (Rotation.from_rotvec((0, 0, 0.5 * i)) * DOWN).as_quat())
        for i in range(5)
    ]
    with pytest.raises(UserError, match='too much alike'):
        pivot(poses)


def wrench(rotation: Rotation, mass: float, com: np.ndarray) -> np.ndarray:
    """Of a mass that hangs on the arm, robot on environment positive."""
    force = np.array([0, 0, mass * GRAVITY_M_S2])
    return np.concatenate([force, np.cross(rotation.apply(com), force)])


@pytest.mark.parametrize('mass', [0.35, -0.2])
def test_wrenches_in_air_tell_the_mass_and_its_centre(mass):
    rng, com = np.random.default_rng(0), np.array([0.01, -0.005, 0.06])
    poses = [Pose(np.zeros(3), r.as_quat()) for r in tilts()]
    wrenches = [wrench(p.rotation, mass, com) + rng.normal(0, 0.01, 6) for p in poses]
    found = weigh(poses, wrenches)
    assert found.mass_kg == pytest.approx(mass, abs=0.005)
    assert found.com_m == pytest.approx(com, abs=0.01)
    assert found.rms_n < 0.1


def test_turns_about_the_vertical_do_not_tell_a_load():
    rotations = [Rotation.from_rotvec((0, 0, 0.8 * i)) * DOWN for i in range(4)]
    poses = [Pose(np.zeros(3), r.as_quat()) for r in rotations]
    with pytest.raises(UserError, match='differ in tilt'):
        weigh(poses, [wrench(r, 0.3, np.zeros(3)) for r in rotations])


def test_a_load_found_beyond_the_known_one_is_joined_with_it():
    poses = [Pose(np.zeros(3), r.as_quat()) for r in tilts()]
    com = np.array([0.0, 0.0, 0.05])
    more = weigh(poses, [wrench(p.rotation, 0.2, com) for p in poses])
    kg, centre = joined(0.2, np.array([0, 0, 0.01]), more, com)
    assert kg == pytest.approx(0.4)
    assert centre == pytest.approx(np.array([0, 0, 0.03]))
    assert joined(0.2, com, weigh(poses, [np.zeros(6)] * 6), com)[0] == pytest.approx(0.2)
    with pytest.raises(UserError, match='not there'):
        joined(0.0, com, weigh(poses, [wrench(p.rotation, -0.2, com) for p in poses]), com)


def test_a_tip_that_was_found_moves_the_taught_poses_to_it():
    shift = np.array([0.0, 0.0, 0.01])
    records = Records(
        target=Pose(np.array([0.5, 0, 0.14]), DOWN.as_quat()),
        start=Pose(np.array([0.5, 0, 0.24]), DOWN.as_quat()),
        tcp_m=np.array([0, 0, 0.1134]),
        shift_m=shift,
    )
    content = records.fragment(load('peg_rlpd').task, 'arm0')
    assert content['task']['frame']['position_m'] == pytest.approx([0.5, 0, 0.13])
    assert content['cells']['arm0']['arm'] == {'tcp_m': [0, 0, 0.1134]}
    page.override(type(load('peg_rlpd')), content, [])
