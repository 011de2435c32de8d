# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What the run's node concludes from what others say of themselves."""

import time
from types import SimpleNamespace

import pytest

from user_core.run_node import RunShell
from user_core.tally import Stored

LEARNER, REPLAY, EPISODE = '/learning/learner', '/learning/replay', '/arm0/episode'


def shell(numbers: dict, quiet_ago_s: float | None = 10.0) -> SimpleNamespace:
    """As much of the node as these rules read; `heard_ago_s` may stand in the numbers."""
    now = time.monotonic()
    heard = {
        node: {'reason': 'No space left', 'heard': now - told.get('heard_ago_s', 0.0), **told}
        for node, told in numbers.items()
    }
    asked = []
    return SimpleNamespace(
        numbers=heard,
        awaited={LEARNER, REPLAY, EPISODE},
        learner=lambda: heard.get(LEARNER, {}),
        quiet_s=None if quiet_ago_s is None else now - quiet_ago_s,
        cleared_s=0.0,
        call_soon=asked.append,
        clear='clear',
        asked=asked,
    )


@pytest.mark.parametrize('node', [REPLAY, EPISODE])
def test_a_full_disk_of_whoever_keeps_rows_hinders_episodes_with_its_reason(node):
    said = RunShell.hindered(shell({node: {'state': 'DISK_FULL'}}))
    assert node in said
    assert 'No space left' in said
    assert RunShell.hindered(shell({node: {'state': 'STORING'}})) == ''
    assert RunShell.hindered(shell({node: {'state': 'DISK_FULL', 'heard_ago_s': 60.0}})) == ''


KNOWS = {'state': 'IDLE', 'demos': 3.0, 'env_steps': 120.0}


def test_the_store_is_counted_when_all_cells_are_quiet_and_the_learner_has_read_on():
    assert RunShell.stored(shell({LEARNER: KNOWS})) == Stored(3, 120)


@pytest.mark.parametrize('numbers', [
    {}, {LEARNER: {'state': 'IDLE'}}, {LEARNER: KNOWS | {'state': 'RESTORING'}},
    {LEARNER: KNOWS | {'state': 'WARMUP'}}, {LEARNER: KNOWS | {'heard_ago_s': 9.0}},
])  # fmt: skip
def test_what_the_learner_has_not_counted_is_waited_for(numbers):
    assert RunShell.stored(shell(numbers)) is None


def test_an_episode_that_runs_for_nobody_is_cancelled_once_a_second():
    busy = shell({LEARNER: KNOWS}, quiet_ago_s=None)
    for _ in range(3):
        assert RunShell.stored(busy) is None
    assert busy.asked == ['clear']
