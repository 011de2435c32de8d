# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Looks whether a foreign arm speaks: who publishes, how often, how old, in which frame."""

from __future__ import annotations

from collections.abc import Iterator
import os
import time
from typing import Any

from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import JointState

from user_core.arm_config import TopicsConfig
from user_core.guest import Guest
from user_robot.verdict import Verdict, bad

SPOKEN = {
    'current_pose': PoseStamped,
    'current_twist': TwistStamped,
    'joint_states': JointState,
    'external_wrench': WrenchStamped,
}
NEEDED = ('current_pose',)
LISTEN_S = 3.0


def topics(config: TopicsConfig) -> Iterator[Verdict]:
    """Verdicts after listening for three seconds; nothing is published."""
    names = {key: f'{config.namespace.rstrip("/")}/{key}' for key in SPOKEN}
    heard: dict[str, list[tuple[float, float, str]]] = {key: [] for key in SPOKEN}

    def note(key: str, message: Any) -> None:
        stamp = message.header.stamp
        age_s = time.time() - (stamp.sec + stamp.nanosec / 1e9)
        heard[key].append((time.monotonic(), age_s, message.header.frame_id))

    target = f'{config.namespace.rstrip("/")}/target_pose'
    with Guest(f'arm_check_{os.getpid()}') as guest:
        for key, kind in SPOKEN.items():
            guest.node.create_subscription(
                kind, names[key], lambda m, k=key: note(k, m), qos_profile_sensor_data
            )
        end = time.monotonic() + LISTEN_S
        while time.monotonic() < end:
            guest.executor.spin_once(0.05)
        writers = {key: guest.node.count_publishers(name) for key, name in names.items()}
        followers = guest.node.count_subscribers(target)
    for key, name in names.items():
        yield judge(name, key in NEEDED, writers[key], heard[key], config.max_age_s)
    if followers:
        yield True, f'{target} has {followers} subscriber(s)'
    else:
        yield bad(f'nobody listens to {target}', '', "start the arm's own Cartesian controller")


def judge(
    name: str, needed: bool, writers: int, heard: list[tuple[float, float, str]], max_age_s: float
) -> Verdict:
    """The verdict on one topic; `heard`: (steady time s, age of the stamp s, frame)."""
    if not heard:
        why = f'{writers} publish it but sent nothing' if writers else 'nobody publishes it'
        if not needed:
            return True, f'{name}: {why}; the arm goes without'
        do = 'start the arm, see its namespace in cells.<cell>.arm.namespace and ROS_DOMAIN_ID'
        return bad(f'{name} is silent', why, do)
    span_s = heard[-1][0] - heard[0][0]
    hz = (len(heard) - 1) / span_s if span_s > 0 else 0.0
    age_s = max(age for _, age, _ in heard)
    frames = ', '.join(sorted({frame or '(none)' for *_, frame in heard}))
    text = f'{name}: {hz:.0f} Hz, stamps at most {age_s * 1000:.0f} ms old, frame {frames}'
    if needed and age_s > max_age_s:
        return bad(text, f'arm.max_age_s is {max_age_s}', 'set the clocks of both computers')
    if writers > 1:
        return bad(text, f'{writers} nodes publish it', 'end all but one')
    return True, text
