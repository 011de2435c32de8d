# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Looks whether a Franka answers, fits the installed library, and is where its joints say."""

from __future__ import annotations

from collections.abc import Iterator
import math
import time

import franky
import numpy as np
from scipy.spatial.transform import Rotation

from user_core.arm_config import Franka
from user_core.errors import UserError
from user_core.geometry import Array, Pose, angle
from user_robot.arm import ArmState
from user_robot.franka import version as franka_version
from user_robot.franka.arm import FrankaArm
from user_robot.franka.kinematics import flange, tcp
from user_robot.franka.link import FrankaLink
from user_robot.franka.reading import measurement, trouble
from user_robot.verdict import Verdict, bad

NEAR_M, NEAR_RAD = 0.001, math.radians(0.3)
"""Kinematics and the robot's own pose differ by less."""
TURN_RAD = math.radians(5)
HOLD_S, PERIOD_S = 2.0, 0.02
MOVE_WITHIN_S = 15.0


def robot(config: Franka, move: bool) -> Iterator[Verdict]:
    """Verdicts; those that need what an earlier one lacks are left out.

    Args:
        config: of the arm.
        move: the last joint may turn by 5 degrees and back, and the arm is controlled.
    """
    try:
        verdict = franka_version.ask(config.address)
        yield verdict.works, f'the robot at {config.address} answers: {verdict.text}'
        if not verdict.works:
            return
        yield True, _hand(config)
        state = FrankaLink(config).read()
        text, _ = trouble(state)
        yield True, f'the robot {f"cannot be moved now: {text}" if text else "can be moved"}'
        sample = measurement(state, 0.0)
        yield _agree(sample.pose, flange(sample.q) @ state.F_T_EE.matrix, 'at this posture')
        del state
        if move:
            yield from _moved(config)
        else:
            yield True, 'a second posture and the control success rate: with move=yes'
    except UserError as error:
        yield False, str(error)
    except franky.Exception as error:
        yield bad(f'the robot at {config.address} fails: {error}', '', 'see Desk')


def _hand(config: Franka) -> str:
    if not config.gripper:
        return 'no hand: arm.gripper is false'
    franka_version.require_hand(config.address)  # libfranka waits for a busy one for ever
    try:
        width_m = franky.Gripper(config.address).state.width
    except franky.Exception as error:
        raise UserError(
            f'the hand of the robot at {config.address} does not answer',
            f'{error}'.removeprefix('libfranka: '),
            'activate the hand in Desk, or set cells.<cell>.arm.gripper=false',
        ) from error
    return f'the hand answers: its fingers are {width_m * 1000:.1f} mm apart'


def _agree(reported: Pose, expected: Array, where: str) -> Verdict:
    """Whether the reported pose is where the joints say: (4, 4) TCP in the base frame, m."""
    quaternion = Rotation.from_matrix(expected[:3, :3]).as_quat()
    off_m = float(np.linalg.norm(reported.position - expected[:3, 3]))
    off_rad = angle(reported, Pose(expected[:3, 3], quaternion))
    text = (
        f'forward kinematics {where} differ from the reported pose by {off_m * 1000:.2f} mm and'
        f' {math.degrees(off_rad):.2f} deg'
    )
    if off_m <= NEAR_M and off_rad <= NEAR_RAD:
        return True, text
    return bad(
        text,
        f'the bound is {NEAR_M * 1000:.0f} mm and {math.degrees(NEAR_RAD):.1f} deg',
        'see that the end effector in Desk is the one that is mounted, and that the robot is'
        ' a Panda or an FR3',
    )


def _moved(config: Franka) -> Iterator[Verdict]:
    """Under control: 5 degrees of the last joint and back, then a hold."""
    arm = FrankaArm(config, 0.1)
    try:
        home = _sound(arm).q
        away = home.copy()
        away[6] += TURN_RAD if away[6] < config.home_q_rad[6] else -TURN_RAD
        state = _turn(arm, away)
        yield _agree(state.pose, flange(state.q) @ tcp(config), 'after 5 deg of the last joint')
        _turn(arm, home)
        end, rates = time.monotonic() + HOLD_S, list[float]()
        while time.monotonic() < end:
            rates.append(_sound(arm).success_rate)
            time.sleep(PERIOD_S)
        yield _in_time(min(rates), float(np.mean(rates)), config)
    finally:
        arm.close()


def _in_time(worst: float, mean: float, config: Franka) -> Verdict:
    text = f'{mean:.1%} of the control cycles came in time while holding, {worst:.0%} at worst'
    if worst >= config.min_success_rate:
        return True, text
    return bad(
        text,
        f'arm.min_success_rate is {config.min_success_rate:.0%}',
        'connect the robot directly, end other programs, and take a realtime kernel',
    )


def _turn(arm: FrankaArm, q: Array) -> ArmState:
    """Moves the joints and waits; the state at rest."""
    arm.move_joints(q, 0.1)
    end = time.monotonic() + MOVE_WITHIN_S
    while _sound(arm).moving:
        if time.monotonic() > end:
            arm.hold()
            raise UserError('the joint motion did not end', f'it took {MOVE_WITHIN_S:.0f} s')
        time.sleep(PERIOD_S)
    time.sleep(0.3)
    return _sound(arm)


def _sound(arm: FrankaArm) -> ArmState:
    state = arm.state()
    if state.fault:
        raise UserError('the arm cannot be moved', state.fault, 'mend that, then check again')
    return state
