# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What passes through an episode: sample in, observation out, answer in, command and row out.

Plain counterparts of RobotState, Observation, Action, Target, Transition and RunEpisode (msg/,
action/ hold the units), without run and cell, which the node shell knows.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
import math

import numpy as np
from numpy.typing import NDArray

from user_core import jpeg
from user_core.geometry import Pose
from user_core.messages import octets
from user_core.outcome import Boundary, Mode
from user_robot.arm import ArmState
from user_robot.latch import Mode as ArmMode
from user_robot.task import State

Floats = NDArray[np.float32]
NO_FLOATS: Floats = np.zeros(0, np.float32)


class Source(IntEnum):
    """Action.SOURCE_*: who acted."""

    POLICY = 0
    HUMAN = 1
    SCRIPT = 2


@dataclass(frozen=True, eq=False)
class View:
    """What a camera saw. Its bytes are those that came and are handed on without a copy.

    Attributes:
        stamp_ns: instant of exposure, the cell's clock.
        exposed_s: the same instant on this process's steady clock.
        arrived_s: when it came, on that clock.
        encoding: rgb8 (height x width x 3) or jpeg (one file).
        quality: of the JPEG file that is made where none came.
    """

    stamp_ns: int
    exposed_s: float
    arrived_s: float
    encoding: str
    height: int
    width: int
    data: array[int]
    quality: int

    @cached_property
    def jpeg(self) -> array[int]:
        """The same as one JPEG file, made when it is first asked for."""
        if self.encoding == 'jpeg':
            return self.data
        pixels = np.frombuffer(self.data, np.uint8).reshape(self.height, self.width, 3)
        return octets(jpeg.encode(pixels, self.quality))


@dataclass(frozen=True, slots=True)
class Picture:
    """A camera's view in an observation: how old it was, and whether the step before had it."""

    name: str
    view: View
    age_s: float
    repeated: bool


Pictures = tuple[Picture, ...]
"""One of each camera, in the order of their names."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of the arm and what the arm made of the last command."""

    episode: int
    step: int
    answers: bool
    state: ArmState
    applied: Pose
    limited: int
    mode: ArmMode
    reason: str


@dataclass(frozen=True, slots=True)
class Observation:
    """A question to whoever acts."""

    episode: int
    step: int
    mode: Mode
    policy: str
    version: int
    state: State
    stamp_s: float
    pictures: Pictures = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one observation: a chunk (horizon, 6) in the policy's units."""

    episode: int
    step: int
    source: int
    policy: str
    version: int
    chunk: Floats
    gripper: Floats = field(default_factory=lambda: NO_FLOATS)


@dataclass(frozen=True, slots=True)
class Command:
    """A target (base frame) for the arm; a NaN gripper stays as it is."""

    episode: int
    step: int
    pose: Pose
    gripper_m: float


@dataclass(frozen=True, slots=True)
class Moment:
    """What was seen at the start of a step.

    Attributes:
        flaw: why no step begins or ends here, else ''.
        missed: a camera that is faster than the steps gave no new picture.
    """

    step: int
    sample: Sample
    state: State
    arrived_ns: int
    at_s: float
    pictures: Pictures
    flaw: str
    missed: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """The action of a step: one row of an answer's chunk."""

    answer: Answer
    index: int

    @property
    def action(self) -> Floats:
        """(6,) in the policy's units."""
        return self.answer.chunk[self.index]

    @property
    def gripper_m(self) -> float:
        """Wanted width, NaN: leave it."""
        gripper = self.answer.gripper
        return float(gripper[self.index]) if self.index < gripper.size else math.nan


@dataclass(frozen=True, slots=True)
class Row:
    """One step, or the closing row of an episode."""

    episode: int
    step: int
    mode: Mode
    captured_s: float
    arrived_ns: int
    state: State
    pictures: Pictures = ()
    policy: str = ''
    policy_version: int = 0
    source: int = Source.POLICY
    policy_action: Floats = field(default_factory=lambda: NO_FLOATS)
    executed_action: Floats = field(default_factory=lambda: NO_FLOATS)
    horizon: int = 0
    chunk_index: int = 0
    gripper_m: float = math.nan
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    boundary: Boundary = Boundary.NONE
    closing: bool = False
    valid: bool = False
    lateness_s: float = 0.0
    peak_force_n: float = 0.0
    limited: int = 0


@dataclass(slots=True)
class Result:
    """What came of an episode."""

    episode: int
    reason: str = ''
    void: bool = False
    boundary: Boundary = Boundary.NONE
    episode_return: float = 0.0
    length: int = 0
    interventions: int = 0
    first_version: int = 0
    last_version: int = 0
    peak_force_n: float = 0.0
    distance_m: float = float('inf')
    policy_lag: float = 0.0
    duration_s: float = 0.0
    late_steps: int = 0
    period_s: list[float] = field(default_factory=list)
