# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What people see in rviz: markers, frames, the robot's description and the saved page."""

from pathlib import Path
import re
import sys
import time
from urllib.parse import urlparse
import xml.etree.ElementTree as ElementTree

import numpy as np
import pinocchio
import pytest
from scipy.spatial.transform import Rotation
import yaml

pytest.importorskip('user_msgs.action')
import rclpy
from rclpy.executors import SingleThreadedExecutor
from user_msgs.msg import RobotState, RunConfig

from user_core import config as schema
from user_core import topics
from user_core.errors import UserError
from user_core.geometry import Pose, from_relative
from user_core.messages import pose_msg
from user_robot.franka.kinematics import flange
from user_robot.robot_description import MODELS, robot_description
from user_robot.task import make_task
from user_robot.view_node import View

pytestmark = pytest.mark.needs_ros

ROOT = Path(__file__).parents[2]
TCP = Pose.from_rotvec([0.51, 0.02, 0.2], [np.pi, 0.0, 0.0])


def state(mode=RobotState.ACTIVE, reason='', force=(0.0, 0.0, -12.0)) -> RobotState:
    return RobotState(
        pose=pose_msg(TCP),
        applied=pose_msg(TCP),
        wrench=np.array([*force, 0.0, 0.0, 0.0]),
        mode=mode,
        reason=reason,
    )


def drawn(message, safety=None, task=None):
    markers = pytest.importorskip('user_robot.markers', exc_type=ImportError)
    frame = make_task(task or schema.PegTask()).frame
    picture = markers.Markers('arm0', safety or schema.Safety(), frame)
    return {m.ns: m for m in picture.draw(message).markers}


def position(point) -> list[float]:
    return [point.x, point.y, point.z]


def test_the_box_is_drawn_where_the_limits_are():
    safety = schema.Safety(box_min_m=(-0.1, -0.02, -0.3), box_max_m=(0.2, 0.04, 0.1))
    frame = {'position_m': (0.4, 0.1, 0.2), 'quaternion_xyzw': (0.8, 0.0, 0.6, 0.0)}
    task = schema.PegTask(frame=frame)
    box = drawn(state(), safety, task)['box']
    middle = Pose(
        np.array(position(box.pose.position)),
        np.array([*position(box.pose.orientation), box.pose.orientation.w]),
    )
    half = np.array(position(box.scale)) / 2
    for corner, sign in ((safety.box_min_m, -1), (safety.box_max_m, 1)):
        limit = from_relative(make_task(task).frame, corner, np.zeros(3)).position
        assert np.allclose(from_relative(middle, sign * half, np.zeros(3)).position, limit)
    assert box.color.a < 0.5


def test_arrows_end_at_the_tcp_and_the_wrench_begins_there():
    seen = drawn(state())
    for name in ('measured', 'applied'):
        start, tip = seen[name].points
        assert np.allclose(position(tip), TCP.position)
        assert start.z > tip.z  # the tool points down
    start, tip = seen['wrench'].points
    assert np.allclose(position(start), TCP.position)
    assert np.allclose(np.subtract(position(tip), position(start)), [0.0, 0.0, -0.12])
    wrench = drawn(state(force=(0.0, 0.1, 0.0)))['wrench']
    assert wrench.action == wrench.DELETE
    assert {m.header.frame_id for m in seen.values()} == {'arm0/base'}
    assert all(m.lifetime.sec for m in seen.values())


def test_people_read_why_the_arm_does_not_move_and_see_it_by_colour():
    fault = drawn(state(RobotState.FAULT, 'the contact force of 90 N is above the limit'))
    ready = drawn(state(RobotState.READY))
    assert fault['mode'].text == 'arm0 FAULT\nthe contact force of 90 N is above the limit'
    assert ready['mode'].text == 'arm0 READY'
    assert fault['box'].color != ready['box'].color


def test_the_view_takes_box_and_task_from_the_run_and_draws_ten_times_a_second_at_most():
    pytest.importorskip('user_robot.markers', exc_type=ImportError)
    from visualization_msgs.msg import MarkerArray

    rclpy.init(args=['--ros-args', '-r', '__ns:=/arm0'])
    view = View()
    peer = rclpy.create_node('peer')
    executor = SingleThreadedExecutor()
    executor.add_node(view)
    executor.add_node(peer)
    heard: list[MarkerArray] = []
    peer.create_subscription(MarkerArray, '/arm0/markers', heard.append, 10)
    states = topics.TOPICS['robot_state']
    pub = peer.create_publisher(RobotState, '/arm0/robot_state', states.writer)
    config = schema.RunConfig(name='r', cells={'arm0': {}})
    other = schema.RunConfig(name='r', cells={'elsewhere': {}})
    runs = peer.create_publisher(RunConfig, '/run_config', topics.TOPICS['run_config'].writer)

    def spin(true, seconds=20.0):
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, 'waited in vain'
            pub.publish(state())
            executor.spin_once(0.01)

    for text in ('{', other.to_json()):
        runs.publish(RunConfig(run='r', config=text))
        begun = time.monotonic()
        spin(lambda b=begun: time.monotonic() > b + 0.2)
    assert not heard  # neither nonsense nor another's run
    runs.publish(RunConfig(run='r', config=config.to_json()))
    spin(lambda: heard)
    heard.clear()
    begun = time.monotonic()
    spin(lambda: len(heard) >= 5)
    assert time.monotonic() - begun > 0.3
    tcp = view.transform(state(), 'tcp', TCP)
    assert (tcp.header.frame_id, tcp.child_frame_id) == ('arm0/base', 'arm0/tcp')
    assert position(tcp.transform.translation) == pytest.approx(TCP.position.tolist())
    executor.shutdown()
    for node in (view, peer):
        node.destroy_node()
    rclpy.shutdown()


def test_without_the_markers_package_the_view_says_so(monkeypatch):
    for name in ('visualization_msgs', 'visualization_msgs.msg'):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, 'user_robot.markers', raising=False)
    rclpy.init(args=['--ros-args', '-r', '__ns:=/arm0'])
    with pytest.raises(UserError, match='visualization_msgs is not installed'):
        View()
    rclpy.shutdown()


@pytest.mark.parametrize('name', MODELS)
def test_a_description_has_our_joints_a_root_called_base_and_no_missing_mesh(name):
    robot = ElementTree.fromstring(robot_description(name))
    moving = [j.get('name') for j in robot.findall('joint') if j.get('type') != 'fixed']
    assert moving == [f'joint{i + 1}' for i in range(len(moving))]
    assert len(moving) in (6, 7)
    meshes = [mesh.get('filename') for mesh in robot.iter('mesh')]
    assert all(Path(urlparse(file).path).is_file() for file in meshes)
    assert meshes or sum(1 for _ in robot.iter('cylinder')) >= 4
    children = {j.find('child').get('link') for j in robot.findall('joint')}
    assert {link.get('name') for link in robot.findall('link')} - children == {'base'}


def test_the_described_franka_stands_where_its_driver_says():
    model = pinocchio.buildModelFromXML(robot_description('franka'))
    q = np.array([0.3, -0.4, 0.2, -2.0, 0.1, 1.8, 0.6])
    data = model.createData()
    pinocchio.framesForwardKinematics(model, data, q)
    placed = data.oMf[model.getFrameId('fr3_link8')].homogeneous
    assert np.allclose(placed, flange(q), atol=1e-4)


def test_cylinders_of_an_arm_without_meshes_reach_from_joint_to_joint():
    robot = ElementTree.fromstring(robot_description('L5'))
    ends = {}
    for link in robot.findall('link'):
        for visual in link.findall('visual'):
            origin, rod = visual.find('origin'), visual.find('geometry/cylinder')
            middle, turn = (np.array(origin.get(k).split(), float) for k in ('xyz', 'rpy'))
            half = Rotation.from_euler('xyz', turn).apply([0, 0, float(rod.get('length')) / 2])
            assert np.allclose(middle - half, 0.0)
            ends.setdefault(link.get('name'), []).append(middle + half)
    for joint in robot.findall('joint'):
        way = np.array(joint.find('origin').get('xyz').split(), float)
        if np.linalg.norm(way) > 0.03:
            parent = joint.find('parent').get('link')
            assert any(np.allclose(way, end) for end in ends[parent])


def test_every_topic_of_the_rviz_page_is_published_by_somebody():
    page = (ROOT / 'config' / 'user.rviz').read_text()
    assert yaml.safe_load(page)['Visualization Manager']['Global Options']['Fixed Frame']
    shown = set(re.findall(r'Value: (/\S+?),', page))
    cell = {topics.name(key, 'arm0') for key, row in topics.TOPICS.items() if row.scope == 'cell'}
    others = {'/arm0/markers', '/arm0/robot_description', '/arm0/wrist/image_raw'}
    assert {'/arm0/markers', '/arm0/external_wrench', '/arm0/current_pose'} <= shown
    assert shown <= cell | others
