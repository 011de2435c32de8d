# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated arm: physics, law, sensors and the errors a lab has, in this process.

Not thread safe; one thread drives it.
"""

from __future__ import annotations

import math

import mujoco
import numpy as np

from user_core.config import SimArmConfig
from user_core.errors import UserError
from user_core.geometry import Array, Pose
from user_robot.arm import BY_HAND, ArmState, Site
from user_sim.law import Gains, ImpedanceLaw
from user_sim.scene import (
    HOME_Q_RAD,
    peg_scene,
    place_block,
    place_peg,
    solve_ik,
    take_snapshot,
)
from user_sim.snapshot import Writer, place

STEP_S = 0.002


class SimArm:
    """An FR3 with a peg in its fingers over a block with a hole.

    The fingers cannot open: `gripper_m` of a command is ignored, the state says the peg's width.
    """

    slice_s = 0.01

    def __init__(self, config: SimArmConfig, period_s: float = 0.1, site: Site = BY_HAND) -> None:
        self.config, self.period_s = config, period_s
        c = config
        self.model = mujoco.MjModel.from_xml_string(peg_scene(c))
        self.model.opt.timestep = STEP_S
        self.data = mujoco.MjData(self.model)
        self._site = self.model.site('tcp').id
        self._peg = self.model.body('peg').id
        self._peg_pos = self.model.body_pos[self._peg].copy()
        gains = Gains(
            stiffness=np.repeat([c.stiffness_n_m, c.stiffness_nm_rad], 3),
            damping=np.repeat([c.damping_ns_m, c.damping_nms_rad], 3),
            clip=np.array([c.clip_m] * 3 + [c.clip_tilt_rad] * 2 + [c.clip_yaw_rad]),
            posture=c.posture_nm_rad,
            rate_nm=c.max_delta_tau_nm * STEP_S * 1000,
        )
        self.law = ImpedanceLaw(self.model, self.data, self._site, np.array(HOME_Q_RAD), gains)
        self._alpha = 1 - math.exp(-2 * math.pi * c.wrench_cutoff_hz * STEP_S)
        self._wrench, self._raw, self._bias = np.zeros(6), np.zeros(6), np.zeros(6)
        self._noise = np.zeros(6)
        self._noise_scale = np.repeat([c.force_noise_n, c.torque_noise_nm], 3)
        self._queue: list[tuple[int, Pose]] = []
        self._steps, self._steps_before = 0, 0
        self._peak, self._raw_peak, self._peak_read = 0.0, 0.0, False
        self._rng = np.random.default_rng(0)
        self._look = Writer(place(site.run, site.cell)) if site.looked_at else None

    @property
    def raw_peak_n(self) -> float:
        """Largest unfiltered contact force of the same span as the state's peak force."""
        return self._raw_peak

    def reset(self, pose: Pose, seed: int) -> None:
        """Place the arm at rest and draw the errors nobody observes.

        Same seed and same targets give the same states, bit for bit.

        Raises:
            UserError: the arm cannot reach the pose.
        """
        rng, c = np.random.default_rng(seed), self.config
        mujoco.mj_resetData(self.model, self.data)
        place_block(self.data, c, rng)
        place_peg(self.model, self._peg_pos, c, rng)
        solve_ik(self.model, self.data, self._site, pose)
        mujoco.mj_forward(self.model, self.data)
        self._bias[:3] = rng.uniform(-c.force_bias_n, c.force_bias_n, 3)
        self._bias[3:] = rng.uniform(-c.torque_bias_nm, c.torque_bias_nm, 3)
        self._rng = rng
        self._wrench[:] = 0.0
        self._noise[:] = rng.normal(0.0, self._noise_scale)
        self._queue.clear()
        # The scene is another one, so its stamp is, too.
        self._steps, self._steps_before = 0, self._steps_before + self._steps + 1
        self._peak, self._raw_peak, self._peak_read = 0.0, 0.0, False
        self.law.restart()
        self.law.aim(self._pose())

    def state(self) -> ArmState:
        """The present sample; the peak counts from the first advance after the last sample.

        Who looks at the scene finds it as it was measured here, before anybody hears the sample.
        """
        self._peak_read = True
        width_m = 2 * self.config.peg_half_width_m
        stamp_s = (self._steps_before + self._steps) * STEP_S
        if self._look:
            self._look.write(take_snapshot(self.model, self.data, width_m, stamp_s))
        return ArmState(
            pose=self._pose(),
            twist=self.law.twist(),
            wrench=self._wrench + self._bias + self._noise,
            q=self.data.qpos.copy(),
            dq=self.data.qvel.copy(),
            tau=self.data.qfrc_applied.copy(),
            gripper_m=width_m,
            stamp_s=stamp_s,
            peak_force_n=self._peak,
        )

    def servo(self, target: Pose, gripper_m: float) -> None:
        """Set the target; it counts `latency_s` later."""
        del gripper_m
        self._queue.append((self._steps + round(self.config.latency_s / STEP_S), target))

    def hold(self) -> None:
        """Stay here, at once; targets under way are dropped."""
        self._queue.clear()
        self.law.aim(self._pose())

    def advance(self, seconds: float) -> None:
        """Simulate; a multiple of 2 ms."""
        if self._peak_read:
            self._peak, self._raw_peak, self._peak_read = 0.0, 0.0, False
        law, model, data, raw, wrench = self.law, self.model, self.data, self._raw, self._wrench
        alpha, peak, raw_peak = self._alpha, self._peak**2, self._raw_peak**2
        for _ in range(round(seconds / STEP_S)):
            while self._queue and self._queue[0][0] <= self._steps:
                law.aim(self._queue.pop(0)[1])
            mujoco.mj_step1(model, data)
            law.step()
            mujoco.mj_step2(model, data)
            self._steps += 1
            if data.ncon:
                law.wrench(raw)
                raw_peak = max(raw_peak, raw[0] ** 2 + raw[1] ** 2 + raw[2] ** 2)
                raw -= wrench
                raw *= alpha
                wrench += raw
                peak = max(peak, wrench[0] ** 2 + wrench[1] ** 2 + wrench[2] ** 2)
            else:
                wrench *= 1 - alpha
        self._peak, self._raw_peak = math.sqrt(peak), math.sqrt(raw_peak)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        self._noise[:] = self._rng.normal(0.0, self._noise_scale)

    def recover(self) -> None:
        """Nothing can go wrong with it."""

    def move_joints(self, q: Array, speed_rad_s: float) -> None:
        """There is none."""
        raise UserError('the simulated arm in this process has no joint motion')

    def grip(self, width_m: float, speed_m_s: float, force_n: float) -> None:
        """There is none."""
        raise UserError('the simulated fingers hold the peg for good')

    def close(self, healthy: bool = True) -> None:
        """It ends with its process."""
        if self._look:
            self._look.close()

    def _pose(self) -> Pose:
        quat = np.zeros(4)
        mujoco.mju_mat2Quat(quat, self.data.site_xmat[self._site])
        return Pose(self.data.site_xpos[self._site].copy(), quat[[1, 2, 3, 0]])
