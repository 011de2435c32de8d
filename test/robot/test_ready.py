# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A cell that asks waits between reset and first step until a person says that it is ready."""

import time

import pytest

pytest.importorskip('user_msgs.action')
from cells import Graph
from scripted import ScriptedCell, make

from user_core import run as run_module
from user_core.errors import UserError
from user_core.ready import tell

EPISODE = '/arm0/episode'


@pytest.fixture
def grow(tmp_path):
    """A graph of a cell that asks."""
    graphs = []

    def make_graph(*overrides):
        graphs.append(Graph(tmp_path, 'cells.arm0.ready=ask', 'task.max_steps=10', *overrides))
        graphs[-1].start_all('arm', 'episode')
        return graphs[-1]

    yield make_graph
    for graph in graphs:
        graph.close()


def waits(graph):
    return EPISODE in graph.metrics and graph.metrics[EPISODE].state == 'WAIT_READY'


@pytest.mark.needs_ros
def test_an_episode_begins_when_a_person_says_so_and_not_before(grow):
    graph = grow()
    assert not graph.call('ready').success  # nobody is waited for
    handle = graph.ask(seed=1)
    graph.until(lambda: waits(graph))
    assert 'user ready arm0' in graph.metrics[EPISODE].reason
    heard = graph.metrics[EPISODE].stamp
    graph.until(lambda: graph.metrics[EPISODE].stamp != heard)
    assert waits(graph)
    assert graph.rows['arm0'] == []
    assert 'arm0: the episode begins' in tell(graph.config, 'arm0')
    result = graph.result(handle)
    assert (result.invalid, result.length) == (False, 10)
    graph.until(lambda: not waits(graph))
    with pytest.raises(UserError, match='waits for nobody: it is IDLE'):
        tell(graph.config, None)
    waiting = graph.ask(seed=2)
    graph.until(lambda: waits(graph))
    begun = time.monotonic()
    waiting.cancel_goal_async()
    assert 'cancelled' in graph.result(waiting).reason
    assert time.monotonic() - begun < 5.0
    assert {row.id.episode for row in graph.rows['arm0']} == {result.episode}


@pytest.mark.needs_ros
def test_a_wait_that_is_too_long_ends_without_a_row_and_the_arm_ready_again(grow):
    graph = grow('cells.arm0.ready_within_s=0.5')
    given_up = graph.result(graph.ask(seed=1))
    assert given_up.invalid
    assert 'nobody said ready' in given_up.reason
    assert graph.rows['arm0'] == []
    graph.ask(seed=1)
    graph.until(lambda: waits(graph))


def test_a_run_does_not_lose_its_patience_while_a_person_is_awaited(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, 'PATIENCE_S', 0.0)
    void = ScriptedCell(lambda goal, n: run_module.Episode(goal, 'arm0', 0, 'nobody', void=True))
    (tmp_path / 'a').mkdir()
    (tmp_path / 'b').mkdir()
    with pytest.raises(UserError, match='No episode could be run'):
        make(tmp_path / 'a', void)()
    patient = ScriptedCell(lambda goal, n: n > 3 or void(goal))
    run = make(tmp_path / 'b', patient)
    run.awaited_s = float('inf')
    next(run.episodes('DEMONSTRATIONS', 0, '', 0, iter(range(9))))
    assert len(patient.goals) == 4


@pytest.mark.parametrize(
    ('cell', 'words'), [('arm9', 'no cell arm9'), ('arm0', 'waits for nobody'), (None, 'No cell')]
)
def test_a_cell_that_does_not_ask_is_named(cell, words):
    from user_core.config import load

    with pytest.raises(UserError, match=words):
        tell(load('peg_rlpd'), cell)
