# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a run asks for and what came of it: goals, episodes, announced weights, attempts."""

from dataclasses import dataclass, field
from enum import IntEnum
import itertools
from pathlib import Path

import numpy as np


class Mode(IntEnum):
    """Observation.MODE_*: who acts in an episode, and how."""

    TRAIN = 0
    EVAL = 1
    EVAL_SAMPLED = 2
    DEMO = 3


class Boundary(IntEnum):
    """Transition.BOUNDARY_*: how an episode ended."""

    NONE = 0
    SUCCESS = 1
    FAILURE = 2
    TIMEOUT = 3
    ABORT = 4


@dataclass(frozen=True)
class Goal:
    """What a cell is asked for: one episode."""

    mode: Mode
    policy: str
    version: int
    seed: int


@dataclass(frozen=True)
class Episode:
    """What came of one episode (RunEpisode.action holds the units)."""

    goal: Goal
    cell: str
    boundary: Boundary
    reason: str = ''
    void: bool = False
    episode_return: float = 0.0
    length: int = 0
    interventions: int = 0
    first_version: int = 0
    last_version: int = 0
    peak_force: float = 0.0
    distance: float = 0.0
    policy_lag: float = 0.0
    duration_s: float = 0.0
    late_steps: int = 0
    period_s: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def success(self) -> bool:
        """True when the task was done."""
        return self.boundary is Boundary.SUCCESS


@dataclass(frozen=True)
class Announced:
    """One announced version of a policy's weights (msg/Weights)."""

    policy: str
    version: int
    sha256: str
    path: Path


@dataclass(frozen=True)
class Attempt:
    """One evaluation of one frozen version; `kind` is streak, fresh or the name of a baseline."""

    kind: str
    policy: str
    version: int
    sha256: str
    at_env_steps: int
    episodes: tuple[Episode, ...]

    @property
    def streak(self) -> int:
        """Longest run of successes in a row."""
        groups = itertools.groupby(self.episodes, key=lambda e: e.success)
        return max((len(list(run)) for good, run in groups if good), default=0)

    @property
    def successes(self) -> int:
        """Number of successful episodes."""
        return sum(e.success for e in self.episodes)
