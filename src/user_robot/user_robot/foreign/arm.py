# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The driver of a foreign arm: any stack that follows and tells poses by standard topics."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
import threading
import time
from typing import Any

from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
import numpy as np
from rclpy.executors import ExternalShutdownException
from rclpy.qos import QoSProfile, ReliabilityPolicy
from scipy.spatial.transform import Rotation
from sensor_msgs.msg import JointState

from user_core.arm_config import TopicsConfig
from user_core.errors import UserError
from user_core.geometry import Array, Pose
from user_core.guest import Guest
from user_core.messages import NS, nanoseconds, numbers, pose, pose_msg, stamp
from user_robot.arm import BY_HAND, ArmState, Site
from user_robot.follower import PoseFollower

CONNECT_S = 10.0
"""Without a pose for so long there is no arm."""
WRENCH_S = 0.5
"""A wrench that came once and then not for so long is a fault."""
ODD_S = 0.5
"""A message in a frame that is not understood is a fault for so long."""
TWIST_S = 0.02
"""Time constant of a twist that is derived from poses."""
LEASH_M = 0.05
"""A smoothed target begins anew at the measured pose when the arm is this far from it."""

# Matches every writer; a target that was overtaken is not played back.
_READER = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
_WRITER = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)


@dataclass
class _Heard:
    """What came by the topics; `at_s` on the steady clock, stamps in seconds since the epoch,
    `odd` by topic: when, and why it could not be used.
    """

    pose: Pose | None = None
    frame: str = ''
    stamp_s: float = 0.0
    at_s: float = 0.0
    behind_s: float = 0.0
    derived: Array = field(default_factory=lambda: np.zeros(6))
    twist: Array = field(default_factory=lambda: np.zeros(6))
    twist_at_s: float = -np.inf
    wrench: Array = field(default_factory=lambda: np.zeros(6))
    wrench_at_s: float = 0.0
    q: Array = field(default_factory=lambda: np.zeros(0))
    dq: Array = field(default_factory=lambda: np.zeros(0))
    tau: Array = field(default_factory=lambda: np.zeros(0))
    peak_force_n: float = 0.0
    odd: dict[str, tuple[float, str]] = field(default_factory=dict)


class TopicsArm:
    """A foreign arm, by topics below `config.namespace`.

    Publishes target_pose (PoseStamped, in the frame of current_pose) every `slice_s` while there
    is a target, so that a watchdog at the other end sees that this driver lives; after a fault
    nothing until somebody commands. Listens to current_pose (PoseStamped, needed), current_twist
    (TwistStamped; else it is derived from the poses), joint_states (JointState) and
    external_wrench (WrenchStamped, robot on environment positive, taken as filtered as it comes).
    Twist and wrench are in the base frame or in `config.tool_frame`. The driver has its own node
    and thread; it never waits for the arm node's executor.

    Args:
        config: of the arm.
        period_s: the control period; the driver has its own.
    """

    slice_s = 0.01

    def __init__(self, config: TopicsConfig, period_s: float, site: Site = BY_HAND) -> None:
        self.config = config
        self._lock = threading.Lock()
        self._heard = _Heard()
        self._first, self._closing = threading.Event(), threading.Event()
        self._target: Pose | None = None
        turn = config.max_speed_rad_s / config.max_speed_m_s
        limits = config.max_speed_m_s, config.max_acceleration_m_s2, config.max_jerk_m_s3
        self._follower = PoseFollower(Pose.identity(), *((most, most * turn) for most in limits))
        self._connect(site.cell)

    def _connect(self, cell: str) -> None:
        """Joins the graph beside the arm node and waits for the first pose."""
        self._root = root = f'/{self.config.namespace.strip("/")}'
        if root == f'/{cell}':
            raise UserError(
                f'The foreign arm of cell {cell} would be the cell itself',
                f'arm.namespace is {root}, where its own node speaks',
                'Give the namespace of the other stack',
            )
        self._guest = Guest('foreign_arm', f'/{cell}')
        for kind, name, call in (
            (PoseStamped, 'current_pose', self._on_pose),
            (TwistStamped, 'current_twist', self._on_twist),
            (WrenchStamped, 'external_wrench', self._on_wrench),
            (JointState, 'joint_states', self._on_joints),
        ):
            self._guest.node.create_subscription(kind, f'{root}/{name}', call, _READER)
        self._pub = self._guest.node.create_publisher(PoseStamped, f'{root}/target_pose', _WRITER)
        self._thread = threading.Thread(target=self._spin, name='topics', daemon=True)
        self._thread.start()
        if not self._first.wait(CONNECT_S):
            error = self._nothing()
            self.close()
            raise error
        self._warn_of_rivals()

    def _spin(self) -> None:
        """The driver's thread. An executor must not be shut down while it spins."""
        with suppress(ExternalShutdownException):
            while not self._closing.is_set():
                self._guest.executor.spin_once(0.5)

    def _nothing(self) -> UserError:
        """Why there is no arm, and where there might be one."""
        kind, topic = 'geometry_msgs/msg/PoseStamped', f'{self._root}/current_pose'
        poses = [
            name
            for name, kinds in self._guest.node.get_topic_names_and_types()
            if kind in kinds and name != topic and self._guest.node.count_publishers(name)
        ]
        there = f'poses come on {", ".join(sorted(poses))}' if poses else 'no topic has poses'
        return UserError(
            f'No pose came on {topic} within {CONNECT_S:.0f} s, so there is no arm',
            f'{there} in ROS domain {self._guest.node.context.get_domain_id()}',
            'Start the arm, or set arm.namespace to where its current_pose is',
        )

    def _warn_of_rivals(self) -> None:
        """Two writers of targets pull an arm to and fro; a dead one is seen for a while yet."""
        topic, own = self._pub.topic_name, self._guest.node.get_fully_qualified_name()
        writers = self._guest.node.get_publishers_info_by_topic(topic)
        names = {f'{w.node_namespace.rstrip("/")}/{w.node_name}' for w in writers} - {own}
        if names:
            self._guest.node.get_logger().warning(
                f'{", ".join(sorted(names))} may command this arm, too: it publishes {topic}'
            )

    # ------------------------------------------------------------------ the protocol

    def reset(self, pose: Pose, seed: int) -> None:
        """A foreign arm is not put anywhere."""

    def state(self) -> ArmState:
        """The newest measurement; empty joints and a still gripper where nothing tells them."""
        now = time.monotonic()
        with self._lock:
            h = self._heard
            assert h.pose is not None
            fresh = now - h.twist_at_s <= self.config.max_age_s
            peak, h.peak_force_n = h.peak_force_n, float(np.linalg.norm(h.wrench[:3]))
            return ArmState(
                pose=h.pose,
                twist=h.twist if fresh else h.derived,
                wrench=h.wrench,
                q=h.q,
                dq=h.dq,
                tau=h.tau,
                gripper_m=0.0,
                stamp_s=h.stamp_s,
                peak_force_n=max(peak, h.peak_force_n),
                fault=self._fault(now),
            )

    def servo(self, target: Pose, gripper_m: float) -> None:
        """Sets the target; the gripper is not this driver's."""
        del gripper_m
        with self._lock:
            fault, here = self._fault(time.monotonic()), self._heard.pose
        if fault or here is None or not target.isfinite():
            return
        if self._target is None:
            self._follower.place(here)
        self._target = target
        if self.config.smooth:
            self._follower.aim(target)

    def advance(self, seconds: float) -> None:
        """Publishes the target; a smoothed one goes on by this much time."""
        with self._lock:
            fault, here, frame = self._fault(time.monotonic()), self._heard.pose, self._heard.frame
        if fault:
            self._target = None  # the arm may be elsewhere when it comes back
        if self._target is None or here is None:
            return
        target = self._target
        if self.config.smooth:
            if np.linalg.norm(self._follower.pose.position - here.position) > LEASH_M:
                self._follower.place(here)
                self._follower.aim(target)
            target = self._follower.step(seconds)
        message = PoseStamped(pose=pose_msg(target))
        message.header.stamp, message.header.frame_id = stamp(time.time_ns()), frame
        self._pub.publish(message)

    def hold(self) -> None:
        """The measured pose becomes the target."""
        with self._lock:
            here = self._heard.pose
        if here is not None:
            self.servo(here, np.nan)

    def recover(self) -> None:
        """A fault ends when the arm is heard again, by itself; a wrench that no longer comes is
        done without: 0.
        """
        with self._lock:
            h = self._heard
            if time.monotonic() - h.wrench_at_s > max(self.config.max_age_s, WRENCH_S):
                h.wrench, h.wrench_at_s, h.peak_force_n = np.zeros(6), 0.0, 0.0

    def move_joints(self, q: Array, speed_rad_s: float) -> None:
        """There is none."""
        raise UserError(
            'A foreign arm has no joint motion here',
            'the topics that it speaks are Cartesian',
            'Move its joints with its own stack',
        )

    def grip(self, width_m: float, speed_m_s: float, force_n: float) -> None:
        """There is none."""
        raise UserError(
            'A foreign arm has no gripper here',
            'no topic of it moves one',
            'Move the gripper with its own stack',
        )

    def close(self, healthy: bool = True) -> None:
        """Holds once more, then leaves the graph."""
        self.hold()
        self.advance(self.slice_s)
        self._closing.set()
        self._guest.executor.wake()
        self._thread.join(timeout=1.0)
        self._guest.close()

    # ------------------------------------------------------------------ what comes by the topics

    def _fault(self, now: float) -> str:
        """Why the arm cannot be moved, or ''; the caller holds the lock."""
        h, most, topic = self._heard, self.config.max_age_s, f'{self._root}/current_pose'
        if now - h.at_s > most:
            return f'no pose came on {topic} for {now - h.at_s:.1f} s: is its driver alive?'
        if abs(h.behind_s) > most:
            side = 'old' if h.behind_s > 0 else 'ahead'
            return (
                f'poses on {topic} are {abs(h.behind_s):.2f} s {side} by their stamps: '
                'synchronise the clocks, or stamp with system time'
            )
        if h.wrench_at_s and now - h.wrench_at_s > max(most, WRENCH_S):
            return (
                f'no wrench came on {self._root}/external_wrench for {now - h.wrench_at_s:.1f} s:'
                ' recover goes on without it'
            )
        return next((text for at_s, text in h.odd.values() if now - at_s <= max(most, ODD_S)), '')

    def _on_pose(self, message: PoseStamped) -> None:
        here, now, wall_s = pose(message.pose), time.monotonic(), time.time()
        if not here.isfinite():
            return  # as if it had not come
        stamp_s = nanoseconds(message.header.stamp) / NS or wall_s
        with self._lock:
            h = self._heard
            seconds = stamp_s - h.stamp_s
            if h.pose is not None and 0.0 < seconds <= self.config.max_age_s:
                turn = (here.rotation * h.pose.rotation.inv()).as_rotvec()
                twist = np.concatenate((here.position - h.pose.position, turn)) / seconds
                h.derived = h.derived + min(1.0, seconds / TWIST_S) * (twist - h.derived)
            elif seconds:
                h.derived = np.zeros(6)
            h.pose, h.frame = here, message.header.frame_id
            h.behind_s, h.at_s = wall_s - stamp_s, now
            h.stamp_s = max(h.stamp_s, stamp_s)
        self._first.set()

    def _on_twist(self, message: TwistStamped) -> None:
        t = message.twist
        self._take('current_twist', message.header.frame_id, t.linear, t.angular)

    def _on_wrench(self, message: WrenchStamped) -> None:
        w = message.wrench
        self._take('external_wrench', message.header.frame_id, w.force, w.torque)

    def _take(self, topic: str, frame: str, linear: Any, angular: Any) -> None:
        """Six numbers at the TCP, in the axes of a frame."""
        values = np.array([[v.x, v.y, v.z] for v in (linear, angular)])
        with self._lock:
            h = self._heard
            if h.pose is None or not np.isfinite(values).all():
                return
            if frame and frame == self.config.tool_frame:
                values = Rotation.from_quat(h.pose.quaternion).apply(values)
            elif frame not in ('', h.frame):
                why = (
                    f'{self._root}/{topic} is in frame {frame}, and poses are in {h.frame}: if it '
                    f'is the frame of the tool set arm.tool_frame={frame}'
                )
                h.odd[topic] = time.monotonic(), why
                return
            h.odd.pop(topic, None)
            if topic == 'current_twist':
                h.twist, h.twist_at_s = values.reshape(6), time.monotonic()
            else:
                h.wrench, h.wrench_at_s = values.reshape(6), time.monotonic()
                force = float(np.linalg.norm(h.wrench[:3]))
                h.peak_force_n = max(h.peak_force_n, force)

    def _on_joints(self, message: JointState) -> None:
        q, dq, tau = (
            np.array(numbers(values), float)
            for values in (message.position, message.velocity, message.effort)
        )
        with self._lock:
            h = self._heard
            h.q = q
            h.dq, h.tau = (v if v.size == q.size else np.zeros_like(q) for v in (dq, tau))
