# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A whole cell on a simulated control box: real driver, real protocol, real DDS, real kills."""

import math
import signal
import time

from boxes import address
from cells import Graph
import numpy as np
import pytest
from user_msgs.msg import RobotState

pytestmark = [pytest.mark.needs_ros, pytest.mark.timeout(240)]


@pytest.fixture
def grow(tmp_path, ros_domain):
    graphs = []

    def make(*overrides: str) -> Graph:
        graph = Graph(
            tmp_path, 'arm=franka_sim', f'cells.arm0.arm.address={address()}', *GENTLE, *overrides
        )
        graphs.append(graph)
        graph.start('franka_server')
        return graph

    yield make
    for graph in graphs:
        graph.close()


GENTLE = [
    'cells.arm0.arm.stiffness_n_m=2000',
    'cells.arm0.arm.clip_m=0.005',
    'cells.arm0.arm.damping_ns_m=230',
    'cells.arm0.arm.joint_friction_nm=0.25',
    'cells.arm0.arm.contact_time_s=0.025',
    'cells.arm0.arm.peg_edge_m=0.001',
    'task.max_steps=2000',
]


def position(graph) -> np.ndarray:
    p = graph.states['arm0'].pose.position
    return np.array([p.x, p.y, p.z])


def sideways(observation):
    """A policy that swings, so that a hold can be told from its motion."""
    return [0.8 if (observation.id.step // 8) % 2 else -0.8, 0.0, 0.0, 0.0, 0.0, 0.0]


def under_way(graph):
    """An episode that moves."""
    graph.answer = sideways
    handle = graph.ask(seed=1)
    graph.until(lambda: len(graph.rows['arm0']) > 5)
    return handle


@pytest.mark.parametrize('victim', ['policy', 'episode'])
def test_the_arm_holds_when_who_commands_it_is_killed(grow, victim):
    graph = grow()
    graph.start_all('arm', 'episode')
    under_way(graph)
    if victim == 'policy':
        graph.acting = False
    else:
        graph.kill('episode')
    graph.until(lambda: graph.states['arm0'].mode == RobotState.HOLD, seconds=5)
    graph.until(lambda: np.linalg.norm(graph.states['arm0'].twist[:3]) < 0.005, seconds=5)
    held = position(graph)
    end = time.monotonic() + 0.5
    graph.until(lambda: time.monotonic() > end)
    assert np.linalg.norm(position(graph) - held) < 0.002
    assert 'no command' in graph.states['arm0'].reason


def test_a_killed_arm_node_leaves_the_arm_to_the_control_box_and_a_new_one_goes_on(grow):
    graph = grow()
    graph.start_all('arm', 'episode')
    handle = under_way(graph)
    graph.kill('arm')
    result = graph.result(handle)
    assert result.invalid
    assert 'no state' in result.reason
    before = position(graph)
    graph.start('arm')
    graph.until(lambda: graph.states['arm0'].mode in (RobotState.READY, RobotState.FAULT))
    graph.until(lambda: graph.number('/arm0/arm', 'steps') == 0)
    assert np.linalg.norm(position(graph) - before) < 0.03  # it stood still meanwhile
    if graph.states['arm0'].mode == RobotState.FAULT:
        assert graph.call('recover').success
    graph.acting = True
    count = len(graph.rows['arm0'])
    for _ in range(3):  # as a run repeats an episode whose reset came too early
        handle = graph.ask(seed=2)
        ended = handle.get_result_async()
        graph.until(lambda ended=ended: ended.done() or len(graph.rows['arm0']) > count + 5)
        if not ended.done():
            break
    assert len(graph.rows['arm0']) > count + 5, ended.result().result.reason
    handle.cancel_goal_async()
    graph.result(handle)


def test_a_box_that_dies_is_a_fault_with_a_reason_and_a_way_out(grow):
    graph = grow()
    graph.start_all('arm', 'episode')
    handle = under_way(graph)
    graph.kill('franka_server')
    result = graph.result(handle)
    assert result.boundary == 4
    assert 'does not answer' in result.reason
    graph.until(lambda: graph.states['arm0'].mode == RobotState.FAULT)
    kept = [r for r in graph.rows['arm0'] if not r.closing]
    assert kept[-1].boundary == 4
    assert kept[-1].reward == 0.0
    refused = graph.call('recover')
    assert not refused.success
    assert graph.processes['arm0/arm'].poll() is None
    graph.start('franka_server')
    end = time.monotonic() + 60
    while not graph.call('recover').success:
        assert time.monotonic() < end, graph.logs()
    assert graph.states['arm0'].mode == RobotState.READY


@pytest.mark.parametrize('state', ['idle', 'running', 'reset', 'fault', 'contact'])
def test_ctrl_c_holds_parks_from_health_and_lets_go_in_every_state(grow, state):
    limits = ['cells.arm0.safety.force_limit_n=5'] if state == 'contact' else []
    graph = grow('cells.arm0.arm.park_up_m=0.02', 'task.reset_speed_m_s=0.05', *limits)
    graph.start_all('arm', 'episode')
    if state == 'running':
        under_way(graph)
    elif state == 'reset':
        graph.ask(seed=3)
        graph.until(lambda: np.linalg.norm(graph.states['arm0'].twist[:3]) > 0.01)
    elif state == 'fault':
        graph.kill('franka_server')
        graph.until(lambda: graph.states['arm0'].mode == RobotState.FAULT)
    elif state == 'contact':  # a fault that a reset could recover, and a retreat must not
        graph.answer = lambda observation: [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
        graph.ask(seed=1)
        graph.until(lambda: graph.states['arm0'].mode == RobotState.FAULT)
    before = position(graph)
    arm = graph.processes['arm0/arm']
    arm.send_signal(signal.SIGINT)
    time.sleep(0.2)
    arm.send_signal(signal.SIGINT)  # impatience changes nothing
    end = time.monotonic() + 20
    graph.until(lambda: arm.poll() is not None or time.monotonic() > end)
    assert arm.returncode == 0, graph.logs()
    log = (graph.folder / 'arm0-arm.log').read_text()
    assert 'Traceback' not in log
    assert graph.states['arm0'].mode == RobotState.DISARMED
    assert 'ends' in graph.states['arm0'].reason
    rise = position(graph)[2] - before[2]
    unwell = state in ('fault', 'contact')
    assert abs(rise) < 0.003 if unwell else abs(rise - 0.02) < 0.008


def test_a_reset_goes_through_the_home_posture_when_the_page_asks_for_it(grow):
    home = [0.25, -0.3, 0.0, -2.2, 0.0, 1.9, 0.785]
    graph = grow('cells.arm0.arm.joint_reset_every=2', f'cells.arm0.arm.home_q_rad={home}')
    graph.start_all('arm', 'episode')
    nearest = []
    for seed in (1, 2):
        off = math.inf
        count = len(graph.rows['arm0'])
        handle = graph.ask(seed=seed)
        while len(graph.rows['arm0']) == count:
            graph.executor.spin_once(0.05)
            if 'arm0' in graph.states:
                q = np.array(graph.states['arm0'].position)
                off = min(off, float(np.abs(q - home).max()))
        nearest.append(off)
        handle.cancel_goal_async()
        graph.result(handle)
    assert nearest[0] < 0.05  # the first of two
    assert nearest[1] > 0.1
