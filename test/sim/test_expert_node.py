# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The scripted expert over real DDS."""

import os
from pathlib import Path

import pytest

pytest.importorskip('user_msgs.action')
from cells import Graph
from user_msgs.msg import Observation, Transition

pytestmark = pytest.mark.needs_ros

MOVING = 'cells.arm0.arm.hole_error_m=0.02', 'task.success_lateral_m=0.03'


def test_the_expert_sees_the_hole_and_inserts_where_it_is(tmp_path: Path) -> None:
    graph = Graph(tmp_path, *MOVING, run=f'expert-{os.getpid()}')
    try:
        graph.start_all()
        seeds = range(3)
        results = (graph.episode(seed=seed, mode=Observation.MODE_DEMO) for seed in seeds)
        assert any(r.boundary == Transition.BOUNDARY_SUCCESS for r in results)
    finally:
        graph.close()
