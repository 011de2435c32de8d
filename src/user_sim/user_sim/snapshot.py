# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The scene's present look in shared memory, and cameras that draw it in another process.

Drawing costs more than physics, so whoever simulates only writes some numbers, 60 times a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
import mmap
import os
from pathlib import Path
import re
import struct
import tempfile
import threading
import time
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from user_core.arm_config import PegScene
from user_core.errors import UserError
from user_core.geometry import Array
from user_sim.scene import peg_scene

HZ = 60.0
"""How often a simulation writes."""
CAMERAS = ('wrist', 'side')
_VALUES = 7 + 3 + 4 + 3 + 4 + 1 + 2
_COUNT = struct.Struct('=Q')
_BODY = struct.Struct(f'={_VALUES}d')


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a camera needs to know.

    Attributes:
        q: (7,) rad.
        block: (7,) position m, quaternion w x y z of the block, base frame.
        peg: (7,) the same of the peg in the hand's frame.
        gripper_m: distance of the fingers.
        time_s: simulated time.
        stamp_s: when it was taken, seconds since the epoch.
    """

    q: Array
    block: Array
    peg: Array
    gripper_m: float
    time_s: float
    stamp_s: float


def place(run: str, cell: str) -> Path:
    """The file, in memory where the system has such a folder, of a run's cell."""
    folder = Path('/dev/shm')
    if not folder.is_dir():
        folder = Path(tempfile.gettempdir())
    name = re.sub(r'[^\w.-]', '_', f'{run}-{cell.strip("/")}')
    return folder / f'user-{os.getuid()}-{name}.scene'


class Writer:
    """Writes one file; one thread. An odd count says that a write goes on (a seqlock)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A new file under the old name: a reader of the old one notices that it stands still.
        part = path.with_suffix('.part')
        part.write_bytes(bytes(_COUNT.size + _BODY.size))
        part.replace(path)
        with path.open('r+b') as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._count = 0

    def write(self, s: Snapshot) -> None:
        """Microseconds; never waits."""
        values = (*s.q, *s.block, *s.peg, s.gripper_m, s.time_s, s.stamp_s)
        _COUNT.pack_into(self._map, 0, self._count + 1)
        _BODY.pack_into(self._map, _COUNT.size, *values)
        self._count += 2
        _COUNT.pack_into(self._map, 0, self._count)

    def close(self) -> None:
        """Removes the file."""
        self._map.close()
        self.path.unlink(missing_ok=True)


class Reader:
    """Reads what a writer left; any process, one thread. The file may come later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._inode = 0

    def read(self) -> Snapshot | None:
        """The newest snapshot; None while there is none."""
        try:
            if self._map is None or self.path.stat().st_ino != self._inode:
                self._open()
        except (OSError, ValueError):
            return None
        assert self._map is not None
        for _ in range(100):
            before = _COUNT.unpack_from(self._map, 0)[0]
            values = np.array(_BODY.unpack_from(self._map, _COUNT.size))
            if before == 0:
                return None
            if before % 2 == 0 and _COUNT.unpack_from(self._map, 0)[0] == before:
                return Snapshot(values[:7], values[7:14], values[14:21], *values[21:].tolist())
            time.sleep(1e-5)
        return None  # its writer died within a write

    def close(self) -> None:
        """Lets the file go."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def _open(self) -> None:
        self.close()
        with self.path.open('rb') as file:
            self._inode = os.fstat(file.fileno()).st_ino
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def draw(
    arm: PegScene, snapshot: Snapshot, camera: str, width: int, height: int
) -> NDArray[np.uint8]:
    """The picture (height, width, 3) of `wrist` or `side`; milliseconds without a GPU.

    Models and renderers are kept from call to call. The first call of a thread takes a second.

    Raises:
        UserError: no such camera, or this machine cannot draw.
    """
    if camera not in CAMERAS:
        raise UserError(f'there is no camera {camera}', f'the scene has {", ".join(CAMERAS)}')
    studio = _studio(threading.get_ident(), arm)
    return studio.draw(snapshot, camera, width, height)


@lru_cache(maxsize=8)
def _studio(thread: int, arm: PegScene) -> _Studio:
    del thread  # a GL context belongs to the thread that made it
    return _Studio(peg_scene(arm, drawn=True))


class _Studio:
    """A scene that is only looked at."""

    def __init__(self, xml: str) -> None:
        self.model = mujoco.MjModel.from_xml_string(xml)
        # Samples, shadows and reflections are nearly all of the time on a CPU.
        self.model.vis.quality.offsamples = 0
        self.data = mujoco.MjData(self.model)
        self.option = mujoco.MjvOption()
        self.option.geomgroup[2], self.option.geomgroup[3] = 0, 1
        self._peg = self.model.body('peg').id
        self._fingers = [self.model.body(f'{side}_finger').id for side in ('left', 'right')]
        self._renderers: dict[tuple[int, int], Any] = {}

    def draw(self, s: Snapshot, camera: str, width: int, height: int) -> NDArray[np.uint8]:
        model, data = self.model, self.data
        data.qpos[:] = s.q
        data.mocap_pos[0], data.mocap_quat[0] = s.block[:3], s.block[3:]
        model.body_pos[self._peg], model.body_quat[self._peg] = s.peg[:3], s.peg[3:]
        for finger, side in zip(self._fingers, (1, -1), strict=True):
            model.body_pos[finger][1] = side * s.gripper_m / 2
        mujoco.mj_kinematics(model, data)
        mujoco.mj_camlight(model, data)
        renderer = self._renderer(width, height)
        renderer.update_scene(data, camera, self.option)
        picture: NDArray[np.uint8] = renderer.render()
        return picture

    def _renderer(self, width: int, height: int) -> Any:
        size = (width, height)
        if size not in self._renderers:
            self.model.vis.global_.offwidth = max(width, self.model.vis.global_.offwidth)
            self.model.vis.global_.offheight = max(height, self.model.vis.global_.offheight)
            os.environ.setdefault('LP_NUM_THREADS', '1')  # the software renderer's own threads
            try:
                renderer = mujoco.Renderer(self.model, height, width)
            except Exception as error:  # each GL backend raises its own
                raise UserError(
                    'this machine cannot draw the simulated cameras',
                    f'{type(error).__name__}: {error}',
                    'set MUJOCO_GL=egl and install libegl1 and libgl1-mesa-dri, '
                    'or MUJOCO_GL=osmesa and libosmesa6',
                ) from error
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                renderer.scene.flags[flag] = 0
            self._renderers[size] = renderer
        return self._renderers[size]
