# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""msg/Transition and msg/Label as records of the store, and a version of weights as
msg/Weights.
"""

from __future__ import annotations

import socket

import numpy as np
from user_msgs.msg import Label as LabelMsg
from user_msgs.msg import Transition, Weights

from user_core.messages import nanoseconds, numbers
from user_learning.row import Label, Picture, Row
from user_learning.weights import Version


def row_of(msg: Transition) -> Row:
    """The row of a message; its arrays share the message's memory."""
    return Row(
        run=msg.id.run,
        cell=msg.id.cell,
        episode=msg.id.episode,
        step=msg.id.step,
        incarnation=msg.incarnation,
        seq=msg.seq,
        captured_ns=nanoseconds(msg.captured),
        arrived_ns=nanoseconds(msg.arrived),
        mode=msg.mode,
        task=msg.task,
        state=numbers(msg.state),
        images=tuple(
            Picture(
                i.name,
                i.encoding,
                i.height,
                i.width,
                nanoseconds(i.stamp),
                numbers(i.data),
                i.age,
                i.repeated,
            )
            for i in msg.images
        ),
        policy=msg.policy,
        policy_version=msg.policy_version,
        source=msg.source,
        policy_action=numbers(msg.policy_action),
        executed_action=numbers(msg.executed_action),
        horizon=msg.horizon,
        chunk_index=msg.chunk_index,
        gripper=msg.gripper,
        intervention=np.array(msg.intervention, bool),
        reward=msg.reward,
        terminated=msg.terminated,
        truncated=msg.truncated,
        boundary=msg.boundary,
        closing=msg.closing,
        valid=msg.valid,
        lateness=msg.lateness,
        peak_force=msg.peak_force,
        limited=msg.limited,
    )


def label_of(msg: LabelMsg) -> Label:
    """The label of a message."""
    i = msg.id
    return Label(i.run, i.cell, i.episode, i.step, msg.judge, msg.reward, msg.success)


def weights_msg(run: str, version: Version) -> Weights:
    """The announcement of a version; its path is valid on this machine."""
    return Weights(
        run=run,
        policy=version.policy,
        version=version.version,
        updates=version.updates,
        env_steps=version.env_steps,
        host=socket.gethostname(),
        path=str(version.path),
        size=version.size,
        sha256=version.sha256,
        config_hash=version.config_hash,
    )
