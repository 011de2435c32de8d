# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Cells over real DDS: their processes, and a policy, a replay and an asker in the test's own."""

from array import array
from collections.abc import Callable, Sequence
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import rclpy
from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor
from std_srvs.srv import Trigger
from user_msgs.action import RunEpisode
from user_msgs.msg import Ack, Action, Metrics, Observation, RobotState, Transition
import yaml

from user_core import topics
from user_core.config import load

PATIENCE_S = 60.0
NODES = {
    'arm': 'user_robot.arm_node',
    'episode': 'user_robot.episode_node',
    'expert': 'user_sim.expert_node',
    'franka_server': 'user_sim.franka.server',
    'arx_bus': 'user_sim.arx.bus',
    'replay': 'user_learning.replay_node',
    'cameras': 'user_sim.camera_node',
}


class Graph:
    """Starts nodes of cells; answers, stores and asks as the rest of the suite would."""

    def __init__(
        self, folder: Path, *overrides: str, cells: tuple[str, ...] = ('arm0',), run: str = 'r'
    ) -> None:
        self.folder, self.run, self.cells = folder, run, cells
        page = folder / 'cell.yaml'
        kinds = {'task': 'peg', 'policy': 'mlp', 'algorithm': 'rlpd'}
        content = {key: {'kind': kind} for key, kind in kinds.items()}
        page.write_text(
            yaml.safe_dump({'name': 'cell', 'cells': {c: {} for c in cells}, **content})
        )
        self.config = load(str(page), list(overrides))
        self.processes: dict[str, subprocess.Popen] = {}
        self.rows: dict[str, list[Transition]] = {cell: [] for cell in cells}
        self.states: dict[str, RobotState] = {}
        self.metrics: dict[str, Metrics] = {}
        self.stored: dict[tuple[str, int], list[int]] = {}
        self.acting = self.acking = True
        self.answer: Callable[[Observation], list[float]] = lambda observation: [
            0.0,
            0.0,
            0.3,
            0.0,
            0.0,
            0.0,
        ]
        rclpy.init()
        self.node = rclpy.create_node('test', start_parameter_services=False)
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.askers = {c: ActionClient(self.node, RunEpisode, f'/{c}/run_episode') for c in cells}
        self.action_pubs = {c: self._pub('action', c) for c in cells}
        self.ack_pub = self._pub('ack')
        for cell in cells:
            self._sub('observation', cell, self.on_observation)
            self._sub('transition', cell, self.on_row)
            self._sub('robot_state', cell, lambda m, c=cell: self.states.update({c: m}))
        self._sub('metrics', None, lambda m: self.metrics.update({m.node: m}))

    def _pub(self, key, cell=None):
        topic = topics.TOPICS[key]
        return self.node.create_publisher(topic.type, topics.name(key, cell), topic.writer)

    def _sub(self, key, cell, callback) -> None:
        topic = topics.TOPICS[key]
        self.node.create_subscription(topic.type, topics.name(key, cell), callback, topic.reader)

    # ------------------------------------------------------------------ policy and replay

    def on_observation(self, observation: Observation) -> None:
        """The policy: silent in demonstrations and when it is told to be."""
        if self.acting and observation.mode != Observation.MODE_DEMO:
            action = Action(
                id=observation.id, policy='actor', policy_version=1, horizon=1, dimension=6
            )
            action.chunk = array('f', self.answer(observation))
            self.action_pubs[observation.id.cell].publish(action)

    def on_row(self, row: Transition) -> None:
        """Replay: keeps what is new and in order, and says how far it came."""
        if not self.acking:
            return
        stream = self.stored.setdefault((row.id.cell, row.incarnation), [])
        if row.seq == len(stream):
            stream.append(row.seq)
            self.rows[row.id.cell].append(row)
        self.ack_pub.publish(
            Ack(cell=row.id.cell, incarnation=row.incarnation, next_seq=len(stream))
        )

    # ------------------------------------------------------------------ processes

    def start(
        self,
        name: str,
        cell: str = 'arm0',
        run: str = '',
        folder: Path | None = None,
        before: Sequence[str] = (),
    ) -> subprocess.Popen:
        """One node process; `before`: what its command begins with."""
        folder = folder or self.folder
        folder.mkdir(exist_ok=True)
        page = folder / f'{cell}-{name}.yaml'
        values = {
            'config': self.config.to_json(),
            'run': run or self.run,
            'run_folder': str(folder),
        }
        page.write_text(yaml.safe_dump({'/**': {'ros__parameters': values}}))
        names = ['-r', f'__node:={name}', '-r', f'__ns:=/{cell}']
        log = (folder / f'{cell}-{name}.log').open('a')
        process = subprocess.Popen(
            [
                *before, sys.executable, '-m', NODES[name],
                '--ros-args', *names, '--params-file', str(page),
            ],
            env=os.environ | {'OMP_NUM_THREADS': '1'},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        self.processes[f'{cell}/{name}' if run in ('', self.run) else f'{run}/{cell}/{name}'] = (
            process
        )
        return process

    def start_all(self, *names: str) -> None:
        """The nodes of every cell; waits until they answer."""
        for cell in self.cells:
            for name in names or ('arm', 'episode', 'expert'):
                self.start(name, cell)
        self.ready()

    def ready(self) -> None:
        """Waits until every cell takes goals and was heard."""
        self.until(lambda: all(a.server_is_ready() for a in self.askers.values()))
        names = [f'/{cell}/{name}' for cell in self.cells for name in ('arm', 'episode')]
        self.until(lambda: all(name in self.metrics for name in names))

    def kill(self, name: str, cell: str = 'arm0') -> None:
        """Kill -9."""
        process = self.processes[f'{cell}/{name}']
        process.send_signal(signal.SIGKILL)
        process.wait()

    # ------------------------------------------------------------------ the test's own steps

    def until(self, true: Callable[[], object], seconds: float = PATIENCE_S) -> None:
        """Spins until `true()`."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f'waited {seconds} s in vain\n{self.logs()}'
            self.executor.spin_once(0.05)

    def logs(self) -> str:
        """What the nodes said."""
        return '\n'.join(f'{p.name}: {p.read_text()[-1500:]}' for p in self.folder.glob('*.log'))

    def ask(self, seed: int = 0, mode: int = Observation.MODE_TRAIN, cell: str = 'arm0'):
        """Asks until the episode is accepted: DDS sees a node that was killed for a while yet."""
        goal = RunEpisode.Goal(
            mode=mode, policy='' if mode == Observation.MODE_DEMO else 'actor', seed=seed
        )
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            future, asked = self.askers[cell].send_goal_async(goal), time.monotonic()
            self.until(lambda f=future, t=asked: f.done() or time.monotonic() > t + 3.0)
            if future.done() and future.result().accepted:
                return future.result()
        raise AssertionError(f'no goal was accepted\n{self.logs()}')

    def result(self, handle) -> RunEpisode.Result:
        """Waits for an episode's result."""
        future = handle.get_result_async()
        self.until(future.done)
        return future.result().result

    def episode(self, **goal) -> RunEpisode.Result:
        """One episode that was not void; the first ones may be while the graph grows together."""
        for _ in range(20):
            result = self.result(self.ask(**goal))
            if not result.invalid:
                return result
        raise AssertionError(f'{result.reason}\n{self.logs()}')

    def call(self, service: str, cell: str = 'arm0') -> Trigger.Response:
        """Calls a service of a cell."""
        client = self.node.create_client(Trigger, topics.name(service, cell))
        self.until(client.service_is_ready)
        future = client.call_async(Trigger.Request())
        self.until(future.done)
        return future.result()

    def number(self, node: str, name: str) -> float:
        """The newest of a node's named numbers, NaN before it is heard."""
        m = self.metrics.get(node)
        return m.values[m.names.index(name)] if m and name in m.names else float('nan')

    def close(self) -> None:
        """Ends everything; every node has to end by itself and in order."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        codes = {}
        for name, process in self.processes.items():
            try:
                codes[name] = process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = 'stuck'
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown()
        odd = {name: code for name, code in codes.items() if code not in (0, 2, -signal.SIGKILL)}
        assert not odd, f'{odd}\n{self.logs()}'
