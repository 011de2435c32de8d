# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""report.json and success.png: what a run is judged by, with null for what does not exist."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from scripted import LEARNER, ScriptedCell, make

from user_core import picture, report
from user_core.outcome import Boundary, Episode, Mode
from user_core.run import Run


def written(run: Run) -> dict:
    """report.json as a strict reader reads it: NaN and the infinities are no JSON."""

    def refuse(word: str) -> None:
        raise ValueError(f'{word} is no JSON')

    report.write(run, report.of(run))
    return json.loads((run.folder / 'report.json').read_text(), parse_constant=refuse)


def test_a_run_of_nothing_reports_null_for_what_it_never_measured(tmp_path):
    run = make(tmp_path, ScriptedCell(), learner=dict)
    numbers = written(run)
    assert numbers['demos'] == numbers['train_env_steps'] == numbers['consecutive_successes'] == 0
    assert numbers['attempts'] == []
    for key in (
        'chosen_version',
        'fresh_success_rate',
        'fresh_success_wilson_95',
        'steps_per_success',
        'bc_success_rate',
        'demo_success_rate',
        'force_p95_n',
        'abort_rate',
        'env_steps_per_s',
        'updates',
        'updates_per_s',
        'policy_lag_p50',
        'period_p50_ms',
        'late_step_rate',
    ):
        assert numbers[key] is None, key


def test_a_solved_run_reports_its_streak_its_fresh_starts_and_the_baselines(tmp_path):
    def rule(goal, n):
        return goal.policy != 'clone' or goal.mode is Mode.EVAL_SAMPLED or goal.seed % 2 == 0

    run = make(tmp_path, ScriptedCell(rule, length=25))
    assert run() is True
    numbers = written(run)
    assert numbers['consecutive_successes'] == numbers['consecutive_wanted'] == 10
    assert numbers['fresh_episodes'] == 20
    assert numbers['fresh_success_rate'] == 1.0
    assert numbers['fresh_success_wilson_95'] == pytest.approx(report.wilson(20, 20))
    assert (numbers['chosen_version'], numbers['chosen_sha256']) == (3, run.best.sha256)
    assert numbers['steps_per_success'] == numbers['demo_steps_per_success'] == 25
    assert numbers['bc_success_rate'] == 0.6
    assert numbers['bc_sampled_success_rate'] == 1.0
    assert numbers['demos'] == numbers['demo_attempts'] == 3
    assert numbers['train_env_steps'] == 25 * numbers['train_episodes'] > 0
    assert numbers['robot_minutes'] == pytest.approx(2.5 * numbers['train_episodes'] / 60)
    assert numbers['updates'] == LEARNER['updates']
    assert [a['kind'] for a in numbers['attempts']] == [
        'streak',
        'fresh',
        'clone',
        'clone_sampled',
    ]


def test_aborts_are_counted_apart_from_other_failures(tmp_path):
    ends = (Boundary.ABORT, Boundary.TIMEOUT)
    run = make(tmp_path, ScriptedCell(learned(lambda n: ends[n % 2])))
    run.evaluate('fresh', run.weights('actor'), 6)
    run.best = run.attempts[0]
    numbers = written(run)
    assert numbers['abort_rate'] == 0.5
    assert numbers['attempts'][0]['aborts'] == 3
    assert numbers['fresh_success_rate'] == 0.0
    assert numbers['steps_per_success'] is None


def test_numbers_that_are_not_finite_become_null(tmp_path):
    cell = ScriptedCell(learned(lambda n: Boundary.SUCCESS, peak_force=math.nan))
    run = make(tmp_path, cell, learner=lambda: {**LEARNER, 'utd': math.inf})
    assert run() is True
    numbers = written(run)
    assert numbers['utd'] is None
    assert numbers['force_p50_n'] is None
    assert numbers['attempts'][0]['force_max_n'] is None
    assert numbers['fresh_success_rate'] == 1.0


def test_the_first_period_of_an_episode_is_no_period(tmp_path):
    periods = np.array([9.0, 0.1, 0.1, 0.1], np.float32)
    cell = ScriptedCell(learned(lambda n: Boundary.SUCCESS, length=4, period_s=periods))
    for pace in ('realtime', 'lockstep'):
        (tmp_path / pace).mkdir()
        run = make(tmp_path / pace, cell, overrides=[f'pace={pace}'])
        run.evaluate('fresh', run.weights('actor'), 5)
        run.best = run.attempts[0]
        numbers = written(run)
        assert numbers['period_p99_ms'] == pytest.approx(100.0, rel=1e-5)
        error = numbers['period_error_p99_ms']
        assert (error is None) is (pace == 'lockstep')  # lockstep keeps no rate
        assert (error or 0.0) == pytest.approx(0.0, abs=1e-3)


def test_the_lag_of_the_policy_is_what_the_training_episodes_measured(tmp_path):
    def rule(goal, n):
        return Episode(goal, 'arm0', Boundary.SUCCESS, length=20, policy_lag=1.5 * (n % 2))

    run = make(tmp_path, ScriptedCell(rule), overrides=['evaluation.gate_successes=20'])
    assert run.train()
    lags = [episode.policy_lag for episode in run.trained]
    numbers = written(run)
    assert numbers['policy_lag_p50'] == pytest.approx(np.median(lags))
    assert numbers['policy_lag_p99'] == pytest.approx(1.5)


def learned(end, **facts):
    """A rule that answers with an episode that ended as `end` of its count says."""

    def rule(goal, n):
        return Episode(goal, 'arm0', end(n), **{'length': 20, **facts})

    return rule


@pytest.mark.parametrize('solved', [False, True])
def test_the_picture_of_a_run_is_drawn_with_nothing_and_with_everything(tmp_path, solved):
    run = make(tmp_path, ScriptedCell())
    if solved:
        assert run() is True
    path = tmp_path / 'success.png'
    picture.draw(run, path)
    assert path.read_bytes().startswith(b'\x89PNG')
    assert path.stat().st_size > 10_000


def test_wilson_interval_of_eight_in_ten():
    low, high = report.wilson(8, 10)
    assert (round(low, 2), round(high, 2)) == (0.49, 0.94)
    assert report.wilson(0, 0) is None


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_wilson_interval_lies_in_zero_to_one_and_holds_the_rate(trial):
    successes, n = trial
    low, high = report.wilson(successes, n)
    assert 0 <= low <= successes / n + 1e-12
    assert successes / n - 1e-12 <= high <= 1


def test_the_worst_arm_speaks_for_all_and_faults_add_up(tmp_path):
    run = make(tmp_path, ScriptedCell())
    assert report.report(run)['faults'] is None
    one = {'period_p99_ms': 5.1, 'command_latency_p99_ms': 2.0, 'faults': 1.0, 'recoveries': 1.0}
    two = {'period_p99_ms': 6.2, 'command_latency_p99_ms': 1.0, 'faults': 2.0, 'recoveries': 0.0}
    run.arms = lambda: [one, two]
    numbers = report.report(run)
    assert numbers['arm_period_p99_ms'] == 6.2
    assert numbers['command_latency_p99_ms'] == 2.0
    assert (numbers['faults'], numbers['recoveries']) == (3, 1)
    assert numbers['state_age_p99_ms'] is None
