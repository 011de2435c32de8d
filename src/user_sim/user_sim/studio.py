# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Where the scene's cameras are drawn: a fraction of a millisecond a picture, without a GPU."""

from __future__ import annotations

from importlib import import_module
import math
import os

import cv2
import mujoco
import numpy as np
from numpy.typing import NDArray

from user_core.arm_config import PegScene
from user_core.errors import UserError
from user_sim.scene import peg_scene
from user_sim.snapshot import Snapshot

WHOLE = 640, 480
"""Width and height of a camera's whole picture; a view is a part of it."""
FINE = 2
"""Drawn so much finer and averaged: an edge that moves by less than a pixel shows."""
_OFF = (
    mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION,
    mujoco.mjtRndFlag.mjRND_SKYBOX, mujoco.mjtRndFlag.mjRND_HAZE,
)  # fmt: skip

Part = tuple[int, int, int, int]
"""Left, top, right and bottom edge, pixels of WHOLE."""


class Studio:
    """A scene that is only looked at. The thread that made it uses it.

    Args:
        scene: what is drawn.
        width, height: of the largest picture.

    Raises:
        UserError: this machine cannot draw.
    """

    def __init__(self, scene: PegScene, width: int, height: int) -> None:
        model = self.model = mujoco.MjModel.from_xml_string(peg_scene(scene, drawn=True))
        # Samples, shadows and reflections are nearly all of the time on a CPU.
        model.vis.quality.offsamples = 0
        size = FINE * width, FINE * height
        model.vis.global_.offwidth, model.vis.global_.offheight = size
        self.data = mujoco.MjData(model)
        self._option = mujoco.MjvOption()
        self._option.geomgroup[2], self._option.geomgroup[3] = 0, 1
        self._peg = model.body('peg').id
        self._fingers = [model.body(f'{side}_finger').id for side in ('left', 'right')]
        self._cameras = {model.camera(i).name: mujoco.MjvCamera() for i in range(model.ncam)}
        for i, camera in enumerate(self._cameras.values()):
            camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, i
        self._buffers: dict[tuple[int, int], NDArray[np.uint8]] = {}
        # Without a GPU this thread draws by itself: handing over costs a third more.
        os.environ.setdefault('LP_NUM_THREADS', '0')
        try:
            # Without a display; mujoco's own choice would look for one.
            backend = import_module(f'mujoco.{os.environ.get("MUJOCO_GL", "egl")}')
            self._gl = backend.GLContext(*size)
            self._gl.make_current()
            self._scene = mujoco.MjvScene(model, maxgeom=4 * model.ngeom)
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
        except Exception as error:  # each GL backend raises its own
            raise UserError(
                'this machine cannot draw the simulated cameras',
                f'{type(error).__name__}: {error}',
                'install libegl1 and libgl1-mesa-dri, or set MUJOCO_GL=osmesa and install'
                ' libosmesa6',
            ) from error
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        for flag in _OFF:
            self._scene.flags[flag] = 0

    def arrange(self, s: Snapshot) -> None:
        """Puts everything where the snapshot says; what is drawn from now on shows it."""
        model, data = self.model, self.data
        data.qpos[:] = s.q
        data.mocap_pos[0], data.mocap_quat[0] = s.block[:3], s.block[3:]
        model.body_pos[self._peg], model.body_quat[self._peg] = s.peg[:3], s.peg[3:]
        for finger, side in zip(self._fingers, (1, -1), strict=True):
            model.body_pos[finger][1] = side * s.gripper_m / 2
        mujoco.mj_kinematics(model, data)
        mujoco.mj_camlight(model, data)
        mujoco.mjv_updateScene(
            model, data, self._option, None, next(iter(self._cameras.values())),
            mujoco.mjtCatBit.mjCAT_ALL, self._scene,
        )  # fmt: skip

    def draw(self, camera: str, part: Part, out: NDArray[np.uint8]) -> None:
        """Fills `out` (height, width, 3), of any size, with a part of a camera's whole picture.

        Raises:
            UserError: no such camera.
        """
        if camera not in self._cameras:
            raise UserError(
                f'there is no camera {camera}', f'the scene has {", ".join(self._cameras)}'
            )
        mujoco.mjv_updateCamera(self.model, self.data, self._cameras[camera], self._scene)
        left, top, right, bottom = part
        for eye in self._scene.camera:
            pixel = eye.frustum_near / self.focal_px(camera)
            eye.frustum_center = ((left + right) / 2 - WHOLE[0] / 2) * pixel
            eye.frustum_width = (right - left) / 2 * pixel  # half of it
            eye.frustum_top = (WHOLE[1] / 2 - top) * pixel
            eye.frustum_bottom = (WHOLE[1] / 2 - bottom) * pixel
        height, width = out.shape[:2]
        view, fine = mujoco.MjrRect(0, 0, FINE * width, FINE * height), self._buffer(width, height)
        mujoco.mjr_render(view, self._scene, self._context)
        mujoco.mjr_readPixels(fine, None, view, self._context)
        # OpenGL's rows go from the bottom up.
        out[:] = cv2.resize(fine, (width, height), interpolation=cv2.INTER_AREA)[::-1]

    def focal_px(self, camera: str) -> float:
        """Focal length in pixels of the whole picture."""
        half = math.radians(float(self.model.camera(camera).fovy[0])) / 2
        return WHOLE[1] / 2 / math.tan(half)

    def close(self) -> None:
        """Lets the graphics go."""
        self._context.free()
        self._gl.free()

    def _buffer(self, width: int, height: int) -> NDArray[np.uint8]:
        size = FINE * height, FINE * width, 3
        if size[:2] not in self._buffers:
            self._buffers[size[:2]] = np.zeros(size, np.uint8)
        return self._buffers[size[:2]]
