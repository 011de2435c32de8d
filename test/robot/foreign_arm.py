# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Another lab's arm node: five standard topics at 100 Hz, with simulated physics inside."""

from contextlib import suppress
import sys

from geometry_msgs.msg import PoseStamped, TwistStamped, Vector3, WrenchStamped
import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import JointState

from user_core.arm_config import SimArmConfig
from user_core.geometry import Pose
from user_sim.arm import SimArm

PERIOD_S = 0.01
GENTLE = SimArmConfig(
    latency_s=0.0, stiffness_n_m=2000, clip_m=0.005, damping_ns_m=230, stiffness_nm_rad=80,
    clip_tilt_rad=0.01, clip_yaw_rad=0.03, contact_time_s=0.025, peg_edge_m=0.001,
)  # fmt: skip


class ForeignArm(Node):
    def __init__(self, height_m: float) -> None:
        super().__init__('controller')
        self.arm = SimArm(GENTLE, PERIOD_S)
        self.arm.reset(Pose.from_rotvec([0.5, 0.0, height_m], [np.pi, 0.0, 0.0]), 0)
        self.create_subscription(PoseStamped, 'target_pose', self.on_target, 1)
        self.pose_pub = self.create_publisher(PoseStamped, 'current_pose', qos_profile_sensor_data)
        self.twist_pub = self.create_publisher(TwistStamped, 'current_twist', 1)
        self.wrench_pub = self.create_publisher(WrenchStamped, 'external_wrench', 1)
        self.joints_pub = self.create_publisher(JointState, 'joint_states', 1)
        self.create_timer(PERIOD_S, self.on_timer)

    def on_target(self, message: PoseStamped) -> None:
        p, q = message.pose.position, message.pose.orientation
        target = Pose(np.array([p.x, p.y, p.z]), np.array([q.x, q.y, q.z, q.w]))
        self.arm.servo(target, np.nan)

    def on_timer(self) -> None:
        self.arm.advance(PERIOD_S)
        state, stamp = self.arm.state(), self.get_clock().now().to_msg()
        pose, twist, wrench, joints = PoseStamped(), TwistStamped(), WrenchStamped(), JointState()
        for message in (pose, twist, wrench, joints):
            message.header.stamp, message.header.frame_id = stamp, 'link0'
        p, q = pose.pose.position, pose.pose.orientation
        p.x, p.y, p.z = state.pose.position
        q.x, q.y, q.z, q.w = state.pose.quaternion
        twist.twist.linear, twist.twist.angular = vectors(state.twist)
        wrench.wrench.force, wrench.wrench.torque = vectors(state.wrench)
        joints.position, joints.velocity = state.q.tolist(), state.dq.tolist()
        self.pose_pub.publish(pose)
        self.twist_pub.publish(twist)
        self.wrench_pub.publish(wrench)
        self.joints_pub.publish(joints)


def vectors(six: np.ndarray) -> list[Vector3]:
    return [Vector3(x=x, y=y, z=z) for x, y, z in six.reshape(2, 3).tolist()]


if __name__ == '__main__':
    rclpy.init()
    with suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(ForeignArm(float(sys.argv[1])))
