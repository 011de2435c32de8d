# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A full disk stops the acknowledgements and loses nothing; with room the store goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
import os
from pathlib import Path
import shutil
import subprocess
import sys

from disks import fill
import pytest
from writing import killed, mounted, seq_row, seqs

from user_learning.row import Label, Row
from user_learning.store import LABELS_N, Store
from user_learning.tail import Tail, segment_path, segments

Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Makes a small disk of these options."""
    with ExitStack() as stack:
        yield lambda options: stack.enter_context(mounted(tmp_path / 'disk', options))


def write_until_refused(store: Store, pixels: int = 9000) -> int:
    """Returns how many rows were sent; the last one was refused."""
    seq = store.rows
    while not store.refused:
        assert store.write([seq_row(seq, pixels=pixels)]) == 1
        seq += 1
    return seq


def test_a_full_disk_stops_collection_and_loses_nothing(mount: Mount, tmp_path: Path) -> None:
    """What was refused is stored when there is room, though nobody sends it again. A writer that
    is killed meanwhile leaves whole rows only.
    """
    disk = mount('size=1m')
    store = Store(disk / 'store')
    ballast = disk / 'ballast'
    ballast.write_bytes(bytes(600_000))
    sent = write_until_refused(store)
    assert 'No space left' in store.refused
    assert not store.write([seq_row(sent - 1, pixels=9000)])
    assert store.write([seq_row(k, pixels=9000) for k in range(sent, sent + 5)]) == 5
    assert store.sync()
    assert store.waiting == 6
    assert store.next_seq('arm0', 1) == sent - 1
    assert seqs(store.folder) == list(range(sent - 1))
    store.retry()
    assert store.refused
    after_a_kill = Store(shutil.copytree(store.folder, tmp_path / 'copy'))
    assert after_a_kill.next_seq('arm0', 1) == sent - 1
    assert after_a_kill.damage == []
    after_a_kill.close()
    ballast.unlink()
    store.retry()
    assert not store.refused
    assert store.sync()
    assert store.next_seq('arm0', 1) == sent + 5
    store.close()
    assert seqs(store.folder) == list(range(sent + 5))
    store = Store(store.folder)
    assert store.damage == []
    store.close()


def test_whole_rows_that_were_written_before_the_disk_was_full_stay(mount: Mount) -> None:
    """A reader that has read them goes on behind them."""
    disk = mount('size=1m')
    store = Store(disk / 'store')
    store.write([seq_row(0, pixels=90_000)])
    tail = Tail(store.folder)
    assert [r.seq for r in tail.rows()] == [0]
    store.write([seq_row(k, pixels=90_000) for k in range(1, 12)])
    got = [r.seq for r in tail.rows()]
    assert got
    assert got == list(range(1, store.rows))
    assert list(tail.rows()) == []
    subprocess.run(['mount', '-o', 'remount,size=8m', str(disk)], check=True)
    store.retry()
    got += [r.seq for r in tail.rows()]
    assert got == list(range(1, 12))
    assert tail.bad == 0
    store.close()


def test_a_disk_too_full_for_another_segment_is_waited_for(mount: Mount) -> None:
    disk = mount('size=8m,nr_inodes=6')  # itself, the store, its lock, a segment, one file more
    store = Store(disk / 'store', segment_bytes=50_000)
    (disk / 'ballast').touch()
    with pytest.raises(OSError, match='No space'):
        (disk / 'one more').touch()
    sent = write_until_refused(store)
    assert segments(store.folder) == [1]
    assert store.sync()
    assert store.next_seq('arm0', 1) == sent - 1
    (disk / 'ballast').unlink()  # room for the pictures' file alone
    store.retry()
    assert store.refused
    subprocess.run(['mount', '-o', 'remount,nr_inodes=7', str(disk)], check=True)
    store.retry()
    assert not store.refused
    store.close()
    assert segments(store.folder) == [1, 2]
    assert seqs(store.folder) == list(range(sent))


def test_a_store_opens_when_the_disk_has_room(mount: Mount) -> None:
    """Rows come meanwhile; none of them is taken, so that they are sent again. Labels wait."""
    disk = mount('size=1m,nr_inodes=3')
    ballast = fill(disk)
    store = Store(disk / 'store')
    assert 'No space left' in store.refused
    assert store.write([seq_row(0)]) == 0
    label = Label('r', 'arm0', 9, 0, 'me', 1.0, True)
    assert store.write([label]) == 1
    assert store.next_seq('arm0', 1) == 0
    store.retry()
    assert store.refused
    ballast.unlink()
    subprocess.run(['mount', '-o', 'remount,nr_inodes=20', str(disk)], check=True)
    store.retry()
    assert not store.refused
    assert store.write([seq_row(0), seq_row(1)]) == 2
    assert store.sync()
    assert store.next_seq('arm0', 1) == 2
    assert [type(r) for r in Tail(store.folder).rows()] == [Label, Row, Row]
    store.close()


@pytest.mark.parametrize('inodes', [5, 6])
def test_a_torn_tail_is_not_cut_off_before_there_is_room_to_keep_it(
    mount: Mount, tmp_path: Path, inodes: int
) -> None:
    """Room for nothing; and for what is cut off but not for the report."""
    torn = killed(tmp_path, [seq_row(k) for k in range(3)], synced=0)
    disk = mount(f'size=1m,nr_inodes={inodes}')
    shutil.copytree(torn, disk / 'store')
    log = segment_path(disk / 'store', 1)
    size = log.stat().st_size
    os.truncate(log, size - 9)
    store = Store(disk / 'store')
    assert 'No space left' in store.refused
    assert log.stat().st_size == size - 9
    assert not (disk / 'store' / 'damage.log').exists()
    subprocess.run(['mount', '-o', 'remount,nr_inodes=20', str(disk)], check=True)
    store.retry()
    assert not store.refused
    assert len(store.damage) == 1
    assert (disk / 'store' / 'damage.log').read_text().count('\n') == 1
    assert store.next_seq('arm0', 1) == 2
    store.close()


def test_a_sender_that_keeps_no_window_fills_no_memory(mount: Mount) -> None:
    """It sends ten times more than may be in flight. What is dropped was not acknowledged."""
    disk = mount('size=1m')
    store = Store(disk / 'store')
    ballast = fill(disk)
    taken = store.write([seq_row(k, pixels=9000) for k in range(160)])
    assert store.refused
    assert store.waiting == store.window_n == taken - store.rows
    assert store.dropped == 160 - taken
    labels = [Label('r', 'arm0', 9, k, 'me', 1.0, True) for k in range(LABELS_N + 10)]
    assert store.write(labels) <= LABELS_N + 5
    assert store.waiting <= store.window_n + LABELS_N
    ballast.unlink()
    store.retry()
    store.write([seq_row(k, pixels=3000) for k in range(taken, 100)])
    assert store.sync()
    assert store.next_seq('arm0', 1) == 100
    assert store.lost == 0
    store.close()
    assert [r.seq for r in Tail(store.folder).rows() if isinstance(r, Row)] == list(range(100))


FULL = f"""
import pathlib, resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from user_learning.store import Store
from writing import seq_row
store = Store(pathlib.Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
k = 0
while not store.refused:
    store.write([seq_row(k, size=200)])
    k += 1
assert store.sync() and store.next_seq('arm0', 1) == k - 1
store.retry()
assert store.refused
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.retry()
assert not store.refused
store.close()
assert store.next_seq('arm0', 1) == k
print(k)
"""


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, '-c', FULL, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert seqs(tmp_path) == list(range(int(done.stdout)))
