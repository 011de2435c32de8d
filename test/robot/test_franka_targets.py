# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Five hundred adversarial targets through the drive, the real driver and the robot's protocol."""

import math
import time

from boxes import box
import numpy as np

from user_core import config as schema
from user_core.config import FrankaSimConfig
from user_core.geometry import Pose, relative
from user_robot.arm import make_arm
from user_robot.drive import Drive
from user_robot.latch import Mode
from user_robot.peg_task import PegTask
from user_robot.row import Command

TARGETS = 500
GENTLE = {'stiffness_n_m': 2000, 'clip_m': 0.005, 'damping_ns_m': 230, 'contact_time_s': 0.025}
OVER_M = 0.01
"""A compliant arm may pass its box by this much: it swings, and the box bounds its target."""


def test_no_target_takes_the_arm_out_of_its_limits():
    rng, limits = np.random.default_rng(3), schema.Safety()
    task = PegTask(schema.PegTask())
    low, high = np.array(limits.box_min_m), np.array(limits.box_max_m)
    turn_max = np.array(limits.box_rotation_rad)
    over_m = fastest_m_s = 0.0
    sent = faults = 0
    with box() as robot:
        arm = make_arm(FrankaSimConfig(address=robot.address, **GENTLE), 0.1)
        try:
            drive = Drive(arm, limits, task, 0.1)
            episode = step = 0
            ended: list[str] = []

            def reset() -> None:
                nonlocal episode, step
                episode, step = episode + 1, 0
                ended.clear()
                here, start = drive.sample().state.pose, task.start(episode)
                drive.move(task.reset_path(here, start), 0.2, 1.0, episode, 0, False, ended.append)
                end = time.monotonic() + 30
                while not ended:
                    assert time.monotonic() < end
                    drive.advance(arm.slice_s)
                    time.sleep(arm.slice_s)
                assert ended == ['']

            reset()
            while sent < TARGETS:
                here = drive.sample().state.pose
                kind = rng.choice(['near', 'far', 'nan', 'turned', 'flood', 'silence'])
                for _ in range(20 if kind == 'flood' else kind != 'silence'):
                    position, quaternion = here.position.copy(), here.quaternion.copy()
                    if kind == 'near':
                        position += rng.normal(0, 0.01, 3)
                    elif kind in ('far', 'flood'):
                        position += rng.normal(0, 10.0 ** rng.uniform(-1, 6), 3)
                    elif kind == 'nan':
                        position[rng.integers(3)] = math.nan
                    else:
                        quaternion = rng.normal(size=4)
                        quaternion /= np.linalg.norm(quaternion)
                    step, sent = step + 1, sent + 1
                    drive.command(Command(episode, step, Pose(position, quaternion), math.nan))
                    where, turned = relative(task.frame, drive.sample().applied)
                    assert (where >= low - OVER_M).all()
                    assert (where <= high + OVER_M).all()
                    assert (np.abs(turned) <= turn_max + 0.05).all()
                    time.sleep(0.001)
                until = time.monotonic() + (0.3 if kind == 'silence' else 0.04)
                while time.monotonic() < until:
                    sample = drive.advance(arm.slice_s)
                    where, _ = relative(task.frame, sample.state.pose)
                    over_m = max(over_m, *(low - where), *(where - high))
                    speed = float(np.linalg.norm(sample.state.twist[:3]))
                    fastest_m_s = max(fastest_m_s, speed)
                    time.sleep(arm.slice_s)
                if drive.sample().mode is Mode.FAULT:  # a hard contact: back out, go on
                    faults += 1
                    assert 'does not answer' not in drive.sample().reason
                    reset()
            reset()
            drive.emergency(True)
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                step += 1
                low_target = Pose(here.position - np.array([0, 0, 0.02]), here.quaternion)
                assert not drive.command(Command(episode, step, low_target, math.nan))
                stopped = drive.advance(arm.slice_s)
                time.sleep(arm.slice_s)
            assert stopped.mode is Mode.DISARMED
            assert np.linalg.norm(stopped.state.twist[:3]) < 0.005
            assert not drive.clear_stop()[0]
        finally:
            arm.close()
    print(f'over the box {1e3 * over_m:.2f} mm, {fastest_m_s:.2f} m/s, {faults} contacts')
    assert over_m <= OVER_M
    assert fastest_m_s <= limits.max_speed_m_s
