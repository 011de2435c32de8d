# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Who of a run is there, and how the clocks stand, also beside a discovery server."""

from collections.abc import Iterator
import json
import os
from pathlib import Path
import shutil
import socket
import subprocess
import sys
import time

import pytest

from user_core import check, presence
from user_core.config import RunConfig, load
from user_core.errors import UserError
from user_core.guest import Guest
from user_core.status import speaking

ALONE = 'USER_TEST_ALONE'

NODES = """
import json, sys, time
import rclpy
from rclpy.executors import SingleThreadedExecutor
from user_core import topics
from user_core.messages import stamp
from user_msgs.msg import Metrics, StepId

rclpy.init()
executor, topic = SingleThreadedExecutor(), topics.TOPICS['metrics']
for path, ahead_s in json.loads(sys.argv[1]).items():
    space, _, name = path.rpartition('/')
    node = rclpy.create_node(name, namespace=space or '/')
    pub = node.create_publisher(topic.type, topics.name('metrics'), topic.writer)

    def tell(pub=pub, path=path, ahead_s=ahead_s):
        now = time.time_ns() + int(1e9 * ahead_s)
        pub.publish(Metrics(id=StepId(run='r'), stamp=stamp(now), node=path, state='READY'))
        pub.publish(Metrics(id=StepId(run='other'), stamp=stamp(0), node='/foreign', state='X'))

    node.create_timer(0.3, tell)
    executor.add_node(node)
executor.spin()
"""


@pytest.fixture
def begin() -> Iterator:
    """Starts nodes in a process of their own, ended with the test."""
    processes = []

    def start(ahead_s: dict[str, float]) -> None:
        command = [sys.executable, '-c', NODES, json.dumps(ahead_s)]
        processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

    yield start
    for process in processes:
        process.kill()
        process.wait()


def two_machines() -> RunConfig:
    return load(
        'peg_rlpd',
        ['machines={robot: {}, gpu: {}}', 'cells.arm0.machine=robot', 'learner.machine=gpu',
         'policy.machine=gpu', 'replay.machine=gpu'],
    )  # fmt: skip


def until_seen(config: RunConfig, wanted: int) -> presence.Presence:
    """Looks again until so many of the run were heard: starting them takes its time."""
    end = time.monotonic() + 60
    while len((seen := presence.look(config, 'r', listen_s=1.0)).late_s) < wanted:
        assert time.monotonic() < end, seen
    return seen


def test_every_node_is_listed_a_missing_one_is_named_and_clocks_are_bounded(begin):
    config = two_machines()
    expected = speaking(config)
    begin({p: 0.05 if p.startswith('/arm0') else 0.0 for p in expected if 'policy' not in p})
    seen = until_seen(config, len(expected) - 1)
    (nodes,) = presence.nodes(config, 'r', seen)
    assert nodes.how == 'bad'
    assert f'{len(expected) - 1} of {len(expected)} nodes of r are seen' in nodes.value
    assert nodes.value.endswith('missing: /learning/policy')
    assert '/foreign' not in seen.late_s, 'what another run says is not listened to'
    clocks = {finding.what: finding for finding in presence.clocks(config, seen)}
    assert clocks['clock of robot'].how == 'warn'
    ahead_ms = float(clocks['clock of robot'].value.split()[-4])
    assert 20 <= ahead_ms <= 50, 'their way takes some of the 50 ms, never more than all'
    assert clocks['clock of gpu'].how == 'ok'
    begin({'/learning/policy': 0.0})
    (nodes,) = presence.nodes(config, 'r', until_seen(config, len(expected)))
    assert (nodes.how, 'missing' in nodes.value) == ('ok', False)
    assert not list(presence.clocks(load('peg_rlpd'), seen)), 'one machine has one clock'


def test_a_run_on_another_domain_is_told_from_one_without_nodes():
    config = load('peg_rlpd')
    (nodes,) = presence.nodes(config, 'r', presence.Presence())
    assert f'here it is {os.environ["ROS_DOMAIN_ID"]}' in nodes.mend
    here = presence.Presence(there=set(speaking(config)))
    (nodes,) = presence.nodes(config, 'r', here)
    assert (nodes.how, 'not heard' in nodes.value) == ('bad', True)


def server_program() -> tuple[str, dict[str, str]]:
    """Fast DDS's discovery server, and where its wheel keeps its libraries."""
    beside = Path(sys.executable).with_name('fast-discovery-server')
    path = str(beside) if beside.exists() else shutil.which('fast-discovery-server')
    if path is None:
        pytest.skip('there is no fast-discovery-server')
    root = Path(sys.prefix)
    libraries = [root / 'lib', *root.glob('lib/python3*/site-packages/ros_fastrtps.libs')]
    old = os.environ.get('LD_LIBRARY_PATH', '')
    return path, {'LD_LIBRARY_PATH': os.pathsep.join([*map(str, libraries), old])}


@pytest.fixture
def discovery_server(monkeypatch) -> Iterator[None]:
    program, env = server_program()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    command = [program, '-i', '0', '-l', '127.0.0.1', '-p', str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | env, text=True)
    assert server.stdout is not None
    assert 'Server is running' in server.stdout.readline()
    monkeypatch.setenv('ROS_DISCOVERY_SERVER', f'127.0.0.1:{port}')
    yield
    server.kill()
    server.wait()


def test_beside_a_discovery_server_all_nodes_and_topics_are_seen_and_a_missing_one_is_named():
    # In a process of its own: one that has known a discovery server finds nobody without it.
    test = f'{__file__}::test_with_a_discovery_server'
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', test]
    env = os.environ | {ALONE: '1'}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.skipif(ALONE not in os.environ, reason='the test above starts it')
@pytest.mark.usefixtures('discovery_server')
def test_with_a_discovery_server(begin):
    config = load('peg_rlpd')
    expected = speaking(config)
    begin(dict.fromkeys((p for p in expected if not p.startswith('/arm0')), 0.0))
    begin({'/arm0/arm': 0.0, '/arm0/episode': 0.0})
    seen = until_seen(config, len(expected) - 1)
    (nodes,) = presence.nodes(config, 'r', seen)
    assert nodes.value.endswith('missing: /arm0/expert')
    with pytest.raises(UserError, match='A cell named arm0 is alive'):
        check.domain(config)
    assert 'ROS_SUPER_CLIENT' not in os.environ, 'it is for guests alone'
    with Guest('looker') as guest:  # it has no topic in common with them
        end = time.monotonic() + 20
        while 'metrics' not in str(guest.node.get_topic_names_and_types()):
            assert time.monotonic() < end, 'a plain client is not told'
            time.sleep(0.1)
