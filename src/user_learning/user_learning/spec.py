# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What the networks must know of a run's task."""

from __future__ import annotations

from user_core.config import RunConfig
from user_learning.encoder import Sight
from user_learning.networks import Spec
from user_robot.task import make_task

ACTION_N = 6
"""Values of an action: translation and rotation vector."""


def spec_of(config: RunConfig) -> Spec:
    """Sizes and normalisation constants of the config's task (its one owner is the task itself),
    and what its policy sees.
    """
    state = make_task(config.task).spec
    return Spec(
        state.mean,
        state.scale,
        state.squash,
        ACTION_N,
        state.fine_index,
        state.fine_mean,
        state.fine_scale,
        state.aim_index,
        Sight(config.views, config.policy) if config.policy.kind == 'cnn' else None,
    )
