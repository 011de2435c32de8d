# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Every role of a run is killed, then all at once: what replay promised is in the store, once.

bench/chaos.py does the same at random, longer, to the goal, in realtime and over a bad link.
"""

from dataclasses import replace
import json

import ledger
import pytest
from running import SHORT, Running

from user_core.outcome import Mode
from user_learning.row import Row
from user_learning.store import Store

RULES = (*SHORT, 'budget.env_steps=1000', 'learner.checkpoint_every_s=1')
ROLES = ('episode', 'arm', 'learner', 'replay', 'policy', 'run')


def steps(episode, seq, n, **fields):
    """Rows of one episode as a lockstep cell writes them."""
    return [
        Row('r', 'arm0', episode, k, 7, seq + k, captured_ns=(seq + k) * ledger.PERIOD_NS,
            mode=Mode.TRAIN, policy_version=episode, closing=k == n - 1, **fields)
        for k in range(n)
    ]  # fmt: skip


GOOD = [*steps(1, 0, 4), *steps(2, 4, 4)]


@pytest.mark.parametrize(
    ('rows', 'acked', 'wrong'),
    [
        (GOOD, 8, {}),
        (GOOD, 9, {'rows_lost': 1}),
        ([*GOOD[:6], *[replace(r, seq=r.seq + 20) for r in GOOD[6:]]], 6, {'rows_missing': 20}),
        ([*GOOD, replace(GOOD[7], seq=8)], 9, {'rows_duplicated': 1, 'episodes_mixed': 1}),
        ([*GOOD[:2], replace(GOOD[2], captured_ns=5), *GOOD[3:]], 8, {'episodes_mixed': 1}),
        ([*GOOD[:2], replace(GOOD[2], mode=Mode.DEMO), *GOOD[3:]], 8, {'episodes_mixed': 1}),
        ([*GOOD[:2], replace(GOOD[2], closing=True), *GOOD[3:]], 8, {'episodes_mixed': 1}),
        ([*GOOD, replace(GOOD[5], seq=0, incarnation=8)], 8,
         {'rows_duplicated': 1, 'episodes_mixed': 1}),
        ([*GOOD, *steps(3, 8, 2), *[replace(r, policy_version=1) for r in steps(4, 10, 2)]], 8,
         {'versions_back': 1}),
    ],
)  # fmt: skip
def test_the_ledger_finds_what_is_wrong_in_a_store(tmp_path, rows, acked, wrong):
    store = Store(tmp_path)
    store.write(rows)
    store.close()
    found = ledger.judge(tmp_path, {('arm0', 7): acked})
    assert {k: found[k] for k in ledger.WRONG if found[k]} == wrong


@pytest.mark.needs_ros
@pytest.mark.timeout(900)
def test_no_promised_row_is_lost_or_doubled_whoever_is_killed_and_all_at_once(
    tmp_path, ros_domain
):
    heard = tmp_path / 'heard.jsonl'
    with ledger.listener(heard):
        run = Running(tmp_path, *RULES)
        try:
            run.until(lambda s: s['demos'] >= 1)
            run.kill('expert')
            steps = run.until(lambda s: s['env_steps'] > 0)['env_steps']
            for role in ROLES:
                run.kill(role)
                steps = run.until(lambda s, n=steps: s['env_steps'] >= n + 40)['env_steps']
            run.kill_all()
            run = Running(tmp_path, *RULES, 'resume=latest')
            report = run.end(240)
        finally:
            run.close()
        assert run.process.returncode == 3, run.log.read_text()[-3000:]
    acked, _ = ledger.heard(heard)
    found = ledger.judge(run.folder / 'store', acked)
    assert found['rows_acked'] > 0.9 * found['rows'] > 900, found  # the listener heard them
    wrong = {k: found[k] for k in ledger.WRONG if found[k]}
    assert not wrong, json.dumps(found)
    assert found['demos_stored'] == report['demos'] == 2
    assert found['env_steps_stored'] == report['train_env_steps'] >= 1000
    assert not list(run.folder.glob('spool/*/*.spool'))
