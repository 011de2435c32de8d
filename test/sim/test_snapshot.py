# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The scene in shared memory and the studio that draws it elsewhere."""

from collections.abc import Iterator
import os
from pathlib import Path
import subprocess
import sys
import threading

import numpy as np
import pytest
from scenes import ABOVE_Q, TURNED_Q, need_graphics, snapshot

from user_sim.scene import HOLE_XY_M, RIM_Z_M
from user_sim.snapshot import Reader, Writer, place


@pytest.fixture
def path() -> Iterator[Path]:
    """A file of this test alone, where the real ones are."""
    path = place(f'test-{os.getpid()}', 'arm0')
    yield path
    path.unlink(missing_ok=True)


def test_a_reader_gets_the_newest_snapshot_and_none_before_the_first(path: Path) -> None:
    reader = Reader(path)
    assert reader.read() is None
    writer = Writer(path)
    assert reader.read() is None
    for q in (0.1, 0.2):
        writer.write(snapshot(q))
    got = reader.read()
    assert got is not None
    np.testing.assert_array_equal(got.q, np.full(7, 0.2))
    np.testing.assert_array_equal(got.block[:3], [*HOLE_XY_M, RIM_Z_M])
    assert (got.gripper_m, got.time_s, got.stamp_s) == (0.016, 0.2, 1.0)


def test_a_reader_follows_a_writer_that_was_started_again(path: Path) -> None:
    reader = Reader(path)
    Writer(path).write(snapshot(0.1))
    assert reader.read() is not None
    Writer(path).write(snapshot(0.7))
    got = reader.read()
    assert got is not None
    assert got.time_s == 0.7


def test_a_reader_never_sees_half_of_a_write(path: Path) -> None:
    writer, reader = Writer(path), Reader(path)
    writer.write(snapshot(0.0))
    done = threading.Event()

    def write() -> None:
        for i in range(4000):
            writer.write(snapshot(float(i)))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = set()
    while not done.is_set():
        got = reader.read()
        if got is not None:
            assert (got.q == got.time_s).all()
            seen.add(got.time_s)
    thread.join()
    assert len(seen) > 1


def test_a_write_that_was_cut_off_is_no_snapshot(path: Path) -> None:
    Writer(path).write(snapshot(0.1))
    content = bytearray(path.read_bytes())
    content[0] = 3
    path.write_bytes(content)
    assert Reader(path).read() is None


def test_runs_and_cells_have_files_of_their_own() -> None:
    names = {place(run, cell) for run in ('peg-1', 'peg-2') for cell in ('arm0', 'arm1')}
    assert len(names) == 4
    assert place('peg/1', '/arm0').parent == place('peg', 'arm0').parent


DRAW = """
import sys
from pathlib import Path
import numpy as np
from user_core.config import FrankaSimConfig
from user_sim.snapshot import Reader
from user_sim.studio import Studio
pictures = {c: np.zeros((64, 96, 3), np.uint8) for c in ('wrist', 'side')}
studio = Studio(FrankaSimConfig(), 96, 64)
studio.arrange(Reader(Path(sys.argv[1])).read())
for camera, picture in pictures.items():
    studio.draw(camera, (0, 0, 640, 480), picture)
np.savez(sys.argv[2], **pictures)
"""


def draw_elsewhere(path: Path, out: Path) -> dict[str, np.ndarray]:
    """Pictures by a process that has nothing but the file."""
    need_graphics()
    painter = subprocess.run(
        [sys.executable, '-c', DRAW, str(path), str(out)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert painter.returncode == 0, painter.stderr
    with np.load(out) as pictures:
        return dict(pictures)


def test_another_process_draws_what_the_file_says(path: Path, tmp_path: Path) -> None:
    writer = Writer(path)
    writer.write(snapshot(ABOVE_Q))
    first = draw_elsewhere(path, tmp_path / 'first.npz')
    for picture in first.values():
        assert picture.shape == (64, 96, 3)
        assert picture.dtype == np.uint8
        assert picture.std() > 5
    peg = (first['wrist'].astype(int) @ [1, 0, -1] > 60).sum()
    assert peg > 20  # orange, in front of the wrist's camera

    writer.write(snapshot(TURNED_Q, gripper_m=0.06))
    second = draw_elsewhere(path, tmp_path / 'second.npz')
    for name, picture in second.items():
        changed = (np.abs(picture.astype(int) - first[name]).max(-1) > 20).mean()
        assert changed > 0.02, name
