# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The run's client of a cell against a real action server that answers too late."""

from collections import deque
import threading
import time

import pytest
import rclpy
from rclpy.action import ActionServer, CancelResponse
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from user_msgs.action import RunEpisode

from user_core import cell_client
from user_core.outcome import Goal, Mode


class Face(Node):
    """What the client needs of a shell."""

    def __init__(self, context):
        super().__init__('run', context=context)
        self.soon = deque()
        self.wake = self.create_guard_condition(self.drain)

    def drain(self):
        while self.soon:
            self.soon.popleft()()

    def call_soon(self, function):
        self.soon.append(function)
        self.wake.trigger()


@pytest.fixture
def spin():
    """Spins nodes in threads of their own, and ends them."""
    context, executors = rclpy.Context(), []
    rclpy.init(context=context)

    def begin(node):
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        executors.append(executor)
        threading.Thread(target=executor.spin, daemon=True).start()

    yield context, begin
    for executor in executors:
        executor.shutdown(timeout_sec=5)
    rclpy.shutdown(context=context)


def test_an_episode_that_is_accepted_after_the_run_gave_it_up_is_cancelled(spin, monkeypatch):
    monkeypatch.setattr(cell_client, 'ACCEPT_S', 0.5)
    context, begin = spin
    cell, cancelled, given_up = Node('episode', context=context), threading.Event(), []

    async def execute(handle):
        while not cancelled.is_set():
            await rclpy.task.Future()  # pragma: no cover: held until it is cancelled

    def cancel(_):
        cancelled.set()
        return CancelResponse.ACCEPT

    server = ActionServer(cell, RunEpisode, '/arm0/run_episode', execute, cancel_callback=cancel)
    face = Face(context)
    begin(face)
    client = cell_client.CellClient(face, 'arm0', lambda: False)

    def late():  # the server is there, but its node only looks up when the client has given up
        while not given_up:
            time.sleep(0.01)
        begin(cell)

    threading.Thread(target=late, daemon=True).start()
    episode = client(Goal(Mode.TRAIN, 'actor', 0, 1))
    given_up.append(episode)
    assert episode.void
    assert 'did not answer' in episode.reason
    assert cancelled.wait(20)
    server.destroy()
