# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Any ROS program beside our arm node: standard topics in and out, under the same limits."""

import re
import time

import numpy as np
import pytest

pytest.importorskip('user_msgs.action')
from cells import Graph
from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from user_msgs.msg import RobotState

from user_core.geometry import Pose, relative
from user_core.messages import pose, pose_msg
from user_robot.task import make_task

pytestmark = pytest.mark.needs_ros


class Lab(Graph):
    """A cell in realtime, and a program that knows its topics' names alone."""

    def __init__(self, folder, *overrides) -> None:
        super().__init__(folder, 'pace=realtime', *overrides)
        self.home = make_task(self.config.task).home
        sensor = qos_profile_sensor_data  # best effort, as many stacks write
        self.target_pub = self.node.create_publisher(PoseStamped, '/arm0/target_pose', sensor)
        self.estop_pub = self.node.create_publisher(Bool, '/estop', sensor)
        self.heard: dict[str, object] = {}
        for kind, name in (
            (PoseStamped, 'current_pose'),
            (TwistStamped, 'current_twist'),
            (WrenchStamped, 'external_wrench'),
            (JointState, 'joint_states'),
        ):
            topic = f'/arm0/{name}'
            take = lambda message, n=name: self.heard.update({n: message})  # noqa: E731
            self.node.create_subscription(kind, topic, take, sensor)

    def aim(self, *offset: float) -> None:
        """A target beside home, base frame's axes, metres."""
        target = Pose(self.home.position + np.array(offset), self.home.quaternion)
        self.target_pub.publish(PoseStamped(pose=pose_msg(target)))

    def while_aiming(self, *offset: float, until) -> None:
        """Says the target again and again, until something is true."""

        def true():
            self.aim(*offset)
            return until()

        self.until(true)

    @property
    def state(self) -> RobotState:
        return self.states['arm0']

    def off(self) -> np.ndarray:
        """Metres (3,) between the arm and home."""
        return pose(self.state.pose).position - self.home.position


@pytest.fixture
def lab(tmp_path):
    made = []

    def start(*overrides, nodes=('arm',)):
        made.append(Lab(tmp_path, *overrides))
        for name in nodes:
            made[0].start(name)
        made[0].until(lambda: made[0].states and '/arm0/arm' in made[0].metrics)
        return made[0]

    yield start
    for graph in made:
        graph.close()


def test_another_stack_moves_the_arm_inside_the_box_and_it_holds_when_that_falls_silent(lab):
    lab = lab()
    lab.while_aiming(0.0, 0.03, 0.0, until=lambda: lab.off()[1] > 0.025)
    assert lab.state.mode == RobotState.ACTIVE
    lab.until(lambda: len(lab.heard) == 4)
    seen = lab.heard['current_pose']
    assert seen.header.frame_id == lab.heard['external_wrench'].header.frame_id == 'arm0/base'
    assert seen.pose.position.y == pytest.approx(lab.home.position[1] + 0.03, abs=0.01)
    assert list(lab.heard['joint_states'].name) == [f'joint{i}' for i in range(1, 8)]

    limits, frame = lab.config.cells['arm0'].safety, make_task(lab.config.task).frame
    boxed = []

    def pushed():
        assert (
            relative(frame, pose(lab.state.applied))[0] <= np.add(limits.box_max_m, 1e-6)
        ).all()
        if lab.state.limited & RobotState.LIMIT_BOX:
            boxed.append(lab.off()[1])
        return boxed and boxed[-1] > 0.055

    lab.while_aiming(0.0, 0.5, 0.0, until=pushed)
    for _ in range(20):
        lab.aim(0.0, 0.5, 0.0)
        lab.executor.spin_once(0.05)
        assert lab.off()[1] < 0.065

    lab.until(lambda: lab.state.mode == RobotState.HOLD)
    silent_s = float(re.fullmatch(r'no command for (\S+) s', lab.state.reason).group(1))
    assert 0.15 <= silent_s < 1.0
    lab.until(lambda: np.linalg.norm(lab.state.twist[:3]) < 0.005)
    rest = lab.off()
    begun = time.monotonic()
    lab.until(lambda: time.monotonic() > begun + 0.5)
    assert np.allclose(lab.off(), rest, atol=0.003)


def test_a_running_episode_is_not_disturbed_by_another_stacks_targets(lab):
    lab = lab('task.max_steps=30', 'task.reset_speed_m_s=0.5', nodes=('arm', 'episode'))
    handle = lab.ask(seed=1)
    lab.until(lambda: len(lab.rows['arm0']) > 3)
    lab.while_aiming(0.0, 0.05, 0.0, until=lambda: any(r.closing for r in lab.rows['arm0']))
    assert lab.result(handle).length == 30
    kept = [r for r in lab.rows['arm0'] if not r.closing and r.valid and not r.limited]
    assert len(kept) > 3
    for row in kept:
        assert np.allclose(row.executed_action, row.policy_action, atol=1e-3)


def test_an_emergency_stop_is_an_edge_on_a_topic_and_is_not_cleared_while_it_is_pressed(lab):
    lab = lab()
    lab.while_aiming(0.0, 0.02, 0.0, until=lambda: lab.state.mode == RobotState.ACTIVE)

    def pressed():
        lab.estop_pub.publish(Bool(data=True))
        return lab.state.mode == RobotState.DISARMED

    lab.while_aiming(0.0, 0.02, 0.0, until=pressed)
    assert 'emergency stop' in lab.state.reason
    refused = lab.call('clear_stop')
    assert not refused.success
    assert 'still pressed' in refused.message
    for _ in range(5):
        lab.aim(0.0, -0.05, 0.0)
        lab.executor.spin_once(0.05)
    assert lab.state.mode == RobotState.DISARMED

    def released():
        lab.estop_pub.publish(Bool(data=False))
        return lab.call('clear_stop').success

    lab.until(released)
    lab.while_aiming(0.0, 0.02, 0.0, until=lambda: lab.state.mode == RobotState.ACTIVE)
