# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""How an arm keeps time: period, state age and command latency of both drivers, idle and loaded.

    .venv/bin/python bench/arm.py [seconds=20] [arms=franka_sim,arx_sim]

For each arm the plan's own device and arm node (`only=arm`) and a client that sends a target ten
times a second, as an episode does; once alone and once beside a stand-in for the learner (matrix
products on every core, at the learner's priority). Prints one JSON line:

    state_hz              samples of the arm that came a second
    state_gap_ms          time between two samples [p50, p99]
    state_published_ms    stamp of a sample to its publication, p99 since the start, by the node
    state_age_ms          stamp of a sample to its arrival here [p50, p99] (one machine's clock)
    target_to_applied_ms  target's publication to the driver's call [p50, p99], told by the node
    target_to_seen_ms     target's publication to the first sample that shows it applied [p50, p99]
    success_rate          the robot's own share of control cycles in time, lowest seen
"""

from __future__ import annotations

from contextlib import contextmanager
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import rclpy
from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor
from user_msgs.action import MoveTo

from user_core.config import load
from user_core.messages import NS, nanoseconds, pose, pose_msg
from user_core.topics import TOPICS, name
from user_robot import wire
from user_robot.row import Command
from user_robot.task import make_task

PAGES = {'franka_sim': 'peg_rlpd', 'arx_sim': 'arx_reach', 'sim': 'peg_rlpd'}
LEARNER = """
import numpy as np, os
os.nice(10)
a = np.random.rand(700, 700).astype(np.float32)
while True: a = np.tanh(a @ a)
"""
PERIOD_S = 0.1


class Client:
    """The episode's side of one arm."""

    def __init__(self, page: str, arm: str) -> None:
        self.config = load(page, [f'arm={arm}'])
        self.task = make_task(self.config.task)
        self.node = rclpy.create_node('client')
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        target, state, metrics = (TOPICS[k] for k in ('target', 'robot_state', 'metrics'))
        self.writer = wire.Writer('bench', 'arm0')
        self.targets = self.node.create_publisher(
            target.type, name('target', 'arm0'), target.writer
        )
        self.node.create_subscription(
            state.type, name('robot_state', 'arm0'), self.on_state, state.reader
        )
        self.node.create_subscription(
            metrics.type, name('metrics'), self.on_metrics, metrics.reader
        )
        self.moves = ActionClient(self.node, MoveTo, name('move_to', 'arm0'))
        self.state = None
        self.numbers: dict[str, float] = {}
        self.reason = ''
        self.heard: list[float] = []
        self.ages: list[float] = []
        self.rates: list[float] = []
        self.sent: dict[int, float] = {}
        self.seen: list[float] = []
        self.episode, self.step = time.time_ns(), 0

    def on_state(self, message) -> None:
        """A sample of the arm."""
        now = time.monotonic()
        self.state = message
        self.heard.append(now)
        self.ages.append((time.time_ns() - nanoseconds(message.stamp)) / NS)
        self.rates.append(message.success_rate)
        begun = self.sent.pop(message.id.step, None) if message.answers else None
        if begun is not None and message.id.episode == self.episode:
            self.seen.append(now - begun)

    def on_metrics(self, message) -> None:
        """The arm node's own numbers."""
        if message.node == '/arm0/arm':
            self.numbers = dict(zip(message.names, message.values, strict=True))
            self.reason = message.reason

    def until(self, true, seconds: float, what: str) -> None:
        """Spins until `true()`."""
        end = time.monotonic() + seconds
        while not true():
            self.executor.spin_once(timeout_sec=0.01)
            if time.monotonic() > end:
                raise SystemExit(f'waited {seconds:.0f} s in vain for {what}: {self.reason}')

    def reset(self) -> None:
        """To the start of an episode."""
        self.until(lambda: self.state is not None and self.moves.server_is_ready(), 60, 'the arm')
        start = self.task.start(0)
        goal = MoveTo.Goal(
            waypoints=[pose_msg(p) for p in self.task.reset_path(pose(self.state.pose), start)],
            speed=0.1, angular_speed=0.6,
        )  # fmt: skip
        goal.id.run, goal.id.cell, goal.id.episode = 'bench', 'arm0', self.episode
        sent = self.moves.send_goal_async(goal)
        self.until(sent.done, 10, 'the reset')
        result = sent.result().get_result_async()
        self.until(result.done, 60, 'the end of the reset')
        if result.result().result.error:
            raise SystemExit(result.result().result.error)

    def drive(self, seconds: float) -> dict:
        """Small targets at 10 Hz around the start; numbers of this span."""
        for numbers in (self.heard, self.ages, self.rates, self.seen):
            numbers.clear()
        self.sent.clear()
        rng, start = np.random.default_rng(0), self.task.start(0)
        begun = due = time.monotonic()
        while due < begun + seconds:
            action = np.r_[rng.uniform(-0.3, 0.3, 3), np.zeros(3)]
            command = Command(
                self.episode, self.step, self.task.actions.to_target(action, start), np.nan
            )
            self.sent[self.step] = time.monotonic()
            self.targets.publish(self.writer.target(command, time.time_ns()))
            self.step += 1
            due += PERIOD_S
            while time.monotonic() < due:
                self.executor.spin_once(timeout_sec=max(0.0, due - time.monotonic()))
        gaps = np.diff(self.heard)
        return {
            'state_hz': round(len(self.heard) / (time.monotonic() - begun), 1),
            'state_gap_ms': quantiles(gaps),
            'state_published_ms': round(self.numbers.get('state_age_p99_ms', np.nan), 2),
            'state_age_ms': quantiles(self.ages),
            'target_to_applied_ms': [
                round(self.numbers.get(f'command_latency_{q}_ms', np.nan), 2)
                for q in ('p50', 'p99')
            ],
            'target_to_seen_ms': quantiles(self.seen),
            'targets': self.step,
            'success_rate': round(min(self.rates), 2),
            'faults': int(self.numbers.get('faults', 0)),
        }

    def close(self) -> None:
        """Leaves the graph."""
        self.executor.shutdown()
        self.node.destroy_node()


def quantiles(seconds) -> list[float]:
    """[p50, p99] in ms."""
    return [round(1e3 * float(np.quantile(seconds, q)), 2) for q in (0.5, 0.99)]


@contextmanager
def process(*command: str, **options):
    """A process that is gone at the end."""
    child = subprocess.Popen(command, **options)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def load_on_every_core():
    """What a learner does to the rest of the machine."""
    children = [
        subprocess.Popen([sys.executable, '-c', LEARNER], env=os.environ | {'OMP_NUM_THREADS': '1',
                         'OPENBLAS_NUM_THREADS': '1'})
        for _ in range(os.cpu_count() or 1)
    ]  # fmt: skip
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def measure(arm: str, seconds: float) -> dict:
    """One arm, alone and beside a learner."""
    page = PAGES[arm]
    with tempfile.TemporaryDirectory() as folder:
        user = str(Path(sys.executable).with_name('user'))
        log = Path(folder, 'log')
        command = [user, 'run', page, f'arm={arm}', 'only=arm', f'runs={folder}', 'run=bench']
        with log.open('w') as out, process(*command, stdout=out, stderr=out):
            client = Client(page, arm)
            try:
                client.reset()
                alone = client.drive(seconds)
                with load_on_every_core():
                    loaded = client.drive(seconds)
            except SystemExit:
                print(log.read_text(), file=sys.stderr)
                raise
            finally:
                client.close()
    return {'alone': alone, 'beside_a_learner': loaded}


def main() -> None:
    """Every arm, one line."""
    words = dict(word.split('=', 1) for word in sys.argv[1:])
    seconds = float(words.get('seconds', '20'))
    arms = words.get('arms', 'franka_sim,arx_sim').split(',')
    os.environ.setdefault('ROS_DOMAIN_ID', '92')
    os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    rclpy.init()
    numbers = {arm: measure(arm, seconds) for arm in arms}
    rclpy.try_shutdown()
    print(json.dumps(numbers | {'cores': os.cpu_count()}))


if __name__ == '__main__':
    main()
