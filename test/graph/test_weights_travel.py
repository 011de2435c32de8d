# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A policy's process on real DDS, while the test plays learner and cell: how weights reach it,
which version acts, and when none may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import os
from pathlib import Path
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile
import torch
from user_msgs.msg import Action, Metrics, Observation, StepId
import yaml

from user_core import topics
from user_core.config import RunConfig, weights_hash
from user_core.messages import doubles, floats
from user_learning.learner_node import LearnerNode
from user_learning.networks import Actor
from user_learning.policy import Answer, Policy, Question
from user_learning.row_message import weights_msg
from user_learning.spec import spec_of
from user_learning.weights import LEASES_N, Publisher, Version

pytestmark = [pytest.mark.needs_ros, pytest.mark.timeout(180)]

RUN, CELL = 'travel', 'arm0'
STATE = np.full(19, 0.1, np.float32)


class Side:
    """The learner's and the cell's side of the wire."""

    def __init__(self, folder: Path, latched: bool = True, **learner: object) -> None:
        self.folder = folder
        self.config = RunConfig.model_validate(
            {
                'name': RUN,
                'cells': {CELL: {}},
                'policy': {'hidden': (16,)},
                'learner': learner,
            }
        )
        self.spec = spec_of(self.config)
        self.publisher = Publisher(folder / 'shm', folder / 'v.json', weights_hash(self.config))
        self.actor = Actor(self.spec, (16,), torch.Generator().manual_seed(1), -1.0)
        self.files: dict[int, dict[str, torch.Tensor]] = {}
        rclpy.init()
        self.node = rclpy.create_node('test', start_parameter_services=False)
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.actions: dict[int, Action] = {}
        self.heard: list[Metrics] = []
        self.observations = self.pub('observation', topics.TOPICS['observation'].writer)
        volatile = QoSProfile(depth=1, durability=DurabilityPolicy.VOLATILE)
        self.weights = self.pub(
            'weights', topics.TOPICS['weights'].writer if latched else volatile
        )
        self.numbers = self.pub('metrics', topics.TOPICS['metrics'].writer)
        self.sub('action', self.on_action)
        self.sub('metrics', self.on_metrics)
        self.service = None
        self.process: subprocess.Popen | None = None
        self.asked = 0

    def pub(self, key: str, profile: QoSProfile):
        return self.node.create_publisher(topics.interface(key), topics.name(key, CELL), profile)

    def sub(self, key: str, callback: Callable) -> None:
        topic = topics.TOPICS[key]
        self.node.create_subscription(topic.type, topics.name(key, CELL), callback, topic.reader)

    def on_action(self, msg: Action) -> None:
        self.actions[msg.id.step] = msg

    def on_metrics(self, msg: Metrics) -> None:
        if msg.node == '/learning/policy':
            self.heard.append(msg)

    # ------------------------------------------------------------------ the learner's part

    def serve(self) -> None:
        """The learner's own answer to whoever fetches."""
        learner = SimpleNamespace(publisher=self.publisher)
        self.service = self.node.create_service(
            topics.interface('fetch_weights'),
            topics.of_run('fetch_weights', RUN),
            lambda request, response: LearnerNode.on_fetch(learner, request, response),
            qos_profile=topics.FETCH_WEIGHTS,
        )

    def publish(self, announce: bool = True, host: str | None = None) -> Version:
        """The next version: another actor each time."""
        with torch.no_grad():
            self.actor.net[-1].bias.copy_(torch.randn(self.actor.net[-1].bias.shape) / 2)
        tensors = {k: v.clone() for k, v in self.actor.state_dict().items()}
        version = self.publisher.publish('actor', tensors, 0, 0)
        self.files[version.version] = tensors
        if announce:
            msg = weights_msg(RUN, version)
            msg.host = msg.host if host is None else host
            self.weights.publish(msg)
        return version

    def tell(self, **values: float) -> None:
        """The learner's heartbeat."""
        self.numbers.publish(
            Metrics(
                id=StepId(run=RUN),
                node='/learning/learner',
                names=list(values),
                values=doubles(list(values.values())),
            )
        )

    # ------------------------------------------------------------------ the cell's part

    def ask(self, version: int = 0) -> int:
        """One observation; its step."""
        self.asked += 1
        identity = StepId(run=RUN, cell=CELL, episode=5, step=self.asked)
        self.observations.publish(
            Observation(id=identity, policy='actor', policy_version=version, state=floats(STATE))
        )
        return self.asked

    def acts(self, step: int) -> np.ndarray:
        """What the version that the action of this step names would do."""
        version = self.actions[step].policy_version
        policy = Policy(self.spec, (16,), self.config.seed)
        policy.offer('actor', version, self.files[version])
        question = Question('actor', version, Observation.MODE_TRAIN, STATE, 5, step)
        (answer,) = policy.act([question])
        assert isinstance(answer, Answer)
        return answer.action

    # ------------------------------------------------------------------ the policy

    def start(self) -> None:
        """Starts the policy and waits for its first word."""
        self.heard.clear()
        page = self.folder / 'policy.yaml'
        values = {'config': self.config.to_json(), 'run': RUN, 'run_folder': str(self.folder)}
        page.write_text(yaml.safe_dump({'/**': {'ros__parameters': values}}))
        names = ['-r', '__node:=policy', '-r', '__ns:=/learning', '--params-file', str(page)]
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'user_learning.policy_node', '--ros-args', *names],
            env=os.environ | {'OMP_NUM_THREADS': '1'},
        )
        self.until(lambda: self.heard and self.observations.get_subscription_count())

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def number(self, name: str) -> float:
        last = self.heard[-1]
        return dict(zip(last.names, last.values, strict=True))[name]

    def until(
        self,
        true: Callable[[], object],
        again: Callable[[], object] = lambda: None,
        seconds: float = 60.0,
        every_s: float = 0.1,
    ) -> float:
        """Spins until `true()`, calling `again` now and then; how long it took, in s."""
        begun = time.monotonic()
        due = begun
        while not true():
            now = time.monotonic()
            last = self.heard[-1] if self.heard else None
            assert now - begun < seconds, last and (last.state, last.reason)
            assert self.process is None or self.process.poll() is None
            if now >= due:
                again()
                due = now + every_s
            self.executor.spin_once(timeout_sec=every_s / 5)
        return time.monotonic() - begun

    def wait(self, seconds: float, again: Callable[[], object] = lambda: None) -> None:
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > end, again)

    def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
            assert self.process.wait(20) == 0
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown()


@pytest.fixture
def side(tmp_path: Path, ros_domain: int) -> Iterator[Callable[..., Side]]:
    sides: list[Side] = []

    def build(**how: object) -> Side:
        sides.append(Side(tmp_path, **how))
        return sides[-1]

    yield build
    for one in sides:
        one.close()


@pytest.mark.parametrize('way', ['latched', 'pulled'])
def test_a_policy_that_starts_late_has_the_newest_version(side, way: str) -> None:
    """By the latched announcement alone, and by asking alone: a middleware that latches nothing
    brings no announcement at all.
    """
    here = side(latched=way == 'latched')
    for _ in range(3):
        here.publish()
    if way == 'pulled':
        here.serve()
    here.start()
    took = here.until(lambda: here.number('version') == 3)
    print(f'{way}: {took:.2f} s after its first word')
    assert took < 15.0
    step = here.ask()
    here.until(lambda: step in here.actions)
    assert here.actions[step].policy_version == 3

    here.kill()
    here.start()
    assert here.until(lambda: here.number('version') == 3) < 15.0


def test_a_version_whose_announcement_was_lost_is_asked_for_because_the_learner_speaks_of_it(
    side,
) -> None:
    here = side(latched=False)
    here.publish()
    here.serve()
    here.start()
    here.until(lambda: here.number('version') == 1)
    here.publish()
    here.until(lambda: here.number('version') == 2, lambda: here.tell(version=2.0), every_s=0.5)


def test_nobody_acts_while_the_learner_has_published_nothing(side) -> None:
    here = side()
    here.serve()
    here.start()
    step = here.ask()
    here.wait(2.0, lambda: here.tell(version=0.0))
    assert here.heard[-1].state == 'WAIT_WEIGHTS'
    assert 'no weights of actor have been published yet' in here.heard[-1].reason
    assert here.actions == {}
    here.publish()
    here.until(lambda: step in here.actions)


def test_of_a_hundred_versions_a_second_each_action_is_one_s_and_the_last_one_acts(side) -> None:
    """Files go as fast as they come: what is announced is often gone when it is to be read."""
    here = side()
    here.serve()
    here.publish()
    here.start()
    here.until(lambda: here.number('version') == 1)
    most, before = 0, memory(here.process.pid)

    def stream() -> None:
        nonlocal most
        here.publish()
        most = max(most, sum(1 for _ in here.publisher.folder.iterdir()))
        here.ask()

    here.until(lambda: here.publisher.version >= 500, stream, every_s=0.01)
    last = here.publisher.version
    here.until(lambda: here.number('version') == last)
    step = here.ask()
    here.until(lambda: step in here.actions)
    assert here.actions[step].policy_version == last
    for step, action in here.actions.items():
        assert np.abs(np.array(action.chunk) - here.acts(step)).max() < 1e-6
    acted = [here.actions[step].policy_version for step in sorted(here.actions)]
    assert acted == sorted(acted)
    assert len(set(acted)) > 10
    assert most <= here.publisher.keep_n + LEASES_N
    assert memory(here.process.pid) - before < 64 << 20
    assert 0 <= here.number('lag_p50') <= here.number('lag_p99') <= last
    print(f'{len(set(acted))} of {last} versions acted, {most} files, lag p50 '
          f'{here.number("lag_p50")}, p99 {here.number("lag_p99")}')  # fmt: skip


def test_a_policy_too_far_behind_holds_and_goes_on_by_itself(side) -> None:
    """Announced versions lie on another machine, and nobody serves them."""
    here = side(max_policy_lag=3)
    here.publish()
    here.start()
    here.until(lambda: here.number('version') == 1)
    for _ in range(3):
        here.publish(host='far')
    step = here.ask()
    here.until(lambda: step in here.actions)
    assert here.actions[step].policy_version == 1
    here.publish(host='far')
    here.until(lambda: here.heard[-1].state == 'STALE', here.ask)
    assert 'more than 3 versions behind the learner' in here.heard[-1].reason
    step = here.ask()
    here.wait(1.0)
    assert step not in here.actions
    frozen = here.ask(version=1)
    here.until(lambda: frozen in here.actions)  # an evaluated version is never too old
    step = here.ask()
    here.serve()
    here.until(lambda: step in here.actions)
    assert here.actions[step].policy_version == 5


@pytest.mark.parametrize('fault', ['gone', 'stuck'])
def test_a_policy_holds_when_its_learner_is_silent_and_goes_on_by_itself(side, fault) -> None:
    """`stuck`: the learner's node tells its numbers, but its training thread does not get on."""
    here = side(max_stale_s=1.0)
    here.publish()
    here.start()
    begun = [0.0]

    def well() -> None:
        here.tell(version=1.0, quiet_s=0.1)

    def ill() -> None:
        if fault == 'stuck':
            here.tell(version=1.0, quiet_s=time.monotonic() - begun[0])
        here.ask()

    well()
    step = here.ask()
    here.until(lambda: step in here.actions, well)
    begun[0] = time.monotonic()
    here.until(lambda: here.heard[-1].state == 'STALE', ill)
    assert 'the learner has not been heard' in here.heard[-1].reason
    step = here.ask()
    here.wait(1.0)
    assert step not in here.actions
    here.until(lambda: step in here.actions, well)
    here.until(lambda: here.heard[-1].state == 'READY', well)


def memory(pid: int) -> int:
    """Resident bytes of a process that are its own."""
    fields = Path(f'/proc/{pid}/statm').read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf('SC_PAGE_SIZE')
