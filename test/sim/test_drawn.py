# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Drawn cameras without ROS: what they show, when they are lost."""

from collections.abc import Callable, Iterator
import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from scenes import ABOVE_Q, TURNED_Q, need_graphics, snapshot

from user_core.arm_config import PegScene
from user_core.config import Cell, RunConfig
from user_core.errors import UserError
from user_sim.camera_check import check
from user_sim.drawn import DrawnCameras
from user_sim.snapshot import Snapshot, Writer, place
from user_sim.studio import WHOLE, Studio

PATH = place(f'drawn-{os.getpid()}', 'arm0')


@pytest.fixture(scope='module', autouse=True)
def graphics() -> None:
    """Skips where nothing can be drawn."""
    need_graphics()


class Clock:
    """A steady clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


Make = Callable[..., tuple[DrawnCameras, Clock]]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes the drawn cameras of a cell, to be closed after the test."""
    made = []

    def make(
        lockstep: bool = False, kind: str = 'sim', **wrist: Any
    ) -> tuple[DrawnCameras, Clock]:
        size = {'width': 64, 'height': 48}
        cell = Cell.model_validate(
            {'arm': {'kind': kind}, 'cameras': {'wrist': {**size, **wrist}, 'side': size}}
        )
        clock = Clock()
        made.append(DrawnCameras(cell, PATH, lockstep, clock))
        return made[-1], clock

    yield make
    for drawn in made:
        drawn.close()
    PATH.unlink(missing_ok=True)


def at(time_s: float, q: np.ndarray = ABOVE_Q, hole_m: float = 0.0) -> Snapshot:
    """A scene at a simulated instant, written a little later by the system's clock."""
    return snapshot(q, time_s=time_s, stamp_s=1000.0 + time_s, hole_m=hole_m)


def test_each_scene_is_drawn_once_by_each_camera(make: Make) -> None:
    drawn, _ = make()
    assert not drawn.look()
    assert not drawn.draw('wrist')
    writer = Writer(PATH)
    writer.write(at(1.0))
    assert drawn.look()
    assert drawn.draw('wrist')
    assert drawn.draw('side')
    before = {name: view.pixels.copy() for name, view in drawn.views.items()}
    assert drawn.look()
    assert not drawn.draw('wrist')
    writer.write(at(2.0, TURNED_Q))
    assert drawn.look()
    for name, view in drawn.views.items():
        assert drawn.draw(name)
        assert (np.abs(view.pixels.astype(int) - before[name]).max(-1) > 20).mean() > 0.02
        assert view.frames == 2


def test_a_view_has_the_stamp_of_the_arms_sample(make: Make) -> None:
    time_s = 123457 * 0.002
    Writer(PATH).write(at(time_s))
    for kind, seconds in (('sim', time_s), ('franka_sim', 1000.0 + time_s)):
        drawn, _ = make(kind=kind)
        assert drawn.look()
        assert drawn.stamp_ns == round(seconds * 1_000_000_000)


@pytest.mark.parametrize('lockstep', [False, True])
def test_a_scene_that_stands_still_is_a_lost_camera(make: Make, lockstep: bool) -> None:
    drawn, clock = make(lockstep)
    assert drawn.health('wrist').state == 'OPENING'
    writer = Writer(PATH)
    writer.write(at(1.0))
    drawn.look()
    drawn.draw('wrist')
    assert drawn.health('wrist').state == 'STREAMING'
    clock.now += 0.3 + (1.0 if lockstep else 0.0) + 0.01
    drawn.look()
    health = drawn.health('wrist')
    assert health.state == 'LOST'
    assert 'camera wrist' in health.reason
    assert 'max_age_s is 0.3' in health.reason
    assert not drawn.draw('wrist'), 'it is not shown again as something new'
    Writer(PATH).write(at(0.5))  # the arm was started again, and its clock with it
    drawn.look()
    assert drawn.health('wrist').state == 'STREAMING'
    assert drawn.draw('wrist')


def test_in_lockstep_an_arm_that_waits_and_speaks_is_alive(make: Make) -> None:
    drawn, clock = make(lockstep=True)
    Writer(PATH).write(at(1.0))
    for _ in range(5):
        drawn.look(told=True)
        clock.now += 1.0
    assert drawn.health('side').state == 'STREAMING'


def test_a_crop_is_that_part_of_the_whole_picture(make: Make) -> None:
    left, top, right, bottom = part = 64, 96, 256, 240
    width, height = WHOLE
    crop = left / width, top / height, right / width, bottom / height
    drawn, _ = make(crop=crop, width=right - left, height=bottom - top)
    Writer(PATH).write(at(1.0))
    drawn.look()
    drawn.draw('wrist')
    view = drawn.views['wrist']
    assert view.part == part
    off = view.pixels.astype(int) - drawn.whole('wrist')[top:bottom, left:right]
    assert np.abs(off).mean() < 0.5
    assert view.pixels.std() > 5


def test_without_a_crop_the_middle_of_the_whole_picture_is_shown(make: Make) -> None:
    drawn, _ = make(width=32, height=32)
    assert drawn.views['wrist'].part == (80, 0, 560, 480)
    Writer(PATH).write(at(1.0))
    drawn.look()
    drawn.draw('wrist')
    small = cv2.resize(drawn.whole('wrist')[:, 80:560], (32, 32), interpolation=cv2.INTER_AREA)
    assert np.abs(drawn.views['wrist'].pixels.astype(int) - small).mean() < 3


def test_the_hole_is_in_both_pictures_where_the_block_is(make: Make) -> None:
    drawn, _ = make(width=64, height=64)
    writer, pictures = Writer(PATH), []
    for x in (0.0, 0.02):
        writer.write(at(x, hole_m=x))
        drawn.look()
        for name in drawn.views:
            drawn.draw(name)
        pictures.append([view.pixels.copy() for view in drawn.views.values()])
    for one, other in zip(*pictures, strict=True):
        assert (np.abs(one.astype(int) - other).max(-1) > 20).mean() > 0.01


def test_a_camera_that_the_scene_lacks_is_named() -> None:
    studio = Studio(PegScene(), 8, 8)
    with pytest.raises(UserError, match=r'no camera top.*side, wrist'):
        studio.draw('top', (0, 0, *WHOLE), np.zeros((8, 8, 3), np.uint8))
    studio.close()


def test_the_check_leaves_a_picture_of_each_camera(tmp_path: Path) -> None:
    cell = {'cameras': {'wrist': {'width': 64, 'height': 48}, 'eye': {'scene': 'side'}}}
    config = RunConfig.model_validate({'name': 'seen', 'cells': {'arm0': cell}})
    for camera, shape in (('wrist', (48, 64, 3)), ('eye', (128, 128, 3))):
        ((good, text),) = check(config, 'arm0', camera, tmp_path / 'new')
        file = tmp_path / 'new' / f'arm0_{camera}.png'
        assert good
        assert str(file) in text
        picture = cv2.imread(str(file))
        assert picture.shape == shape
        assert picture.std() > 5
