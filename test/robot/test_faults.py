# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The drive when the robot itself refuses: faults, recoveries, their limits; and floods of
targets.
"""

from dataclasses import replace
import math

import numpy as np
import pytest
from rig import Cell

from user_core import config as schema
from user_core.geometry import Pose, angle, relative
from user_robot.drive import FOREIGN_AFTER_S, RECOVER_WITHIN_S
from user_robot.latch import Mode
from user_robot.row import Command
from user_robot.safety import REFUSED
from user_sim.arm import SimArm


class MoodyArm(SimArm):
    """The simulated arm with a driver that can fail."""

    fault, reflex, rate = '', False, 1.0
    asked = 0
    heals = True
    pushed = 0.0

    def state(self):
        state = super().state()
        peak = max(state.peak_force_n, self.pushed)
        return replace(
            state, fault=self.fault, reflex=self.reflex, success_rate=self.rate, peak_force_n=peak
        )

    def recover(self):
        self.asked += 1
        if self.heals:
            self.fault = ''


@pytest.fixture
def cell(monkeypatch):
    monkeypatch.setitem(__import__('user_robot.arm').arm.ARMS, 'sim', 'test_faults:MoodyArm')
    cell = Cell(realtime=True)
    assert type(cell.drive.arm).__name__ == 'MoodyArm'
    cell.reset()
    return cell


def stay(cell, step):
    return Command(cell.number, step, cell.drive.sample().state.pose, math.nan)


def end_of_reset(cell, seed=1):
    """What a reset answers."""
    ends = []
    cell.number += 1
    start = cell.task.start(seed)
    cell.drive.move([start], 0.25, 1.0, cell.number, seed, True, ends.append)
    for _ in range(400):
        if ends:
            return ends[0]
        cell.clock.now += 0.02
        cell.drive.advance(0.02)
    raise AssertionError('the reset never ended')


def test_a_fault_of_the_driver_is_a_state_at_the_next_sample(cell):
    assert cell.drive.command(stay(cell, 0))
    cell.drive.arm.fault = 'the robot stopped itself'
    sample = cell.drive.advance(0.01)
    assert (sample.mode, sample.reason) == (Mode.FAULT, 'the robot stopped itself')
    assert not cell.drive.command(stay(cell, 1))
    assert cell.drive.sample().limited & REFUSED


def test_a_fault_that_went_away_by_itself_still_waits_for_a_recovery(cell):
    cell.drive.arm.fault = 'the enabling button was let go'
    cell.drive.advance(0.01)
    cell.drive.arm.fault = ''
    assert cell.drive.advance(0.01).mode is Mode.FAULT
    assert cell.recover()[0]


def test_recover_answers_when_the_driver_is_well_again(cell):
    said = []
    cell.drive.arm.fault = 'reflex'
    cell.drive.advance(0.01)
    cell.drive.recover(lambda *answer: said.append(answer))
    assert said == []
    cell.drive.advance(0.01)
    assert said == [(True, 'recovered from: reflex')]
    assert cell.drive.command(stay(cell, 0))
    assert cell.drive.latch.recoveries == 1


def test_a_fault_that_never_clears_is_answered_in_two_seconds_and_tried_once(cell):
    said = []
    arm = cell.drive.arm
    arm.fault, arm.heals = 'the brakes are locked', False
    cell.drive.advance(0.01)
    cell.drive.recover(lambda *answer: said.append(answer))
    second = []
    cell.drive.recover(lambda *answer: second.append(answer))
    assert second == [(False, 'another recovery is under way')]
    for _ in range(5):
        cell.clock.now += RECOVER_WITHIN_S / 4
        cell.drive.advance(0.01)
    assert len(said) == 1
    assert not said[0][0]
    assert 'the brakes are locked' in said[0][1]
    assert arm.asked == 1
    assert cell.drive.sample().mode is Mode.FAULT


def test_a_fault_in_the_middle_of_a_reset_ends_it_with_the_reason(cell):
    ends = []
    cell.drive.move([cell.task.start(5)], 0.05, 1.0, 9, 5, False, ends.append)
    cell.drive.advance(0.02)
    cell.drive.arm.fault = 'reflex while moving'
    sample = cell.drive.advance(0.02)
    assert ends == ['reflex while moving']
    assert sample.mode is Mode.FAULT
    assert cell.drive.motion is None


def test_a_reset_backs_out_of_a_reflex_but_not_out_of_any_fault(cell):
    arm = cell.drive.arm
    arm.fault, arm.reflex = 'reflex', True
    cell.drive.advance(0.01)
    assert end_of_reset(cell) == ''
    arm.fault, arm.reflex = 'no connection', False
    cell.drive.advance(0.01)
    assert end_of_reset(cell) == 'no connection'
    assert cell.drive.sample().mode is Mode.FAULT


def test_recoveries_by_resets_are_counted_and_end(cell):
    arm, most = cell.drive.arm, cell.drive.limits.recoveries_in_a_row
    arm.reflex = True
    for _ in range(most):
        arm.fault = 'reflex'
        cell.drive.advance(0.01)
        assert end_of_reset(cell) == ''
    arm.fault = 'reflex'
    cell.drive.advance(0.01)
    refused = end_of_reset(cell)
    assert 'recoveries in a row' in refused
    assert 'reflex' in refused
    assert cell.drive.latch.recoveries == most
    said = []
    cell.drive.recover(lambda *answer: said.append(answer))
    cell.drive.advance(0.01)
    assert said[0][0]
    assert end_of_reset(cell) == ''


def test_a_clean_episode_between_starts_the_count_anew(cell):
    arm = cell.drive.arm
    arm.reflex = True
    for _ in range(2 * cell.drive.limits.recoveries_in_a_row):
        arm.fault = 'reflex'
        cell.drive.advance(0.01)
        assert end_of_reset(cell) == ''
        assert end_of_reset(cell) == ''


def test_an_arm_whose_control_cycles_come_late_does_not_start(cell):
    cell.drive._min_success_rate = 0.9
    cell.drive.arm.rate = 0.75
    cell.drive.advance(0.01)
    refused = end_of_reset(cell)
    assert '75%' in refused
    assert 'min_success_rate' in refused
    cell.drive.arm.rate = 0.99
    assert end_of_reset(cell) == ''


def test_a_push_above_the_force_limit_blocks_commands_until_the_reset(cell):
    assert cell.drive.command(stay(cell, 0))
    cell.drive.arm.pushed = cell.drive.limits.force_limit_n + 25
    sample = cell.drive.advance(0.01)
    assert sample.mode is Mode.FAULT
    assert 'force_limit_n' in sample.reason
    cell.drive.arm.pushed = 0.0
    assert not cell.drive.command(stay(cell, 1))
    assert end_of_reset(cell) == ''
    assert cell.drive.sample().mode is Mode.READY


def test_an_arm_that_is_too_fast_is_stopped():
    cell = Cell(realtime=True, safety=schema.Safety(max_speed_m_s=0.02))
    cell.reset()
    target = cell.drive.sample().state.pose
    down = Pose(target.position - np.array([0, 0, 0.02]), target.quaternion)
    assert cell.drive.command(Command(cell.number, 0, down, math.nan))
    for _ in range(40):
        sample = cell.drive.advance(0.01)
    assert sample.mode is Mode.FAULT
    assert 'max_speed_m_s' in sample.reason


def test_a_reset_that_ends_elsewhere_is_no_start(cell, monkeypatch):
    monkeypatch.setattr(cell.drive.arm, 'reset', lambda pose, seed: None)
    refused = end_of_reset(cell, seed=8)  # put nowhere, as a real arm is
    assert 'from its start' in refused


def test_a_stop_while_the_arm_recovers_leaves_nothing_that_begins_by_itself(cell):
    arm, ends = cell.drive.arm, []
    arm.fault, arm.reflex, arm.heals = 'reflex', True, False
    cell.drive.advance(0.01)
    cell.drive.move([cell.task.start(4)], 0.1, 1.0, 9, 4, False, ends.append)
    assert ends == []  # it waits for the recovery
    cell.drive.emergency(True)
    assert len(ends) == 1
    cell.drive.emergency(False)
    assert cell.drive.clear_stop()[0]
    arm.fault, before = '', cell.drive.sample().state.pose.position
    for _ in range(20):
        sample = cell.drive.advance(0.02)
    assert cell.drive.motion is None
    assert len(ends) == 1
    np.testing.assert_allclose(sample.state.pose.position, before, atol=1e-3)


def test_a_reset_that_is_cancelled_while_the_arm_recovers_is_not_made(cell):
    arm, ends = cell.drive.arm, []
    arm.fault, arm.reflex, arm.heals = 'reflex', True, False
    cell.drive.advance(0.01)
    cell.drive.move([cell.task.start(4)], 0.1, 1.0, 9, 4, False, ends.append)
    cell.drive.cancel('cancelled')
    arm.fault = ''
    cell.drive.advance(0.02)
    assert ends == ['cancelled']
    assert cell.drive.motion is None


def test_the_robots_own_stop_outranks_a_contact_that_a_reset_may_recover(cell):
    arm = cell.drive.arm
    arm.pushed = cell.drive.limits.force_limit_n + 25
    assert cell.drive.advance(0.01).mode is Mode.FAULT
    arm.pushed, arm.fault = 0.0, 'the enabling button was let go'
    assert cell.drive.advance(0.01).reason == 'the enabling button was let go'
    arm.fault = ''
    cell.drive.advance(0.01)
    assert end_of_reset(cell) == 'the enabling button was let go'
    assert cell.drive.latch.faults == 1


def test_a_reset_may_back_out_of_a_press_but_not_make_a_new_one(cell):
    arm, limit = cell.drive.arm, cell.drive.limits.force_limit_n
    arm.pushed = limit + 25
    cell.drive.advance(0.01)
    ends = []
    cell.drive.move([cell.task.start(4)], 0.05, 1.0, 9, 4, False, ends.append)
    arm.pushed = limit + 30
    assert cell.drive.advance(0.02).mode is not Mode.FAULT
    arm.pushed = limit + 40
    assert cell.drive.advance(0.02).mode is Mode.FAULT
    assert 'force_limit_n' in ends[0]


def test_a_joint_motion_alone_ends_where_it_ends(cell, monkeypatch):
    monkeypatch.setattr(cell.drive.arm, 'move_joints', lambda q, speed: None, raising=False)
    ends = []
    cell.drive.move([], 0.1, 1.0, 9, 0, False, ends.append, joints=np.zeros(7))
    cell.drive.advance(0.02)
    assert ends == ['']


def test_another_stack_moves_the_arm_until_an_episode_does(cell):
    here = cell.drive.sample().state.pose
    assert not cell.drive.follow(here)  # a start belongs to its episode
    cell.clock.now += FOREIGN_AFTER_S
    assert cell.drive.follow(here)
    assert cell.drive.sample().mode is Mode.ACTIVE
    assert not cell.drive.sample().answers
    assert cell.drive.command(stay(cell, 0))
    assert not cell.drive.follow(here)
    cell.clock.now += 1.0
    assert cell.drive.advance(0.01).mode is Mode.HOLD
    assert not cell.drive.follow(here)
    cell.clock.now += FOREIGN_AFTER_S
    assert cell.drive.follow(here)


@pytest.mark.parametrize('seed', range(4))
def test_ten_thousand_adversarial_targets_never_pass_a_limit(seed):
    """NaN, jumps, far poses, floods and silence: 4 x 2,500 targets on the drive and its arm, with
    the applied targets, the torques of the law and the measured motion all within their limits.
    """
    rng = np.random.default_rng(seed)
    cell = Cell(realtime=True)
    cell.reset()
    limits, arm, frame = cell.drive.limits, cell.drive.arm, cell.task.frame
    low, high = np.array(limits.box_min_m), np.array(limits.box_max_m)
    turn_max = np.array(limits.box_rotation_rad)
    rate_nm = arm.config.max_delta_tau_nm * 2  # of the law, which runs at 500 Hz
    step, torque = 0, arm.law.tau.copy()
    assert cell.drive.command(stay(cell, 0))
    for _ in range(2500):
        here = cell.drive.sample().state.pose
        kind = rng.choice(['near', 'far', 'nan', 'inf', 'turned', 'stale', 'silence'])
        position, quaternion = here.position.copy(), here.quaternion.copy()
        if kind == 'near':
            position += rng.normal(0, 0.01, 3)
        elif kind == 'far':
            position += rng.normal(0, 10.0 ** rng.uniform(-1, 6), 3)
        elif kind in ('nan', 'inf'):
            position[rng.integers(3)] = math.nan if kind == 'nan' else math.inf
        elif kind == 'turned':
            quaternion = rng.normal(size=4)
            quaternion /= np.linalg.norm(quaternion)
        if kind != 'silence':
            step += kind != 'stale'
            before = cell.drive.sample().state.pose
            followed = cell.drive.command(
                Command(cell.number, step, Pose(position, quaternion), math.nan)
            )
            applied = cell.drive.sample().applied
            if kind in ('nan', 'inf', 'stale'):
                assert not followed
            where, turned = relative(frame, applied)
            assert (where >= low - 1e-9).all()
            assert (where <= high + 1e-9).all()
            assert (np.abs(turned) <= turn_max + 1e-6).all()
            assert np.linalg.norm(applied.position - before.position) <= limits.max_step_m + 1e-6
            assert angle(applied, before) <= limits.max_step_rad + 1e-6
        cell.clock.now += 0.3 if kind == 'silence' else 0.002
        arm.advance(0.002)
        assert np.abs(arm.law.tau - torque).max() <= rate_nm + 1e-9
        torque = arm.law.tau.copy()
        sample = cell.drive.advance(0.0)
        if kind == 'silence' and sample.mode is not Mode.FAULT:
            assert sample.mode in (Mode.HOLD, Mode.READY)
        measured, _ = relative(frame, sample.state.pose)
        assert (measured >= low - 0.01).all()
        assert (measured <= high + 0.01).all()
        assert np.linalg.norm(sample.state.twist[:3]) <= limits.max_speed_m_s
        if sample.mode is Mode.FAULT:  # a hard contact: back out, go on
            assert end_of_reset(cell, seed=int(rng.integers(1000))) == ''
            step, torque = 0, arm.law.tau.copy()
            assert cell.drive.command(stay(cell, 0))
