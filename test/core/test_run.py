# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The run's story with scripted cells: phases, gate, streak, fresh check, repeats, ends."""

from pathlib import Path
import threading
import time

import pytest
from user_core import report
from user_core.config import load
from user_core.errors import UserError
from user_core.run import Announced, Boundary, Episode, Goal, Mode, Run, Stopped

LEARNER = {'state': 'TRAINING', 'backlog': 0.0, 'updates': 10.0, 'q': 0.1, 'utd': 1.0, 'alpha': 0.02}


class ScriptedCell:
    """A cell whose success depends on a rule over the goal and its count; remembers what it was asked."""

    def __init__(self, rule=lambda goal, n: True, length: int = 20) -> None:
        self.rule, self.length, self.goals = rule, length, []

    def __call__(self, goal: Goal) -> Episode:
        self.goals.append(goal)
        verdict = self.rule(goal, len(self.goals))
        if isinstance(verdict, Episode):
            return verdict
        end = Boundary.SUCCESS if verdict else Boundary.TIMEOUT
        return Episode(goal, 'arm0', end, length=self.length, episode_return=float(verdict), peak_force=10.0,
                       first_version=1, last_version=1, duration_s=0.1 * self.length)


def make(tmp_path: Path, *cells, learner=None, overrides=()) -> Run:
    weights = tmp_path / 'weights'
    weights.mkdir()
    announced = {}
    for policy in ('actor', 'clone'):
        file = weights / f'{policy}.safetensors'
        file.write_bytes(policy.encode())
        announced[policy] = Announced(policy, 3, policy, file)
    config = load('peg_rlpd', ['budget.demos=3', 'budget.max_demo_attempts=6', 'budget.env_steps=2000',
                               'evaluation.consecutive=10', 'evaluation.fresh_episodes=20',
                               'evaluation.clone_episodes=5', 'evaluation.min_steps_between=100', *overrides])
    named = {f'arm{i}': cell for i, cell in enumerate(cells)}
    return Run(config, tmp_path, named, learner or (lambda: LEARNER), announced.get, lambda *_: None, lambda _: None)


def test_a_run_goes_from_demonstrations_to_a_proven_version(tmp_path):
    cell = ScriptedCell()
    run = make(tmp_path, cell)
    assert run() is True
    kinds = [a.kind for a in run.attempts]
    assert kinds == ['streak', 'fresh', 'clone', 'clone_sampled']
    assert {g.mode for g in cell.goals} == set(Mode)
    assert all(g.version == 3 for g in cell.goals if g.mode in (Mode.EVAL, Mode.EVAL_SAMPLED))
    assert (tmp_path / 'checkpoints' / 'actor-3.safetensors').read_bytes() == b'actor'


def test_start_seeds_never_repeat_between_demonstrations_training_and_evaluation(tmp_path):
    cell = ScriptedCell()
    run = make(tmp_path, cell)
    run()
    seeds = [(g.policy, g.mode, g.seed) for g in cell.goals]
    assert len(set(seeds)) == len(seeds)
    by_phase = [{g.seed for g in cell.goals if g.mode is mode} for mode in (Mode.DEMO, Mode.TRAIN, Mode.EVAL)]
    assert not (by_phase[0] & by_phase[1] | by_phase[0] & by_phase[2] | by_phase[1] & by_phase[2])


def test_the_baseline_is_judged_on_the_same_starts_as_the_learned_policy(tmp_path):
    cell = ScriptedCell()
    run = make(tmp_path, cell)
    run()
    fresh, clone = run.attempts[1], run.attempts[2]
    assert [e.goal.seed for e in clone.episodes] == [e.goal.seed for e in fresh.episodes][:5]


def test_a_failure_ends_the_streak_and_training_goes_on(tmp_path):
    failed = []

    def rule(goal, n):
        if goal.mode is Mode.EVAL and goal.policy == 'actor' and not failed:
            failed.append(goal)
            return False
        return True

    run = make(tmp_path, ScriptedCell(rule))
    assert run() is True
    streaks = [a for a in run.attempts if a.kind == 'streak']
    assert [len(a.episodes) for a in streaks] == [1, 10]
    assert streaks[1].at_env_steps >= streaks[0].at_env_steps + 100


def test_a_streak_that_does_not_hold_on_fresh_starts_is_no_success(tmp_path):
    fresh = []

    def rule(goal, n):
        if goal.mode is Mode.EVAL and goal.policy == 'actor' and goal.seed >> 28 & 15 == 3:
            fresh.append(goal)
            return len(fresh) > 5
        return True

    run = make(tmp_path, ScriptedCell(rule))
    assert run() is True
    kinds = [(a.kind, a.successes) for a in run.attempts if a.policy == 'actor']
    assert kinds == [('streak', 10), ('fresh', 15), ('streak', 10), ('fresh', 20)]
    assert run.best.successes == 20


def test_the_budget_ends_a_run_that_does_not_learn(tmp_path):
    cell = ScriptedCell(lambda goal, n: goal.mode is Mode.DEMO, length=100)
    run = make(tmp_path, cell)
    assert run() is False
    assert run.env_steps == 2000
    numbers = report.write(run)
    assert numbers['fresh_success_rate'] is None
    assert numbers['bc_success_rate'] is None
    assert (tmp_path / 'success.png').stat().st_size > 1000


def test_a_demonstrator_that_fails_too_often_ends_the_run_with_the_reason(tmp_path):
    run = make(tmp_path, ScriptedCell(lambda goal, n: n == 1))
    with pytest.raises(UserError, match='only 1 of 3 demonstrations'):
        run()


def test_a_void_episode_is_repeated_with_its_seed_and_not_counted(tmp_path):
    def rule(goal, n):
        return Episode(goal, 'arm0', Boundary.ABORT, 'the policy was lost', void=True) if n == 2 else True

    cell = ScriptedCell(rule)
    run = make(tmp_path, cell)
    run.demonstrate()
    assert len(run.demos) == 3
    assert [g.seed for g in cell.goals][1] == [g.seed for g in cell.goals][2]


def test_two_cells_share_the_work_without_sharing_a_seed(tmp_path):
    meet = threading.Barrier(2, timeout=10)

    def together(goal, n):
        if goal.mode is Mode.DEMO and n == 1:
            meet.wait()  # only passes when both cells run at once
        return True

    cells = ScriptedCell(together), ScriptedCell(together)
    run = make(tmp_path, *cells)
    run.demonstrate()
    assert not {g.seed for g in cells[0].goals} & {g.seed for g in cells[1].goals}


def test_training_in_lockstep_waits_for_a_learner_that_owes_updates(tmp_path):
    owed = {**LEARNER, 'backlog': 1e6}
    cell = ScriptedCell()
    run = make(tmp_path, cell, learner=lambda: owed)
    worker = threading.Thread(target=run.train, daemon=True)
    worker.start()
    time.sleep(0.3)
    assert not cell.goals
    owed['backlog'] = 0.0
    worker.join(timeout=20)
    assert cell.goals


def test_a_learner_that_gave_up_ends_the_run_with_its_reason(tmp_path):
    run = make(tmp_path, ScriptedCell(), learner=lambda: {'state': 'HALTED', 'reason': 'the critic diverged'})
    with pytest.raises(UserError, match='critic diverged'):
        run()


def test_a_request_to_stop_ends_the_run_between_episodes(tmp_path):
    run = make(tmp_path, ScriptedCell())
    run.stop.set()
    with pytest.raises(Stopped):
        run()


def test_wilson_interval_of_eight_in_ten():
    low, high = report.wilson(8, 10)
    assert (round(low, 2), round(high, 2)) == (0.49, 0.94)
    assert report.wilson(0, 0) is None


def test_the_live_line_moves_before_the_first_success(tmp_path):
    run = make(tmp_path, ScriptedCell(lambda goal, n: goal.mode is Mode.DEMO, length=100))
    run.demonstrate()
    run.train()
    line = run.live()
    for word in ('closest', 'force', 'Q'):
        assert word in line
