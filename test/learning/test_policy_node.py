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

from user_learning import policy_node
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
    client = node.create_client(FetchWeights, '/learning/fetch_weights')
    side = SimpleNamespace(node=node, executor=executor, fetcher=client, ticks=0)

    def tick() -> None:
        side.ticks += 1

    node.create_timer(0.02, tick)
    yield side
    executor.shutdown()
    node.destroy_node()
    context.shutdown()


def fetched(asker, version: int) -> tuple[bytes, str]:
    """Asks in another thread, as the loader does, while this one spins."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(PolicyNode.fetch, asker, 'actor', version)
        while not asked.done():
            asker.executor.spin_once(timeout_sec=0.05)
        return asked.result()


def test_a_learner_that_never_answers_is_given_up_while_the_node_goes_on(asker, monkeypatch):
    monkeypatch.setattr(policy_node, 'FETCH_WITHIN_S', 1.0)
    with pytest.raises(BadWeightsError, match='does not answer'):
        fetched(asker, 1)
    assert asker.ticks >= 5


def test_a_version_larger_than_a_message_comes_in_ranges_and_a_refusal_is_said(asker):
    data, offsets = bytes(range(256)) * 2500, []

    def answer(request, response):
        if request.version != 7:
            response.error = 'there are no such weights'
            return response
        offsets.append(request.offset)
        response.data = data[request.offset : request.offset + request.length]
        response.size, response.sha256 = len(data), 'abc'
        return response

    asker.node.create_service(FetchWeights, '/learning/fetch_weights', answer)
    assert fetched(asker, 7) == (data, 'abc')
    assert offsets == [0, policy_node.RANGE, 2 * policy_node.RANGE]
    with pytest.raises(BadWeightsError, match='no such weights'):
        fetched(asker, 8)
