# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a scene with the block in its place, and whether they can be drawn."""

import os

import numpy as np
import pytest

from user_core.arm_config import PegScene
from user_core.errors import UserError
from user_sim.scene import HOLE_XY_M, RIM_Z_M
from user_sim.snapshot import Snapshot
from user_sim.studio import Studio

ABOVE_Q = np.array([0.0, 0.17, 0.0, -2.33, 0.0, 2.5, 0.785])
TURNED_Q = np.array([0.0, 0.32, 0.0, -2.33, 0.0, 2.5, 0.785])


def snapshot(
    q: float | np.ndarray = 0.0,
    gripper_m: float = 0.016,
    time_s: float | None = None,
    stamp_s: float = 1.0,
    hole_m: float = 0.0,
) -> Snapshot:
    """The arm at q, the hole off by hole_m in x; `time_s` is the first angle if not given."""
    return Snapshot(
        q=np.broadcast_to(np.asarray(q, float), 7),
        block=np.array([HOLE_XY_M[0] + hole_m, HOLE_XY_M[1], RIM_Z_M, 1.0, 0.0, 0.0, 0.0]),
        peg=np.array([0.0, 0.0, 0.1134, 1.0, 0.0, 0.0, 0.0]),
        gripper_m=gripper_m,
        time_s=float(np.asarray(q).ravel()[0]) if time_s is None else time_s,
        stamp_s=stamp_s,
    )


def need_graphics() -> None:
    """Skips the test where nothing can be drawn; CI can."""
    try:
        Studio(PegScene(), 8, 8).close()
    except UserError as error:
        if os.environ.get('CI') == 'true':
            raise
        pytest.skip(str(error))
