# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Where a store may live: not on file systems on which an append-only log is not durable or not
visible to its readers at once, and only one writer in a folder.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from user_core.errors import UserError

NETWORKED = (
    'nfs',
    'nfs4',
    'cifs',
    'smb3',
    'smbfs',
    'afs',
    'ceph',
    'glusterfs',
    'lustre',
    '9p',
    'fuse.sshfs',
)
"""Types that /proc/self/mountinfo shows for file systems of another machine."""


def kind_of(path: Path, mountinfo: str | None = None) -> str:
    """Type of the file system that holds `path` (its nearest existing parent), '' when unknown.

    `mountinfo` is the text of /proc/self/mountinfo (man 5 proc_pid_mountinfo), read when not
    given.
    """
    if mountinfo is None:
        table = Path('/proc/self/mountinfo')
        mountinfo = table.read_text() if table.exists() else ''
    place = path.resolve()
    best, kind = -1, ''
    for line in mountinfo.splitlines():
        left, _, right = line.partition(' - ')
        mount = left.split()[4].encode().decode('unicode_escape')
        if place.is_relative_to(mount) and len(mount) >= best:
            best, kind = len(mount), right.split()[0]
    return kind


def refuse_network(path: Path, mountinfo: str | None = None) -> None:
    """Raises UserError when `path` lies on another machine's file system."""
    kind = kind_of(path, mountinfo)
    if kind in NETWORKED or (kind.startswith('fuse.') and kind != 'fuse.fuse-overlayfs'):
        raise UserError(
            f'the store cannot live in {path}',
            f'a network file system ({kind}) does not keep a row when it says so',
            'choose a local disk with runs=<folder>',
        )


def lock(folder: Path) -> int:
    """Makes this process the folder's writer; returns the descriptor that holds the lock, which
    dies with the process.

    Raises:
        UserError: another one is.
        OSError: the disk is full.
    """
    file = os.open(folder / 'writer.lock', os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise UserError(
            f'the store {folder} is in use',
            'another process writes to it',
            'end that run, or choose another run name',
        ) from error
    return file
