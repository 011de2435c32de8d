# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The scene's present look in shared memory: whoever simulates writes it, others draw it.

Drawing costs more than physics, so it is done in another process.
"""

from __future__ import annotations

from dataclasses import dataclass
import mmap
import os
from pathlib import Path
import re
import struct
import tempfile
import time

import numpy as np

from user_core.geometry import Array

HZ = 60.0
"""How often a simulation writes that keeps to a clock of its own."""
_VALUES = 7 + 3 + 4 + 3 + 4 + 1 + 2
_COUNT = struct.Struct('=Q')
_BODY = struct.Struct(f'={_VALUES}d')


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a camera needs to know.

    Attributes:
        q: (7,) rad.
        block: (7,) position m, quaternion w x y z of the block, base frame.
        peg: (7,) the same of the peg in the hand's frame.
        gripper_m: distance of the fingers.
        time_s: simulated time.
        stamp_s: when it was taken, seconds since the epoch.
    """

    q: Array
    block: Array
    peg: Array
    gripper_m: float
    time_s: float
    stamp_s: float


def place(run: str, cell: str) -> Path:
    """The file, in memory where the system has such a folder, of a run's cell."""
    folder = Path('/dev/shm')
    if not folder.is_dir():
        folder = Path(tempfile.gettempdir())
    name = re.sub(r'[^\w.-]', '_', f'{run}-{cell.strip("/")}')
    return folder / f'user-{os.getuid()}-{name}.scene'


class Writer:
    """Writes one file; one thread. An odd count says that a write goes on (a seqlock)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A new file under the old name: a reader of the old one notices that it stands still.
        part = path.with_suffix('.part')
        part.write_bytes(bytes(_COUNT.size + _BODY.size))
        part.replace(path)
        with path.open('r+b') as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._count = 0

    def write(self, s: Snapshot) -> None:
        """Microseconds; never waits."""
        values = (*s.q, *s.block, *s.peg, s.gripper_m, s.time_s, s.stamp_s)
        _COUNT.pack_into(self._map, 0, self._count + 1)
        _BODY.pack_into(self._map, _COUNT.size, *values)
        self._count += 2
        _COUNT.pack_into(self._map, 0, self._count)

    def close(self) -> None:
        """Removes the file."""
        self._map.close()
        self.path.unlink(missing_ok=True)


class Reader:
    """Reads what a writer left; any process, one thread. The file may come later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._inode = 0

    def read(self) -> Snapshot | None:
        """The newest snapshot; None while there is none."""
        try:
            if self._map is None or self.path.stat().st_ino != self._inode:
                self._open()
        except (OSError, ValueError):
            return None
        assert self._map is not None
        for _ in range(100):
            before = _COUNT.unpack_from(self._map, 0)[0]
            values = np.array(_BODY.unpack_from(self._map, _COUNT.size))
            if before == 0:
                return None
            if before % 2 == 0 and _COUNT.unpack_from(self._map, 0)[0] == before:
                return Snapshot(values[:7], values[7:14], values[14:21], *values[21:].tolist())
            time.sleep(1e-5)
        return None  # its writer died within a write

    def close(self) -> None:
        """Lets the file go."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def _open(self) -> None:
        self.close()
        with self.path.open('rb') as file:
            self._inode = os.fstat(file.fileno()).st_ino
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
