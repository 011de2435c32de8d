# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A real-time priority for a whole process: a full machine does not make its arm late."""

from __future__ import annotations

from contextlib import suppress
import os
from pathlib import Path

FIFO = 4
"""SCHED_FIFO priority: above every ordinary process, below the drivers' own cycles and simulated
devices.
"""


def take(priority: int = FIFO) -> str:
    """Gives every thread of this process the priority, and with them those that they start; '' or
    why the system does not allow it.

    All of them, since they wait for each other: a driver or the middleware holds a lock, the
    interpreter has its own.
    """
    wanted = os.sched_param(priority)
    for thread in Path('/proc/self/task').iterdir():
        with suppress(ProcessLookupError):  # it has ended
            try:
                if os.sched_getscheduler(int(thread.name)) != os.SCHED_FIFO:
                    os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, wanted)
            except PermissionError:
                return 'no real-time priority: the limit rtprio of this user is too low'
    return ''
