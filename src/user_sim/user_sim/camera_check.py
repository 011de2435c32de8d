# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Looks whether a drawn camera can be drawn here, and leaves a picture for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import mujoco
import numpy as np

from user_core.arm_config import PegScene
from user_core.camera_config import SimCameraConfig
from user_core.config import RunConfig
from user_core.errors import UserError
from user_robot.task import make_task
from user_robot.verdict import Verdict
from user_sim.drawn import Drawing
from user_sim.scene import peg_scene, solve_ik, take_snapshot
from user_sim.studio import Studio


def check(config: RunConfig, cell: str, camera: str, folder: Path) -> Iterator[Verdict]:
    """Draws the camera's view of an arm at its task's home into `folder`, as a PNG."""
    place = config.cells[cell]
    arm, section = place.arm, place.cameras[camera]
    assert isinstance(arm, PegScene)  # the configuration has seen to it
    assert isinstance(section, SimCameraConfig)
    model = mujoco.MjModel.from_xml_string(peg_scene(arm))
    data, view = mujoco.MjData(model), Drawing(camera, section)
    try:
        solve_ik(model, data, model.site('tcp').id, make_task(config.task).home)
        mujoco.mj_forward(model, data)
        studio = Studio(arm, section.width, section.height)
    except UserError as error:
        yield False, f'{camera}: {error}'
        return
    studio.arrange(take_snapshot(model, data, 2 * arm.peg_half_width_m, 0.0))
    studio.draw(view.scene, view.part, view.pixels)
    studio.close()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f'{cell}_{camera}.png'
    cv2.imwrite(str(file), np.ascontiguousarray(view.pixels[..., ::-1]))
    yield True, f'{camera}: drawn as {view.scene} of the simulated scene; the view is {file}'
