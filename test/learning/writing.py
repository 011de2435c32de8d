# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that hold their own number, as a store gets them, and disks that are too small for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import shutil
import subprocess
import threading

import numpy as np
import pytest

from user_learning.row import Picture, Row
from user_learning.store import Store
from user_learning.tail import Tail


def seq_row(
    seq: int, cell: str = 'arm0', incarnation: int = 1, size: int = 4, pixels: int = 0
) -> Row:
    """A row with `size` state values and, if `pixels`, two pictures of that many bytes."""
    data = np.random.default_rng(seq).integers(0, 256, (2, pixels), np.uint8)
    images = [
        Picture(name, 'rgb8', 1, pixels // 3, seq, one)
        for name, one in zip(('side', 'wrist'), data, strict=True)
    ]
    return Row(
        'r', cell, 9, seq, incarnation=incarnation, seq=seq, state=np.full(size, seq, np.float32),
        images=tuple(images if pixels else ()),
    )  # fmt: skip


def assert_whole(row: Row) -> None:
    """It is what `seq_row` made."""
    pixels = row.images[0].data.size if row.images else 0
    made = seq_row(row.seq, row.cell, row.incarnation, row.state.size, pixels)
    assert np.array_equal(row.state, made.state)
    for a, b in zip(row.images, made.images, strict=True):
        assert (a.name, a.stamp_ns) == (b.name, b.stamp_ns)
        assert np.array_equal(a.data, b.data)


def seqs(folder: Path, cell: str = 'arm0', pictures: bool = True) -> list[int]:
    """The rows of a cell that a store holds, in its order, each one whole."""
    found = []
    for row in Tail(folder, pictures=pictures).rows():
        if isinstance(row, Row) and row.cell == cell:
            if pictures:
                assert_whole(row)
            found.append(row.seq)
    return found


def killed(folder: Path, rows: list[Row], synced: int) -> Path:
    """A store as a writer leaves it that is killed when it has written all rows and synced the
    first ones.
    """
    quick = threading.Event()
    quick.set()

    def fdatasync(_: int) -> None:
        quick.wait(60)

    store = Store(folder / 'alive', fdatasync=fdatasync)
    store.write(rows[:synced])
    store.sync()
    quick.clear()
    store.write(rows[synced:])
    shutil.copytree(folder / 'alive', folder / 'dead')
    quick.set()
    store.close()
    return folder / 'dead'


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A small disk, which is full when it is full; options as for a tmpfs."""
    folder.mkdir()
    command = ['mount', '-t', 'tmpfs', '-o', options, 'disk', str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f'nobody may mount a file system here: {done.stderr.strip()}')
    try:
        yield folder
    finally:
        subprocess.run(['umount', '--lazy', str(folder)], check=True)
