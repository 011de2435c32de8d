# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Chunks of actions in realtime: a slow policy leaves no gap, and no row acts at another time."""

import math

import numpy as np
from rig import Cell, answer

PERIOD_S = 0.1


def tenth(step, index):
    """An action that tells which row of which answer it is."""
    return (step / 100, index / 100, 0, 0, 0, 0)


class SlowPolicy:
    """Answers the newest question after `takes` periods with `horizon` rows, one at a time."""

    def __init__(self, cell, horizon, takes):
        self.cell, self.horizon, self.takes = cell, horizon, takes
        self.seen, self.busy, self.left = 0, None, 0

    def think(self):
        """One period passes."""
        if self.busy is None and len(self.cell.sent.observations) > self.seen:
            self.seen = len(self.cell.sent.observations)
            self.busy, self.left = self.cell.sent.observations[-1], self.takes
        if self.busy is not None and self.left == 0:
            rows = [tenth(self.busy.step, i) for i in range(self.horizon)]
            self.cell.episode.on_answer(
                answer(self.cell.episode, rows, step=self.busy.step, number=self.busy.episode)
            )
            self.busy = None
        self.left -= 1


def run(cell, policy, periods):
    for _ in range(periods):
        policy.think()
        for _ in range(10):
            cell.clock.now += PERIOD_S / 10
            while cell.sent.commands:
                cell.drive.command(cell.sent.commands.pop(0))
            cell.episode.on_sample(cell.drive.advance(PERIOD_S / 10))
        cell.episode.tick()


def begun():
    cell = Cell(realtime=True)
    cell.begin(seed=1)
    return cell


def idle(cell):
    return {k: n for k, n in cell.episode.counts.items() if k.startswith('idle')}


def test_a_policy_that_takes_three_periods_leaves_no_idle_step_after_its_first_answer():
    cell = begun()
    run(cell, SlowPolicy(cell, horizon=10, takes=3), 60)
    rows = cell.sent.rows
    assert len(rows) >= 55
    assert all(r.valid and r.lateness_s == 0 for r in rows)
    assert idle(cell) == {}
    assert cell.episode.result.late_steps == 0


def test_every_row_acts_at_the_step_that_it_was_meant_for():
    cell = begun()
    run(cell, SlowPolicy(cell, horizon=10, takes=3), 60)
    asked = [o.step for o in cell.sent.observations if o.step]
    assert asked[:10] == list(range(5, 55, 5))  # half of each chunk is used
    for row in cell.sent.rows:
        step, index = np.round(100 * row.policy_action[:2]).astype(int)
        assert step + index == row.step
        assert (row.chunk_index, row.horizon) == (index, 10)
        assert row.executed_action.shape == (6,)
    assert {r.chunk_index for r in cell.sent.rows if r.step > 10} == {4, 5, 6, 7, 8}


def test_without_a_slow_policy_a_newer_chunk_replaces_the_rest_of_the_older_at_once():
    cell = begun()
    run(cell, SlowPolicy(cell, horizon=4, takes=0), 12)
    used = [tuple(np.round(100 * r.policy_action[:2]).astype(int)) for r in cell.sent.rows]
    assert used[:6] == [(0, 0), (0, 1), (0, 2), (2, 1), (2, 2), (4, 1)]
    assert idle(cell) == {}


def test_a_chunk_that_is_too_old_for_now_is_dropped_and_each_idle_step_has_its_reason():
    cell = begun()
    cell.episode.on_answer(answer(cell.episode, np.zeros((2, 6)), step=0))
    policy = SlowPolicy(cell, horizon=2, takes=99)
    run(cell, policy, 5)
    assert cell.episode.step == 5
    assert idle(cell) == {'idle_unanswered': 3}
    cell.episode.on_answer(answer(cell.episode, np.ones((2, 6)), step=2))
    assert cell.sent.commands == []
    assert cell.episode.counts['late_actions'] == 1
    run(cell, policy, 1)
    assert idle(cell) == {'idle_unanswered': 3, 'idle_outdated': 1}
    cell.episode.on_answer(answer(cell.episode, np.full((2, 6), math.nan), step=6))
    run(cell, policy, 1)
    assert idle(cell)['idle_refused'] == 1
    assert cell.episode.result.late_steps == 5
    cell.episode.on_answer(answer(cell.episode, np.zeros((3, 6)), step=5))
    run(cell, policy, 1)
    last = cell.sent.rows[-1]
    assert (last.step, last.chunk_index, last.horizon, last.valid) == (7, 2, 3, True)


def test_an_older_answer_never_takes_the_place_of_a_newer_one():
    cell = begun()
    policy = SlowPolicy(cell, horizon=10, takes=99)
    cell.episode.on_answer(answer(cell.episode, np.zeros((10, 6)), step=0))
    run(cell, policy, 7)
    newer = np.full((10, 6), 0.5)
    cell.episode.on_answer(answer(cell.episode, newer, step=6, version=2))
    cell.episode.on_answer(answer(cell.episode, np.ones((10, 6)), step=5, version=1))
    cell.episode.on_answer(answer(cell.episode, np.ones((10, 6)), step=6, version=3))
    cell.episode.on_answer(answer(cell.episode, np.ones((10, 6)), step=9, version=3))
    run(cell, policy, 3)
    assert [(r.policy_version, r.chunk_index) for r in cell.sent.rows[7:]] == [
        (1, 7), (2, 2), (2, 3),
    ]  # fmt: skip
    assert cell.episode.counts['late_actions'] == 2
    assert cell.episode.counts['stray_actions'] == 1


def test_no_row_of_an_earlier_episode_acts_in_the_next_one():
    cell = begun()
    policy = SlowPolicy(cell, horizon=50, takes=0)
    run(cell, policy, 5)
    before = cell.number
    cell.episode.abort('cut', void=True)
    cell.sent.commands.clear()
    cell.begin(seed=2)
    run(cell, SlowPolicy(cell, horizon=50, takes=99), 3)
    cell.episode.on_answer(answer(cell.episode, np.ones((50, 6)), step=0, number=before))
    assert cell.sent.commands == []
    assert cell.episode.step == 0
    assert [r for r in cell.sent.rows if r.episode == cell.number] == []
    cell.episode.on_answer(answer(cell.episode, np.zeros((2, 6)), version=2))
    run(cell, SlowPolicy(cell, horizon=50, takes=99), 2)
    new = [r for r in cell.sent.rows if r.episode == cell.number]
    assert [(r.policy_version, r.chunk_index, r.horizon) for r in new] == [(2, 0, 2), (2, 1, 2)]
