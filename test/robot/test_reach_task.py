# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The reach task: nearness and rest are success, and its page suits the arm it is for."""

from itertools import product
from pathlib import Path

import arx5_interface as arx
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from user_core import config as schema
from user_core.config import load
from user_core.errors import UserError
from user_core.geometry import from_relative, relative
from user_core.outcome import Boundary
from user_robot.arm import ArmState
from user_robot.reach_task import ReachTask

PAGE = Path(__file__).parents[2] / 'config' / 'arx_reach.yaml'
TASK = ReachTask(schema.ReachTask())


def state(position, velocity=(0.0, 0.0, 0.0)):
    """An arm state in the task's orientation; position and velocity in the task's axes."""
    return ArmState(
        from_relative(TASK.frame, np.array(position), np.zeros(3)),
        np.r_[TASK.frame.rotation.apply(velocity), np.zeros(3)],
        np.zeros(6), np.zeros(6), np.zeros(6), np.zeros(6), 0.0, 0.0, 0.0,
    )  # fmt: skip


def test_resting_on_the_goal_is_success_and_ends_the_task():
    before, there = state((0.0, 0.0, -0.03)), state((0.005, -0.005, 0.005), (0.01, 0.0, 0.02))
    assert TASK.judge(before, there, 7) == (1.0, True, Boundary.SUCCESS)


@pytest.mark.parametrize(
    ('position', 'velocity'),
    [
        ((0.007, 0.007, 0.007), (0.0, 0.0, 0.0)),
        ((0.0, 0.0, -0.011), (0.0, 0.0, 0.0)),
        ((0.0, 0.0, 0.0), (0.03, 0.03, 0.03)),
        ((0.0, 0.0, 0.0), (0.0, -0.15, 0.0)),
    ],
    ids=['off the goal', 'short of it', 'not at rest', 'flying through'],
)
def test_what_does_not_rest_on_the_goal_is_no_success(position, velocity):
    assert not TASK.success(state(position, velocity))
    assert TASK.judge(state(position), state(position, velocity), 3)[:2] == (0.0, False)


def test_the_last_step_without_success_is_a_timeout_and_not_an_end_of_the_task():
    away = state((0.0, 0.0, -0.05))
    assert TASK.judge(away, away, TASK.max_steps - 1)[2] is Boundary.NONE
    assert TASK.judge(away, away, TASK.max_steps) == (0.0, False, Boundary.TIMEOUT)


def test_starts_fill_the_box_in_the_orientation_of_the_goal():
    c = TASK.config
    seen = [relative(TASK.frame, TASK.start(seed)) for seed in range(300)]
    found, turned = (np.array(part) for part in zip(*seen, strict=True))
    low, high = np.array(c.start_min_m), np.array(c.start_max_m)
    assert (found >= low - 1e-9).all()
    assert (found <= high + 1e-9).all()
    assert (found.min(0) < low + 0.1 * (high - low)).all()
    assert (found.max(0) > high - 0.1 * (high - low)).all()
    assert np.abs(turned).max() < 1e-6


def test_home_is_the_middle_of_the_starts():
    c = TASK.config
    middle = (np.array(c.start_min_m) + np.array(c.start_max_m)) / 2
    np.testing.assert_allclose(relative(TASK.frame, TASK.home)[0], middle, atol=1e-9)


def test_the_way_to_a_start_is_straight():
    start = TASK.start(3)
    assert TASK.reset_path(TASK.frame, start) == [start]


@pytest.mark.parametrize(
    ('setting', 'says'),
    [
        ('task.success_m=0.07', 'could begin in success'),
        ('task.start_min_m=[-0.08, -0.08, -0.01]', 'could begin in success'),
        ('task.start_max_m=[0.02, -0.09, 0.12]', 'start_min_m must not be above start_max_m'),
        ('task.success_depth_m=0.01', 'belongs to kind peg, here the kind is reach'),
    ],
)
def test_a_page_that_makes_no_sense_is_refused(setting, says):
    with pytest.raises(UserError, match=says):
        load(PAGE, [setting])


def test_a_task_without_a_kind_is_the_peg():
    assert schema.RunConfig(name='any', task={'scale_m': 0.02}).task.kind == 'peg'
    assert load(PAGE).task.kind == 'reach'


@pytest.fixture(scope='module')
def solver():
    """(kinematics of the L5, lowest and highest joint angles) as its SDK has them."""
    robot = arx.RobotConfigFactory.get_instance().get_config('L5')
    low, high = np.array(robot.joint_pos_min), np.array(robot.joint_pos_max)
    return arx.Arx5Solver(
        robot.urdf_path, robot.joint_dof, low, high,
        robot.base_link_name, robot.eef_link_name, robot.gravity_vector,
    ), low, high  # fmt: skip


def twist_of(solver, q):
    """(6, 6) Jacobian of the eef, by differences."""
    columns = []
    for turn in 1e-5 * np.eye(6):
        ahead, behind = (solver.forward_kinematics(q + sign * turn) for sign in (1, -1))
        spin = Rotation.from_euler('xyz', ahead[3:]) * Rotation.from_euler('xyz', behind[3:]).inv()
        columns.append(np.r_[ahead[:3] - behind[:3], spin.as_rotvec()] / 2e-5)
    return np.array(columns).T


def test_an_arx_l5_is_at_ease_everywhere_in_the_box_of_its_page(solver):
    kinematics, low, high = solver
    config = load(PAGE)
    limits, task = config.cells['arm0'].safety, ReachTask(config.task)
    box = zip(limits.box_min_m, limits.box_max_m, strict=True)
    turns = list(product(*((-t, t) for t in limits.box_rotation_rad)))
    begin = np.array([0.0, 1.2, 1.0, 0.2, 0.0, 0.0])
    for position in product(*(np.linspace(a, b, 3) for a, b in box)):
        for turn in turns:
            pose = from_relative(task.frame, np.array(position), np.array(turn))
            wanted = np.r_[pose.position, pose.rotation.as_euler('xyz')]
            status, q = kinematics.inverse_kinematics(wanted, begin)
            assert status >= 0
            off = kinematics.forward_kinematics(q)[:3] - pose.position
            assert np.linalg.norm(off) < 1e-3
            assert min((q - low).min(), (high - q).min()) > 0.4
            assert np.linalg.svd(twist_of(kinematics, q))[1][-1] > 0.09


def test_every_start_of_the_page_is_inside_its_box():
    config = load(PAGE)
    limits, task = config.cells['arm0'].safety, config.task
    assert (np.array(task.start_min_m) > limits.box_min_m).all()
    assert (np.array(task.start_max_m) < limits.box_max_m).all()
