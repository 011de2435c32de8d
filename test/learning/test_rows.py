# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Which rows a learner may draw from."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

import numpy as np
import pytest

from user_core.outcome import Boundary, Mode
from user_learning.row import Row
from user_learning.rows import Rows

Build = Callable[..., list[Row]]


def episodes(rows: Rows) -> set[float]:
    """Numbers of the episodes whose demonstrations can be sampled."""
    return set(rows.demos.observation['state'][rows.demos.ready, 0].tolist())


def test_evaluation_rows_are_neither_sampled_nor_counted(episode: Build) -> None:
    rows = Rows(100, 3, 2)
    for k, mode in enumerate((Mode.EVAL, Mode.EVAL_SAMPLED)):
        for row in episode(k, 5, mode=mode):
            rows.add(row)
    assert (len(rows.online), len(rows.demos), rows.train_rows) == (0, 0, 0)
    for row in episode(9, 5):
        rows.add(row)
    assert rows.train_rows == 5


def test_only_successful_demonstrations_are_demonstrations(episode: Build) -> None:
    rows = Rows(100, 3, 2)
    for k, boundary in enumerate(
        (Boundary.SUCCESS, Boundary.FAILURE, Boundary.TIMEOUT, Boundary.ABORT)
    ):
        for row in episode(k, 5, mode=Mode.DEMO, boundary=boundary):
            rows.add(row)
    assert rows.demo_episodes == 1
    assert episodes(rows) == {0}
    assert rows.train_rows == 0


def test_an_unfinished_demonstration_is_none(episode: Build) -> None:
    rows = Rows(100, 3, 2)
    for row in episode(1, 5, mode=Mode.DEMO)[:-1] + episode(2, 5, mode=Mode.DEMO):
        rows.add(row)
    assert rows.demo_episodes == 1
    assert episodes(rows) == {2}


@pytest.mark.parametrize(
    ('change', 'word'),
    [
        ({'state': np.array([1, np.nan, 0], np.float32)}, 'not finite'),
        ({'executed_action': np.array([np.inf, 0], np.float32)}, 'not finite'),
        ({'reward': float('nan')}, 'reward'),
        ({'state': np.zeros(4, np.float32)}, '4 values'),
        ({'executed_action': np.zeros(3, np.float32)}, '3 values'),
    ],
)
def test_a_row_that_would_poison_the_networks_is_left_out_by_name(
    episode: Build, change: dict, word: str
) -> None:
    rows = Rows(100, 3, 2)
    for row in episode(1, 5):
        rows.add(dataclasses.replace(row, **change) if row.step == 2 else row)
    assert rows.refused == 1
    assert word in rows.last_refused
    assert 'arm0' in rows.last_refused
    steps = rows.online.observation['state'][rows.online.ready, 1]
    assert set(steps.tolist()) == {0.0, 3.0, 4.0}
