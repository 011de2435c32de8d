# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Rows and settings of a small task: 3 state values, 2 action values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from user_core.config import RunConfig
from user_core.outcome import Boundary, Mode
from user_learning.networks import Spec
from user_learning.row import Row

torch.set_num_threads(1)


@pytest.fixture
def spec() -> Spec:
    return Spec(
        mean=np.array([0.0, 1.0, 0.0], np.float32),
        scale=np.array([1.0, 0.5, 10.0], np.float32),
        squash=np.array([False, False, True]),
        action_n=2,
    )


@pytest.fixture
def episode() -> Callable[..., list[Row]]:
    """Rows of one episode: `steps` actions and the closing row; every state names its episode and
    step.
    """

    def build(
        number: int,
        steps: int = 5,
        cell: str = 'arm0',
        mode: Mode = Mode.TRAIN,
        boundary: Boundary = Boundary.SUCCESS,
        seq: int = 0,
        version: int = 1,
        incarnation: int = 7,
    ) -> list[Row]:
        rows = []
        for step in range(steps + 1):
            closing, last = step == steps, step == steps - 1
            rows.append(
                Row(
                    run='run',
                    cell=cell,
                    episode=number,
                    step=step,
                    incarnation=incarnation,
                    seq=seq + step,
                    mode=mode,
                    state=np.array([number, step, 0.5], np.float32),
                    policy='actor',
                    policy_version=version,
                    executed_action=np.zeros(0, np.float32)
                    if closing
                    else np.array([0.1 * step, -0.5], np.float32),
                    reward=float(last and boundary == Boundary.SUCCESS),
                    terminated=last and boundary in (Boundary.SUCCESS, Boundary.FAILURE),
                    truncated=last and boundary in (Boundary.TIMEOUT, Boundary.ABORT),
                    boundary=boundary if last or closing else Boundary.NONE,
                    closing=closing,
                    valid=not closing,
                )
            )
        return rows

    return build


@pytest.fixture
def small() -> Callable[..., RunConfig]:
    """A run of a few updates; keyword arguments replace whole sections' fields, e.g.
    learner={...}.
    """

    def build(**sections: dict) -> RunConfig:
        page: dict = {
            'name': 'small',
            'policy': {'hidden': (16,)},
            'algorithm': {'critic_hidden': (16,), 'batch': 32},
            'learner': {
                'warmup_updates': 20,
                'start_rows': 10,
                'clone_updates': 30,
                'publish_every_s': 0.001,
                'checkpoint_every_s': 1000.0,
            },
            'budget': {'demos': 2},
        }
        for name, fields in sections.items():
            page[name] = {**page.get(name, {}), **fields} if isinstance(fields, dict) else fields
        return RunConfig.model_validate(page)

    return build
