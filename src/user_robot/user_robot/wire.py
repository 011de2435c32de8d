# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The cell's messages and their plain counterparts (row.py). Imports no rclpy.

Writers keep one message each and fill it anew: a publisher serialises before it returns.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from typing import Any

from sensor_msgs.msg import CompressedImage, Image
from user_msgs import msg

from user_core import jpeg
from user_core.geometry import Pose
from user_core.messages import NS, doubles, floats, nanoseconds, numbers, pose
from user_robot.arm import ArmState
from user_robot.latch import Mode as ArmMode
from user_robot.row import Answer, Command, Observation, Pictures, Row, Sample


class Writer:
    """Fills messages of one cell of one run. Not thread safe: one writer a thread.

    Args:
        run: its name.
        cell: its name.
        task: its text.
        incarnation: of the node that writes rows.
        policy_away: the policy is on another machine, so pictures go there as JPEG files.
        replay_away: the same of replay.
    """

    def __init__(
        self,
        run: str,
        cell: str,
        task: str = '',
        incarnation: int = 0,
        policy_away: bool = False,
        replay_away: bool = False,
    ) -> None:
        self._policy_away, self._replay_away = policy_away, replay_away
        self._state = msg.RobotState()
        self._observation = msg.Observation(task=task)
        self._action = msg.Action()
        self._target = msg.Target()
        self._row = msg.Transition(
            schema_version=msg.Transition.SCHEMA, incarnation=incarnation, task=task
        )
        for message in (self._state, self._observation, self._action, self._target, self._row):
            message.id.run, message.id.cell = run, cell

    def state(self, sample: Sample) -> msg.RobotState:
        """RobotState of a sample."""
        m, s = self._state, sample.state
        m.id.episode, m.id.step, m.answers = sample.episode, sample.step, sample.answers
        _time(m.stamp, round(s.stamp_s * NS))
        _pose(m.pose, s.pose)
        m.twist, m.wrench = s.twist, s.wrench
        m.position, m.velocity, m.effort = doubles(s.q), doubles(s.dq), doubles(s.tau)
        m.gripper, m.peak_force = s.gripper_m, s.peak_force_n
        m.success_rate = s.success_rate
        _pose(m.applied, sample.applied)
        m.limited, m.mode, m.reason = sample.limited, int(sample.mode), sample.reason
        return m

    def observation(self, o: Observation) -> msg.Observation:
        """Observation."""
        m = self._observation
        m.id.episode, m.id.step = o.episode, o.step
        _time(m.stamp, round(o.stamp_s * NS))
        m.mode, m.policy, m.policy_version = int(o.mode), o.policy, o.version
        m.state = floats(o.state)
        _pictures(m, o.pictures, self._policy_away)
        return m

    def action(self, a: Answer, now_ns: int) -> msg.Action:
        """Action."""
        m = self._action
        m.id.episode, m.id.step = a.episode, a.step
        _time(m.stamp, now_ns)
        m.source, m.policy, m.policy_version = int(a.source), a.policy, a.version
        m.horizon, m.dimension = a.chunk.shape
        m.chunk, m.gripper = floats(a.chunk), floats(a.gripper)
        return m

    def target(self, c: Command, now_ns: int) -> msg.Target:
        """Target."""
        m = self._target
        m.id.episode, m.id.step = c.episode, c.step
        _time(m.stamp, now_ns)
        _pose(m.pose, c.pose)
        m.gripper = c.gripper_m
        return m

    def row(self, r: Row, seq: int) -> msg.Transition:
        """Transition number `seq` of this incarnation."""
        m = self._row
        m.id.episode, m.id.step, m.seq = r.episode, r.step, seq
        _time(m.captured, round(r.captured_s * NS))
        _time(m.arrived, r.arrived_ns)
        m.mode, m.state = int(r.mode), floats(r.state)
        _pictures(m, r.pictures, self._replay_away)
        m.policy, m.policy_version, m.source = r.policy, r.policy_version, int(r.source)
        m.policy_action, m.executed_action = floats(r.policy_action), floats(r.executed_action)
        m.horizon, m.chunk_index, m.gripper = r.horizon, r.chunk_index, r.gripper_m
        m.reward, m.terminated, m.truncated = r.reward, r.terminated, r.truncated
        m.boundary, m.closing, m.valid = int(r.boundary), r.closing, r.valid
        m.lateness, m.peak_force, m.limited = r.lateness_s, r.peak_force_n, r.limited
        return m


def sample(m: msg.RobotState) -> Sample:
    """RobotState to a sample."""
    state = ArmState(
        pose(m.pose),
        m.twist,
        m.wrench,
        numbers(m.position),
        numbers(m.velocity),
        numbers(m.effort),
        m.gripper,
        nanoseconds(m.stamp) / NS,
        m.peak_force,
        m.success_rate,
    )
    return Sample(
        m.id.episode, m.id.step, m.answers, state, pose(m.applied), m.limited, ArmMode(m.mode),
        m.reason,
    )  # fmt: skip


def answer(m: msg.Action) -> Answer:
    """Action to an answer; a chunk that is not horizon x dimension stays flat, to be refused."""
    chunk = numbers(m.chunk)
    if chunk.size == m.horizon * m.dimension:
        chunk = chunk.reshape(m.horizon, m.dimension)
    return Answer(
        m.id.episode, m.id.step, m.source, m.policy, m.policy_version, chunk, numbers(m.gripper)
    )


def command(m: msg.Target) -> Command:
    """Target to a command."""
    return Command(m.id.episode, m.id.step, pose(m.pose), m.gripper)


def view(m: Image | CompressedImage) -> tuple[int, str, int, int, array[int]]:
    """A camera's message: stamp in ns, encoding, height, width (0 of what is no JPEG), bytes."""
    stamp_ns = nanoseconds(m.header.stamp)
    if isinstance(m, Image):
        return stamp_ns, m.encoding, m.height, m.width, m.data
    height = width = 0
    with suppress(ValueError):
        height, width = jpeg.size(m.data)
    return stamp_ns, 'jpeg', height, width, m.data


def _pictures(message: Any, pictures: Pictures, away: bool) -> None:
    if len(message.images) != len(pictures):
        message.images = [msg.Image() for _ in pictures]
    for m, p in zip(message.images, pictures, strict=True):
        view = p.view
        _time(m.stamp, view.stamp_ns)
        m.name, m.height, m.width = p.name, view.height, view.width
        m.age, m.repeated = p.age_s, p.repeated
        m.encoding, m.data = ('jpeg', view.jpeg) if away else (view.encoding, view.data)


def _time(message: Any, ns: int) -> None:
    message.sec, message.nanosec = divmod(ns, NS)


def _pose(message: Any, value: Pose) -> None:
    p, q = message.position, message.orientation
    p.x, p.y, p.z = value.position.tolist()
    q.x, q.y, q.z, q.w = value.quaternion.tolist()
