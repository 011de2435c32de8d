# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Whole runs over real DDS: the picture's every arrow, two cells, and kills of every role."""

from collections import defaultdict
from itertools import pairwise

import pytest
from running import SHORT, Running

from user_learning.row import Row
from user_learning.tail import Tail

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def start(tmp_path, ros_domain):
    """Starts runs and ends them with the test."""
    runs = []

    def begin(*overrides, **how):
        runs.append(Running(tmp_path, *SHORT, *overrides, **how))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def rows_of(run):
    """Rows of the store by (cell, incarnation)."""
    by = defaultdict(list)
    for row in Tail(run.folder / 'store').rows():
        if isinstance(row, Row):
            by[row.cell, row.incarnation].append(row)
    return by


def check_streams(by):
    """No gap in a sequence, steps in order, a closing row only at the end of an episode."""
    for rows in by.values():
        assert [r.seq for r in rows] == list(range(rows[0].seq, rows[0].seq + len(rows)))
        episodes = defaultdict(list)
        for row in rows:
            episodes[row.episode].append(row)
        for steps in episodes.values():
            assert [r.step for r in steps] == list(range(len(steps)))
            assert all(not r.closing for r in steps[:-1])


def test_every_arrow_of_the_picture_carries_messages(start):
    run = start('budget.env_steps=240')
    report = run.end(240)
    assert run.process.returncode == 3, run.log.read_text()[-3000:]
    assert report['demos'] == 2
    assert report['train_env_steps'] >= 240
    by = rows_of(run)
    assert len(by) == 1
    check_streams(by)
    rows = next(iter(by.values()))
    train = [r for r in rows if r.mode == 0 and not r.closing]
    assert len(train) == report['train_env_steps']  # an acknowledged row is a kept row
    versions = [r.policy_version for r in train]
    assert min(versions) >= 1  # random weights never moved the arm
    assert versions == sorted(versions)
    assert max(versions) > min(versions)  # weights slipped in between two steps
    assert all(r.source == 2 for r in rows if r.mode == 3 and not r.closing)
    status = run.status()['nodes']['/learning/learner']
    assert status['updates'] <= 20 + 2 * len(train) + 1
    assert 0 < report['utd'] <= 2.01


def test_two_cells_at_once_keep_their_steps_and_clocks_apart(start, tmp_path):
    page = tmp_path / 'two.yaml'
    page.write_text('name: two\ncells: {arm0: {}, arm1: {}}\n')
    run = start('budget.env_steps=240', config=str(page))
    report = run.end(240)
    assert report['train_env_steps'] >= 240, run.log.read_text()[-3000:]
    by = rows_of(run)
    assert {cell for cell, _ in by} == {'arm0', 'arm1'}
    check_streams(by)
    for rows in by.values():
        for row, after in pairwise(rows):
            if (
                row.episode == after.episode
            ):  # each cell's clock advances one period a step, whatever the other does
                assert after.captured_ns - row.captured_ns == pytest.approx(1e8, abs=1e3)


def test_killed_nodes_come_back_and_the_run_goes_on(start):
    run = start('budget.env_steps=1100', 'learner.checkpoint_every_s=1')
    steps = run.until(lambda s: s['env_steps'] >= 60)['env_steps']
    for executable, node in (('learner', ''), ('policy', ''), ('replay', ''), ('episode', 'arm0')):
        killed = run.kill(executable, node)
        steps = run.until(lambda s, n=steps: s['env_steps'] >= n + 180)['env_steps']
        assert run.pid(executable, node) != killed
    report = run.end(200)
    assert run.process.returncode == 3, run.log.read_text()[-3000:]
    by = rows_of(run)
    check_streams(by)
    kept = sum(r.mode == 0 and not r.closing for rows in by.values() for r in rows)
    assert kept >= report['train_env_steps']
    for rows in by.values():
        versions = [r.policy_version for r in rows if r.mode == 0 and not r.closing]
        assert versions == sorted(versions)


def test_a_cell_of_the_same_name_on_the_domain_is_refused(start, tmp_path):
    first = start('budget.env_steps=5000')
    first.until(lambda s: s['demos'] >= 1)
    (tmp_path / 'other').mkdir()
    second = Running(tmp_path / 'other', *SHORT)
    assert second.process.wait(timeout=60) == 2
    text = second.log.read_text()
    assert 'arm0' in text
    assert 'Traceback' not in text
    steps = first.status()['env_steps']
    first.until(lambda s: s['env_steps'] > steps)
