# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a policy hears and says, as messages: msg/Observation, msg/Action, msg/Weights and
srv/FetchWeights.
"""

from __future__ import annotations

from collections.abc import Collection
import time

from user_msgs.msg import Action, Observation, Weights
from user_msgs.srv import FetchWeights

from user_core.messages import floats, image, numbers, stamp
from user_learning.fetcher import Part
from user_learning.inbox import Letter
from user_learning.policy import Answer, Question, Silence
from user_learning.weights import Version


def letter_of(msg: Observation, cameras: Collection[str]) -> Letter:
    """The observation as a policy that sees by these cameras reads it, or why it cannot; its
    arrays share the message's memory.
    """
    question: Question | Silence
    try:
        question = Question(
            msg.policy,
            msg.policy_version,
            msg.mode,
            numbers(msg.state),
            msg.id.episode,
            msg.id.step,
            {p.name: image(p) for p in msg.images if p.name in cameras},
        )
    except ValueError as error:
        question = Silence('REFUSED', str(error))
    return Letter(msg.id.cell, msg.id, question)


def action_msg(letter: Letter, answer: Answer) -> Action:
    """The answer: a chunk of one row."""
    return Action(
        id=letter.id,
        stamp=stamp(time.time_ns()),
        source=Action.SOURCE_POLICY,
        policy=answer.policy,
        policy_version=answer.version,
        horizon=1,
        dimension=len(answer.action),
        chunk=floats(answer.action),
    )


def version_of(msg: Weights) -> Version:
    """The announced version."""
    return Version(
        msg.policy, msg.version, msg.path, msg.size, msg.sha256, config_hash=msg.config_hash
    )


def part_of(response: FetchWeights.Response) -> Part:
    """The learner's answer."""
    r = response
    return Part(r.version, r.size, r.sha256, bytes(r.data), r.error)
