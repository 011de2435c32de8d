# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Where an ARX arm's CAN bus is: an interface of the kernel, or the folder of an emulated one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
import tempfile

from user_core.errors import UserError

INTERFACES = Path('/sys/class/net')


def interface(name: str, folder: Path = INTERFACES) -> str:
    """A sentence when the CAN interface exists and is up.

    Raises:
        UserError: it does not, or is down.
    """
    up = f'`sudo ip link set {name} up type can bitrate 1000000`'
    try:
        flags = int((folder / name / 'flags').read_text(), 16)
    except OSError:
        known = sorted(p.name for p in folder.glob('*can*'))
        raise UserError(
            f'there is no CAN interface {name}',
            f'there are {", ".join(known)}' if known else 'the adapter is not plugged in',
            f'plug it in and run {up}, or correct cells.<cell>.arm.interface',
        ) from None
    if not flags & 1:
        raise UserError(f'the CAN interface {name} is down', '', f'run {up}')
    return f'the CAN interface {name} is up'


def can_folder(run_folder: Path, cell: str) -> Path:
    """Where the sockets of a cell's emulated CAN bus are: $USER_CAN_FOLDER when it is set.

    Else it follows from the run's folder and the cell, and is short: a socket's path has to be.
    """
    if given := os.environ.get('USER_CAN_FOLDER'):
        return Path(given)
    key = hashlib.sha256(f'{run_folder}|{cell}'.encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f'user-{os.getuid()}-{key}'
