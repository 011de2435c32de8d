# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A cell that sees, as processes over real DDS: slow, frozen and missing cameras, lost rows."""

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip('user_msgs.action')
from cells import Graph
from projector import Projector, grey
from user_msgs.msg import Observation, RobotState, Transition

from user_core.messages import image, nanoseconds
from user_learning.row import Row
from user_learning.tail import Tail

pytestmark = pytest.mark.needs_ros

EPISODE = '/arm0/episode'
FOREIGN = 'kind: topics, width: 64, height: 64'
QUICK = 'task.reset_speed_m_s=0.5'


@pytest.fixture
def grow(tmp_path):
    """Makes a graph and its cameras; ends both after the test."""
    graphs, projectors = [], []

    def make(*overrides, cameras, fps=0.0):
        graph = Graph(tmp_path, f'cells.arm0.cameras={cameras}', *overrides)
        graphs.append(graph)
        projectors.extend(Projector(graph, name, fps) for name in graph.config.views)
        return graph, projectors

    yield make
    for end in (*projectors, *graphs):
        end.close()


def stamps(row):
    return [nanoseconds(i.stamp) for i in row.images]


def test_a_camera_slower_than_the_loop_never_paces_it_and_reuse_is_in_the_record(grow):
    graph, _ = grow(
        'cells.arm0.control_hz=20', 'task.max_steps=60', QUICK,
        cameras=f'{{wrist: {{{FOREIGN}, fps: 15, max_age_s: 3}}}}', fps=15.0,
    )  # fmt: skip
    graph.start_all('arm', 'episode')
    graph.answer = lambda observation: [0.0] * 6
    result = graph.episode(seed=1)
    graph.until(lambda: graph.rows['arm0'] and graph.rows['arm0'][-1].closing)
    rows = [r for r in graph.rows['arm0'] if r.id.episode == result.episode]
    assert [r.id.step for r in rows] == list(range(61))
    assert np.median(result.period) == pytest.approx(0.05, abs=0.02)
    again = [stamps(a) == stamps(b) for a, b in pairwise(rows)]
    assert [r.images[0].repeated for r in rows] == [False, *again]
    assert sum(again) > 5
    assert sum(not a for a in again) > 20
    reused = [r for r in rows[:-1] if r.images[0].repeated and r.policy_action]
    assert any(r.valid for r in reused)
    for row in rows:
        (picture,) = row.images
        assert (image(picture) == grey(nanoseconds(picture.stamp))).all()
        assert 0.0 <= picture.age <= 3.0


@pytest.mark.parametrize('machine', ['local', 'far'])
def test_a_frozen_camera_makes_the_arm_hold_is_named_at_once_and_the_cell_goes_on_when_it_is_back(
    grow, machine
):
    """Nobody can press a key: the nodes' stdin is closed."""
    calm = f'{FOREIGN}, max_age_s: 1'
    graph, (side, wrist) = grow(
        'task.max_steps=2000', 'machines={local: {}, far: {}}', QUICK,
        cameras=f'{{side: {{{calm}}}, wrist: {{{calm}, machine: {machine}}}}}', fps=30.0,
    )  # fmt: skip
    graph.start_all('arm', 'episode')
    graph.answer = lambda observation: [0.0] * 6
    handle = graph.ask(seed=1)
    graph.until(lambda: len(graph.rows['arm0']) > 15)
    wrist.shining = False
    graph.until(lambda: 'camera wrist' in graph.metrics[EPISODE].reason)
    graph.until(lambda: graph.states['arm0'].mode == RobotState.HOLD)
    result = graph.result(handle)
    assert result.invalid
    assert result.boundary == Transition.BOUNDARY_ABORT
    assert '1 s is the limit' in result.reason
    graph.until(lambda: graph.rows['arm0'][-1].closing)
    rows = [r for r in graph.rows['arm0'] if r.id.episode == result.episode]
    assert rows[-1].truncated
    assert {i.encoding for r in rows for i in r.images} == (
        {'rgb8'} if machine == 'local' else {'rgb8', 'jpeg'}
    )
    for row, following in pairwise(rows):
        assert all(i.age <= 1.0 for i in row.images)
        assert not (row.valid and any(i.repeated for i in (*row.images, *following.images)))

    waiting, count = graph.ask(seed=2), len(graph.rows['arm0'])
    graph.until(lambda: graph.metrics[EPISODE].state == 'WAIT_CAMERA')
    graph.until(lambda: 'wrist sent no picture since the reset' in graph.metrics[EPISODE].reason)
    assert len(graph.rows['arm0']) == count
    assert side.shining
    wrist.shining = True
    graph.until(lambda: len(graph.rows['arm0']) > count + 5)
    waiting.cancel_goal_async()
    assert 'cancelled' in graph.result(waiting).reason


def test_a_view_of_the_wrong_size_is_refused_by_name_and_said_once(grow):
    graph, (projector,) = grow(QUICK, cameras=f'{{wrist: {{{FOREIGN}}}}}', fps=30.0)
    projector.shape = (48, 64, 3)
    graph.start_all('arm', 'episode')
    handle = graph.ask(seed=1)
    graph.until(lambda: 'camera wrist sends 64 x 48 rgb8' in graph.metrics[EPISODE].reason)
    assert graph.metrics[EPISODE].state == 'WAIT_CAMERA'
    handle.cancel_goal_async()
    graph.result(handle)
    said = (graph.folder / 'arm0-episode.log').read_text()
    assert said.count('camera wrist sends 64 x 48 rgb8') == 1


def test_rows_with_two_pictures_outlive_replays_and_an_episode_node_that_are_killed(grow):
    """98 kB a row, lockstep, through the real replay into the real store."""
    drawn = 'kind: sim, width: 128, height: 128'
    graph, _ = grow('task.max_steps=40', cameras=f'{{side: {{{drawn}}}, wrist: {{{drawn}}}}}')
    graph.acking = False
    graph.start('replay', 'learning')
    graph.start_all('arm', 'episode')
    seen = {}
    graph.answer = lambda o: seen.update({(o.id.episode, o.id.step): o}) or [0.0] * 6

    def killed_while_it_runs(*names):
        handle, count = graph.ask(seed=len(seen)), len(seen)
        for name, cell in names:
            graph.until(lambda n=count: len(seen) > n + 10)
            count = len(seen)
            graph.kill(name, cell)
            graph.start(name, cell)
        return graph.result(handle)

    replay, episode = ('replay', 'learning'), ('episode', 'arm0')
    whole = [killed_while_it_runs(replay, replay)]
    graph.ask(seed=9)
    begun = len(seen)
    graph.until(lambda: len(seen) > begun + 10)
    graph.kill(*episode)
    graph.start(*episode)
    graph.metrics.clear()
    whole.append(killed_while_it_runs())
    graph.until(lambda: graph.number(EPISODE, 'rows_unacknowledged') == 0)
    rows = [r for r in Tail(graph.folder / 'store').rows() if isinstance(r, Row)]
    for result in whole:
        kept = [r for r in rows if r.episode == result.episode]
        assert [(r.step, r.closing) for r in kept] == [(k, k == 40) for k in range(41)]
    for incarnation in {r.incarnation for r in rows}:
        of = [r.seq for r in rows if r.incarnation == incarnation]
        assert of == list(range(len(of)))
    for row in rows:
        assert [(i.name, i.height, i.width) for i in row.images] == [
            ('side', 128, 128), ('wrist', 128, 128),
        ]  # fmt: skip
        for picture in row.images:
            assert picture.stamp_ns == row.captured_ns
            assert (picture.data == grey(picture.stamp_ns)).all()
        if asked := seen.get((row.episode, row.step)):
            assert isinstance(asked, Observation)
            assert [bytes(i.data) for i in asked.images] == [bytes(i.data) for i in row.images]
