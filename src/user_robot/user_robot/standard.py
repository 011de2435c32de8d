# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""An arm's samples in the words of other stacks and viewers: standard messages, standard names."""

from __future__ import annotations

import time
from typing import Any

from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState

from user_core.messages import doubles, pose_msg, stamp_s
from user_core.node import Shell
from user_robot.arm import ArmState

JOINTS_S = 0.05
"""Joint states are for viewers: at most one in this time (steady clock)."""
TOPICS = ('joint_states', 'current_pose', 'current_twist', 'external_wrench')


class Standard:
    """Publishes what somebody listens to, in the frame `<cell>/base`. One thread publishes.

    Args:
        shell: the arm's node.
        simulated: the arm's clock is one of its own, which is told, too.
    """

    def __init__(self, shell: Shell, simulated: bool) -> None:
        self._frame = f'{shell.cell}/base'
        names = (*TOPICS, 'clock') if simulated else TOPICS
        self._pubs = {name: shell.create_pub(name) for name in names}
        self._heard: set[str] = set()
        self._joints_s = 0.0

    def look(self) -> None:
        """Sees who listens; now and then, as counting costs more than publishing nothing."""
        self._heard = {name for name, pub in self._pubs.items() if pub.get_subscription_count()}

    def publish(self, state: ArmState) -> None:
        """One sample."""
        if not self._heard:
            return
        stamp = stamp_s(state.stamp_s)
        if 'clock' in self._heard:
            self._pubs['clock'].publish(Clock(clock=stamp))
        if 'current_pose' in self._heard:
            self._send('current_pose', PoseStamped(pose=pose_msg(state.pose)), stamp)
        if 'current_twist' in self._heard:
            twist = TwistStamped()
            _write(twist.twist.linear, twist.twist.angular, state.twist)
            self._send('current_twist', twist, stamp)
        if 'external_wrench' in self._heard:
            wrench = WrenchStamped()
            _write(wrench.wrench.force, wrench.wrench.torque, state.wrench)
            self._send('external_wrench', wrench, stamp)
        now = time.monotonic()
        if 'joint_states' in self._heard and now - self._joints_s >= JOINTS_S:
            self._joints_s = now
            joints = JointState(name=[f'joint{i + 1}' for i in range(state.q.size)])
            values = map(doubles, (state.q, state.dq, state.tau))
            joints.position, joints.velocity, joints.effort = values
            self._send('joint_states', joints, stamp)

    def _send(self, name: str, message: Any, stamp: Any) -> None:
        message.header.stamp, message.header.frame_id = stamp, self._frame
        self._pubs[name].publish(message)


def _write(linear: Any, angular: Any, six: Any) -> None:
    linear.x, linear.y, linear.z, angular.x, angular.y, angular.z = six.tolist()
