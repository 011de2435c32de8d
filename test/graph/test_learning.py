# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Replay, learner and policy as processes on real DDS; the test plays the cells' side of the
wire.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from std_srvs.srv import Trigger
from user_msgs.msg import Ack, Action, Metrics, Observation, StepId, Transition, Weights
from user_msgs.srv import FetchWeights

from user_core import topics
from user_core.config import RunConfig
from user_core.messages import floats
from user_learning.row import Row
from user_learning.tail import Tail
from user_learning.weights import metadata_of, read

pytestmark = [pytest.mark.needs_ros, pytest.mark.timeout(180)]

RUN = 'graph'
CELLS = ('arm0', 'arm1')


def config() -> RunConfig:
    return RunConfig.model_validate(
        {
            'name': 'graph',
            'cells': {cell: {} for cell in CELLS},
            'policy': {'hidden': (16,)},
            'algorithm': {'critic_hidden': (16,), 'batch': 32},
            'learner': {
                'warmup_updates': 20,
                'start_rows': 10,
                'clone_updates': 30,
                'publish_every_s': 0.2,
                'checkpoint_every_s': 0.5,
            },
            'budget': {'demos': 2},
        }
    )


class Side:
    """The cells' side: sends rows and observations, hears acknowledgements, actions, weights and
    numbers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.context = rclpy.Context()
        self.context.init()
        self.node = rclpy.create_node('cells', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.acked: dict[tuple[str, int], int] = {}
        self.actions: list[tuple[str, Action]] = []
        self.weights: list[Weights] = []
        self.numbers: dict[str, dict] = {}
        self.seq = dict.fromkeys(CELLS, 0)
        self.rows, self.observations = {}, {}
        for cell in CELLS:
            self.rows[cell] = self._pub('transition', cell)
            self.observations[cell] = self._pub('observation', cell)
            self._sub('action', lambda m, c=cell: self.actions.append((c, m)), cell)
        self._sub('ack', self._on_ack)
        self._sub('weights', self.weights.append)
        self._sub('metrics', self._on_metrics)

    def _pub(self, key: str, cell: str | None = None):
        topic = topics.TOPICS[key]
        return self.node.create_publisher(topic.type, topics.name(key, cell), topic.writer)

    def _sub(self, key: str, callback, cell: str | None = None) -> None:
        topic = topics.TOPICS[key]
        self.node.create_subscription(topic.type, topics.name(key, cell), callback, topic.reader)

    def _on_ack(self, msg: Ack) -> None:
        key = (msg.cell, msg.incarnation)
        assert msg.next_seq >= self.acked.get(key, 0)
        self.acked[key] = msg.next_seq

    def _on_metrics(self, msg: Metrics) -> None:
        values = dict(zip(msg.names, msg.values, strict=True))
        self.numbers[msg.node] = {**values, 'state': msg.state, 'reason': msg.reason}

    def start(self, *names: str) -> None:
        """Starts nodes as the runner does."""
        for name in names:
            values = {'config': config().to_json(), 'run': RUN, 'run_folder': str(self.folder)}
            file = self.folder / f'{name}.yaml'
            file.write_text(json.dumps({'/**': {'ros__parameters': values}}))
            self.processes[name] = subprocess.Popen(
                [
                    sys.executable,
                    '-m',
                    f'user_learning.{name}_node',
                    '--ros-args',
                    '-r',
                    f'__node:={name}',
                    '-r',
                    '__ns:=/learning',
                    '--params-file',
                    str(file),
                ],
                env=os.environ | {'OMP_NUM_THREADS': '1'},
            )

    def kill(self, name: str) -> None:
        """Kill -9."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes.pop(name).wait()

    def until(self, true, seconds: float = 60.0, what: str = '') -> None:
        """Spins until `true()`; nodes must stay alive meanwhile."""
        end = time.monotonic() + seconds
        while not true():
            self.executor.spin_once(timeout_sec=0.05)
            for name, process in self.processes.items():
                assert process.poll() is None, f'{name} ended with {process.returncode}'
            assert time.monotonic() < end, f'waited in vain for {what or true}: {self.numbers}'

    def state(self, name: str) -> str:
        return self.numbers.get(f'/learning/{name}', {}).get('state', '')

    def episode(self, cell: str, number: int, mode: int, steps: int = 6, version: int = 0) -> None:
        """Sends an episode's rows with at most 16 in flight, again and again until they are
        acknowledged.
        """
        rows = []
        for step in range(steps + 1):
            closing, last = step == steps, step == steps - 1
            state = np.zeros(19, np.float32)
            state[:3] = CELLS.index(cell), number, step
            rows.append(
                Transition(
                    schema_version=1,
                    id=StepId(run=RUN, cell=cell, episode=number, step=step),
                    incarnation=1,
                    seq=self.seq[cell] + step,
                    mode=mode,
                    state=floats(state),
                    executed_action=floats([] if closing else np.full(6, 0.1 * step)),
                    policy='actor',
                    policy_version=version,
                    reward=float(last),
                    terminated=last,
                    boundary=Transition.BOUNDARY_SUCCESS if last or closing else 0,
                    closing=closing,
                    valid=not closing,
                )
            )
        first, self.seq[cell] = self.seq[cell], self.seq[cell] + len(rows)

        def acked() -> int:
            return self.acked.get((cell, 1), 0)

        sent = 0.0
        while acked() < self.seq[cell]:
            if time.monotonic() - sent > 1.0:
                for row in rows:
                    if row.seq >= acked():
                        self.rows[cell].publish(row)
                sent = time.monotonic()
            self.executor.spin_once(timeout_sec=0.02)
            assert time.monotonic() - sent < 60
        assert first < self.seq[cell]

    def ask(self, cell: str, episode: int, step: int, **fields: object) -> Action:
        """Publishes one observation, once, and waits for its answer."""
        fields = {'mode': Observation.MODE_TRAIN, 'policy': 'actor', **fields}
        state = fields.pop('state', np.full(19, 0.1))
        identity = StepId(run=RUN, cell=cell, episode=episode, step=step)
        self.until(lambda: self.observations[cell].get_subscription_count() > 0, what='a policy')
        self.observations[cell].publish(Observation(id=identity, state=floats(state), **fields))
        self.until(lambda: self.answer(identity) is not None, what=f'an answer to {identity}')
        found = self.answer(identity)
        assert found is not None
        return found

    def answer(self, identity: StepId) -> Action | None:
        return next((a for _, a in self.actions if a.id == identity), None)

    def newest(self, policy: str = 'actor') -> Weights | None:
        return next((w for w in reversed(self.weights) if w.policy == policy), None)

    def demonstrate(self) -> None:
        for number in (1, 2):
            self.episode('arm0', number, Observation.MODE_DEMO)

    def close(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGINT)
        codes = {name: process.wait(timeout=20) for name, process in self.processes.items()}
        self.executor.shutdown()
        self.node.destroy_node()
        self.context.shutdown()
        assert codes == dict.fromkeys(codes, 0)


@pytest.fixture
def side(tmp_path: Path, ros_domain: int) -> Iterator[Side]:
    side = Side(tmp_path)
    try:
        yield side
    finally:
        side.close()


def test_rows_become_weights_and_weights_become_actions(side: Side) -> None:
    side.start('replay', 'learner', 'policy')
    side.until(lambda: side.state('policy') == 'WAIT_WEIGHTS', what='the policy')
    side.demonstrate()
    side.until(
        lambda: side.newest() is not None and side.newest('clone') is not None, what='weights'
    )
    first = side.newest()
    assert first is not None
    kept = side.folder / 'checkpoints' / f'actor-{first.version}.safetensors'
    kept.parent.mkdir(exist_ok=True)  # the learner's first checkpoint may be yet to come
    shutil.copyfile(first.path, kept)  # as the run does with what it evaluates
    action = side.ask('arm0', 10, 0)
    assert action.policy_version >= first.version
    assert (action.horizon, action.dimension, len(action.chunk)) == (1, 6, 6)
    assert np.abs(np.array(action.chunk)).max() <= 1.0
    clone = side.ask('arm1', 11, 0, policy='clone', mode=Observation.MODE_EVAL)
    assert clone.policy == 'clone'

    for number in range(20, 24):
        for cell in CELLS:
            side.episode(cell, number, Observation.MODE_TRAIN, version=first.version)
    side.until(lambda: side.numbers['/learning/learner'].get('env_steps') == 48, what='the rows')
    side.until(
        lambda: side.numbers['/learning/learner']['updates'] == 20 + 2 * 48, what='the budget'
    )
    side.until(lambda: side.newest().version > first.version, what='a newer version')
    assert side.state('learner') == 'IDLE'

    frozen = side.ask('arm0', 30, 0, mode=Observation.MODE_EVAL, policy_version=first.version)
    again = side.ask('arm0', 31, 0, mode=Observation.MODE_EVAL, policy_version=first.version)
    assert frozen.policy_version == first.version
    assert list(frozen.chunk) == list(again.chunk)


def test_two_cells_keep_their_steps_apart(side: Side) -> None:
    side.start('replay', 'learner', 'policy')
    side.demonstrate()
    side.until(lambda: side.newest() is not None, what='weights')
    for step in range(10):
        a = side.ask('arm0', 50, step, state=np.full(19, 0.1))
        b = side.ask('arm1', 51, step, state=np.full(19, -0.1))
        assert (a.id.cell, a.id.episode, a.id.step) == ('arm0', 50, step)
        assert (b.id.cell, b.id.episode, b.id.step) == ('arm1', 51, step)
    assert all(cell == action.id.cell for cell, action in side.actions)
    for number in range(3):
        for cell in CELLS:
            side.episode(cell, 100 + number, Observation.MODE_TRAIN)
    rows = [
        r for r in Tail(side.folder / 'store').rows() if isinstance(r, Row) and r.episode >= 100
    ]
    for cell in CELLS:
        mine = [(r.episode, r.step) for r in rows if r.cell == cell]
        assert mine == [(100 + n, s) for n in range(3) for s in range(7)]
        assert all(
            r.state[0] == CELLS.index(cell) and r.state[2] == r.step
            for r in rows
            if r.cell == cell
        )


def test_nobody_moves_before_the_first_weights_and_the_question_is_answered_when_they_come(
    side: Side,
) -> None:
    side.start('replay', 'policy')
    side.until(lambda: side.observations['arm0'].get_subscription_count() > 0, what='the policy')
    identity = StepId(run=RUN, cell='arm0', episode=5, step=0)
    side.observations['arm0'].publish(
        Observation(
            id=identity, mode=Observation.MODE_TRAIN, policy='actor', state=floats(np.zeros(19))
        )
    )
    end = time.monotonic() + 2.0
    side.until(lambda: time.monotonic() > end)
    assert side.actions == []
    assert side.state('policy') == 'WAIT_WEIGHTS'
    side.start('learner')
    side.demonstrate()
    side.until(lambda: side.answer(identity) is not None, what='the answer')


def test_an_observation_that_is_no_number_is_refused_and_a_demonstrator_s_is_left_alone(
    side: Side,
) -> None:
    side.start('replay', 'learner', 'policy')
    side.demonstrate()
    side.ask('arm0', 10, 0)
    bad = StepId(run=RUN, cell='arm0', episode=10, step=1)
    demo = StepId(run=RUN, cell='arm1', episode=11, step=0)
    foreign = StepId(run='another', cell='arm1', episode=12, step=0)
    state = floats(np.full(19, np.nan))
    side.observations['arm0'].publish(Observation(id=bad, policy='actor', state=state))
    for identity, mode in ((demo, Observation.MODE_DEMO), (foreign, Observation.MODE_TRAIN)):
        side.observations['arm1'].publish(
            Observation(id=identity, mode=mode, policy='actor', state=floats(np.zeros(19)))
        )
        end = time.monotonic() + 0.3
        side.until(lambda end=end: time.monotonic() > end)
    side.until(lambda: side.numbers['/learning/policy'].get('refused') == 1, what='the refusal')
    side.ask('arm0', 10, 2)
    assert side.answer(bad) is None
    assert side.answer(demo) is None
    assert side.answer(foreign) is None


def test_killed_learner_policy_and_replay_come_back_and_lose_nothing(side: Side) -> None:
    side.start('replay', 'learner', 'policy')
    side.demonstrate()
    for number in range(20, 24):
        side.episode('arm0', number, Observation.MODE_TRAIN)
    side.until(
        lambda: side.numbers.get('/learning/learner', {}).get('updates') == 20 + 2 * 24,
        what='the budget',
    )
    before = side.newest()
    assert before is not None

    side.kill('learner')
    side.numbers.clear()
    side.episode('arm0', 24, Observation.MODE_TRAIN)
    side.start('learner')
    side.until(
        lambda: side.numbers.get('/learning/learner', {}).get('updates') == 20 + 2 * 30,
        what='the budget',
    )
    side.until(lambda: side.newest().version > before.version, what='a newer version')
    assert [w.version for w in side.weights if w.policy == 'actor'] == sorted(
        {w.version for w in side.weights if w.policy == 'actor'}
    )

    side.kill('policy')
    side.numbers.clear()
    side.start('policy')
    newest = side.newest()
    side.until(
        lambda: side.numbers.get('/learning/policy', {}).get('version', 0) >= newest.version,
        what='late weights',
    )
    assert side.ask('arm0', 60, 0).policy_version >= newest.version

    side.kill('replay')
    side.start('replay')
    side.episode('arm0', 25, Observation.MODE_TRAIN)
    rows = [r for r in Tail(side.folder / 'store').rows() if isinstance(r, Row)]
    assert [r.seq for r in rows] == list(range(side.seq['arm0']))


def test_a_policy_on_another_machine_fetches_ranges_and_snapshot_answers_when_it_is_on_disk(
    side: Side,
) -> None:
    side.start('replay', 'learner')
    side.demonstrate()
    side.until(lambda: side.newest() is not None, what='weights')
    weights = side.newest()
    assert weights is not None
    client = side.node.create_client(
        FetchWeights,
        topics.of_run('fetch_weights', RUN),
        qos_profile=topics.FETCH_WEIGHTS,
    )
    side.until(client.service_is_ready, what='the service')
    data = b''
    while len(data) < weights.size:
        future = client.call_async(
            FetchWeights.Request(
                policy='actor', version=weights.version, offset=len(data), length=1000
            )
        )
        side.until(future.done, what='a range')
        answer = future.result()
        assert answer.error == ''
        assert answer.sha256 == weights.sha256
        data += bytes(answer.data)
    assert read(data, weights.sha256, 'actor', weights.version, weights.config_hash)
    assert metadata_of(data)['version'] == str(weights.version)
    future = client.call_async(
        FetchWeights.Request(policy='actor', version=10**6, offset=0, length=10)
    )
    side.until(future.done, what='a refusal')
    assert 'no such weights' in future.result().error

    snapshot = side.node.create_client(Trigger, '/learning/snapshot')
    future = snapshot.call_async(Trigger.Request())
    side.until(future.done, what='a checkpoint')
    assert future.result().success
    assert Path(future.result().message).exists()


def test_weights_whose_bytes_are_not_the_announced_ones_are_never_acted_with(side: Side) -> None:
    side.start('replay', 'learner', 'policy')
    side.demonstrate()
    action = side.ask('arm0', 10, 0)  # a policy may pull its weights before they are announced
    side.until(lambda: side.newest() is not None, what='the announcement')
    forged = side.folder / 'forged.safetensors'
    forged.write_bytes(Path(side.newest().path).read_bytes()[:-1] + b'\x07')
    latched = side._pub('weights')
    newest = side.newest()
    latched.publish(
        Weights(
            run=RUN,
            policy='actor',
            version=10**6,
            host=newest.host,
            path=str(forged),
            size=newest.size,
            sha256=newest.sha256,
            config_hash=newest.config_hash,
        )
    )
    side.until(
        lambda: 'content hash' in side.numbers.get('/learning/policy', {}).get('reason', ''),
        what='the refusal',
    )
    assert side.ask('arm0', 10, 1).policy_version < 10**6
    assert action.policy_version < 10**6
