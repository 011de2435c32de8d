# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Whole runs that are killed and resumed end as others do, and collect nothing twice."""

from collections import Counter, defaultdict
import json
import os
from pathlib import Path
import random
import signal
import time

import pytest
from running import Running
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from user_core.config import load
from user_core.journal import NAME, Journal
from user_core.outcome import Boundary, Mode
from user_learning.row import Row
from user_learning.tail import Tail

pytestmark = [pytest.mark.timeout(500), pytest.mark.needs_ros]

DEMOS, STEPS = 4, 500
SMALL = (
    f'budget.demos={DEMOS}',
    f'budget.env_steps={STEPS}',
    'learner.warmup_updates=20',
    'learner.clone_updates=20',
    'learner.checkpoint_every_s=3',
    'evaluation.gate_successes=20',
)
SOLVED_SOON = (  # by imitation alone, which succeeds now and then
    'budget.demos=8',
    'learner.warmup_updates=1000',
    'learner.clone_updates=100',
    'learner.start_rows=1000000',
    'evaluation.gate_successes=1',
    'evaluation.gate_window=3',
    'evaluation.gate_steps_share=null',
    'evaluation.min_steps_between=0',
    'evaluation.consecutive=1',
    'evaluation.fresh_episodes=12',
    'evaluation.fresh_success_rate=0',
    'evaluation.clone_episodes=2',
)


@pytest.fixture
def start(tmp_path):
    """Starts runs of one name that nobody else has, and ends them with the test."""
    runs, name = [], f'r{os.getpid()}'

    def begin(*overrides):
        run = Running(tmp_path, *overrides, f'run={name}')
        run.folder = tmp_path / name
        runs.append(run)
        return run

    yield begin
    for run in runs:
        run.close()


def rows_of(folder: Path) -> list[Row]:
    return [row for row in Tail(folder / 'store').rows() if isinstance(row, Row)]


def check_rows(rows: list[Row]) -> None:
    """No row is there twice or lost in between; versions never go back."""
    steps = Counter((row.cell, row.episode, row.step, row.closing) for row in rows)
    assert max(steps.values()) == 1
    by_incarnation = defaultdict(list)
    for row in rows:
        by_incarnation[row.incarnation].append(row.seq)
    for seqs in by_incarnation.values():
        assert seqs == list(range(len(seqs)))
    versions = [r.policy_version for r in rows if r.mode == Mode.TRAIN and not r.closing]
    assert versions == sorted(versions)


def check_curves(folder: Path) -> None:
    """No curve goes back."""
    for part in ('run', 'learner'):
        events = EventAccumulator(str(folder / 'tensorboard' / part), {'scalars': 0})
        events.Reload()
        assert events.Tags()['scalars']
        for tag in events.Tags()['scalars']:
            steps = [event.step for event in events.Scalars(tag)]
            assert steps == sorted(steps), (part, tag)


def check_end(run: Running) -> None:
    """Every process ended by itself and well."""
    text = run.log.read_text()
    for words in ('Traceback', 'was killed', 'FATAL', 'WARN ended'):
        assert words not in text, text[-3000:]


def shown(rows: list[Row]) -> int:
    """Demonstrations that succeeded."""
    ends = [r for r in rows if r.mode == Mode.DEMO and r.closing]
    return sum(r.boundary == Boundary.SUCCESS for r in ends)


@pytest.mark.parametrize('phase', ['demonstrations', 'training'])
def test_a_run_that_was_killed_as_a_whole_goes_on_and_collects_nothing_twice(start, phase):
    run = start(*SMALL)
    if phase == 'demonstrations':
        run.until(lambda s: s['phase'] == 'DEMONSTRATIONS' and s['demos'] >= 1, 200)
    else:
        run.until(lambda s: s['env_steps'] >= 100, 200)
    wait_s = random.uniform(0.0, 2.0)
    print(f'killed {wait_s:.3f} s later')
    time.sleep(wait_s)
    run.kill_all()
    run = start('resume=latest')
    report = run.end(300)
    assert run.process.returncode == 3, run.log.read_text()[-3000:]
    check_end(run)
    rows = rows_of(run.folder)
    check_rows(rows)
    check_curves(run.folder)
    assert report['demos'] == shown(rows) == DEMOS
    trained = sum(r.mode == Mode.TRAIN and not r.closing for r in rows)
    longest = load('peg_rlpd').task.max_steps
    assert STEPS <= trained <= STEPS + longest
    assert report['train_env_steps'] <= STEPS + longest
    seeds = [(e['mode'], e['seed']) for e in Journal(run.folder / NAME).events if 'seed' in e]
    assert len(set(seeds)) == len(seeds)


def test_an_evaluation_that_was_killed_goes_on_with_its_version_and_the_goal_is_reached(start):
    run = start(*SOLVED_SOON)

    def judged(s):
        return s['phase'] == 'EVALUATION' and 'fresh' in s['live'] and 'fresh 0/' not in s['live']

    run.until(judged, 200)
    run.kill_all()
    events = Journal(run.folder / NAME).events
    begun = [e for e in events if e['what'] == 'begin' and e['kind'] == 'fresh'][-1]
    run = start('resume=latest')
    report = run.end(300)
    assert run.process.returncode == 0, run.log.read_text()[-3000:]
    check_end(run)
    assert (report['fresh_episodes'], report['chosen_version']) == (12, begun['version'])
    after = Journal(run.folder / NAME).events
    fresh = [e for e in after if e.get('policy') == 'actor' and e.get('seed', 0) >> 28 == 3]
    assert {e['version'] for e in fresh} == {begun['version']}
    assert len({e['seed'] for e in fresh}) == len(fresh)
    assert after[: len(events)] == events
    check_rows(rows_of(run.folder))
    check_curves(run.folder)
    again = start('resume=latest')
    assert again.process.wait(timeout=60) == 0
    assert 'has reached its goal already' in again.log.read_text()


def test_a_killed_run_node_comes_back_and_the_others_stay(start):
    run = start(*SMALL)
    run.until(lambda s: s['demos'] >= 1, 200)
    others = [run.pid(name) for name in ('learner', 'replay', 'policy', 'episode', 'arm')]
    for true in (lambda s: s['demos'] > 1, lambda s: s['env_steps'] > 100):
        killed, at = run.kill('run'), time.time()
        run.until(lambda s, true=true, at=at: s['at'] > at + 1.0 and true(s), 200)
        assert run.pid('run') != killed
    assert others == [run.pid(name) for name in ('learner', 'replay', 'policy', 'episode', 'arm')]
    report = run.end(200)
    assert run.process.returncode == 3, run.log.read_text()[-3000:]
    rows = rows_of(run.folder)
    check_rows(rows)
    assert report['demos'] == shown(rows) == DEMOS
    trained = sum(r.mode == Mode.TRAIN and not r.closing for r in rows)
    assert report['train_env_steps'] >= STEPS
    assert trained <= STEPS + load('peg_rlpd').task.max_steps


def tree(run: Running) -> list[int]:
    """The supervisor and all that it started, and all that those started."""
    parents = {}
    for stat in Path('/proc').glob('[0-9]*/stat'):
        try:
            words = stat.read_text().rpartition(')')[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(words[1])
    found = [run.process.pid]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            state = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
        except OSError:
            continue
        found += [pid] if state != 'Z' else []
    return found


@pytest.mark.parametrize('seconds', [0.0, 1.0, 2.5])
def test_a_run_that_is_stopped_while_it_starts_ends_without_a_traceback(start, seconds):
    run = start('budget.demos=50')
    end = time.monotonic() + 60
    while 'run folder' not in run.log.read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    time.sleep(seconds)
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(timeout=60) == 130
    check_end(run)


@pytest.mark.parametrize('how', ['SIGINT', 'SIGTERM', 'SIGHUP', 'twice', 'SIGKILL'])
def test_however_a_run_is_stopped_nothing_of_it_is_left(start, how):
    run = start('budget.demos=50')
    run.until(
        lambda s: s['demos'] >= 1 and s['nodes'].get('/learning/replay', {}).get('rows'), 200
    )
    started = tree(run)
    number = signal.SIGINT if how == 'twice' else signal.Signals[how]
    run.process.send_signal(number)
    if how == 'twice':
        time.sleep(0.2)
        run.process.send_signal(number)
    code = run.process.wait(timeout=60)
    assert code == (-9 if how == 'SIGKILL' else 128 + number)
    end = time.monotonic() + 30
    while left := alive(started):
        assert time.monotonic() < end, left
        time.sleep(0.05)
    text = run.log.read_text()
    assert 'Traceback' not in text
    if how in ('SIGINT', 'SIGTERM', 'SIGHUP'):
        check_end(run)
        assert 'stopped by request' in text
        assert json.loads((run.folder / 'report.json').read_text())['demos'] >= 1
        rows = rows_of(run.folder)
        check_rows(rows)
        kept = list((run.folder / 'spool').glob('*/*.spool'))
        assert rows[-1].closing or kept  # the episode that was cut has its boundary
        assert not [e for e in Journal(run.folder / NAME).events if e.get('void')]
