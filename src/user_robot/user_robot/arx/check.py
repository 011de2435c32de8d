# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Looks whether an ARX arm's CAN interface is up and, when it may move, its motors answer."""

from __future__ import annotations

from collections.abc import Iterator
import time

from user_core.arm_config import Arx
from user_core.errors import UserError
from user_robot.arx.arm import ArxArm
from user_robot.arx.can import interface
from user_robot.verdict import Verdict

HOLD_S, PERIOD_S = 2.0, 0.02


def bus(config: Arx, move: bool) -> Iterator[Verdict]:
    """Verdicts; `move`: the motors may be enabled, hold for two seconds and are damped."""
    try:
        yield True, interface(config.interface)
        if move:
            yield True, motors(config)
        else:
            yield True, 'the motors are asked with move=yes only: the SDK enables them'
    except UserError as error:
        yield False, str(error)


def motors(config: Arx) -> str:
    """Enables the motors, holds, damps them; what they said.

    Raises:
        UserError: they do not answer or fall silent.
    """
    arm = ArxArm(config, 0.1)
    try:
        end, begun = time.monotonic() + HOLD_S, arm.state()
        while time.monotonic() < end:
            state = arm.state()
            if state.fault:
                raise UserError('the arm cannot be moved', state.fault)
            time.sleep(PERIOD_S)
        sunk_mm = 1000 * float(abs(state.pose.position - begun.pose.position).max())
    finally:
        arm.close(healthy=False)  # no motion
    return f'{state.q.size} motors answer and hold: the hand moved by {sunk_mm:.1f} mm in 2 s'
