# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The policy's node asks the learner for weights without holding up its executor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip('user_msgs.srv')
import rclpy
from rclpy.executors import SingleThreadedExecutor
from user_msgs.srv import FetchWeights

from user_core import topics
from user_learning import fetcher
from user_learning.fetcher import Fetched, fetch
from user_learning.policy_node import PolicyNode
from user_learning.weights import BadWeightsError

pytestmark = pytest.mark.needs_ros


@pytest.fixture
def asker(ros_domain: int):
    """A node with a client of fetch_weights and a timer that counts."""
    context = rclpy.Context()
    context.init()
    node = rclpy.create_node('asker', context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    client = node.create_client(
        FetchWeights, '/learning/fetch_weights', qos_profile=topics.FETCH_WEIGHTS
    )
    side = SimpleNamespace(node=node, executor=executor, learner=client, ticks=0, closing=False)

    def tick() -> None:
        side.ticks += 1

    node.create_timer(0.02, tick)
    yield side
    executor.shutdown()
    node.destroy_node()
    context.shutdown()


def serve(asker, answer) -> None:
    """A learner's side of the service, once it is found."""
    asker.node.create_service(
        FetchWeights, '/learning/fetch_weights', answer, qos_profile=topics.FETCH_WEIGHTS
    )
    while not asker.learner.service_is_ready():
        asker.executor.spin_once(timeout_sec=0.05)


def fetched(asker, version: int) -> Fetched | None:
    """Asks in another thread, as the loader does, while this one spins."""

    def ask(*question):
        return PolicyNode.ask(asker, *question)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(fetch, ask, 'actor', version)
        while not asked.done():
            asker.executor.spin_once(timeout_sec=0.05)
        return asked.result()


def test_a_learner_that_is_not_there_is_no_reason_to_wait(asker):
    with pytest.raises(BadWeightsError, match='not there'):
        fetched(asker, 1)


def test_a_learner_that_never_answers_is_given_up_while_the_node_goes_on(asker, monkeypatch):
    monkeypatch.setattr(fetcher, 'GIVE_UP_S', 1.0)
    other = rclpy.create_node('learner', context=asker.node.context)  # nobody spins it
    other.create_service(
        FetchWeights, '/learning/fetch_weights', lambda q, r: r, qos_profile=topics.FETCH_WEIGHTS
    )
    while not asker.learner.service_is_ready():
        asker.executor.spin_once(timeout_sec=0.05)
    with pytest.raises(BadWeightsError, match='does not answer'):
        fetched(asker, 1)
    assert asker.ticks >= 5
    assert not asker.learner._pending_requests
    other.destroy_node()


def test_a_version_larger_than_a_message_comes_in_ranges_and_a_refusal_is_said(asker):
    data, asked = bytes(range(256)) * 2500, []

    def answer(request, response):
        if request.version != 7:
            response.error = 'there are no such weights'
            return response
        asked.append((request.offset, request.length))
        response.data = data[request.offset : request.offset + request.length]
        response.version, response.size, response.sha256 = 7, len(data), 'abc'
        return response

    serve(asker, answer)
    assert fetched(asker, 7) == Fetched(7, data, 'abc')
    assert len(asked) > 10
    assert max(length for _, length in asked) <= 256 << 10
    with pytest.raises(BadWeightsError, match='no such weights'):
        fetched(asker, 8)
