# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""One table of topics: every pair that can meet matches, and every row has its reason."""

import ast
from pathlib import Path

import pytest
from rclpy.qos import (
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
    qos_profile_sensor_data,
)

from user_core import topics

ROOT = Path(__file__).parents[2]
ROWS = list(topics.TOPICS.values())


@pytest.mark.parametrize('topic', ROWS, ids=lambda t: t.name)
def test_every_publisher_matches_every_subscription_of_its_topic(topic):
    assert qos_check_compatible(topic.writer, topic.reader)[0] == QoSCompatibility.OK
    for foreign in (QoSProfile(depth=10), qos_profile_sensor_data):
        assert qos_check_compatible(topic.writer, foreign)[0] != QoSCompatibility.ERROR


@pytest.mark.parametrize('topic', ROWS, ids=lambda t: t.name)
def test_every_row_is_reliable_bounded_and_has_a_reason(topic):
    assert topic.writer.reliability == ReliabilityPolicy.RELIABLE
    assert 1 <= topic.depth <= topic.reader_depth <= 64
    assert len(topic.reason.split()) >= 4


def test_at_most_sixteen_rows_are_in_flight():
    assert topics.TOPICS['transition'].depth == topics.TOPICS['transition'].reader_depth == 16


def test_names_of_two_cells_never_meet():
    for key in [*topics.TOPICS, *topics.ACTIONS, *topics.SERVICES]:
        assert topics.interface(key) is not None
        left, right = (topics.name(key, cell, 'wrist') for cell in ('left', 'right'))
        if left != right:
            assert left.startswith('/left/')
            assert right.startswith('/right/')
        else:
            assert left.startswith('/learning/') or left.count('/') == 1


def test_a_cell_topic_without_a_cell_is_a_mistake():
    with pytest.raises(ValueError, match='belongs to a cell'):
        topics.name('observation')
    with pytest.raises(ValueError, match='belongs to a camera'):
        topics.name('view', 'arm0')


WAITING = {
    'call',
    'send_goal',
    'wait_for_service',
    'wait_for_server',
    'spin',
    'spin_until_future_complete',
}


VIEWERS = ('view_node.py',)
"""They stand outside of a run: no shell, no parameters, an executor of their own."""


def blocking_calls(text: str) -> list[int]:
    """Lines that wait for an answer, e.g. `client.call(...)`: in a callback it never comes, or
    another spin takes the node from its executor.
    """
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in WAITING
        and not (isinstance(node.func.value, ast.Name) and node.func.value.id == 'subprocess')
    ]


def test_no_node_calls_a_service_and_waits():
    assert blocking_calls('self.client.call(request)') == [1]
    assert blocking_calls('a\nrclpy.spin_until_future_complete(node, future)') == [2]
    assert blocking_calls('self.moves.send_goal(goal)') == [1]
    assert blocking_calls('self.client.call_async(request)') == []
    assert blocking_calls('self.moves.send_goal_async(goal)') == []
    sources = [
        path
        for path in (ROOT / 'src').rglob('*.py')
        if 'rclpy' in path.read_text() and path.name not in VIEWERS
    ]
    assert len(sources) > 10
    assert {p.name: lines for p in sources if (lines := blocking_calls(p.read_text()))} == {}


def test_topics_of_ours_are_made_from_the_table_alone():
    """A publisher of user_msgs with a profile of its own could be silent to its reader."""
    for path in (ROOT / 'src').rglob('*_node.py'):
        if path.name in VIEWERS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in ('create_publisher', 'create_subscription'), (
                    f'{path.name}, line {node.lineno}: use create_pub and create_sub'
                )


def test_a_service_of_a_run_has_a_name_of_its_own_that_ros_takes():
    from rclpy.validate_full_topic_name import validate_full_topic_name

    names = {topics.of_run('fetch_weights', run) for run in ('peg', '7.night-run', 'peg-2')}
    assert len(names) == 3
    assert all(validate_full_topic_name(name, is_service=True) for name in names)
