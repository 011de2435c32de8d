# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Every topic, action and service: name, type, quality of service and the reason for it.

A cell's names live below its namespace, `/arm0/observation`; learning's below `/learning`. Both
ends of a topic take their profile from here, so they always match.
"""

from __future__ import annotations

from dataclasses import dataclass
import re
from typing import Any, Literal

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    LivelinessPolicy,
    QoSProfile,
    ReliabilityPolicy,
)
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, JointState
from std_msgs.msg import Bool
from std_srvs.srv import Trigger
from user_msgs.action import MoveGripper, MoveTo, RunEpisode
from user_msgs.msg import (
    Ack,
    Action,
    Label,
    Metrics,
    Observation,
    RobotState,
    RunConfig,
    Target,
    Transition,
    Weights,
)
from user_msgs.srv import FetchWeights

Scope = Literal['camera', 'cell', 'learning', 'run']


@dataclass(frozen=True)
class Topic:
    """One row of the table; `depth` is the publisher's, `reader_depth` each subscription's.

    `any_writer`: other stacks write it, perhaps best effort, so the reader is best effort, too.
    """

    name: str
    type: type
    scope: Scope
    depth: int
    reader_depth: int
    reason: str
    latched: bool = False
    any_writer: bool = False

    @property
    def writer(self) -> QoSProfile:
        """Profile of a publisher."""
        return self._profile(self.depth, ReliabilityPolicy.RELIABLE)

    @property
    def reader(self) -> QoSProfile:
        """Profile of a subscription."""
        best_effort, reliable = ReliabilityPolicy.BEST_EFFORT, ReliabilityPolicy.RELIABLE
        return self._profile(self.reader_depth, best_effort if self.any_writer else reliable)

    def _profile(self, depth: int, reliability: ReliabilityPolicy) -> QoSProfile:
        durability = (
            DurabilityPolicy.TRANSIENT_LOCAL if self.latched else DurabilityPolicy.VOLATILE
        )
        return QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=depth,
            reliability=reliability,
            durability=durability,
            liveliness=LivelinessPolicy.AUTOMATIC,
        )


# Publishers are reliable: a best-effort reader still matches them, a best-effort publisher would
# be silent to a reliable reader.
TOPICS = {
    topic.name: topic
    for topic in (
        Topic(
            'observation', Observation, 'cell', 1, 1, 'only the newest instant is worth acting on'
        ),
        Topic('action', Action, 'cell', 1, 4, 'policy and expert may both write; latest wins'),
        Topic('target', Target, 'cell', 1, 1, 'an overtaken command must not be played back'),
        Topic(
            'robot_state',
            RobotState,
            'cell',
            1,
            4,
            'the newest sample counts, but the one that closes a lockstep period must not be lost',
        ),
        Topic(
            'transition',
            Transition,
            'cell',
            16,
            16,
            'nothing is lost: 16 rows in flight, the spool resends what is not acknowledged',
        ),
        Topic('view', Image, 'camera', 1, 1, 'what policies see; only the newest counts'),
        Topic(
            'view/compressed',
            CompressedImage,
            'camera',
            4,
            4,
            'for another machine; a lost packet is resent',
        ),
        Topic(
            'image_raw', Image, 'camera', 1, 1, 'the whole picture, for people and other stacks'
        ),
        Topic(
            'image_raw/compressed',
            CompressedImage,
            'camera',
            1,
            1,
            'the same for another machine',
        ),
        Topic('depth/image_raw', Image, 'camera', 1, 1, 'depth in mm, aligned to image_raw'),
        Topic('camera_info', CameraInfo, 'camera', 1, 1, 'one goes with every image_raw'),
        Topic(
            'diagnostics',
            DiagnosticArray,
            'run',
            4,
            32,
            "rqt's own topic; a burst of all nodes fits",
        ),
        Topic('joint_states', JointState, 'cell', 1, 5, 'for viewers; the newest posture'),
        Topic('current_pose', PoseStamped, 'cell', 1, 1, 'for other stacks; now counts'),
        Topic('current_twist', TwistStamped, 'cell', 1, 1, 'for other stacks; now counts'),
        Topic('external_wrench', WrenchStamped, 'cell', 1, 1, 'for other stacks; now counts'),
        Topic(
            'target_pose',
            PoseStamped,
            'cell',
            1,
            1,
            'a target of another stack; an overtaken one must not be played back',
            any_writer=True,
        ),
        Topic(
            'estop',
            Bool,
            'run',
            1,
            10,
            'an emergency stop for every arm: each edge counts',
            any_writer=True,
        ),
        Topic('clock', Clock, 'cell', 1, 1, 'time of the simulated cell; only now counts'),
        Topic(
            'ack', Ack, 'learning', 16, 16, 'cumulative, of several cells; a lost one is repeated'
        ),
        Topic(
            'weights',
            Weights,
            'learning',
            1,
            8,
            'a late policy needs the newest version; one publisher for each named policy',
            latched=True,
        ),
        Topic('label', Label, 'learning', 16, 64, 'late judgements, in bursts'),
        Topic(
            'metrics', Metrics, 'run', 4, 32, 'numbers of every node; a burst of all nodes fits'
        ),
        Topic(
            'run_config',
            RunConfig,
            'run',
            1,
            1,
            'a late node must learn which configuration it has to agree with',
            latched=True,
        ),
    )
}

ACTIONS: dict[str, tuple[Scope, Any]] = {
    'run_episode': ('cell', RunEpisode),
    'move_to': ('cell', MoveTo),
    'move_gripper': ('cell', MoveGripper),
}
"""Actions (rclpy's own profiles)."""

SERVICES: dict[str, tuple[Scope, Any]] = {
    'recover': ('cell', Trigger),
    'stop': ('cell', Trigger),
    'clear_stop': ('cell', Trigger),
    'ready': ('cell', Trigger),
    'fetch_weights': ('learning', FetchWeights),
    'snapshot': ('learning', Trigger),
}
"""Services (rclpy's own profile, but for fetch_weights)."""

FETCH_WEIGHTS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=64, reliability=ReliabilityPolicy.BEST_EFFORT
)
"""Profile of fetch_weights, at both ends: what a link loses the policy asks for again by itself,
and no lost part holds up those behind it or the learner that sends them."""


def name(key: str, cell: str | None = None, camera: str | None = None) -> str:
    """Absolute name of a topic, action or service; `cell` is needed for those of a cell, `camera`,
    too, for those of a camera.
    """
    scope = TOPICS[key].scope if key in TOPICS else (ACTIONS.get(key) or SERVICES[key])[0]
    if scope in ('cell', 'camera'):
        if not cell:
            raise ValueError(f'{key} belongs to a cell: name one')
        if scope == 'cell':
            return f'/{cell}/{key}'
        if not camera:
            raise ValueError(f'{key} belongs to a camera: name one')
        return f'/{cell}/{camera}/{key}'
    return f'/learning/{key}' if scope == 'learning' else f'/{key}'


def of_run(key: str, run: str) -> str:
    """Absolute name of a service that a run's own nodes alone may answer: a question reaches every
    server of a name, and the first answer counts.
    """
    return f'{name(key)}/run_{re.sub("[^A-Za-z0-9]", "_", run)}'


def interface(key: str) -> Any:
    """Type of a topic, action or service."""
    return TOPICS[key].type if key in TOPICS else (ACTIONS.get(key) or SERVICES[key])[1]
