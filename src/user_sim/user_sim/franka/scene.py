# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The peg scene under a simulated control box: 1 ms physics, contact wrench, errors drawn anew.

Same model as the in-process arm. Nobody tells a real block that an episode has ended, so the scene
draws its unobserved errors itself when the peg was near the block and is then lifted well clear.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import mujoco
import numpy as np

from user_core.arm_config import PegScene
from user_core.geometry import Array, Pose
from user_sim.scene import (
    HOLE_XY_M,
    HOME_Q_RAD,
    PEG_LENGTH_M,
    RIM_Z_M,
    peg_scene,
    place_block,
    place_peg,
    solve_ik,
)

STEP_S = 0.001
WRENCH_CUTOFF_HZ = 45.0
"""Low pass of the external wrench and joint torques."""
NEAR_M, CLEAR_M = 0.01, 0.05
"""Height of the peg's tip above the rim: below the first it was at work, above the second the
next attempt gets new errors."""
NEAR_XY_M = 0.08


class FrankaScene:
    """Physics of one FR3 with its peg. One thread.

    Attributes:
        model, data: MuJoCo's; kinematics and bias belong to the present joint angles.
        jacobian: (6, 7) of the stiffness frame K, base axes.
        wrench: (6,) filtered external wrench at K, base axes, robot on environment positive.
        tau_ext: (7,) the same in joint torques, J^T wrench.
        attempts: how often errors were drawn.
    """

    def __init__(self, config: PegScene, start: Pose | None = None, seed: int = 0) -> None:
        root = ET.fromstring(peg_scene(config))
        # The control box adds gravity, of the peg too: its load is taken as known to it.
        for body in root.iter('body'):
            if body.get('mocap') is None:
                body.set('gravcomp', '1')
        hand = next(body for body in root.iter('body') if body.get('name') == 'hand')
        tcp = next(site for site in hand.iter('site') if site.get('name') == 'tcp')
        ET.SubElement(hand, 'site', {**tcp.attrib, 'name': 'stiffness'})
        self.model = mujoco.MjModel.from_xml_string(ET.tostring(root, encoding='unicode'))
        self.model.opt.timestep = STEP_S
        self.data = mujoco.MjData(self.model)
        self.config, self.seed, self.attempts = config, seed, 0
        self.tcp, self.stiffness = self.model.site('tcp').id, self.model.site('stiffness').id
        self.peg = self.model.body('peg').id
        self._hand = self.model.body('hand').id
        self._fingers = [self.model.body(f'{side}_finger').id for side in ('left', 'right')]
        self._centred = self.model.body_pos[self.peg].copy()
        self._nominal = self.model.site_pos[self.tcp].copy()
        self.jacobian = np.zeros((6, 7))
        self.wrench, self.tau_ext = np.zeros(6), np.zeros(7)
        self._alpha = 1 - math.exp(-2 * math.pi * WRENCH_CUTOFF_HZ * STEP_S)
        self._contact = np.zeros(7)
        self._near = False
        if start is None:
            self.data.qpos[:] = HOME_Q_RAD
        else:
            solve_ik(self.model, self.data, self.tcp, start)
        self.draw_errors()
        mujoco.mj_forward(self.model, self.data)
        mujoco.mj_step1(self.model, self.data)
        self._measure()

    def step(self, tau: Array) -> None:
        """One millisecond with joint torques (7,) beyond gravity."""
        model, data = self.model, self.data
        data.qfrc_applied[:] = tau
        mujoco.mj_step2(model, data)
        touching = data.ncon > 0
        if touching:
            np.copyto(self._contact, data.qfrc_constraint)
            self._contact[: data.nf] -= data.efc_force[: data.nf]  # joint friction is no contact
        mujoco.mj_step1(model, data)
        self._measure(touching)
        self._next_attempt()

    def draw_errors(self) -> None:
        """New unobserved errors of hole and grasp, a function of seed and attempt."""
        rng = np.random.default_rng([self.seed, self.attempts])
        place_block(self.data, self.config, rng)
        place_peg(self.model, self._centred, self.config, rng)
        self.attempts += 1

    def set_frames(self, ne_t_ee: Array, ee_t_k: Array) -> None:
        """Moves TCP and stiffness frame: (4, 4) each, from the nominal TCP on."""
        for site, frame in ((self.tcp, ne_t_ee), (self.stiffness, ne_t_ee @ ee_t_k)):
            self.model.site_pos[site] = self._nominal + frame[:3, 3]
            mujoco.mju_mat2Quat(self.model.site_quat[site], frame[:3, :3].ravel())
        # MuJoCo takes a site whose frame is its body's for granted.
        self.model.site_sameframe[:] = 0

    def open_fingers(self, width_m: float) -> None:
        """Shows the fingers this far apart; they are not simulated."""
        for body, side in zip(self._fingers, (1, -1), strict=True):
            self.model.body_pos[body][1] = side * width_m / 2

    def tip_m(self) -> Array:
        """(3,) Middle of the peg's end, base frame."""
        return np.asarray(
            self.data.xpos[self.peg] + self.data.xmat[self.peg][2::3] * (PEG_LENGTH_M / 2)
        )

    def _measure(self, touching: bool = False) -> None:
        jac, wrench = self.jacobian, self.wrench
        mujoco.mj_jacSite(self.model, self.data, jac[:3], jac[3:], self.stiffness)
        if touching:
            # J^T w = torques of the contacts on the robot; the robot's on them has the other sign.
            sample = np.linalg.solve(jac @ jac.T, jac @ self._contact)
            wrench += self._alpha * (-sample - wrench)
        else:
            wrench *= 1 - self._alpha
        np.dot(wrench, jac, out=self.tau_ext)

    def _next_attempt(self) -> None:
        x, y, z = self.tip_m().tolist()
        if z < RIM_Z_M + NEAR_M:
            if abs(x - HOLE_XY_M[0]) < NEAR_XY_M and abs(y - HOLE_XY_M[1]) < NEAR_XY_M:
                self._near = True
        elif self._near and z > RIM_Z_M + CLEAR_M:
            self._near = False
            self.draw_errors()
