# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Every node ends in order: it closes while it can still speak, and says why in one line."""

from collections.abc import Iterator
from itertools import pairwise
import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import textwrap
import time

from diagnostic_msgs.msg import DiagnosticArray
import pytest
import rclpy
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from user_msgs.msg import Metrics, Observation
from user_msgs.msg import RunConfig as RunConfigMsg

from user_core import page, states, topics
from user_core.config import RunConfig, config_hash
from user_core.messages import NS, nanoseconds

ROOT = Path(__file__).parents[2]
CONFIG = page.validate(RunConfig, {'name': 'probe'}, 'here')

PROBE = """
import sys, threading, time
from user_core.errors import UserError
from user_core.node import Shell, run_node

class Probe:
    def __init__(self, shell):
        self.shell = shell
        self.begin()

    def begin(self):
        self.shell.create_timer(0.1, lambda: self.shell.metrics('UP', step=1.0))

    def close(self):
        self.shell.metrics('CLOSED', 'asked to')
        print('closed', flush=True)
"""


class Started:
    """A node of ours in its own process; the lines it wrote."""

    def __init__(self, tmp_path: Path, body: str = '', *arguments: str) -> None:
        (tmp_path / 'run').mkdir(exist_ok=True)
        self.folder = tmp_path / 'run'
        self.output = tmp_path / 'output.txt'
        values = {'config': CONFIG.to_json(), 'run': 'r1', 'run_folder': str(self.folder)}
        file = tmp_path / 'params.yaml'
        lines = [f'    {key}: {json.dumps(value)}\n' for key, value in values.items()]
        file.write_text(f'/**:\n  ros__parameters:\n{"".join(lines)}')
        program = PROBE + textwrap.dedent(body) + "\nrun_node(Probe, 'probe')\n"
        given = arguments or ('--params-file', str(file), '-r', '__ns:=/arm0')
        self.process = subprocess.Popen(
            [sys.executable, '-c', program, '--ros-args', *given],
            stdout=self.output.open('w'), stderr=subprocess.STDOUT,
            env=os.environ | {'RCUTILS_CONSOLE_OUTPUT_FORMAT': '{severity} {message}'},
        )  # fmt: skip

    def end(self, number: int | None = None) -> int:
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(30)

    @property
    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def until_it_says(self, text: str) -> None:
        end = time.monotonic() + 30
        while not any(text in line for line in self.lines):
            assert time.monotonic() < end, self.lines
            time.sleep(0.05)


@pytest.fixture
def peer() -> Iterator[Node]:
    """A foreign node on the test's domain."""
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node('peer', context=context)
    node.test_executor = rclpy.executors.SingleThreadedExecutor(context=context)
    node.test_executor.add_node(node)
    node.heard = []
    reader = topics.TOPICS['metrics'].reader
    node.create_subscription(Metrics, '/metrics', node.heard.append, reader)
    yield node
    node.test_executor.shutdown()
    node.destroy_node()
    rclpy.shutdown(context=context)


def metrics_of(peer: Node, until, seconds: float = 30.0) -> list[Metrics]:
    """Metrics heard until one fulfils the wish."""
    heard: list[Metrics] = peer.heard
    end = time.monotonic() + seconds
    while not any(until(m) for m in heard):
        assert time.monotonic() < end, heard
        peer.test_executor.spin_once(timeout_sec=0.1)
    return heard


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_closes_the_node_while_it_can_still_speak(tmp_path, peer, number):
    node = Started(tmp_path)
    heard = metrics_of(peer, lambda m: m.state == 'UP')
    assert heard[-1].node == '/arm0/probe'
    assert dict(zip(heard[-1].names, heard[-1].values, strict=True)) == {'step': 1.0}
    node.process.send_signal(number)
    assert metrics_of(peer, lambda m: m.state == 'CLOSED')[-1].reason == 'asked to'
    assert node.end() == 0
    assert node.lines == ['closed']


def test_metrics_are_diagnostics_too_each_second_and_at_once_when_the_state_changes(
    tmp_path, peer
):
    body = """
    def begin(self):
        self.told = 0
        self.shell.create_timer(0.05, self.tell)

    def tell(self):
        self.told += 1
        if self.told <= 60:
            self.shell.metrics('READY', step=float(self.told))
        else:
            self.shell.metrics('FAULT', 'it is hot', step=float(self.told))

    Probe.begin, Probe.tell = begin, tell
    """
    said: list[DiagnosticArray] = []
    reader = topics.TOPICS['diagnostics'].reader
    peer.create_subscription(DiagnosticArray, '/diagnostics', said.append, reader)
    node = Started(tmp_path, body)
    metrics = metrics_of(peer, lambda m: m.state == 'FAULT' and m.values[0] > 90)
    assert node.end(signal.SIGINT) == 0
    statuses = [status for array in said for status in array.status]
    assert {(s.name, s.hardware_id) for s in statuses} == {('/arm0/probe', 'arm0')}
    ready = [s for s in statuses if s.message == 'READY']
    fault = [s for s in statuses if s.message == 'FAULT it is hot']
    assert {s.level for s in ready} == {b'\x00'}
    assert {s.level for s in fault} == {b'\x02'}
    first = {v.key: v.value for v in fault[0].values}
    assert first == {'run': 'r1', 'step': '61'}  # the very first one that was of another state
    assert {m.id.run for m in metrics} == {'r1'}
    stamps = [nanoseconds(array.header.stamp) / NS for array in said if array.status[0] in ready]
    assert all(after - before > 0.8 for before, after in pairwise(stamps))


def test_every_state_word_has_one_level_and_an_unknown_one_wants_a_look():
    words = [word for words in states.WORDS.values() for word in words]
    assert len(words) == len(set(words))
    assert states.level('FAULT') is states.Level.ERROR
    assert states.level('SOMETHING_NEW') is states.Level.WARN
    sources = [p.read_text() for p in (ROOT / 'src').glob('user_*/user_*/**/*.py')]
    telling = re.compile(
        r'(?:state(?:, self\.reason(?:, \w+)?)? = |Silence\(\s*|Health\(|_wait\(|metrics\(\s*'
        r'|BLIND = )'
        r"'([A-Z][A-Z_]+)'"
    )
    told = {word for text in sources for word in telling.findall(text)}
    assert {'WAIT_CAMERA', 'STREAMING', 'STALE', 'WARMUP', 'RUNNING'} <= told
    assert told - {'UP', 'CLOSED'} <= set(words)


def test_a_signal_ends_a_node_that_waits_for_nothing(tmp_path):
    node = Started(tmp_path, "Probe.begin = lambda self: print('idle', flush=True)")
    node.until_it_says('idle')
    time.sleep(0.3)
    assert node.end(signal.SIGINT) == 0


def test_a_node_that_hangs_in_closing_is_cut_off(tmp_path):
    body = """
    import user_core.node
    user_core.node.CLOSE_WITHIN_S = 0.5
    Probe.begin = lambda self: print('idle', flush=True)
    Probe.close = lambda self: time.sleep(60)
    """
    node = Started(tmp_path, body)
    node.until_it_says('idle')
    assert node.end(signal.SIGTERM) == 1


@pytest.mark.parametrize('when', ['at once', 'in a callback'])
def test_a_user_error_is_one_line_and_exit_code_2(tmp_path, when):
    body = """
    def fail(self=None):
        raise UserError('the arm is not there', 'nobody answers', 'Switch it on')

    def later(self):
        self.shell.create_timer(0.01, fail)

    Probe.begin = """
    node = Started(tmp_path, body + {'at once': 'fail', 'in a callback': 'later'}[when])
    assert node.end() == 2
    said = [line for line in node.lines if line != 'closed']
    assert said == ['FATAL The arm is not there. Nobody answers. Switch it on.']


def test_a_fault_is_one_line_and_its_traceback_is_in_the_run_s_logs(tmp_path):
    node = Started(tmp_path, 'Probe.begin = lambda self: 1 / 0')
    assert node.end() == 1
    assert len(node.lines) == 1
    assert 'ZeroDivisionError' in node.lines[0]
    trace = (node.folder / 'logs' / 'arm0_probe.trace').read_text()
    assert 'Traceback' in trace
    assert str(node.folder / 'logs' / 'arm0_probe.trace') in node.lines[0]


def test_a_node_without_a_plan_says_how_to_start_it(tmp_path):
    node = Started(tmp_path, '', '-r', '__node:=lost')
    assert node.end() == 2
    assert node.lines == [
        'FATAL Node /lost has no parameter config. It is a part of a plan. '
        'Start it with `user run` or the launch file.'
    ]


def publish_config(peer: Node, run: str, digest: str) -> None:
    topic = topics.TOPICS['run_config']
    peer.latched = peer.create_publisher(RunConfigMsg, '/run_config', topic.writer)
    peer.latched.publish(RunConfigMsg(run=run, config_hash=digest, config='{}'))


def test_a_node_with_another_configuration_does_not_join(tmp_path, peer):
    publish_config(peer, 'r1', '0123456789abcdef')
    node = Started(tmp_path)
    assert node.end() == 2
    fatal = [line for line in node.lines if line.startswith('FATAL')]
    assert len(fatal) == 1
    assert '/arm0/probe does not join run r1' in fatal[0]
    assert '0123456789abcdef' in fatal[0]
    assert config_hash(CONFIG) in fatal[0]


def test_another_run_on_the_domain_and_the_own_configuration_are_fine(tmp_path, peer):
    publish_config(peer, 'another', '0123456789abcdef')
    node = Started(tmp_path)
    metrics_of(peer, lambda m: m.state == 'UP')
    publish_config(peer, 'r1', config_hash(CONFIG))
    peer.heard.clear()
    metrics_of(peer, lambda m: m.state == 'UP')
    assert node.end(signal.SIGINT) == 0


def test_a_publisher_that_cannot_be_heard_is_reported_with_both_names(tmp_path, peer):
    """A best-effort publisher is silent to a reliable subscription, which nobody would notice."""
    peer.bad = peer.create_publisher(Observation, '/arm0/observation', qos_profile_sensor_data)
    node = Started(
        tmp_path,
        """
        Probe.begin = lambda self: self.shell.create_sub('observation', print)
        """,
    )
    node.until_it_says('do not match on /arm0/observation')
    line = next(line for line in node.lines if 'do not match' in line)
    assert line.startswith('ERROR /arm0/probe and the publisher of /peer')
    assert node.end(signal.SIGINT) == 0


def test_a_subscription_that_cannot_hear_is_reported_with_both_names(tmp_path, peer):
    node = Started(
        tmp_path,
        """
        Probe.begin = lambda self: self.shell.create_pub('action')
        """,
    )
    from rclpy.qos import DurabilityPolicy, QoSProfile

    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    peer.bad = peer.create_subscription(topics.interface('action'), '/arm0/action', print, latched)
    node.until_it_says('do not match on /arm0/action')
    assert any('the subscription of /peer' in line for line in node.lines)
    assert node.end(signal.SIGINT) == 0


def test_a_thread_wakes_the_executor_and_ends_the_node(tmp_path):
    body = """
    def begin(self):
        def work():
            time.sleep(0.3)
            self.shell.call_soon(lambda: print('in', threading.current_thread().name, flush=True))
            time.sleep(0.3)
            self.shell.finish(3)
        threading.Thread(target=work).start()
    Probe.begin = begin
    """
    node = Started(tmp_path, body)
    assert node.end() == 3
    assert node.lines == ['in MainThread', 'closed']


def test_a_node_that_wants_to_end_its_work_first_goes_on_hearing_after_the_signal(tmp_path):
    body = """
    def begin(self):
        print('idle', flush=True)

    def interrupt(self):
        print('interrupted', flush=True)
        self.shell.create_timer(0.2, lambda: self.shell.finish(4))

    Probe.begin, Probe.interrupt = begin, interrupt
    """
    node = Started(tmp_path, body)
    node.until_it_says('idle')
    assert node.end(signal.SIGINT) == 4
    assert node.lines == ['idle', 'interrupted', 'closed']


def test_a_node_leaves_the_graph_and_nothing_that_breaks_behind_it_changes_its_code(
    tmp_path, peer
):
    body = """
    import atexit, ctypes
    from rclpy.action import ActionClient, ActionServer
    from user_msgs.action import MoveTo

    def begin(self):
        atexit.register(ctypes.string_at, 0)  # a segmentation fault while Python ends
        self.client = ActionClient(self.shell, MoveTo, 'move_to')
        self.server = ActionServer(self.shell, MoveTo, 'move_to', lambda goal: None)
        print('idle', flush=True)

    Probe.begin = begin
    """
    node = Started(tmp_path, body)
    node.until_it_says('idle')
    name = ('probe', '/arm0')
    deadline = time.monotonic() + 10
    while name not in peer.get_node_names_and_namespaces() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert name in peer.get_node_names_and_namespaces()
    assert node.end(signal.SIGINT) == 0
    ended = time.monotonic()
    while name in peer.get_node_names_and_namespaces() and time.monotonic() < ended + 30:
        time.sleep(0.05)
    assert time.monotonic() - ended < 10  # forgotten by its lease alone it would take 20 s


def test_a_domain_that_does_not_exist_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv('ROS_DOMAIN_ID', 'none')
    node = Started(tmp_path)
    assert node.end() == 1
    assert len(node.lines) == 1, node.lines
    assert 'probe cannot join ROS' in node.lines[0]


@pytest.mark.parametrize('code', [0, 3])
def test_a_process_ends_with_its_code_even_when_the_interpreter_never_gets_on(code):
    stuck = (
        'import ctypes\n'
        'from user_core.node import _exit_after\n'
        f'_exit_after(1, {code})\n'
        "ctypes.PyDLL(None).sleep(60)  # keeps the interpreter's lock\n"
    )
    begun = time.monotonic()
    assert subprocess.run([sys.executable, '-c', stuck], timeout=60).returncode == code
    assert time.monotonic() - begun < 50


def test_a_node_that_is_ended_while_it_imports_says_nothing():
    child = subprocess.Popen(
        [sys.executable, '-c', 'import user_robot, time; print("in", flush=True); time.sleep(60)'],
        env=os.environ | {'USER_NODE': '1'},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == 'in\n'
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=30)
    assert said == ('', '')
    assert child.returncode == -signal.SIGINT
