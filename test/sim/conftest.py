# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated arm with every hidden error off, the goal it aims at, a simulated FR3."""

from collections.abc import Iterator

from franka_rig import Server, serve
import pytest

from user_core.config import PegTask, SimArmConfig
from user_core.geometry import Pose
from user_robot.peg_task import PegTask as Task
from user_sim.arm import SimArm

EXACT = SimArmConfig(
    hole_error_m=0,
    hole_error_rad=0,
    grasp_error_m=0,
    grasp_error_rad=0,
    force_noise_n=0,
    torque_noise_nm=0,
    force_bias_n=0,
    torque_bias_nm=0,
)


@pytest.fixture
def exact_arm() -> SimArm:
    """An arm without errors or noise."""
    return SimArm(EXACT)


@pytest.fixture
def goal() -> Pose:
    """The TCP at full insertion, z into the hole."""
    return Task(PegTask()).frame


@pytest.fixture(scope='module')
def server() -> Iterator[Server]:
    """One server for the tests that leave it as they found it."""
    with serve('--exact') as running:
        yield running
