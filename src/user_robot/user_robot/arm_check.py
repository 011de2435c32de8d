# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Looks whether a cell's arm can be used: `arm_check CELL [move]`, the configuration on stdin.

Prints a line of JSON for each verdict: {"good": bool, "text": sentence}. Without `move` nothing
moves and no motor is enabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
import json
import os
from pathlib import Path
import resource
import signal
import sys

from user_core.arm_config import Arx, Franka, TopicsConfig
from user_core.config import Cell, from_json
from user_core.errors import UserError
from user_robot.verdict import Verdict, bad

WITHIN_S = 80
"""A check that takes longer is ended, wherever it hangs."""
LIBRARIES = {
    'franka': 'franky',
    'franka_sim': 'franky',
    'arx': 'arx5_interface',
    'arx_sim': 'arx5_interface',
}
REALTIME = Path('/sys/kernel/realtime')
FIFO_PRIORITY = 20


def look(cell: Cell, move: bool) -> Iterator[Verdict]:
    """Verdicts on a cell's arm, as they come: (good, sentence)."""
    arm = cell.arm
    yield from _said(lambda: _library(arm.kind))
    if arm.kind == 'sim':
        yield True, "the simulated arm lives in the arm node's process: nothing to connect"
    elif arm.kind.endswith('_sim'):
        yield True, 'the device is simulated and the run starts it: nothing to connect'
    elif isinstance(arm, Franka):
        from user_robot.franka.check import robot

        yield from computer(arm)
        yield from robot(arm, move)
    elif isinstance(arm, Arx):
        from user_robot.arx.check import bus

        yield from bus(arm, move)
    elif isinstance(arm, TopicsConfig):
        from user_robot.foreign.check import topics

        yield from topics(arm)


def _library(kind: str) -> str:
    name = LIBRARIES.get(kind, '')
    if not name:
        return f'kind {kind}: needs no library of its own'
    try:
        import_module(name)
    except ImportError as error:
        raise UserError(
            f'{sys.executable} cannot import {name}', str(error), 'run `make setup`'
        ) from error
    return f'kind {kind}: {name} can be imported'


def computer(
    config: Franka, realtime: Path = REALTIME, version: str = os.uname().version
) -> Iterator[Verdict]:
    """Whether this computer can keep a Franka's millisecond.

    Args:
        config: of the arm.
        realtime: the file by which a PREEMPT_RT kernel says so.
        version: of the kernel.
    """
    is_rt = 'PREEMPT_RT' in version or (realtime.exists() and realtime.read_text().strip() == '1')
    enforce = config.realtime == 'enforce'
    if is_rt:
        yield True, 'the kernel is a realtime one'
    elif enforce:
        yield bad(
            'the kernel is no realtime one (PREEMPT_RT)',
            'the robot wants an answer each millisecond',
            'boot one (Ubuntu: `sudo pro enable realtime-kernel`), or set'
            ' cells.<cell>.arm.realtime=ignore, which costs robot stops'
            ' (communication_constraints_violation) whenever the computer is busy',
        )
    else:
        yield True, 'no realtime kernel, and the page ignores it: a busy computer stops the robot'
    most = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
    allowed = os.geteuid() == 0 or most == resource.RLIM_INFINITY or most >= FIFO_PRIORITY
    if allowed:
        yield True, 'realtime priorities are allowed'
    else:
        _, text = bad(
            'realtime priorities are not allowed to this user',
            f'rtprio is {most}',
            'add `@realtime - rtprio 99` to /etc/security/limits.conf, join that group and log in'
            ' again',
        )
        yield not enforce, text


def _said(step: Callable[[], str]) -> Iterator[Verdict]:
    """The verdict of a step that returns a sentence or raises UserError."""
    try:
        yield True, step()
    except UserError as error:
        yield False, str(error)


def main() -> None:
    """Entry point: always 0 when it could look; the verdicts are in the lines."""
    signal.alarm(WITHIN_S)
    cell = from_json(sys.stdin.read(), 'the configuration').cells[sys.argv[1]]
    try:
        for good, text in look(cell, move='move' in sys.argv[2:]):
            print(json.dumps({'good': good, 'text': text}), flush=True)
    except UserError as error:
        print(json.dumps({'good': False, 'text': str(error)}), flush=True)


if __name__ == '__main__':
    main()
