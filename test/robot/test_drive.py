# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The arm under its limits: commands, stops and reset motions of the simulated arm."""

import math

import numpy as np
import pytest
from rig import Cell

from user_core import config as schema
from user_core.geometry import Pose, angle, from_relative, relative
from user_robot.latch import Mode
from user_robot.motion import Motion
from user_robot.row import Command
from user_robot.safety import REFUSED


def command(cell, step, pose=None, episode=None):
    """A command towards a pose, else to stay."""
    here = cell.drive.sample().state.pose
    return Command(cell.number if episode is None else episode, step, pose or here, math.nan)


def ahead(cell, metres):
    """The present pose moved along x of the base."""
    here = cell.drive.sample().state.pose
    return Pose(here.position + np.array([metres, 0, 0]), here.quaternion)


def test_a_command_is_answered_with_its_identity_and_the_applied_target():
    cell = Cell()
    cell.reset()
    sample = cell.drive.step(command(cell, 0, ahead(cell, 1.0)))
    assert (sample.episode, sample.step, sample.answers) == (1, 0, True)
    assert sample.mode is Mode.ACTIVE
    assert sample.limited
    start = cell.task.start(0)
    assert (
        np.linalg.norm(sample.applied.position - start.position)
        <= cell.drive.limits.max_step_m + 1e-6
    )


@pytest.mark.parametrize('case', ['repeated', 'older', 'other episode', 'not finite'])
def test_a_command_that_is_stale_or_not_finite_changes_nothing(case):
    cell = Cell()
    cell.reset()
    applied = cell.drive.step(command(cell, 5)).applied
    wrong = {
        'repeated': command(cell, 5, ahead(cell, 0.01)),
        'older': command(cell, 4, ahead(cell, 0.01)),
        'other episode': command(cell, 6, ahead(cell, 0.01), episode=77),
        'not finite': command(cell, 6, ahead(cell, math.nan)),
    }[case]
    assert not cell.drive.command(wrong)
    sample = cell.drive.sample()
    assert sample.limited & REFUSED
    assert np.linalg.norm(sample.applied.position - applied.position) < 0.002


def test_a_stopped_arm_ignores_commands_and_resets_until_the_stop_is_cleared():
    cell = Cell()
    cell.reset()
    cell.drive.step(command(cell, 0))
    cell.drive.stop('the button')
    before = cell.drive.sample().state.pose.position
    sample = cell.drive.step(command(cell, 1, ahead(cell, 0.02)))
    assert sample.mode is Mode.DISARMED
    assert sample.reason == 'the button'
    np.testing.assert_array_equal(sample.state.pose.position, before)
    ends = []
    cell.drive.move([cell.task.start(1)], 0.1, 1.0, 2, 1, True, ends.append)
    assert ends == ['the button']
    assert not cell.recover()[0]
    cell.drive.clear_stop()
    cell.reset(1)
    assert cell.drive.sample().mode is Mode.READY


def test_a_stop_ends_a_running_reset_motion():
    cell = Cell()
    cell.reset()
    ends = []
    cell.drive.move([cell.task.start(1)], 0.1, 1.0, 2, 1, False, ends.append)
    cell.drive.advance(0.02)
    cell.drive.stop('the button')
    assert ends == ['the button']
    assert cell.drive.motion is None


def test_a_reset_out_of_the_hole_lifts_the_peg_by_the_law_and_ends_exactly_at_the_start():
    cell = Cell()
    cell.reset()
    inserted = from_relative(cell.task.frame, np.array([0.0, 0.0, -0.005]), np.zeros(3))
    cell.drive.arm.reset(inserted, 0)
    start, ends, heights = cell.task.start(9), [], []
    here = cell.drive.arm.state().pose
    cell.drive.move(cell.task.reset_path(here, start), 0.25, 1.0, 2, 9, True, ends.append)
    while not ends:
        pose = cell.drive.advance(0.02).state.pose
        heights.append(relative(cell.task.frame, pose)[0])
    path = np.array(heights[:-1])
    assert ends == ['']
    assert len(path) > 10
    assert path[-1][2] < -0.04
    assert np.abs(path[:, :2]).max() < 0.004
    sample = cell.drive.sample()
    np.testing.assert_allclose(sample.state.pose.position, start.position, atol=1e-8)
    assert angle(sample.state.pose, start) < 1e-6
    assert (sample.episode, sample.step, sample.answers, sample.mode) == (2, 0, False, Mode.READY)
    assert max(cell.drive.errors()) < 1e-6


def test_a_realtime_reset_travels_the_whole_way_at_limited_speed():
    cell = Cell()
    cell.reset(0)
    start, ends, positions = cell.task.start(4), [], []
    cell.drive.move(
        cell.task.reset_path(cell.task.start(0), start), 0.1, 0.6, 2, 4, False, ends.append
    )
    while not ends:
        cell.clock.now += 0.01
        positions.append(cell.drive.advance(0.01).state.pose.position)
    travelled = np.linalg.norm(np.diff(np.array(positions[:-1]), axis=0), axis=1)
    assert ends == ['']
    assert travelled.max() < 0.002
    assert np.linalg.norm(positions[-2] - start.position) < 0.01


def test_the_clock_of_a_cell_never_goes_back_not_even_at_a_reset():
    cell, stamps = Cell(), []
    for seed in range(3):
        cell.reset(seed)
        stamps += [cell.drive.step(command(cell, step)).state.stamp_s for step in range(3)]
    assert stamps == sorted(stamps)
    assert len(set(stamps)) == 9


def test_an_arm_that_is_held_fast_gives_up_its_reset_with_the_reason():
    cell = Cell(safety=schema.Safety(force_limit_n=1000))
    cell.reset()
    away = from_relative(cell.task.frame, np.array([0.0, 0.0, 0.3]), np.zeros(3))
    ends = []
    cell.drive.move([away], 0.2, 1.0, 2, 0, False, ends.append)
    for _ in range(1000):
        if ends:
            break
        cell.drive.advance(0.02)
    assert len(ends) == 1
    assert 'cannot follow' in ends[0]


def test_the_target_of_a_reset_moves_and_turns_no_faster_than_it_may():
    begin = Pose.identity()
    corner = from_relative(begin, np.array([0.1, 0.0, 0.0]), np.zeros(3))
    goal = from_relative(begin, np.array([0.1, 0.02, 0.0]), np.array([0.0, 0.0, 1.0]))
    motion, here, seconds = Motion(begin, [corner, goal], 0.1, 0.5), begin, 0.0
    while not motion.done(here):
        target = motion.target(0.02, here)
        assert np.linalg.norm(target.position - here.position) <= 0.1 * 0.02 + 1e-9
        assert angle(target, here) <= 0.5 * 0.02 + 1e-9
        here, seconds = target, seconds + 0.02
    assert seconds == pytest.approx(0.1 / 0.1 + 1.0 / 0.5, abs=0.05)
    np.testing.assert_allclose(here.position, goal.position, atol=0.005)


@pytest.mark.parametrize('sign', [1.0, -1.0], ids=['q', '-q'])
@pytest.mark.parametrize('yaw', [math.pi - 0.02, -math.pi + 0.02])
def test_a_reset_across_half_a_turn_goes_the_short_way(yaw, sign):
    """An interpolation of Euler angles would turn all the way round."""
    begin = Pose.from_rotvec(np.zeros(3), np.array([0.0, 0.0, yaw]))
    goal = Pose.from_rotvec(np.array([0.05, 0.0, 0.0]), np.array([0.0, 0.0, -yaw]))
    goal = Pose(goal.position, sign * goal.quaternion)
    motion, here, summed = Motion(begin, [goal], 0.1, 0.5), begin, 0.0
    for _ in range(1000):
        if motion.done(here):
            break
        target = motion.target(0.02, here)
        summed += angle(here, target)
        here = target
    assert angle(here, goal) < 1e-6
    assert summed == pytest.approx(0.04, abs=1e-6)


def test_a_reset_forgets_the_targets_that_were_under_way():
    """The latency of the arm is a queue, too; it holds nothing of the episode before."""
    still, cell = Cell(), Cell()
    still.reset(1)
    cell.reset(0)
    cell.drive.step(command(cell, 0, ahead(cell, 0.02)))
    cell.reset(1)
    for rig in (still, cell):
        rig.drive.arm.advance(0.5)
    one, other = (rig.drive.arm.state().pose for rig in (still, cell))
    np.testing.assert_allclose(one.position, other.position, atol=1e-9)
    assert angle(one, other) < 1e-6


@pytest.mark.parametrize('slice_s', [0.005, 0.01])
def test_the_hold_begins_before_the_deadline_passes_even_when_a_slice_comes_late(slice_s):
    """Whenever the last command falls between two slices, and one slice takes twice its time."""
    rng = np.random.default_rng(3)
    cell = Cell(realtime=True)
    for seed in range(30):
        cell.reset(seed)
        for step in range(3):
            cell.clock.now += float(rng.uniform(0.0, 0.1))
            assert cell.drive.command(command(cell, step))
            cell.drive.advance(slice_s)
        cell.clock.now += float(rng.uniform(0.0, slice_s))
        while cell.drive.sample().mode is Mode.ACTIVE:
            late = rng.random() < 0.2
            cell.clock.now += slice_s * (2 if late else 1)
            cell.drive.advance(slice_s)
            if late:
                cell.clock.now += slice_s * 0.01
                cell.drive.advance(slice_s)
        assert cell.drive.sample().mode is Mode.HOLD
    assert cell.drive.holds == 30
    assert 0.1 < cell.drive.hold_max_s <= cell.drive.limits.deadline_s


def test_a_deadline_shorter_than_two_slices_still_lets_the_arm_move():
    cell = Cell(realtime=True, safety=schema.Safety(deadline_s=0.015))
    cell.reset()
    assert cell.drive.command(command(cell, 0))
    cell.clock.now += 0.005
    assert cell.drive.advance(0.01).mode is Mode.ACTIVE
    cell.clock.now += 0.005
    assert cell.drive.advance(0.01).mode is Mode.HOLD


def test_only_a_missing_command_counts_as_a_hold():
    cell = Cell(realtime=True)
    cell.reset()
    cell.clock.now += 5.0
    cell.drive.advance(0.01)
    assert cell.drive.command(command(cell, 0))
    cell.drive.stop('the button')
    cell.clock.now += 5.0
    cell.drive.advance(0.01)
    assert (cell.drive.holds, cell.drive.hold_max_s) == (0, 0.0)
