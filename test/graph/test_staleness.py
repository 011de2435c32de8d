# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Whole runs: whose weights act, when they are too old, and how soon a new policy has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
import os
from pathlib import Path
import shutil
import signal
import threading
import time

import numpy as np
import pytest
from running import SHORT, Running
from safetensors.torch import load

from user_core.config import load as load_page
from user_core.outcome import Mode
from user_learning.policy import Answer, Policy, Question
from user_learning.row import Row
from user_learning.spec import spec_of
from user_learning.tail import Tail
from user_learning.weights import shared_folder

pytestmark = [pytest.mark.needs_ros, pytest.mark.timeout(400)]

POLICY, LEARNER, ARM = '/learning/policy', '/learning/learner', '/arm0/arm'


@pytest.fixture
def start(tmp_path: Path, ros_domain: int) -> Iterator[Callable[..., Running]]:
    runs: list[Running] = []

    def begin(*overrides: str) -> Running:
        runs.append(Running(tmp_path, *SHORT, *overrides))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def test_a_killed_learner_stops_the_policy_and_the_arm_until_it_is_back(start) -> None:
    """In realtime; the learner that replaces it takes its time."""
    run = start('pace=realtime', 'learner.max_stale_s=1.5', 'budget.env_steps=5000')
    run.until(lambda s: s['nodes'].get(POLICY, {}).get('answers', 0) >= 20, 200)
    killed = run.kill('learner')
    run.until(lambda s: run.nodes().get(LEARNER, killed) != killed)
    slow = run.nodes()[LEARNER]
    os.kill(slow, signal.SIGSTOP)
    try:
        status = run.until(lambda s: s['nodes'][POLICY]['state'] == 'STALE')
        assert 'the learner has not been heard' in status['nodes'][POLICY]['reason']
        answers = status['nodes'][POLICY]['answers']
        heard = time.monotonic() + 2.5
        status = run.until(lambda s: time.monotonic() > heard)
        assert status['nodes'][POLICY]['state'] == 'STALE'
        assert status['nodes'][POLICY]['answers'] == answers
        # READY: a reset was its last motion, and no command came since
        assert status['nodes'][ARM]['state'] in ('HOLD', 'READY')
    finally:
        os.kill(slow, signal.SIGCONT)
    run.until(lambda s: s['nodes'][POLICY]['answers'] > answers, 120)


def test_each_stored_action_is_the_one_of_the_version_that_its_row_names(start) -> None:
    """Every version is copied as it appears; what the rows of the store say was acted is computed
    again from the file of the version that they name.
    """
    run = start('budget.env_steps=240', 'learner.publish_every_s=0.3')
    run.until(lambda s: True)
    kept = run.folder / 'kept'
    kept.mkdir()
    exchange = shared_folder('r', run.folder)
    over = threading.Event()

    def copy() -> None:
        while not over.wait(0.02):
            with suppress(OSError):
                for path in exchange.glob('actor-*.safetensors'):
                    if not (kept / path.name).exists():
                        shutil.copyfile(path, kept / path.name)

    copier = threading.Thread(target=copy)
    copier.start()
    try:
        run.end(240)
    finally:
        over.set()
        copier.join()
    config = load_page(run.folder / 'config.json')
    versions: dict[int, Policy] = {}
    checked = 0
    for row in Tail(run.folder / 'store').rows():
        if not isinstance(row, Row) or row.mode != Mode.TRAIN or row.closing:
            continue
        assert row.policy_version >= 1
        file = kept / f'actor-{row.policy_version}.safetensors'
        if row.policy_version not in versions and file.exists():
            policy = versions[row.policy_version] = Policy(
                spec_of(config), config.policy.hidden, config.seed
            )
            policy.offer('actor', row.policy_version, load(file.read_bytes()))
        if row.policy_version in versions:
            question = Question('actor', 0, Mode.TRAIN, row.state, row.episode, row.step)
            (answer,) = versions[row.policy_version].act([question])
            assert isinstance(answer, Answer)
            assert np.abs(answer.action - row.policy_action).max() < 1e-5
            checked += 1
    print(f'{checked} rows of {len(versions)} versions')
    assert checked >= 100
    assert len(versions) >= 3


def test_a_policy_that_replaces_a_killed_one_answers_soon(start) -> None:
    """From its first word on: what comes before is the interpreter and its libraries."""
    run = start('budget.env_steps=5000')
    old = run.until(lambda s: s['nodes'].get(POLICY, {}).get('answers', 0) >= 100, 200)
    before = old['nodes'][POLICY]
    run.kill('policy')
    begun = time.monotonic()
    run.until(lambda s: s['nodes'][POLICY]['answers'] < before['answers'])
    word = time.monotonic()
    status = run.until(lambda s: s['nodes'][POLICY]['answers'] > 0)
    print(f'word after {word - begun:.1f} s, answers after {time.monotonic() - begun:.1f} s')
    assert time.monotonic() - word < 10.0
    assert status['nodes'][POLICY]['version'] >= before['version']
