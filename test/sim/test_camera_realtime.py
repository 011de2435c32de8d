# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The drawn cameras of a realtime cell over real DDS."""

from pathlib import Path
import time

import pytest

pytest.importorskip('user_msgs.action')
from scenes import need_graphics
from seen_cell import SeenCell

pytestmark = pytest.mark.needs_ros


def test_a_scene_whose_simulator_was_killed_is_a_lost_camera(tmp_path: Path) -> None:
    need_graphics()
    cell = SeenCell(tmp_path, 'pace=realtime')
    graph, said = cell.graph, {}

    def state() -> str:
        metrics = graph.metrics.get('/arm0/cameras')
        return metrics.state if metrics else ''

    def shown(seconds: float) -> dict[str, int]:
        """How many views there are after so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            graph.executor.spin_once(0.05)
        return {name: len(views) for name, views in cell.views.items()}

    graph._sub('diagnostics', None, lambda m: said.update({s.name: s for s in m.status}))
    try:
        graph.start('cameras')
        graph.until(lambda: state() == 'OPENING')
        graph.start('arm')
        graph.until(lambda: all(len(v) > 20 for v in cell.views.values()))
        graph.kill('arm')
        graph.until(lambda: state() == 'LOST')
        assert graph.number('/arm0/cameras', 'age_s') > 0.3
        assert 'stands still' in graph.metrics['/arm0/cameras'].reason
        names = ('/arm0/wrist', '/arm0/side', '/arm0/cameras')
        graph.until(lambda: all(n in said and said[n].level == b'\x02' for n in names))
        before = shown(0.5)  # what was under way is here
        for views in cell.views.values():
            stamps = [stamp for stamp, _ in views]
            assert stamps == sorted(set(stamps)), 'no picture was shown twice'
        assert before == shown(0.5)
        graph.start('arm')
        graph.until(lambda: state() == 'STREAMING')
    finally:
        graph.close()
