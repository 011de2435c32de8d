# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A policy's node that serves two cells with cameras over real DDS."""

from __future__ import annotations

from collections.abc import Iterator
import os
from pathlib import Path
import subprocess
import sys
import time

import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
import torch
from user_msgs.msg import Action, Metrics, Observation, StepId
import yaml

from user_core import jpeg, topics
from user_core.config import RunConfig, weights_hash
from user_core.messages import floats, image_msg, stamp
from user_learning.networks import Actor
from user_learning.policy import Policy, Question
from user_learning.row_message import weights_msg
from user_learning.spec import spec_of
from user_learning.weights import Publisher

pytestmark = [pytest.mark.needs_ros, pytest.mark.timeout(180)]

CELLS = ('left', 'right')
CAMERAS = {name: {'kind': 'sim', 'width': 48, 'height': 32} for name in ('side', 'wrist')}


class Side:
    """The rest of the graph: two episodes that ask, a learner that has published once."""

    def __init__(self, folder: Path) -> None:
        self.config = RunConfig.model_validate(
            {
                'name': 'seeing',
                'cells': {cell: {'cameras': CAMERAS} for cell in CELLS},
                'policy': {'kind': 'cnn', 'hidden': (16,)},
            }
        )
        self.spec = spec_of(self.config)
        actor = Actor(self.spec, (16,), torch.Generator().manual_seed(1), -1.0)
        torch.nn.init.orthogonal_(actor.net[-1].weight)
        self.tensors = dict(actor.state_dict())
        publisher = Publisher(folder / 'shm', folder / 'v.json', weights_hash(self.config))
        version = publisher.publish('actor', self.tensors, 1, 0)
        rclpy.init()
        self.node = rclpy.create_node('test', start_parameter_services=False)
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.ask = {cell: self.pub('observation', cell) for cell in CELLS}
        self.answers: dict[tuple[str, int], Action] = {}
        self.metrics = Metrics()
        for cell in CELLS:
            topic = topics.TOPICS['action']
            self.node.create_subscription(
                topic.type, topics.name('action', cell), self.on_action, topic.reader
            )
        topic = topics.TOPICS['metrics']
        self.node.create_subscription(
            topic.type, topics.name('metrics'), self.on_metrics, topic.reader
        )
        self.weights = self.pub('weights')
        self.weights.publish(weights_msg('r', version))
        page = folder / 'policy.yaml'
        values = {'config': self.config.to_json(), 'run': 'r', 'run_folder': str(folder)}
        page.write_text(yaml.safe_dump({'/**': {'ros__parameters': values}}))
        names = ['-r', '__node:=policy', '-r', '__ns:=/learning', '--params-file', str(page)]
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'user_learning.policy_node', '--ros-args', *names],
            env=os.environ | {'OMP_NUM_THREADS': '1'},
        )

    def pub(self, key: str, cell: str | None = None):
        topic = topics.TOPICS[key]
        return self.node.create_publisher(topic.type, topics.name(key, cell), topic.writer)

    def on_action(self, msg: Action) -> None:
        self.answers[msg.id.cell, msg.id.step] = msg

    def on_metrics(self, msg: Metrics) -> None:
        if msg.node.endswith('/policy'):
            self.metrics = msg

    def number(self, name: str) -> float:
        return dict(zip(self.metrics.names, self.metrics.values, strict=True)).get(name, 0.0)

    def until(self, true, again=lambda: None) -> None:
        end = time.monotonic() + 90
        while not true():
            assert time.monotonic() < end, (self.metrics.state, self.metrics.reason)
            assert self.process.poll() is None
            again()
            self.executor.spin_once(timeout_sec=0.1)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown()


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path)
    yield side
    side.close()


def pictures(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {name: rng.integers(0, 256, (32, 48, 3), np.uint8) for name in CAMERAS}


def observation(cell: str, step: int, coded: bool = False) -> Observation:
    def content(picture: np.ndarray) -> np.ndarray | bytes:
        return jpeg.encode(picture) if coded else picture

    return Observation(
        id=StepId(run='r', cell=cell, episode=5, step=step),
        mode=Observation.MODE_TRAIN,
        policy='actor',
        state=floats(np.full(19, 0.01 * step)),
        images=[
            image_msg(name, content(p), stamp(1), (32, 48)) for name, p in pictures(step).items()
        ],
    )


def test_cells_that_ask_at_once_are_answered_together_and_each_as_if_alone(side: Side) -> None:
    policy = Policy(side.spec, (16,), side.config.seed)
    policy.offer('actor', 1, side.tensors)
    asked = 0

    def ask() -> None:
        nonlocal asked
        for cell in CELLS:
            side.ask[cell].publish(observation(cell, asked, coded=cell == 'right'))
        asked += 1

    side.until(lambda: side.number('answers') > side.number('passes') > 0, ask)
    for (cell, step), answer in side.answers.items():
        seen = pictures(step)
        if cell == 'right':
            seen = {name: jpeg.decode(jpeg.encode(p)) for name, p in seen.items()}
        state = np.full(19, 0.01 * step, np.float32)
        (alone,) = policy.act([Question('actor', 0, Observation.MODE_TRAIN, state, 5, step, seen)])
        assert np.abs(alone.action - np.array(answer.chunk)).max() < 1e-5
    assert {cell for cell, _ in side.answers} == set(CELLS)


def test_a_picture_that_is_not_the_task_s_is_refused_by_name(side: Side) -> None:
    msg = observation('left', 1)
    msg.images = msg.images[:1]
    side.until(lambda: side.metrics.state == 'REFUSED', lambda: side.ask['left'].publish(msg))
    assert side.metrics.reason == 'the picture of camera wrist is missing'
    assert side.answers == {}
