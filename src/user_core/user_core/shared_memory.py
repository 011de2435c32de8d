# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What killed processes left in shared memory, and how it is told from what the living hold.

Fast DDS keeps a lock on a file beside each of its segments and ports for as long as their owner
lives, `_el` exclusive, `_sl` shared; the kernel drops it with the process, however that ended, and
in whichever container it was. A node of ours holds a lock of its run in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import fcntl
import os
from pathlib import Path
import re
import shutil
from typing import NamedTuple

FOLDER = Path('/dev/shm')

_SEGMENT = re.compile(r'(fast(?:rtps|dds)_(?:[0-9a-f]{16}|port\d{1,5}))(_[es]l)?')


class Dead(NamedTuple):
    """What was removed, and what was not because it belongs to another user."""

    segments: int
    runs: int
    bytes: int
    foreign: int

    @property
    def text(self) -> str:
        """For people; '' when there was nothing."""
        parts = []
        if self.segments:
            parts.append(f'{self.segments} dead segments of Fast DDS')
        if self.runs:
            parts.append(f'what {self.runs} dead runs left')
        text = f'removed {" and ".join(parts)}, {self.bytes / 1e6:.1f} MB' if parts else ''
        if self.foreign:
            other = f'{self.foreign} dead segments belong to another user'
            text = f'{text}; {other}' if text else other
        return text


class Lease:
    """Says that a run lives on this machine, for as long as this process holds it: each node of a
    run has one. Without shared memory there is nothing to say.
    """

    def __init__(self, run: str, folder: Path = FOLDER) -> None:
        self.path, self._handle = folder / f'user-{os.getuid()}-{run}.lock', -1
        while self._handle < 0:
            try:
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except OSError:
                return
            fcntl.flock(handle, fcntl.LOCK_SH)
            if _is_still(handle, self.path):
                self._handle = handle
            else:  # the last one of before has just removed it
                os.close(handle)

    def close(self) -> None:
        """Gives it up; the last one takes the file along."""
        if self._handle >= 0:
            with suppress(OSError):
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.path.unlink()
            os.close(self._handle)
            self._handle = -1


def alive(run: str, folder: Path = FOLDER) -> bool:
    """Whether a node of that run lives on this machine."""
    lock = folder / f'user-{os.getuid()}-{run}.lock'
    with _held([lock]) as mine:
        return lock.exists() and not mine


def clean(folder: Path = FOLDER) -> Dead:
    """Removes what no living process holds: segments and ports of Fast DDS, whoever's they were,
    and the folders and scenes of our runs.

    What has no lock file is left alone: nobody can tell whether it is in use.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return Dead(0, 0, 0, 0)
    segments, foreign, size = 0, 0, 0
    locks: dict[str, list[Path]] = {}
    for name in names:
        if (match := _SEGMENT.fullmatch(name)) and match[2]:
            locks.setdefault(match[1], []).append(folder / name)
    for name, files in locks.items():
        with _held(files) as mine:
            if mine:
                part = _size(folder / name)
                gone = _remove([folder / name, folder / f'sem.{name}_mutex', *files])
                segments, foreign, size = segments + gone, foreign + (not gone), size + gone * part
    runs = 0
    stems = [name.removesuffix('.lock') for name in names if _ours(name)]
    for stem in stems:
        with _held([folder / f'{stem}.lock']) as mine:
            if mine:
                left = [folder / name for name in names if _run_of(name, stems) == stem]
                size += sum(_size(path) for path in left)
                runs += bool(left) and _remove(left)
                _remove([folder / f'{stem}.lock'])
    return Dead(segments, runs, size, foreign)


def _ours(name: str) -> bool:
    return name.startswith(f'user-{os.getuid()}-') and name.endswith('.lock')


def _run_of(name: str, stems: list[str]) -> str:
    """The run that a folder (its very name) or a scene (name, dash, cell) belongs to."""
    fits = (s for s in stems if name == s or (name.startswith(f'{s}-') and '.' in name))
    return '' if name.endswith('.lock') else max(fits, key=len, default='')


@contextmanager
def _held(files: list[Path]) -> Iterator[bool]:
    """Whether nobody else holds any of these locks; nobody can take one meanwhile."""
    handles: list[int] = []
    try:
        yield all(_take(file, handles) for file in files)
    finally:
        for handle in handles:
            os.close(handle)


def _take(file: Path, handles: list[int]) -> bool:
    """Opens and locks it; false when somebody holds it, or it is gone."""
    try:
        handles.append(os.open(file, os.O_RDONLY | os.O_NOFOLLOW))
        fcntl.flock(handles[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return _is_still(handles[-1], file)


def _is_still(handle: int, path: Path) -> bool:
    """Whether the path names the open file, and not one that came after it, or none."""
    try:
        there = path.lstat()
    except OSError:
        return False
    return os.path.samestat(os.fstat(handle), there)


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(p.lstat().st_size for p in path.rglob('*'))
        return path.lstat().st_size
    except OSError:
        return 0


def _remove(paths: list[Path]) -> bool:
    """False when somebody else's may not be removed; what is gone already is no matter."""
    for path in paths:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError:
            return False
    return True
