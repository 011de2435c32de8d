# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Tells cells that a person has prepared their scene; a cell with `ready: ask` waits for it."""

from __future__ import annotations

import os
import time

from std_srvs.srv import Trigger

from user_core import topics
from user_core.config import RunConfig
from user_core.errors import UserError
from user_core.guest import Guest

WITHIN_S = 5.0
"""A living cell answers within this."""


def tell(config: RunConfig, cell: str | None) -> str:
    """Calls `ready` of one cell, or of every cell that asks; what they answered.

    Raises:
        UserError: no such cell, none that asks, one that does not answer or does not wait.
    """
    asking = [name for name, c in config.cells.items() if c.ready == 'ask']
    if cell and cell not in config.cells:
        raise UserError(f'There is no cell {cell}', f'the run has {", ".join(config.cells)}')
    if not asking or (cell and cell not in asking):
        raise UserError(
            f'Cell {cell} waits for nobody' if cell else 'No cell of this run waits for people',
            'cells.<cell>.ready is auto',
            'Start the run with cells.arm0.ready=ask',
        )
    with Guest(f'ready_{os.getpid()}') as guest:
        answers = [_call(guest, name) for name in ([cell] if cell else asking)]
    if refused := [text for done, text in answers if not done]:
        raise UserError('; '.join(refused))
    return '; '.join(text for _, text in answers)


def _call(guest: Guest, cell: str) -> tuple[bool, str]:
    client = guest.node.create_client(Trigger, topics.name('ready', cell))
    end = time.monotonic() + WITHIN_S
    while not client.service_is_ready() and time.monotonic() < end:
        guest.executor.spin_once(0.05)
    future = client.call_async(Trigger.Request())
    while not future.done() and time.monotonic() < end:
        guest.executor.spin_once(0.05)
    if not future.done():
        return False, f'cell {cell} does not answer: see `user status`'
    return bool(future.result().success), f'{cell}: {future.result().message}'
