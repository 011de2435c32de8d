# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The run's story with scripted cells: phases, gate, streak, fresh check, repeats, ends."""

import threading
import time

import pytest
from scripted import LEARNER, ScriptedCell, make

from user_core import live
from user_core.errors import UserError
from user_core.outcome import Boundary, Episode, Mode
from user_core.tally import StoppedError


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
    by_phase = [
        {g.seed for g in cell.goals if g.mode is mode}
        for mode in (Mode.DEMO, Mode.TRAIN, Mode.EVAL)
    ]
    assert not (by_phase[0] & by_phase[1] | by_phase[0] & by_phase[2] | by_phase[1] & by_phase[2])


def test_every_verdict_comes_from_the_deterministic_policy_and_the_sampled_one_stands_apart(
    tmp_path,
):
    run = make(tmp_path, ScriptedCell())
    run()
    modes = {a.kind: {e.goal.mode for e in a.episodes} for a in run.attempts}
    assert modes == {
        'streak': {Mode.EVAL},
        'fresh': {Mode.EVAL},
        'clone': {Mode.EVAL},
        'clone_sampled': {Mode.EVAL_SAMPLED},
    }
    assert {a.version for a in run.attempts} == {3}


def test_a_run_that_only_evaluates_asks_for_the_chosen_version_and_nothing_else(tmp_path):
    cell = ScriptedCell(lambda goal, n: n != 4)
    run = make(tmp_path, cell, overrides=['evaluate=/some/run'])
    assert run() is True
    assert {(g.mode, g.policy, g.version) for g in cell.goals} == {(Mode.EVAL, 'actor', 3)}
    assert [a.kind for a in run.attempts] == ['fresh']
    assert len(run.best.episodes) == 20
    assert run.best.successes == 19


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
    assert run.best is None
    assert not run.attempts


def test_a_demonstrator_that_fails_too_often_ends_the_run_with_the_reason(tmp_path):
    run = make(tmp_path, ScriptedCell(lambda goal, n: n == 1))
    with pytest.raises(UserError, match='Only 1 of 3 demonstrations'):
        run()


def test_a_void_episode_is_repeated_with_its_seed_and_not_counted(tmp_path):
    def rule(goal, n):
        return (
            Episode(goal, 'arm0', Boundary.ABORT, 'the policy was lost', void=True)
            if n == 2
            else True
        )

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


@pytest.mark.parametrize('said', [{**LEARNER, 'backlog': 1e6}, {'state': 'TRAINING'}])
def test_training_in_lockstep_waits_for_a_learner_that_owes_or_has_not_told_its_updates(
    tmp_path, said
):
    owed = dict(said)
    cell = ScriptedCell()
    run = make(tmp_path, cell, learner=lambda: owed)
    worker = threading.Thread(target=run.train, daemon=True)
    worker.start()
    time.sleep(0.3)
    assert not cell.goals
    owed.update(LEARNER)
    worker.join(timeout=20)
    assert cell.goals


@pytest.mark.parametrize('pace', ['lockstep', 'realtime'])
@pytest.mark.parametrize('said', [{}, {'state': 'WAIT_DEMOS'}, {'state': 'WARMUP'}])
def test_no_training_begins_before_the_learner_has_published_whatever_the_pace(
    tmp_path, pace, said
):
    cell = ScriptedCell()
    learner = dict(said)
    run = make(tmp_path, cell, learner=lambda: learner, overrides=[f'pace={pace}'])
    worker = threading.Thread(target=run.train, daemon=True)
    worker.start()
    time.sleep(0.3)
    assert not cell.goals
    learner.update(LEARNER)
    worker.join(timeout=20)
    assert cell.goals


@pytest.mark.parametrize('busy', [True, False])
def test_a_learner_is_waited_for_as_long_as_it_teaches_its_encoders(tmp_path, monkeypatch, busy):
    monkeypatch.setattr('user_core.run.PATIENCE_S', 0.5)
    end = time.monotonic() + 2.0

    def learner():
        if time.monotonic() > end:
            return LEARNER
        return {'state': 'WARMUP', 'lessons': time.monotonic() if busy else 7.0}

    run = make(tmp_path, ScriptedCell(), learner=learner)
    if busy:
        run.train()
        assert run.trained
    else:
        with pytest.raises(UserError, match='No episode could be run'):
            run.train()


def test_a_learner_that_gave_up_ends_the_run_with_its_reason(tmp_path):
    run = make(
        tmp_path,
        ScriptedCell(),
        learner=lambda: {'state': 'HALTED', 'reason': 'the critic diverged'},
    )
    with pytest.raises(UserError, match='critic diverged'):
        run()


def test_a_request_to_stop_ends_the_run_between_episodes(tmp_path):
    run = make(tmp_path, ScriptedCell())
    run.stop.set()
    with pytest.raises(StoppedError):
        run()


def test_the_live_line_moves_before_the_first_success(tmp_path):
    run = make(tmp_path, ScriptedCell(lambda goal, n: goal.mode is Mode.DEMO, length=100))
    run.demonstrate()
    run.train()
    line = live.line(run)
    for word in ('closest', 'force', 'Q'):
        assert word in line


def test_the_live_line_of_an_evaluation_counts_its_episodes_and_nothing_else(tmp_path):
    lines = []

    def rule(goal, n):
        if goal.mode is Mode.EVAL and goal.policy == 'actor':
            lines.append(live.line(run))
            return len(lines) != 13  # the third of the fresh starts
        return True

    run = make(tmp_path, ScriptedCell(rule))
    run()
    said = [line.partition(' s  ')[2] for line in lines]
    assert said[0] == 'streak 0/10 ok'
    assert said[9] == 'streak 9/10 ok'
    assert said[10] == 'fresh 0/20 ok'
    assert said[29] == 'fresh 18/20 ok, 1 failed'
    assert all(line.startswith('EVALUATION ') for line in lines)


@pytest.mark.parametrize(('steps', 'opens'), [(12, True), (13, False)])
def test_the_gate_stays_shut_while_successes_are_slower_than_asked(tmp_path, steps, opens):
    def rule(goal, n):
        length = 20 if goal.mode is Mode.DEMO else steps
        return Episode(goal, 'arm0', Boundary.SUCCESS, length=length)

    limits = ['evaluation.gate_steps_share=0.6', 'budget.env_steps=1000']
    run = make(tmp_path, ScriptedCell(rule), overrides=limits)
    run.demonstrate()
    assert run.train()
    assert (run.env_steps < 1000) is opens  # shut: it opens only at the budget's end


def test_a_second_fresh_evaluation_and_a_later_one_use_starts_never_judged_before(tmp_path):
    fresh = []

    def rule(goal, n):
        if goal.mode is Mode.EVAL and goal.policy == 'actor' and goal.seed >> 28 & 15 == 3:
            fresh.append(goal.seed)
            return len(fresh) > 5
        return True

    cell = ScriptedCell(rule)
    run = make(tmp_path, cell)
    assert run() is True
    assert len(fresh) == len(set(fresh)) == 40
    judged = {g.seed for g in cell.goals}
    clone = next(a for a in run.attempts if a.kind == 'clone')
    assert [e.goal.seed for e in clone.episodes] == fresh[20:25]
    again = ScriptedCell()
    (tmp_path / 'eval').mkdir()
    make(tmp_path / 'eval', again, overrides=[f'evaluate={tmp_path}'])()
    assert not judged & {g.seed for g in again.goals}
