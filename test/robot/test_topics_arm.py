# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Foreign arms by topics: the driver, and cells around another lab's node (foreign_arm.py)."""

import os
from pathlib import Path
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip('user_msgs.action')
from cells import Graph
from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import qos_profile_sensor_data
from user_msgs.msg import Observation, RobotState, Transition

from user_core import config as schema
from user_core.errors import UserError
from user_core.geometry import Pose
from user_core.messages import pose, pose_msg, stamp
from user_robot.foreign import arm as topics_arm
from user_robot.foreign.arm import TopicsArm

pytestmark = pytest.mark.needs_ros

FOREIGN = Path(__file__).with_name('foreign_arm.py')
HERE = Pose(np.array([0.5, 0.0, 0.3]), np.array([1.0, 0.0, 0.0, 0.0]))


def away(x, y=0.0):
    return HERE.position + np.array([x, y, 0.0])


def until(true, seconds=30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f'waited {seconds} s in vain'
        time.sleep(0.01)


class Peer:
    """The other end, in a thread of its own: says poses best effort, keeps the targets it gets."""

    def __init__(self) -> None:
        rclpy.init()
        self.node = rclpy.create_node('controller', namespace='/foreign')
        self.pose_pub = self._pub(PoseStamped, 'current_pose')
        self.twist_pub = self._pub(TwistStamped, 'current_twist')
        self.wrench_pub = self._pub(WrenchStamped, 'external_wrench')
        self.node.create_subscription(PoseStamped, 'target_pose', self.on_target, 50)
        self.here, self.behind_s, self.silent = HERE, 0.0, False
        self.targets: list[PoseStamped] = []
        self.arms: list[TopicsArm] = []
        self.node.create_timer(0.01, self.say)
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.spin)
        self.thread.start()

    def spin(self) -> None:
        while not self.ending.is_set():
            self.executor.spin_once(0.1)

    def _pub(self, kind, name):
        return self.node.create_publisher(kind, name, qos_profile_sensor_data)

    def on_target(self, message: PoseStamped) -> None:
        self.targets.append(message)

    def say(self) -> None:
        if not self.silent:
            message = PoseStamped(pose=pose_msg(self.here))
            message.header.stamp = stamp(round((time.time() - self.behind_s) * 1e9))
            message.header.frame_id = 'base'
            self.pose_pub.publish(message)

    def arm(self, **changes) -> TopicsArm:
        arm = TopicsArm(schema.TopicsConfig(**{'max_age_s': 1.0, **changes}), 0.1)
        self.arms.append(arm)
        until(lambda: self.node.count_publishers('target_pose'))
        return arm

    def run(self, arm: TopicsArm, slices: int) -> None:
        for _ in range(slices):
            arm.advance(arm.slice_s)
            time.sleep(arm.slice_s)

    def close(self) -> None:
        for arm in self.arms:
            arm.close()
        self.ending.set()
        self.thread.join()
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown()


@pytest.fixture
def peer():
    made = Peer()
    yield made
    made.close()


def test_an_arm_that_does_not_speak_is_one_sentence_and_names_who_does(peer, monkeypatch):
    monkeypatch.setattr(topics_arm, 'CONNECT_S', 1.0)
    with pytest.raises(UserError) as error:
        peer.arm(namespace='/nobody')
    assert '/nobody/current_pose' in str(error.value)
    assert 'Poses come on /foreign/current_pose' in str(error.value)
    assert 'arm.namespace' in str(error.value)
    with pytest.raises(UserError, match='the cell itself'):
        peer.arm(namespace='arm0')


def test_the_driver_moves_nothing_until_it_is_commanded_and_then_keeps_its_target_alive(peer):
    arm = peer.arm(smooth=False)
    peer.run(arm, 20)
    assert not peer.targets
    arm.hold()
    peer.run(arm, 20)
    until(lambda: len(peer.targets) > 5)
    assert peer.targets[-1].header.frame_id == 'base'
    assert np.allclose(pose(peer.targets[-1].pose).position, HERE.position)
    there = Pose(away(0.02), HERE.quaternion)
    arm.servo(there, np.nan)
    peer.run(arm, 5)
    until(lambda: np.allclose(pose(peer.targets[-1].pose).position, there.position))
    for impossible in (
        lambda: arm.move_joints(np.zeros(7), 0.5),
        lambda: arm.grip(0.0, 0.1, 0.0),
    ):
        with pytest.raises(UserError, match='own stack'):
            impossible()


def test_smoothed_targets_keep_their_limits_of_speed_acceleration_and_jerk(peer):
    arm = peer.arm(max_speed_m_s=0.1, max_acceleration_m_s2=0.5, max_jerk_m_s3=10.0)
    turned = Pose.from_rotvec(away(0.0, 0.03), [np.pi, 0.0, 0.0])
    arm.hold()
    path = []
    sent = arm._pub.publish

    def watched(message):
        path.append(pose(message.pose).position[1])
        sent(message)

    arm._pub = type('Watched', (), {'publish': staticmethod(watched)})
    for target in (turned, HERE, turned):
        arm.servo(target, np.nan)
        for _ in range(25):
            arm.advance(0.01)
    for _ in range(100):
        arm.advance(0.01)
    speed = np.diff(path) / 0.01
    acceleration = np.diff(speed) / 0.01
    assert 0.02 < abs(speed).max() <= 0.1 + 1e-6
    assert abs(acceleration).max() <= 0.5 + 1e-6
    assert abs(np.diff(acceleration)).max() / 0.01 <= 10.0 + 1e-4
    assert path[-1] == pytest.approx(0.03, abs=1e-6)


def test_silence_is_a_fault_that_ends_by_itself_and_never_sends_an_old_target(peer):
    arm = peer.arm(max_age_s=0.3, smooth=False)
    arm.hold()
    peer.run(arm, 5)
    peer.silent = True
    until(lambda: arm.state().fault)
    assert 'no pose came on /foreign/current_pose' in arm.state().fault
    arm.servo(Pose(away(1.0), HERE.quaternion), np.nan)
    arm.advance(0.01)
    peer.here, peer.silent = Pose(away(0.2), HERE.quaternion), False
    until(lambda: not arm.state().fault)
    count = len(peer.targets)
    peer.run(arm, 20)
    assert len(peer.targets) == count
    arm.hold()
    peer.run(arm, 5)
    until(lambda: len(peer.targets) > count)
    assert np.allclose(pose(peer.targets[-1].pose).position, peer.here.position)
    stamps = [arm.state().stamp_s for _ in range(3)]
    assert stamps == sorted(stamps)


@pytest.mark.parametrize(('behind_s', 'word'), [(30.0, 'old'), (-30.0, 'ahead')])
def test_stamps_of_another_clock_are_a_fault_that_says_so(peer, behind_s, word):
    arm = peer.arm()
    assert arm.state().fault == ''
    peer.behind_s = behind_s
    until(lambda: arm.state().fault)
    assert f'30.00 s {word}' in arm.state().fault
    assert 'clocks' in arm.state().fault


def test_a_wrench_counts_in_the_base_or_the_tool_frame_and_in_no_other(peer):
    arm = peer.arm(tool_frame='tcp')
    message = WrenchStamped()
    message.wrench.force.z = 7.0

    def say(frame, true):
        message.header.frame_id = frame

        def heard():
            peer.wrench_pub.publish(message)
            return true(arm.state())

        until(heard)

    say('base', lambda s: s.wrench[2] == 7.0)
    say('tcp', lambda s: abs(s.wrench[2] + 7.0) < 1e-9)
    assert arm.state().peak_force_n == pytest.approx(7.0)
    assert arm.state().fault == ''
    say('link8', lambda s: s.fault)
    assert 'arm.tool_frame=link8' in arm.state().fault
    say('base', lambda s: not s.fault)


def test_a_twist_is_heard_or_else_derived_from_the_poses(peer):
    arm = peer.arm(max_age_s=0.3)
    begun, turn = time.monotonic(), np.array([np.pi, 0.0, 0.0])

    def move():
        way = 0.05 * (time.monotonic() - begun)
        peer.here = Pose.from_rotvec(away(way), turn)
        return abs(arm.state().twist[0] - 0.05) < 0.02

    until(move)
    message = TwistStamped()
    message.header.frame_id, message.twist.linear.x = 'base', -3.0

    def heard():
        peer.twist_pub.publish(message)
        return arm.state().twist[0] == -3.0

    until(heard)
    until(lambda: arm.state().twist[0] > -1.0)


# ------------------------------------------------------------------ cells around a foreign node


@pytest.fixture
def lab(tmp_path):
    """Starts cells of USER and foreign arms beside them, and ends both after the test."""
    graphs, foreign = [], {}

    def grow(*overrides, **changes):
        graphs.append(Graph(tmp_path, 'pace=realtime', *overrides, **changes))
        return graphs[-1]

    def start(namespace, height_m=0.2):
        log = (tmp_path / f'foreign{namespace.replace("/", "_")}.log').open('a')
        command = [sys.executable, str(FOREIGN), str(height_m), '--ros-args']
        foreign[namespace] = subprocess.Popen(
            [*command, '-r', f'__ns:={namespace}'],
            env=os.environ | {'OMP_NUM_THREADS': '1'}, stdout=log, stderr=log,
        )  # fmt: skip
        return foreign[namespace]

    yield grow, start
    try:
        for graph in graphs:
            graph.close()
    finally:
        for process in foreign.values():
            process.kill()
            process.wait()


TOPICS_ARM = (
    'cells.arm0.arm.kind=topics',
    'cells.arm0.arm.max_age_s=0.5',
    'cells.arm0.safety.box_rotation_rad=[0.05, 0.05, 0.61]',
    'task.scale_m=0.015',
    'task.scale_rad=0.05',
    'task.start_height_m=0.06',
    'task.start_xy_m=0.01',
    'task.start_yaw_rad=0.1',
    'task.max_steps=250',
)


def test_the_peg_goes_in_with_another_labs_arm_and_its_death_is_survived(lab):
    grow, start = lab
    graph = grow(*TOPICS_ARM)
    controller = start('/foreign')
    graph.start_all()
    for seed in (1, 4, 5):  # the demonstrator is a person: now and then it fails
        demo = graph.episode(seed=seed, mode=Observation.MODE_DEMO)
        if demo.boundary == Transition.BOUNDARY_SUCCESS:
            break
    assert (demo.boundary, demo.episode_return) == (Transition.BOUNDARY_SUCCESS, 1.0), demo.reason
    assert graph.states['arm0'].position  # joints came along
    graph.acting = True
    handle = graph.ask(seed=2)
    graph.until(lambda: graph.states['arm0'].mode == RobotState.ACTIVE)
    controller.kill()
    controller.wait()
    killed = time.monotonic()
    graph.until(lambda: graph.states['arm0'].mode == RobotState.FAULT)
    assert time.monotonic() - killed < 3.0
    assert 'no pose came on /foreign/current_pose' in graph.states['arm0'].reason
    lost = graph.result(handle)
    assert lost.boundary == Transition.BOUNDARY_ABORT
    assert not graph.call('recover').success
    start('/foreign')
    end = time.monotonic() + 30.0
    while not graph.call('recover').success:
        assert time.monotonic() < end, graph.logs()
    count = len(graph.rows['arm0'])
    again = graph.ask(seed=3)
    graph.until(lambda: len(graph.rows['arm0']) > count + 5)
    again.cancel_goal_async()
    graph.result(again)


def test_three_foreign_arms_and_their_cells_share_a_domain_and_nothing_else(lab):
    grow, start = lab
    cells = ('arm0', 'arm1', 'arm2')
    heights = dict(zip(cells, (0.20, 0.22, 0.24), strict=True))
    own = [f'cells.{cell}.arm.namespace=/lab/{cell}' for cell in cells]
    kinds = [f'cells.{cell}.arm.{key}' for cell in cells for key in ('kind=topics', 'max_age_s=2')]
    graph = grow(*kinds, *own, cells=cells)
    for cell in cells:
        start(f'/lab/{cell}', heights[cell])
        graph.start('arm', cell)
    graph.until(lambda: all(f'/{cell}/arm' in graph.metrics for cell in cells))
    graph.until(lambda: len(graph.states) == 3)

    def of(cell):
        node = graph.node
        found = node.get_service_names_and_types() + node.get_topic_names_and_types()
        return {n.removeprefix(f'/{cell}') for n, _ in found if n.startswith(f'/{cell}/')}

    graph.until(lambda: of('arm0') == of('arm1') == of('arm2'))
    assert {'/robot_state', '/target_pose', '/current_pose', '/recover', '/stop'} <= of('arm0')
    for cell in cells:
        for name in (f'/{cell}/robot_state', f'/lab/{cell}/current_pose'):
            graph.until(lambda n=name: graph.node.count_publishers(n) == 1)
        assert graph.states[cell].pose.position.z == pytest.approx(heights[cell], abs=0.005)
    ahead = Pose(np.array([0.5, 0.0, 0.225]), HERE.quaternion)
    pub = graph.node.create_publisher(PoseStamped, '/arm1/target_pose', 1)

    def moved():
        pub.publish(PoseStamped(pose=pose_msg(ahead)))
        return graph.states['arm1'].mode == RobotState.ACTIVE

    graph.until(moved)
    for _ in range(20):
        moved()
        graph.executor.spin_once(0.05)
    assert [graph.states[c].mode for c in ('arm0', 'arm2')] == [RobotState.READY] * 2
