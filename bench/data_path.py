# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Where each millisecond of a step goes, and how many steps a second the data's path carries.

    .venv/bin/python bench/data_path.py [steps=1500] [key=value ...]

Two short training runs over real ROS 2, one whose learner owes no update and one that trains,
each beside a listener that stamps four messages of every step as they reach it (steady clock, one
process, so the differences hold the hops and not the clocks). Prints one JSON line.
"""

from functools import partial
import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile
import time

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from user_core.topics import TOPICS, name

LEGS = {
    'policy': ('observation', 'action'),
    'episode_command': ('action', 'target'),
    'arm': ('target', 'robot_state'),
    'episode_observe': ('robot_state', 'observation'),
}
"""A step's four legs: the message that begins it and the one that ends it."""


class Listener:
    """Steady time in seconds at which each message came, by topic, episode and step."""

    def __init__(self, node: Node) -> None:
        self.seen: dict[tuple[str, int, int], float] = {}
        for topic in ('observation', 'action', 'target', 'robot_state'):
            row = TOPICS[topic]
            node.create_subscription(
                row.type, name(topic, 'arm0'), partial(self.on, topic), row.reader
            )

    def on(self, topic: str, message) -> None:
        """Stamps the first arrival; only the sample that answers a command ends the arm's leg."""
        if topic != 'robot_state' or message.answers:
            self.seen.setdefault((topic, message.id.episode, message.id.step), time.monotonic())

    def legs(self) -> dict[str, np.ndarray]:
        """Milliseconds of every leg of every step that was seen whole."""
        out: dict[str, list[float]] = {leg: [] for leg in LEGS}
        for topic, episode, step in self.seen:
            if topic != 'observation':
                continue
            for leg, (begin, end) in LEGS.items():
                after = step + 1 if leg == 'episode_observe' else step
                start, stop = (
                    self.seen.get((begin, episode, step)),
                    self.seen.get((end, episode, after)),
                )
                if start is not None and stop is not None and stop >= start:
                    out[leg].append(1e3 * (stop - start))
        return {leg: np.array(values) for leg, values in out.items()}


def measure(steps: int, *overrides: str) -> dict:
    """One run under the listener."""
    with tempfile.TemporaryDirectory() as folder:
        user = Path(sys.executable).with_name('user')
        command = [
            str(user),
            'run',
            'peg_rlpd',
            f'runs={folder}',
            'run=bench',
            'budget.demos=3',
            f'budget.env_steps={steps}',
            'evaluation.gate_successes=20',
            'learner.warmup_updates=100',
            'learner.clone_updates=0',
            *overrides,
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        node = rclpy.create_node('listener')
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        training = None
        while process.poll() is None:
            executor.spin_once(timeout_sec=0.5)
            if training is None:
                status = Path(folder, 'bench', 'status.json')
                if status.exists() and json.loads(status.read_text())['phase'] == 'TRAINING':
                    training = Listener(node)
        report = json.loads(Path(folder, 'bench', 'report.json').read_text())
        executor.remove_node(node)
        node.destroy_node()
    legs = training.legs() if training else {}
    numbers = {
        'steps_per_s': round(report['env_steps_per_s'], 1),
        'step_ms_p50': round(report['period_p50_ms'], 2),
        'utd': round(report['utd'] or 0.0, 2),
        'updates_per_s': round(report['updates_per_s'] or 0.0, 1),
        'observation_to_action_ms': quantiles(legs.get('policy', np.zeros(0))),
    }
    return numbers | {f'{leg}_ms_p50': quantiles(ms)[0] for leg, ms in legs.items()}


def quantiles(ms: np.ndarray) -> list[float | None]:
    """[p50, p99] in ms."""
    return [round(float(np.quantile(ms, q)), 2) if ms.size else None for q in (0.5, 0.99)]


def main() -> None:
    """Both runs, one line."""
    words = dict(word.split('=', 1) for word in sys.argv[1:])
    steps = int(words.pop('steps', '1500'))
    overrides = [f'{k}={v}' for k, v in words.items()]
    os.environ.setdefault('ROS_DOMAIN_ID', '91')
    os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    rclpy.init()
    idle = measure(steps, 'algorithm.utd=0.001', *overrides)
    busy = measure(steps, *overrides)
    rclpy.try_shutdown()
    print(json.dumps({'without_learner': idle, 'with_learner': busy, 'cores': os.cpu_count()}))


if __name__ == '__main__':
    main()
