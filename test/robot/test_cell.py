# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A cell as real processes over real DDS: the row's way, and killed processes."""

from itertools import pairwise
import math
import time

import pytest

pytest.importorskip('user_msgs.action')
from cells import Graph
from user_msgs.msg import Observation, RobotState, Transition

pytestmark = pytest.mark.needs_ros


@pytest.fixture
def grow(tmp_path):
    """Makes a graph in this test's folder and ends it after the test."""
    graphs = []

    def make(*overrides, **changes):
        graphs.append(Graph(tmp_path, *overrides, **changes))
        return graphs[-1]

    yield make
    for graph in graphs:
        graph.close()


def steps(rows):
    return [(r.id.step, r.closing) for r in rows]


def stored(graph, result, cell='arm0'):
    """The episode's rows, once replay has its closing row."""

    def kept():
        return [r for r in graph.rows[cell] if r.id.episode == result.episode]

    graph.until(lambda: any(r.closing for r in kept()))
    return kept()


def test_a_demonstration_and_an_episode_of_the_policy_arrive_whole_and_are_acknowledged(grow):
    graph = grow('task.max_steps=30')
    graph.start_all()
    demo = graph.episode(seed=1, mode=Observation.MODE_DEMO)
    assert demo.length == 30 or demo.boundary == Transition.BOUNDARY_SUCCESS
    learned = graph.episode(seed=2)
    assert (learned.length, learned.boundary) == (30, Transition.BOUNDARY_TIMEOUT)
    assert learned.first_version == learned.last_version == 1
    assert len(learned.period) == 30
    assert learned.duration == pytest.approx(3.0, abs=0.01)
    of = {r.episode: stored(graph, r) for r in (demo, learned)}
    rows = graph.rows['arm0']
    assert [r.seq for r in rows] == list(range(len(rows)))
    for result, kept in ((r, of[r.episode]) for r in (demo, learned)):
        assert steps(kept) == [(k, False) for k in range(result.length)] + [(result.length, True)]
    assert {r.source for r in of[demo.episode][:-1]} == {2}
    assert {r.policy for r in of[learned.episode][:-1]} == {'actor'}
    stamps = [r.captured.sec * 10**9 + r.captured.nanosec for r in of[learned.episode]]
    assert {b - a for a, b in pairwise(stamps)} == {100_000_000}


def test_rows_outlive_a_killed_episode_node_and_a_replay_that_was_away(grow):
    graph = grow('task.max_steps=20')
    graph.start_all('arm', 'episode')
    graph.acking = False
    before = graph.episode(seed=1)
    graph.kill('episode')
    graph.start('episode')
    graph.metrics.clear()
    graph.until(lambda: graph.number('/arm0/episode', 'rows_unacknowledged') >= 21)
    graph.acking = True
    after = graph.episode(seed=2)
    kept = {r.episode: stored(graph, r) for r in (before, after)}
    whole = [(k, False) for k in range(20)] + [(20, True)]
    assert steps(kept[before.episode]) == whole
    assert steps(kept[after.episode]) == whole
    incarnations = list(dict.fromkeys(r.incarnation for r in graph.rows['arm0']))
    assert incarnations == sorted(incarnations)


def test_an_arm_that_is_killed_makes_its_episode_void_and_the_next_one_goes_on(grow):
    graph = grow('task.max_steps=2000')
    graph.start_all('arm', 'episode')
    handle = graph.ask(seed=1)
    graph.until(lambda: len(graph.rows['arm0']) > 20)
    graph.kill('arm')
    graph.start('arm')
    lost = graph.result(handle)
    assert lost.invalid
    assert 'arm' in lost.reason
    assert lost.boundary == Transition.BOUNDARY_ABORT
    running = graph.ask(seed=2)
    count = len(graph.rows['arm0'])
    graph.until(lambda: len(graph.rows['arm0']) > count + 20)
    running.cancel_goal_async()
    cut = graph.result(running)
    assert cut.invalid
    assert 'cancelled' in cut.reason
    graph.until(lambda: graph.rows['arm0'][-1].closing)
    assert graph.rows['arm0'][-1].boundary == Transition.BOUNDARY_ABORT


def test_a_policy_that_comes_back_within_its_patience_goes_on_with_the_episode(grow):
    graph = grow('task.max_steps=40')
    graph.start_all('arm', 'episode')
    handle = graph.ask(seed=1)
    graph.until(lambda: len(graph.rows['arm0']) > 10)
    graph.acting = False
    time.sleep(0.3)
    graph.executor.spin_once(0.0)
    graph.acting = True
    result = graph.result(handle)
    assert not result.invalid
    assert result.length == 40


def test_a_second_episode_node_of_a_living_cell_refuses_to_start(grow):
    graph = grow('task.max_steps=5')
    graph.start_all('arm', 'episode')
    first = graph.processes['arm0/episode']
    second = graph.start('episode', run='another', folder=graph.folder / 'another')
    assert second.wait(40) == 2
    said = (graph.folder / 'another' / 'arm0-episode.log').read_text()
    assert 'Cell arm0 is already alive' in said
    assert 'Traceback' not in said
    assert first.poll() is None
    assert not graph.episode(seed=1).invalid


def test_two_cells_keep_their_rows_and_clocks_apart(grow):
    graph = grow('task.max_steps=25', cells=('arm0', 'arm1'))
    graph.start_all('arm', 'episode')
    graph.episode(seed=9, cell='arm1')
    handles = {cell: graph.ask(seed=1, cell=cell) for cell in graph.cells}
    results = {cell: graph.result(handle) for cell, handle in handles.items()}
    for cell, result in results.items():
        rows = stored(graph, result, cell)
        assert {r.id.cell for r in rows} == {cell}
        assert steps(rows) == [(k, False) for k in range(25)] + [(25, True)]
    ahead = [graph.states[cell].stamp.sec for cell in ('arm0', 'arm1')]
    assert ahead[1] > ahead[0]


def test_a_stop_ends_the_episode_and_holds_until_it_is_cleared(grow):
    graph = grow('task.max_steps=2000')
    graph.start_all('arm', 'episode')
    handle = graph.ask(seed=1)
    graph.until(lambda: len(graph.rows['arm0']) > 5)
    assert graph.call('stop').success
    stopped = graph.result(handle)
    assert stopped.invalid
    assert 'clear_stop' in stopped.reason
    refused = graph.result(graph.ask(seed=2))
    assert refused.invalid
    assert 'clear_stop' in refused.reason
    assert not graph.call('recover').success
    assert graph.call('clear_stop').success
    running = graph.ask(seed=3)
    count = len(graph.rows['arm0'])
    graph.until(lambda: len(graph.rows['arm0']) > count + 3)
    running.cancel_goal_async()
    graph.result(running)


def test_a_stop_outlives_the_arm_node(grow):
    graph = grow('pace=realtime')
    graph.start_all('arm', 'episode')
    assert graph.call('stop').success
    graph.kill('arm')
    graph.states.clear()
    graph.start('arm')
    graph.until(
        lambda: 'arm0' in graph.states and 'was stopped before' in graph.states['arm0'].reason
    )
    assert graph.states['arm0'].mode == RobotState.DISARMED
    assert graph.call('clear_stop').success
    graph.until(lambda: graph.states['arm0'].mode == RobotState.READY)


def test_a_policy_that_answers_with_nan_never_moves_the_arm(grow):
    graph = grow()
    graph.start_all('arm', 'episode')
    graph.answer = lambda observation: [math.nan] * 6
    result = graph.result(graph.ask(seed=1))
    assert result.invalid
    assert 'not finite' in result.reason
    assert result.length == 0
    assert graph.states['arm0'].mode == RobotState.READY


def test_in_realtime_the_arm_holds_soon_after_the_policy_fell_silent(grow):
    graph = grow('pace=realtime', 'task.max_steps=2000', 'task.reset_speed_m_s=0.5')
    graph.start_all('arm', 'episode')
    handle = graph.ask(seed=1)
    graph.until(lambda: len(graph.rows['arm0']) > 15)
    graph.until(lambda: graph.states['arm0'].mode == RobotState.ACTIVE)
    graph.acting, silent = False, time.monotonic()
    graph.until(lambda: graph.states['arm0'].mode == RobotState.HOLD)
    assert time.monotonic() - silent < 2.0
    count = len(graph.rows['arm0'])
    graph.until(lambda: len(graph.rows['arm0']) > count + 3)
    late = graph.rows['arm0'][-1]
    assert not late.valid
    assert late.lateness > 0.05
    graph.acting = True
    graph.until(lambda: graph.states['arm0'].mode == RobotState.ACTIVE)
    handle.cancel_goal_async()
    result = graph.result(handle)
    assert result.late_steps >= 3
    assert sorted(result.period)[len(result.period) // 2] == pytest.approx(0.1, abs=0.02)
