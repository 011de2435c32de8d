# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The peg scene's model."""

import mujoco
import numpy as np
import pytest

from user_core.arm_config import PegScene
from user_sim.scene import peg_scene


def test_peg_and_hole_differ_by_the_clearance_on_every_side() -> None:
    model = mujoco.MjModel.from_xml_string(
        peg_scene(PegScene(peg_half_width_m=0.008, clearance_m=0.0005))
    )
    peg = model.geom('peg').size[:2]
    assert peg == pytest.approx([0.008, 0.008])
    for wall, axis, side in ((0, 0, 1), (1, 0, -1), (2, 1, 1), (3, 1, -1)):
        geom = model.geom(f'wall{wall}')
        face = side * geom.pos[axis] - geom.size[axis]
        assert face == pytest.approx(0.0085)


def test_broken_edges_keep_the_peg_as_long_and_as_wide() -> None:
    for edge in (0.0, 0.001):
        model = mujoco.MjModel.from_xml_string(peg_scene(PegScene(peg_edge_m=edge)))
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        body, site = model.body('peg').id, model.site('tcp').id
        axis = data.xmat[body].reshape(3, 3)[:, 2]
        ends = []
        for i in np.flatnonzero(model.geom_bodyid == body):
            reach = model.geom_size[i][2]
            if model.geom_type[i] == mujoco.mjtGeom.mjGEOM_CAPSULE:
                reach = model.geom_size[i][0]
            ends.append(float((data.geom_xpos[i] - data.site_xpos[site]) @ axis) + reach)
        assert max(ends) == pytest.approx(0.04, abs=1e-6)


def test_the_arm_weighs_the_same_with_and_without_its_looks() -> None:
    plain = mujoco.MjModel.from_xml_string(peg_scene(PegScene()))
    dressed = mujoco.MjModel.from_xml_string(peg_scene(PegScene(), drawn=True))
    assert dressed.nmesh > plain.nmesh
    assert plain.nv == dressed.nv == 7
    moving = plain.body_weldid > 0
    assert moving.sum() >= 10
    np.testing.assert_allclose(plain.body_mass[moving], dressed.body_mass[moving])
    np.testing.assert_allclose(plain.body_inertia[moving], dressed.body_inertia[moving])
