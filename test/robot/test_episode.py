# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The lockstep episode with the simulated arm: identity, rows, ends, bad input."""

from dataclasses import replace
import math

import numpy as np
import pytest
from rig import Cell, answer
from scipy.spatial.transform import Rotation

from user_core import config as schema
from user_core.geometry import Pose
from user_core.outcome import Boundary, Goal, Mode
from user_robot.episode import ASK_AGAIN_S, PATIENCE_S, REFUSALS
from user_robot.latch import Mode as ArmMode
from user_robot.row import Source

DOWN = (0, 0, 1, 0, 0, 0)


def aim(cell):
    """An action towards full insertion at the nominal pose."""
    position, rotation = (
        cell.sent.observations[-1].state[7:10],
        cell.sent.observations[-1].state[10:13],
    )
    aside = np.hypot(*position[:2]) + 0.1 * abs(rotation[2])
    z = (
        np.clip(100 * (-0.035 - position[2]), -1, 1)
        if aside > 0.002 and position[2] < -0.03
        else 0.5
    )
    return np.clip(np.r_[-60 * position[:2], z, -8 * rotation], -1, 1)


def play(cell, most=400):
    """Acts until the episode ends."""
    for _ in range(most):
        if not cell.episode.running:
            return
        cell.act(aim(cell))
    raise AssertionError('the episode did not end')


EXACT = schema.SimArmConfig(hole_error_m=0, hole_error_rad=0, grasp_error_m=0, grasp_error_rad=0)


def test_an_episode_leaves_one_row_for_every_action_and_a_closing_row():
    cell = Cell(task=schema.PegTask(max_steps=4))
    cell.begin()
    play(cell)
    rows, result = cell.sent.rows, cell.episode.result
    assert [r.step for r in rows] == [0, 1, 2, 3, 4]
    assert [r.closing for r in rows] == [False] * 4 + [True]
    assert [r.valid for r in rows] == [True] * 4 + [False]
    assert all(r.policy_action.shape == r.executed_action.shape == (6,) for r in rows[:4])
    assert rows[4].policy_action.size == rows[4].executed_action.size == 0
    for row, observation in zip(rows[:4], cell.sent.observations, strict=True):
        np.testing.assert_array_equal(row.state, observation.state)
    assert result.length == len(result.period_s) == 4
    assert result.duration_s == pytest.approx(0.4)


def test_the_next_observation_leaves_before_the_row_of_the_last_step():
    cell = Cell()
    order = []
    cell.sent.observation = lambda o: (
        order.append(('observation', o.step)),
        cell.sent.observations.append(o),
    )
    cell.sent.row = lambda r: order.append(('row', r.step))
    cell.begin()
    cell.act(DOWN)
    cell.act(DOWN)
    assert order == [
        ('observation', 0),
        ('observation', 1),
        ('row', 0),
        ('observation', 2),
        ('row', 1),
    ]


def test_success_ends_the_task_and_is_no_truncation():
    cell = Cell(arm=EXACT)
    cell.begin(seed=3)
    play(cell)
    last, closing = cell.sent.rows[-2:]
    assert cell.episode.result.boundary is Boundary.SUCCESS
    assert (last.reward, last.terminated, last.truncated, last.boundary) == (
        1.0,
        True,
        False,
        Boundary.SUCCESS,
    )
    assert (closing.terminated, closing.truncated, closing.boundary) == (
        True,
        False,
        Boundary.SUCCESS,
    )
    assert cell.task.success(replace(cell.drive.sample().state))
    assert sum(r.reward for r in cell.sent.rows) == 1.0


def test_a_timeout_is_a_truncation_and_not_an_end_of_the_task():
    cell = Cell(task=schema.PegTask(max_steps=2))
    cell.begin()
    cell.act(np.zeros(6))
    cell.act(np.zeros(6))
    last, closing = cell.sent.rows[-2:]
    for row in (last, closing):
        assert (row.terminated, row.truncated, row.boundary) == (False, True, Boundary.TIMEOUT)
    assert last.valid


def test_a_force_above_the_limit_aborts_without_reward_and_blocks_the_arm():
    cell = Cell(safety=schema.Safety(force_limit_n=12.0))
    cell.begin(seed=1)
    over_the_block = np.array([1, 0, 1, 0, 0, 0])
    for _ in range(60):
        if cell.episode.running:
            cell.act(over_the_block)
    last, closing = cell.sent.rows[-2:]
    result = cell.episode.result
    assert result.boundary is Boundary.ABORT
    assert '12 N' in result.reason
    assert not result.void
    assert result.peak_force_n > 12.0
    for row in (last, closing):
        assert (row.reward, row.terminated, row.truncated, row.boundary) == (
            0.0,
            False,
            True,
            Boundary.ABORT,
        )
    assert cell.drive.latch.mode is ArmMode.FAULT
    assert not cell.drive.command(replace_step(cell, 1000))
    cell.begin(seed=2)
    cell.act(DOWN)
    assert cell.episode.running


def replace_step(cell, step):
    """A harmless command for the present pose."""
    from user_robot.row import Command

    return Command(cell.number, step, cell.drive.sample().state.pose, math.nan)


@pytest.mark.parametrize('end', ['success', 'timeout', 'force', 'cancel'])
def test_every_kind_of_end_is_a_boundary_and_only_the_task_stops_the_bootstrap(end):
    cell = Cell(
        arm=EXACT,
        task=schema.PegTask(max_steps=5 if end == 'timeout' else 300),
        safety=schema.Safety(force_limit_n=1.0 if end == 'force' else 80.0),
    )
    cell.begin(seed=3)
    if end == 'cancel':
        cell.act(DOWN)
        cell.episode.abort('cancelled', void=True)
    else:
        play(cell)
    closing = cell.sent.rows[-1]
    assert closing.closing
    assert closing.boundary is not Boundary.NONE
    assert closing.terminated is (end == 'success')
    assert closing.truncated is (end != 'success')
    assert [r.closing for r in cell.sent.rows[:-1]] == [False] * (len(cell.sent.rows) - 1)


def test_the_executed_action_is_the_inverse_of_what_the_arm_applied():
    cell = Cell(safety=schema.Safety(max_step_m=0.004))
    cell.begin(seed=5)
    cell.act([1, 1, 1, 0.2, 0, -1])
    row = cell.sent.rows[0]
    np.testing.assert_allclose(row.policy_action, [1, 1, 1, 0.2, 0, -1])
    assert np.linalg.norm(row.executed_action[:3]) == pytest.approx(0.4, abs=1e-5)
    assert row.limited != 0
    applied = cell.drive.sample().applied
    observed = cell.sent.observations[0]
    assert observed.step == 0
    np.testing.assert_allclose(
        cell.task.actions.from_target(applied, cell.task.start(5)), row.executed_action, atol=1e-5
    )


@pytest.mark.parametrize('most_m', [0.02, 0.01], ids=['free', 'limited'])
def test_a_full_action_in_a_frame_at_45_degrees_is_stored_as_the_arm_executed_it(most_m):
    """In the policy's frame and units, by a computation of this test's own."""
    yawed = Rotation.from_euler('z', 45, degrees=True) * Rotation.from_quat([1, 0, 0, 0])
    frame = schema.PoseConfig(
        position_m=(0.5, 0.0, 0.132), quaternion_xyzw=tuple(yawed.as_quat().tolist())
    )
    cell = Cell(task=schema.PegTask(frame=frame), safety=schema.Safety(max_step_m=most_m))
    cell.begin(seed=5)
    observed = cell.drive.sample().state.pose
    cell.act(np.ones(6))
    row, applied = cell.sent.rows[0], cell.drive.sample().applied
    axes, config = yawed.as_matrix(), cell.task.config
    turn = Rotation.from_quat(applied.quaternion) * Rotation.from_quat(observed.quaternion).inv()
    executed = np.r_[
        axes.T @ (applied.position - observed.position) / config.scale_m,
        axes.T @ turn.as_rotvec() / config.scale_rad,
    ]
    np.testing.assert_allclose(row.executed_action, executed, atol=1e-6)
    np.testing.assert_array_equal(row.policy_action, np.ones(6))
    if most_m == 0.01:
        assert np.linalg.norm(executed[:3]) == pytest.approx(1.0, abs=1e-6)
        assert row.limited
    else:
        np.testing.assert_allclose(executed[:3], np.ones(3), atol=1e-6)


@pytest.mark.parametrize(
    ('mode', 'source'),
    [(Mode.TRAIN, Source.POLICY), (Mode.DEMO, Source.SCRIPT), (Mode.DEMO, Source.HUMAN)],
    ids=lambda value: value.name,
)
def test_an_action_outside_of_the_range_is_scaled_before_it_is_executed_and_counted(mode, source):
    cell = Cell()
    cell.begin(mode=mode, policy='actor' if source == Source.POLICY else '')
    here = cell.drive.sample().state.pose
    cell.episode.on_answer(answer(cell.episode, [5, -0.5, 0, 0, 0, 0], source=source))
    wanted = cell.task.actions.to_target(np.array([1, -0.5, 0, 0, 0, 0]), here)
    np.testing.assert_allclose(cell.sent.commands[0].pose.position, wanted.position, atol=1e-9)
    cell.follow()
    row = cell.sent.rows[0]
    assert row.source == source
    assert row.policy_action[0] == 5
    np.testing.assert_allclose(row.executed_action, [1, -0.5, 0, 0, 0, 0], atol=1e-5)
    assert cell.episode.counts['out_of_range_actions'] == 1


@pytest.mark.parametrize(
    'chunk',
    [np.full(6, math.nan), np.full(6, math.inf), np.zeros(5), np.zeros((0, 6)), np.zeros((2, 7))],
    ids=['nan', 'inf', 'short', 'empty', 'wide'],
)
def test_an_unusable_action_never_moves_the_arm_and_ends_the_episode_after_a_few(chunk):
    cell = Cell()
    cell.begin()
    for _ in range(REFUSALS):
        assert cell.episode.running
        cell.episode.on_answer(
            replace(answer(cell.episode, np.zeros(6)), chunk=np.asarray(chunk, np.float32))
        )
    result = cell.episode.result
    assert cell.sent.commands == []
    assert result.boundary is Boundary.ABORT
    assert result.void
    assert "policy 'actor'" in result.reason
    assert [r.closing for r in cell.sent.rows] == [True]
    assert np.isfinite(cell.sent.rows[0].state).all()


def test_one_unusable_action_is_asked_for_again():
    cell = Cell()
    cell.begin()
    cell.act(np.full(6, math.nan))
    assert [o.step for o in cell.sent.observations] == [0, 0]
    cell.act(DOWN)
    assert cell.episode.step == 1


def test_a_state_that_is_not_finite_ends_the_episode_and_is_kept_nowhere():
    cell = Cell()
    cell.begin()
    cell.act(DOWN)
    cell.episode.on_answer(answer(cell.episode, DOWN))
    sample = cell.drive.step(cell.sent.commands.pop())
    bad = replace(sample, state=replace(sample.state, wrench=np.full(6, math.nan)))
    cell.episode.on_sample(bad)
    assert cell.episode.result.boundary is Boundary.ABORT
    assert 'not finite' in cell.episode.result.reason
    assert [(r.step, r.closing) for r in cell.sent.rows] == [(0, False), (1, True)]
    assert all(np.isfinite(r.state).all() for r in cell.sent.rows)


def test_an_applied_target_that_is_not_finite_leaves_no_row():
    cell = Cell()
    cell.begin()
    cell.episode.on_answer(answer(cell.episode, DOWN))
    sample = cell.drive.step(cell.sent.commands.pop())
    lost = Pose(np.full(3, math.inf), sample.applied.quaternion)
    cell.episode.on_sample(replace(sample, applied=lost))
    assert cell.episode.result.void
    assert [(r.step, r.closing) for r in cell.sent.rows] == [(0, True)]


def test_a_pose_that_is_not_finite_never_begins_an_episode():
    cell = Cell()
    sample = cell.reset()
    lost = Pose(np.full(3, math.nan), sample.state.pose.quaternion)

    goal = Goal(Mode.TRAIN, 'actor', 0, 0)
    cell.episode.begin(goal, cell.number, replace(sample, state=replace(sample.state, pose=lost)))
    assert not cell.episode.running
    assert cell.sent.rows == []
    assert cell.sent.observations == []


def test_answers_to_other_steps_and_episodes_are_dropped_and_counted():
    cell = Cell()
    cell.begin()
    cell.act(DOWN)
    cell.episode.on_answer(answer(cell.episode, DOWN, step=0))
    cell.episode.on_answer(answer(cell.episode, DOWN, step=7))
    cell.episode.on_answer(answer(cell.episode, DOWN, number=999))
    assert cell.sent.commands == []
    assert cell.episode.counts == {'late_actions': 1, 'stray_actions': 2}
    cell.episode.on_answer(answer(cell.episode, DOWN))
    cell.episode.on_answer(answer(cell.episode, DOWN))
    assert len(cell.sent.commands) == 1


def test_a_policy_does_not_act_in_a_demonstration_nor_a_script_elsewhere():
    cell = Cell()
    cell.begin(mode=Mode.DEMO, policy='')
    cell.episode.on_answer(answer(cell.episode, DOWN))
    assert cell.sent.commands == []
    cell.act(DOWN, source=Source.SCRIPT, policy='', version=0)
    assert cell.sent.rows[0].source == Source.SCRIPT
    cell.begin(mode=Mode.TRAIN)
    cell.episode.on_answer(answer(cell.episode, DOWN, source=Source.SCRIPT))
    assert cell.sent.commands == []


def test_only_the_version_that_was_asked_for_may_act():
    cell = Cell()
    cell.begin(mode=Mode.EVAL, version=4)
    assert cell.sent.observations[0].version == 4
    cell.act(DOWN, version=5)
    assert cell.sent.rows == []
    cell.act(DOWN, version=4)
    assert cell.sent.rows[0].policy_version == 4


def test_a_chunk_is_executed_row_by_row_from_one_answer():
    cell = Cell()
    cell.begin()
    chunk = np.zeros((3, 6))
    chunk[:, 2] = (0.1, 0.2, 0.3)
    cell.act(chunk, version=9)
    assert [o.step for o in cell.sent.observations] == [0, 3]
    assert [(r.horizon, r.chunk_index, r.policy_version) for r in cell.sent.rows] == [
        (3, i, 9) for i in range(3)
    ]
    np.testing.assert_allclose(
        [r.policy_action[2] for r in cell.sent.rows], [0.1, 0.2, 0.3], rtol=1e-6
    )
    np.testing.assert_allclose(
        [r.executed_action[2] for r in cell.sent.rows], [0.1, 0.2, 0.3], atol=1e-5
    )


def test_a_new_episode_never_executes_the_rest_of_an_old_chunk():
    cell = Cell()
    cell.begin()
    cell.episode.on_answer(answer(cell.episode, np.ones((50, 6))))
    for _ in range(10):
        cell.episode.on_sample(cell.drive.step(cell.sent.commands.pop()))
    cell.sent.commands.clear()
    cell.episode.abort('cancelled', void=True)
    cell.begin(seed=1)
    assert cell.sent.commands == []
    assert cell.sent.observations[-1].step == 0
    cell.act(DOWN, version=2)
    first = next(r for r in cell.sent.rows if r.episode == cell.number)
    assert (first.policy_version, first.chunk_index, first.horizon) == (2, 0, 1)


def test_a_silent_policy_is_asked_again_and_then_named():
    cell = Cell()
    cell.begin(policy='actor')
    cell.clock.now += ASK_AGAIN_S + 0.1
    cell.episode.tick()
    assert [o.step for o in cell.sent.observations] == [0, 0]
    cell.clock.now += PATIENCE_S
    cell.episode.tick()
    result = cell.episode.result
    assert result.void
    assert result.boundary is Boundary.ABORT
    assert "policy 'actor' did not answer" in result.reason
    assert cell.sent.commands == []


def test_an_arm_is_not_enabled_while_no_weights_were_published():
    cell = Cell()
    cell.begin(policy='actor')
    for _ in range(5):
        cell.clock.now += ASK_AGAIN_S + 0.1
        cell.episode.tick()
        assert cell.episode.lack()[0] == 'WAIT_WEIGHTS'
    assert cell.sent.commands == []
    assert cell.drive.sample().mode is ArmMode.READY
    cell.episode.newest_version['actor'] = 1
    assert cell.episode.lack()[0] == 'WAIT_POLICY'
    cell.act(DOWN, version=1)
    assert cell.drive.sample().mode is ArmMode.ACTIVE
    assert [r.policy_version for r in cell.sent.rows] == [1]


def test_a_silent_arm_ends_the_episode_and_leaves_no_row_without_an_outcome():
    cell = Cell()
    cell.begin()
    cell.act(DOWN)
    cell.episode.on_answer(answer(cell.episode, DOWN))
    cell.clock.now += PATIENCE_S + 0.1
    cell.episode.tick()
    assert 'the arm did not answer' in cell.episode.result.reason
    assert [(r.step, r.closing) for r in cell.sent.rows] == [(0, False), (1, True)]


def test_a_stop_while_the_policy_thinks_ends_the_episode_at_once():
    cell = Cell()
    cell.begin()
    cell.drive.stop('the button')
    cell.episode.on_sample(cell.drive.sample())
    assert cell.episode.result.reason == 'the button'
    assert cell.episode.result.void


def test_an_arm_that_was_started_anew_ends_the_episode():
    cell = Cell()
    cell.begin()
    cell.episode.on_sample(Cell().drive.sample())
    assert 'started anew' in cell.episode.result.reason
    assert cell.episode.result.void


def test_the_same_seed_and_actions_give_the_same_rows_bit_for_bit():
    def record():
        cell = Cell()
        rng = np.random.default_rng(7)
        for seed in (11, 12):
            cell.begin(seed=seed)
            for _ in range(12):
                cell.act(rng.uniform(-1, 1, 6))
            cell.episode.abort('cut', void=True)
        return cell.sent.rows

    one, other = record(), record()
    assert len(one) == len(other) == 26
    for a, b in zip(one, other, strict=True):
        assert a.state.tobytes() == b.state.tobytes()
        assert a.executed_action.tobytes() == b.executed_action.tobytes()
        assert (a.reward, a.peak_force_n, a.captured_s) == (b.reward, b.peak_force_n, b.captured_s)


def test_two_cells_keep_their_steps_apart():
    left, right = Cell(), Cell()
    left.number, right.number = 1000, 2000
    left.begin(seed=1)
    right.begin(seed=2)
    for k in range(6):
        left.act(DOWN)
        if k % 2:
            right.act(DOWN)
        right.episode.on_answer(answer(left.episode, DOWN))
    assert {r.episode for r in left.sent.rows} == {1001}
    assert {r.episode for r in right.sent.rows} == {2001}
    assert [r.step for r in left.sent.rows] == list(range(6))
    assert [r.step for r in right.sent.rows] == list(range(3))


def test_the_lag_is_counted_in_versions_that_are_announced_and_not_yet_acting():
    cell = Cell()
    cell.begin()
    cell.episode.newest_version['actor'] = 5
    cell.act(DOWN, version=3)
    cell.act(DOWN, version=5)
    cell.episode.abort('cut', void=True)
    result = cell.episode.result
    assert (result.first_version, result.last_version) == (3, 5)
    assert result.policy_lag == pytest.approx(1.0)
