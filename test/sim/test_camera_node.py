# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The drawn cameras of a lockstep cell over real DDS; what is killed comes back."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('user_msgs.action')
from scenes import need_graphics
from seen_cell import MOVING, SeenCell
from sensor_msgs.msg import CameraInfo

from user_core.messages import nanoseconds

pytestmark = pytest.mark.needs_ros


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[SeenCell]:
    need_graphics()
    cell = SeenCell(tmp_path, MOVING)
    cell.graph.start('arm')
    cell.graph.start('cameras')
    yield cell
    cell.graph.close()


def test_each_sample_gets_one_view_of_its_instant_and_the_whole_picture_if_asked(
    cell: SeenCell,
) -> None:
    cell.reset(seed=1)
    shown = [cell.act(0.005) for _ in range(5)]
    assert len(set(shown)) == 5, 'the arm moves, and so do the pictures'
    stamps = {nanoseconds(s.stamp) for s in cell.samples if s.id.episode == cell.episode}
    for views in cell.views.values():
        assert stamps <= {stamp for stamp, _ in views}
        assert len(set(views)) == len(dict(views)), 'the same instant, the same picture'
    got = {}
    for key in ('image_raw', 'camera_info'):
        cell.hear(key, 'side', lambda m, k=key: got.update({k: m}))
    cell.graph.until(lambda: len(got) == 2)
    image, info = got['image_raw'], got['camera_info']
    assert isinstance(info, CameraInfo)
    assert (image.width, image.height, image.step) == (info.width, info.height, 1920)
    assert image.header == info.header
    assert info.k[2] == 320
    assert info.k[0] == info.k[4] > 240


def test_the_same_seed_and_commands_give_the_same_pictures_byte_for_byte(
    cell: SeenCell,
) -> None:
    runs = [[cell.reset(seed), *(cell.act(0.004) for _ in range(3))] for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    one, other = (np.frombuffer(run[0], np.uint8).astype(int) for run in runs[1:])
    assert (np.abs(one - other) > 20).mean() > 0.01, 'the hole is elsewhere, and it shows'


def test_cameras_that_are_killed_come_back_and_the_cell_goes_on(cell: SeenCell) -> None:
    cell.reset(seed=3)
    shown = cell.act(0.004)
    cell.graph.kill('cameras')
    for views in cell.views.values():
        views.clear()
    cell.graph.start('cameras')
    assert cell.seen() == shown, 'without a new sample'
    assert cell.act(0.004) != shown
