# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a cell needs is away: it holds, says why, goes on by itself; no row is mixed or lost."""

from itertools import pairwise
import random
import selectors
import subprocess
import sys
import time

import disks
import pytest

pytest.importorskip('user_msgs.action')
from cells import Graph
from user_msgs.msg import Observation, RobotState, Transition

from user_core.cell_client import UNSTORED_N
from user_core.messages import nanoseconds

pytestmark = pytest.mark.needs_ros

EPISODE = '/arm0/episode'
LONG = 'task.max_steps=5000'


@pytest.fixture
def grow(tmp_path):
    """Makes a graph in this test's folder and ends it after the test."""
    graphs = []

    def make(*overrides):
        graphs.append(Graph(tmp_path, *overrides))
        return graphs[-1]

    yield make
    for graph in graphs:
        graph.close()


def told(graph):
    """State and reason that the episode node told last."""
    metrics = graph.metrics.get(EPISODE)
    return (metrics.state, metrics.reason) if metrics else ('', '')


def rows_of(graph):
    """All stored rows by episode."""
    episodes = {}
    for row in graph.rows['arm0']:
        episodes.setdefault(row.id.episode, []).append(row)
    return episodes


def delivered(graph):
    """Waits until replay has all rows, as a heartbeat from now on says."""
    old = graph.metrics[EPISODE]
    graph.until(lambda: graph.metrics[EPISODE] is not old)
    graph.until(lambda: graph.number(EPISODE, 'rows_unacknowledged') == 0)


def assert_whole(rows):
    """Every step once and in order; the closing row last, and none after it."""
    assert [r.id.step for r in rows] == list(range(len(rows)))
    assert [r.closing for r in rows] == [False] * (len(rows) - 1) + [True]
    assert rows[-1].boundary != Transition.BOUNDARY_NONE
    assert len({r.incarnation for r in rows}) == 1


def test_a_full_disk_stops_collection_and_loses_nothing(grow, tmp_path):
    graph = grow(LONG)
    graph.start('arm')
    spool = tmp_path / 'spool'
    node = graph.start('episode', before=disks.small_disk(spool))
    graph.ready()
    graph.acking = False
    handle = graph.ask(seed=1)
    graph.until(lambda: graph.number(EPISODE, 'rows') > 20)
    ballast = disks.fill(disks.seen_by(node, spool))
    full = graph.result(handle)
    assert full.invalid
    assert full.boundary == Transition.BOUNDARY_ABORT
    assert 'takes no rows' in full.reason
    graph.until(lambda: told(graph)[0] == 'DISK_FULL')
    assert 'free some space' in told(graph)[1]
    assert 'in memory alone' in told(graph)[1]
    alone, rows = graph.number(EPISODE, 'rows_in_memory'), graph.number(EPISODE, 'rows')
    assert 1 <= alone <= 3
    waiting = graph.ask(seed=2)
    heard = graph.metrics[EPISODE]
    graph.until(lambda: graph.metrics[EPISODE] is not heard)
    assert told(graph)[0] == 'DISK_FULL'
    assert graph.number(EPISODE, 'rows') == rows
    ballast.unlink()
    graph.until(lambda: told(graph)[0] == 'RUNNING')
    assert graph.number(EPISODE, 'rows_in_memory') == 0
    graph.acking = True
    graph.until(lambda: graph.number(EPISODE, 'rows') > rows + 20)
    waiting.cancel_goal_async()
    assert 'cancelled' in graph.result(waiting).reason
    delivered(graph)
    both = list(rows_of(graph).values())
    assert len(both) == 2
    for kept in both:
        assert_whole(kept)
    assert both[0][-1].boundary == Transition.BOUNDARY_ABORT
    assert [r.seq for r in graph.rows['arm0']] == list(range(len(graph.rows['arm0'])))


def test_a_goal_that_waits_for_a_full_disk_is_given_up_with_the_reason(grow, tmp_path):
    """Who asked may be gone: no arm moves long after that."""
    graph = grow()
    graph.start('arm')
    node = graph.start('episode', before=disks.small_disk(tmp_path / 'spool', 'size=4m'))
    graph.ready()
    graph.until(lambda: told(graph)[0] == 'DISK_FULL')
    result = graph.result(graph.ask(seed=1))
    assert result.invalid
    assert 'takes no rows' in result.reason
    assert graph.states['arm0'].id.episode == 0
    assert node.poll() is None


def test_a_cell_waits_while_replay_lacks_too_many_rows_and_then_goes_on(grow):
    graph = grow('task.max_steps=300')
    graph.start_all('arm', 'episode')
    graph.acking = False
    first = graph.episode(seed=1)
    assert first.length == 300
    graph.until(lambda: graph.number(EPISODE, 'rows_unacknowledged') > UNSTORED_N)
    waiting = graph.ask(seed=2)
    graph.until(lambda: told(graph)[0] == 'WAIT_REPLAY')
    assert 'replay lacks 301 rows' in told(graph)[1]
    assert graph.states['arm0'].id.episode == first.episode
    graph.acking = True
    second = graph.result(waiting)
    assert (second.invalid, second.length) == (False, 300)
    delivered(graph)
    for rows in rows_of(graph).values():
        assert_whole(rows)


def test_an_arm_that_is_away_is_waited_for_by_name(grow):
    graph = grow('task.max_steps=10')
    graph.start_all('arm', 'episode')
    graph.kill('arm')
    time.sleep(2.5)  # by then an arm that lives was heard
    waiting = graph.ask(seed=1)
    graph.until(lambda: told(graph)[0] == 'WAIT_ARM')
    assert 'the arm of cell arm0' in told(graph)[1]
    graph.start('arm')
    result = graph.result(waiting)
    assert result.invalid or result.length == 10
    assert not graph.episode(seed=1).invalid


def test_a_silent_demonstrator_is_named_while_it_is_waited_for(grow):
    graph = grow(LONG)
    graph.start_all('arm', 'episode')
    handle = graph.ask(seed=1, mode=Observation.MODE_DEMO)
    graph.until(lambda: told(graph)[0] == 'WAIT_DEMONSTRATOR')
    assert 'did not answer' in told(graph)[1]
    graph.start('expert')
    graph.until(lambda: told(graph)[0] == 'RUNNING')
    handle.cancel_goal_async()
    graph.result(handle)


ASKER = """
import sys
import rclpy
from rclpy.action import ActionClient
from user_msgs.action import RunEpisode
rclpy.init()
node = rclpy.create_node('asker')
client = ActionClient(node, RunEpisode, '/arm0/run_episode')
client.wait_for_server()
goal = client.send_goal_async(RunEpisode.Goal(mode=0, policy='actor', seed=1))
rclpy.spin_until_future_complete(node, goal)
print('accepted', goal.result().accepted, flush=True)
rclpy.spin(node)
"""


@pytest.mark.parametrize('pace', ['lockstep', 'realtime'])
def test_the_goal_of_a_run_that_was_started_anew_takes_the_place_of_the_dead_ones(grow, pace):
    graph = grow(LONG, f'pace={pace}', 'task.reset_speed_m_s=0.5')
    graph.start_all('arm', 'episode')
    asker = subprocess.Popen([sys.executable, '-c', ASKER], stdout=subprocess.PIPE, text=True)
    said = []
    graph.until(lambda: said or select(asker, said))
    assert said == ['accepted True\n']
    graph.until(lambda: len(graph.rows['arm0']) > 10)
    asker.kill()
    asker.wait()
    count = len(graph.rows['arm0'])
    graph.until(lambda: len(graph.rows['arm0']) > count + 10)  # it goes on
    again = graph.ask(seed=2)
    graph.until(lambda: len(rows_of(graph)) == 2)
    again.cancel_goal_async()
    assert 'cancelled' in graph.result(again).reason
    graph.until(lambda: graph.rows['arm0'][-1].closing)
    for rows in rows_of(graph).values():
        assert_whole(rows)
        assert rows[-1].boundary == Transition.BOUNDARY_ABORT


def select(process, said):
    """Takes a line of a process, if there is one."""
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        if ready.select(0):
            said.append(process.stdout.readline())
    return said


def rows_since(graph, instant_ns, arrived=False):
    """How many rows of episodes that began, or that were seen, after that have come."""
    return sum(
        (nanoseconds(r.arrived) if arrived else r.id.episode) > instant_ns
        for r in graph.rows['arm0']
    )


def opening(graph, seed, **goal):
    """A goal and the future of its result."""
    handle = graph.ask(seed=seed, **goal)
    return handle, handle.get_result_async()


def running(graph, seed, **goal):
    """A goal whose rows have begun to come; the first ones may still meet a dead arm."""
    for _ in range(10):
        asked_ns = time.time_ns()
        handle, ended = opening(graph, seed, **goal)
        graph.until(lambda a=asked_ns, e=ended: e.done() or rows_since(graph, a) > 2)
        if not ended.done():
            return handle, ended
    raise AssertionError(f'no episode ran: {ended.result().result.reason}')


@pytest.mark.parametrize(('pace', 'kills'), [('lockstep', 10), ('realtime', 5)])
def test_an_arm_that_is_killed_at_random_moments_leaves_no_row_of_two_arms(grow, pace, kills):
    """Each kill ends its episode as aborted; no step spans two arms, whose clocks both begin at
    zero, and no episode is continued.
    """
    graph = grow(LONG, f'pace={pace}', 'task.reset_speed_m_s=0.5')
    graph.start_all('arm', 'episode')
    rng = random.Random(5)
    for seed in range(kills):
        handle, ended = running(graph, seed) if seed % 3 < 2 else opening(graph, seed)
        moment = time.monotonic() + rng.uniform(0.0, 0.5)
        graph.until(lambda m=moment: time.monotonic() > m)
        graph.kill('arm')
        killed_ns = time.time_ns()
        graph.start('arm')
        graph.until(
            lambda a=killed_ns, e=ended: e.done() or rows_since(graph, a, arrived=True) > 9
        )
        if not ended.done():  # it still waited for the arm, and went on with the new one
            assert seed % 3 == 2
            handle.cancel_goal_async()
            graph.until(ended.done)
        result = ended.result().result
        assert result.invalid
        assert result.boundary == Transition.BOUNDARY_ABORT
        assert result.reason
    handle, ended = running(graph, 99)
    handle.cancel_goal_async()
    graph.until(ended.done)
    delivered(graph)
    episodes = rows_of(graph)
    assert len(episodes) >= kills * 2 // 3
    for rows in episodes.values():
        assert_whole(rows)
        assert rows[-1].boundary == Transition.BOUNDARY_ABORT
        periods = [b - a for a, b in pairwise(nanoseconds(r.captured) for r in rows)]
        if pace == 'lockstep':
            assert set(periods) <= {100_000_000}
        assert all(0 <= p < 1_000_000_000 for p in periods)
        assert not any(r.valid for r, p in zip(rows, periods, strict=False) if p == 0)


@pytest.mark.parametrize('killed', ['expert', 'episode'])
def test_the_arm_holds_within_its_deadline_whoever_is_killed(grow, killed):
    """As the arm measures it, on its steady clock, from its last valid command to the hold."""
    graph = grow(LONG, 'pace=realtime', 'task.reset_speed_m_s=0.5', 'task.kind=reach')
    graph.start_all()
    for seed in range(4):
        if seed:
            graph.start(killed)
        handle, ended = running(graph, seed, mode=Observation.MODE_DEMO)
        graph.kill(killed)
        graph.until(lambda: graph.states['arm0'].mode == RobotState.HOLD)
        if killed == 'expert':
            handle.cancel_goal_async()
            graph.until(ended.done)
    graph.until(lambda: graph.number('/arm0/arm', 'holds') >= 4)
    longest, late = (graph.number('/arm0/arm', n) for n in ('hold_max_s', 'late_slices'))
    assert longest > 0.1
    assert longest <= 0.2 or late  # a machine too busy for the law's thread
    assert longest < 0.4
