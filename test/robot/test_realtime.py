# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The realtime episode and the arm's deadline, on a clock that the test moves."""

import numpy as np
import pytest
from rig import Cell, answer

from user_core import config as schema
from user_core.outcome import Boundary
from user_robot.latch import Mode as ArmMode

DOWN = (0, 0, 1, 0, 0, 0)


def flow(cell, seconds):
    """Time passes; the arm sends a sample every 10 ms."""
    for _ in range(round(seconds / 0.01)):
        cell.clock.now += 0.01
        while cell.sent.commands:
            cell.drive.command(cell.sent.commands.pop(0))
        cell.episode.on_sample(cell.drive.advance(0.01))


def begun(**settings):
    cell = Cell(realtime=True, **settings)
    cell.begin(seed=1)
    return cell


def test_the_tick_closes_a_step_with_the_newest_sample():
    cell = begun()
    for _ in range(5):
        cell.episode.on_answer(answer(cell.episode, DOWN))
        flow(cell, 0.1)
        cell.episode.tick()
    rows = cell.sent.rows
    assert [r.step for r in rows] == [0, 1, 2, 3, 4]
    assert all(r.valid and r.lateness_s == 0 for r in rows)
    assert rows[4].captured_s - rows[0].captured_s == pytest.approx(0.4, abs=0.011)
    np.testing.assert_allclose([r.executed_action[2] for r in rows], 1.0, atol=1e-4)


def test_an_episode_does_not_begin_to_count_before_somebody_acts():
    cell = begun()
    for _ in range(4):
        flow(cell, 0.1)
        cell.episode.tick()
    assert [o.step for o in cell.sent.observations] == [0] * 5
    assert cell.sent.rows == []
    assert cell.drive.latch.mode is ArmMode.READY


def test_a_late_action_is_dropped_and_its_row_says_so():
    cell = begun()
    cell.episode.on_answer(answer(cell.episode, DOWN))
    flow(cell, 0.1)
    cell.episode.tick()
    flow(cell, 0.1)
    cell.episode.tick()
    cell.episode.on_answer(answer(cell.episode, DOWN, step=1))
    assert cell.sent.commands == []
    good, late = cell.sent.rows
    assert good.valid
    assert (late.valid, late.policy_action.size) == (False, 0)
    assert late.lateness_s == pytest.approx(0.1)
    assert np.isfinite(late.executed_action).all()
    assert cell.episode.counts['late_actions'] == 1
    assert cell.episode.result.late_steps == 1
    assert cell.episode.running


def test_the_arm_holds_within_its_deadline_when_commands_stop_and_goes_on_with_the_next():
    cell = begun()
    cell.episode.on_answer(answer(cell.episode, (1, 1, 1, 0, 0, 0)))
    flow(cell, 0.15)
    assert cell.drive.latch.mode is ArmMode.ACTIVE
    flow(cell, 0.1)
    assert cell.drive.latch.mode is ArmMode.HOLD
    assert 'no command' in cell.drive.latch.reason
    held = cell.drive.sample()
    off = np.linalg.norm(held.applied.position - held.state.pose.position)
    assert off < 0.005
    flow(cell, 1.0)
    at_rest = cell.drive.sample()
    flow(cell, 1.0)
    assert np.linalg.norm(held.state.pose.position - at_rest.state.pose.position) < 0.01
    assert (
        np.linalg.norm(cell.drive.sample().state.pose.position - at_rest.state.pose.position)
        < 1e-4
    )
    cell.episode.tick()
    cell.episode.on_answer(answer(cell.episode, DOWN))
    flow(cell, 0.05)
    assert cell.drive.latch.mode is ArmMode.ACTIVE


def test_a_policy_that_stays_silent_ends_the_episode_by_name():
    cell = begun()
    cell.episode.on_answer(answer(cell.episode, DOWN))
    for _ in range(120):
        flow(cell, 0.1)
        cell.episode.tick()
    assert not cell.episode.running
    assert cell.episode.result.void
    assert 'actor' in cell.episode.result.reason


def test_an_arm_that_falls_silent_ends_the_episode():
    cell = begun()
    cell.clock.now += 0.6
    cell.episode.tick()
    assert 'the arm sent no state' in cell.episode.result.reason
    assert cell.episode.result.void


def test_a_force_above_the_limit_ends_the_episode_without_waiting_for_the_tick():
    cell = begun(safety=schema.Safety(force_limit_n=10.0))
    for _ in range(80):
        if not cell.episode.running:
            break
        cell.episode.on_answer(answer(cell.episode, (1, 0, 1, 0, 0, 0)))
        flow(cell, 0.1)
        cell.episode.tick()
    last = cell.sent.rows[-2]
    assert cell.episode.result.boundary is Boundary.ABORT
    assert not cell.episode.result.void
    assert (last.reward, last.truncated, last.terminated) == (0.0, True, False)
    assert last.peak_force_n > 10.0


def test_the_peak_force_of_a_step_is_the_largest_of_its_samples():
    cell = begun(safety=schema.Safety(force_limit_n=500.0))
    for _ in range(40):
        cell.episode.on_answer(answer(cell.episode, (1, 0, 1, 0, 0, 0)))
        peaks = []
        for _ in range(10):
            flow(cell, 0.01)
            peaks.append(cell.drive.sample().state.peak_force_n)
        cell.episode.tick()
        assert cell.sent.rows[-1].peak_force_n == max(peaks)
    assert cell.episode.result.peak_force_n > 5.0


def test_a_stop_makes_a_moving_arm_hold_where_it_is():
    cell = begun()
    cell.episode.on_answer(answer(cell.episode, (1, 1, 1, 0, 0, 0)))
    flow(cell, 0.12)
    before = cell.drive.sample()
    cell.drive.stop('the button')
    held = cell.drive.sample()
    np.testing.assert_array_equal(held.applied.position, before.state.pose.position)
    assert np.linalg.norm(before.applied.position - held.applied.position) > 0.005
    flow(cell, 0.5)
    assert cell.episode.result.reason == 'the button'
    rest = cell.drive.sample().state.pose.position
    assert np.linalg.norm(rest - held.applied.position) < 0.004
