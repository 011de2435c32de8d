# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Who holds a run folder: never two supervisors, never two run nodes.

Locks are the kernel's (flock): they end with their holder, however it ends. A supervisor's lock is
inherited by its processes, so that a folder is free when the last of them has gone.
"""

from __future__ import annotations

from collections.abc import Callable
import fcntl
import os
from pathlib import Path
import time

from user_core.errors import UserError

SUPERVISOR = 'supervisor.lock'
RUN = 'run.lock'
LEAVE_S = 20.0
"""What was left by a killed run has gone after this long."""


def claim(path: Path) -> int:
    """Takes a lock for as long as the descriptor is open; the file names the process.

    Raises:
        UserError: another process has it; says which.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        pid = os.pread(file, 32, 0).decode().strip()
        os.close(file)
        raise UserError(
            f'The run in {path.parent} is alive',
            f'process {pid} works on it',
            'End it first, e.g. with Ctrl-C, or look at it with `user status`',
        ) from error
    os.ftruncate(file, 0)
    os.pwrite(file, str(os.getpid()).encode(), 0)
    return file


def claim_when_left(folder: Path, say: Callable[[str], None]) -> int:
    """The supervisor's lock of a run that was killed: waits for its processes to end.

    Raises:
        UserError: the run is alive, or something of it does not end in time.
    """
    deadline, told = time.monotonic() + LEAVE_S, False
    while True:
        try:
            file = claim(folder / SUPERVISOR)
        except UserError:
            pids = holders(folder / SUPERVISOR)
            if _written(folder / SUPERVISOR) in pids:
                raise
            if time.monotonic() > deadline:
                raise UserError(
                    f'The run in {folder} was killed, and a part of it does not end',
                    f'processes {", ".join(map(str, pids))} are left',
                    'End them, then resume again',
                ) from None
            if not told and pids:
                told = True
                say(f'waits for what is left of the killed run to end: {len(pids)} processes')
            time.sleep(0.2)
        else:
            try:  # a run node that ros2 launch started has no supervisor
                os.close(claim(folder / RUN))
            except UserError:
                os.close(file)
                raise
            return file


def holders(path: Path) -> list[int]:
    """Processes that have the file open, as far as we may look."""
    wanted, found = str(path.resolve()), []
    for process in Path('/proc').glob('[0-9]*'):
        try:
            if any(os.readlink(file) == wanted for file in (process / 'fd').iterdir()):
                found.append(int(process.name))
        except OSError:  # it has ended, or is another user's
            continue
    return sorted(found)


def _written(path: Path) -> int:
    text = path.read_text().strip()
    return int(text) if text.isdigit() else 0
