# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A small disk for one process: a tmpfs in a mount namespace of its own. A full one is full."""

from pathlib import Path
import subprocess

import pytest

_MOUNT = 'mount -t tmpfs -o "$0" disk "$1" && shift && exec "$@"'


def small_disk(folder: Path, options: str = 'size=12m') -> list[str]:
    """What a command begins with so that `folder` is such a disk for it; skips where nobody may
    mount.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = ['unshare', '--user', '--map-root-user', '--mount', 'sh', '-c', _MOUNT, options]
    try:
        subprocess.run([*before, str(folder), 'true'], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f'nobody may mount a file system here: {error}')
    return [*before, str(folder)]


def seen_by(process: subprocess.Popen, folder: Path) -> Path:
    """The folder as that process sees it."""
    return Path(f'/proc/{process.pid}/root{folder}')


def fill(folder: Path) -> Path:
    """Leaves no byte; deleting the file that is returned makes room again."""
    ballast = folder / 'ballast'
    with ballast.open('wb', buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass
    return ballast
