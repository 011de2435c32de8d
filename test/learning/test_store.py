# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The store takes rows in their order, says what the disk has, and is read while it grows."""

from __future__ import annotations

from dataclasses import replace
import errno
import os
from pathlib import Path
import random
import subprocess
import sys
import threading
import time

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from writing import assert_whole, seq_row, seqs

from user_core.errors import UserError
from user_core.outcome import Mode
from user_learning.filesystem import kind_of, refuse_network
from user_learning.row import Label, Row
from user_learning.store import Store
from user_learning.tail import Place, Tail, pictures_path, segment_path, segments


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / 'store')
    yield store
    store.close()


class Disk:
    """Syncs when it may. `files` are those that it was asked for."""

    def __init__(self) -> None:
        self.free, self.asked = threading.Event(), threading.Event()
        self.error = 0
        self.files: list[Path] = []

    def __call__(self, file: int) -> None:
        self.files.append(Path(os.readlink(f'/proc/self/fd/{file}')))
        self.asked.set()
        assert self.free.wait(60)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        os.fdatasync(file)


@pytest.fixture
def disk() -> Disk:
    disk = Disk()
    disk.free.set()
    return disk


@pytest.fixture
def slow(tmp_path: Path, disk: Disk):
    """A store on that disk, opened and idle."""
    store = Store(tmp_path / 'store', fdatasync=disk)
    disk.files.clear()
    disk.asked.clear()
    yield store
    disk.free.set()
    disk.error = 0
    store.close()


def until(true, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


# ---------------------------------------------------------------------- order


def test_rows_come_back_in_order_with_labels_beside_them(store: Store) -> None:
    store.write([seq_row(0), seq_row(1)])
    store.write([Label('r', 'arm0', 9, 1, 'me', 1.0, True)])
    store.write([seq_row(2)])
    records = list(Tail(store.folder).rows())
    assert [type(r) for r in records] == [Row, Row, Label, Row]
    assert np.array_equal(records[3].state, np.full(4, 2, np.float32))


def test_a_duplicate_is_dropped_and_counted(store: Store) -> None:
    assert store.write([seq_row(0), seq_row(0), seq_row(1)]) == 2
    assert store.write([seq_row(1), seq_row(0)]) == 0
    assert store.duplicates == 3
    assert seqs(store.folder) == [0, 1]


def test_the_acknowledgement_waits_for_a_late_row(store: Store) -> None:
    store.write([seq_row(0), seq_row(2), seq_row(3)])
    assert store.sync()
    assert store.next_seq('arm0', 1) == 1
    store.write([seq_row(1)])
    assert store.sync()
    assert store.next_seq('arm0', 1) == 4
    assert store.lost == 0


def test_a_gap_that_can_never_be_filled_is_counted_and_passed(store: Store) -> None:
    """A sender with 16 in flight that shows row e+16 has given up row e."""
    store.write([seq_row(0)])
    store.write([seq_row(k) for k in range(3, 17)])
    assert store.sync()
    assert store.next_seq('arm0', 1) == 1
    store.write([seq_row(17)])
    assert store.sync()
    assert store.next_seq('arm0', 1) == 18
    assert store.lost == 2


def test_early_rows_of_a_dead_sender_are_stored_when_the_next_one_is_past_them(
    store: Store,
) -> None:
    store.write([seq_row(k) for k in (0, 2, 5)])
    store.write([seq_row(k, incarnation=2) for k in range(15)])
    assert store.waiting == 2
    assert store.lost == 0
    store.write([seq_row(15, incarnation=2)])
    assert store.waiting == 0
    assert store.lost == 3
    rows = [(r.incarnation, r.seq) for r in Tail(store.folder).rows() if isinstance(r, Row)]
    assert rows == [(1, 0), *((2, k) for k in range(16)), (1, 2), (1, 5)]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_whatever_is_lost_repeated_or_reordered_every_row_is_stored_once_in_order(
    tmp_path_factory, data
) -> None:
    """A sender of 16 in flight over a bad line, two cells at once, writer restarted now and
    then.
    """
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    folder = tmp_path_factory.mktemp('store')
    store = Store(folder)
    total = {'arm0': 30, 'arm1': 45}
    acked = dict.fromkeys(total, 0)
    while any(acked[c] < total[c] for c in total):
        line = [
            seq_row(s, c) for c in total for s in range(acked[c], min(acked[c] + 16, total[c]))
        ]
        rng.shuffle(line)
        got = [r for r in line if rng.random() > 0.4] + line[:3]
        store.write(got)
        if rng.random() < 0.5:
            store.sync()
        now = {c: store.next_seq(c, 1) for c in total}
        assert all(now[c] >= acked[c] for c in total)
        acked = now
        if rng.random() < 0.2:
            store.close()
            acked = {c: store.next_seq(c, 1) for c in total}
            store = Store(folder)
            assert {c: store.next_seq(c, 1) for c in total} == acked
    store.close()
    assert store.lost == store.dropped == store.waiting == 0
    for cell, count in total.items():
        assert seqs(folder, cell) == list(range(count))


def test_incarnations_of_a_cell_count_apart(store: Store) -> None:
    store.write([seq_row(0), seq_row(0, incarnation=2), seq_row(0, cell='arm1')])
    assert store.sync()
    assert store.next_seq('arm0', 1) == store.next_seq('arm0', 2) == store.next_seq('arm1', 1) == 1
    assert store.duplicates == 0


def test_a_restarted_store_goes_on_where_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write([seq_row(k) for k in range(5)])
    store.close()
    store = Store(tmp_path)
    assert store.next_seq('arm0', 1) == 5
    assert store.write([seq_row(4), seq_row(5)]) == 1
    store.close()
    assert seqs(tmp_path) == list(range(6))


# ---------------------------------------------------------------------- what the disk has


def test_a_row_is_acknowledged_when_the_disk_has_it_and_not_before(
    slow: Store, disk: Disk
) -> None:
    disk.free.clear()
    slow.write([seq_row(k, pixels=300) for k in range(3)])
    assert disk.asked.wait(60)
    assert seqs(slow.folder) == [0, 1, 2]
    assert slow.write([seq_row(2, pixels=300)]) == 0
    assert slow.next_seq('arm0', 1) == 0
    disk.free.set()
    until(lambda: slow.next_seq('arm0', 1) == 3)
    assert disk.files[:2] == [pictures_path(slow.folder, 1), segment_path(slow.folder, 1)]


def test_a_row_that_comes_during_a_sync_waits_for_the_next_one(slow: Store, disk: Disk) -> None:
    said: list[tuple[int, int]] = []
    slow.told = lambda: said.append((slow.next_seq('arm0', 1), len(disk.files)))
    disk.free.clear()
    slow.write([seq_row(0)])
    assert disk.asked.wait(60)
    slow.write([seq_row(1)])
    disk.free.set()
    until(lambda: slow.next_seq('arm0', 1) == 2)
    assert (1, 2) in said
    assert all(files >= 4 for next_seq, files in said if next_seq == 2)


def test_a_store_that_is_closed_says_what_it_keeps(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write([seq_row(k) for k in range(7)])
    store.close()
    assert store.next_seq('arm0', 1) == 7


def test_what_a_failed_sync_dropped_is_written_again(slow: Store, disk: Disk) -> None:
    """Linux may forget a page that it could not write, and tells of it once."""
    slow.write([seq_row(0, pixels=300)])
    assert slow.sync()
    ends = [path.stat().st_size for path in sorted(slow.folder.glob('segment-*'))]
    disk.error = errno.ENOSPC
    slow.write([seq_row(k, pixels=300) for k in (1, 2)])
    assert not slow.sync()
    assert 'No space' in slow.refused
    for path, end in zip(sorted(slow.folder.glob('segment-*')), ends, strict=True):
        size = path.stat().st_size
        with path.open('r+b') as file:
            file.seek(end)
            file.write(bytes(size - end))
    slow.write([seq_row(3, pixels=300)])
    assert slow.next_seq('arm0', 1) == 1
    assert slow.waiting == 1
    disk.error = 0
    until(lambda: not slow.refused)
    assert slow.next_seq('arm0', 1) == 3
    slow.retry()
    assert slow.sync()
    assert slow.next_seq('arm0', 1) == 4
    assert seqs(slow.folder) == [0, 1, 2, 3]


def test_a_disk_that_fails_ends_the_store_in_plain_words(slow: Store, disk: Disk) -> None:
    slow.write([seq_row(0)])
    assert slow.sync()
    disk.error = errno.EIO
    slow.write([seq_row(1)])
    until(lambda: slow.failure is not None)
    with pytest.raises(UserError, match='Input/output error'):
        slow.write([seq_row(2)])
    assert slow.next_seq('arm0', 1) == 1


# ---------------------------------------------------------------------- segments


def test_a_segment_begins_when_all_of_the_one_before_it_is_synced(slow: Store, disk: Disk) -> None:
    slow.segment_bytes = 500
    disk.free.clear()
    writer = threading.Thread(target=slow.write, args=([seq_row(k, size=100) for k in range(3)],))
    writer.start()
    until(lambda: slow.rows == 1)
    assert disk.asked.wait(60)
    time.sleep(0.05)
    assert segments(slow.folder) == [1]
    disk.free.set()
    writer.join(60)
    assert segments(slow.folder) == [1, 2, 3]
    assert slow.next_seq('arm0', 1) >= 2


def test_twelve_segments_are_read_in_order(tmp_path: Path) -> None:
    store, number = Store(tmp_path, segment_bytes=2000), 0
    while segments(tmp_path)[-1] < 12:
        store.write([seq_row(number, size=100)])
        number += 1
    store.close()
    assert segments(tmp_path) == list(range(1, 13))
    tail = Tail(tmp_path)
    places = [tail.segment for _ in tail.rows()]
    assert places == sorted(places)
    assert set(places) == set(range(1, 13))
    assert seqs(tmp_path) == list(range(number))


def test_a_reader_follows_a_growing_store_across_segments(tmp_path: Path) -> None:
    store = Store(tmp_path, segment_bytes=3000)
    tail, got = Tail(tmp_path), []
    for k in range(60):
        store.write([seq_row(k, size=50, pixels=90)])
        if k % 3 == 0:
            got += [r.seq for r in tail.rows()]
    got += [r.seq for r in tail.rows()]
    assert got == list(range(60))
    assert list(tail.rows()) == []
    store.close()
    assert list(tail.rows()) == []
    assert tail.bad == 0


def test_a_reader_takes_logs_and_records_longer_than_what_it_reads_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.write([seq_row(k, size=500 if k % 7 == 3 else 10) for k in range(40)])
    store.close()
    for chunk in (1, 900, 2000, segment_path(tmp_path, 1).stat().st_size):
        monkeypatch.setattr('user_learning.tail.CHUNK', chunk)
        assert seqs(tmp_path) == list(range(40))


def test_a_reader_without_pictures_opens_none_and_knows_where_they_lie(tmp_path: Path) -> None:
    store = Store(tmp_path, segment_bytes=3000)
    store.write([seq_row(k, pixels=300) for k in range(9)])
    store.close()
    rows = list(Tail(tmp_path).rows())
    for number in segments(tmp_path):
        pictures_path(tmp_path, number).unlink()
    bare = list(Tail(tmp_path, pictures=False).rows())
    assert [r.seq for r in bare] == list(range(9))
    for row, other in zip(rows, bare, strict=True):
        assert [p.data.size for p in other.images] == [0, 0]
        assert [(p.place, p.size) for p in other.images] == [
            (p.place, p.data.nbytes) for p in row.images
        ]


def test_a_reader_may_begin_to_look_at_pictures_on_its_way(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write([seq_row(k, pixels=300) for k in range(4)])
    tail = Tail(tmp_path, pictures=False)
    sizes = []
    for row in tail.rows():
        sizes.append(row.images[0].data.size)
        tail.pictures = len(sizes) >= 2
    store.close()
    assert sizes == [0, 0, 300, 300]


def test_a_reader_never_sees_half_a_row_while_another_process_writes(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, '-c', WRITER, str(tmp_path)])
    tail, got = Tail(tmp_path), []
    deadline = time.monotonic() + 60
    while len(got) < 400 and time.monotonic() < deadline:
        for row in tail.rows():
            assert_whole(row)
            got.append(row.seq)
    assert writer.wait(30) == 0
    assert got == list(range(400))
    assert tail.bad == 0


WRITER = f"""
import pathlib, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from user_learning.store import Store
from writing import seq_row
store = Store(pathlib.Path(sys.argv[1]), segment_bytes=1 << 20)
for k in range(400):
    store.write([seq_row(k, size=1000, pixels=6000)])
store.close()
"""

TRAIN_ROWS = 8
"""In each of the segments of `ten_segments`."""


def ten_segments(tmp_path: Path, **settings: object) -> Store:
    store = Store(tmp_path, segment_bytes=8 * 5000, disk_bytes=1, **settings)
    k = 0
    while segments(tmp_path)[-1] < 11:
        number = 1 + k // TRAIN_ROWS
        mode = Mode.DEMO if number == 2 else Mode.TRAIN
        store.write([replace(seq_row(k, pixels=2400), mode=mode, episode=number)])
        k += 1
    return store


@pytest.mark.parametrize(
    ('held', 'window_rows', 'left'),
    [
        (None, 0, range(1, 12)),
        ((1, 500), 0, range(1, 12)),
        ((6, 0), 0, [2, *range(6, 12)]),
        ((6, 500), TRAIN_ROWS + 1, [2, *range(4, 12)]),
        ((11, 500), TRAIN_ROWS, [2, 10, 11]),
    ],
)
def test_no_segment_goes_that_a_learner_from_the_oldest_checkpoint_needs(
    tmp_path: Path, held: Place | None, window_rows: int, left: list[int]
) -> None:
    store = ten_segments(tmp_path, held=lambda: held, window_rows=window_rows)
    store._prune()
    assert segments(tmp_path) == list(left)
    assert all(pictures_path(tmp_path, n).exists() == (n in left) for n in range(1, 12))
    assert 'more than replay.disk_gb' in store.crowded
    store.close()


def test_a_store_below_its_bound_again_says_nothing(tmp_path: Path) -> None:
    place: Place | None = None
    store = ten_segments(tmp_path, held=lambda: place)
    store._prune()
    assert store.crowded
    place, store.disk_bytes = (11, 0), 4 * 8 * 5000
    store._prune()
    assert not store.crowded
    assert store.size <= store.disk_bytes
    store.close()


# ---------------------------------------------------------------------- one writer, local disk


def test_two_writers_of_one_store_are_refused(store: Store) -> None:
    with pytest.raises(UserError, match='in use'):
        Store(store.folder)


MOUNTS = """22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:40 / /home rw shared:1 - nfs4 server:/home rw
31 22 0:41 / /mnt/far\\040place rw - fuse.sshfs host: rw
32 30 254:1 / /home/local rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ('path', 'kind'),
    [
        ('/var/runs', 'ext4'),
        ('/home/me/runs', 'nfs4'),
        ('/home/local/runs', 'xfs'),
        ('/mnt/far place/x', 'fuse.sshfs'),
        ('/homeless', 'ext4'),
    ],
)
def test_the_file_system_of_a_folder_is_found_by_its_nearest_mount(path: str, kind: str) -> None:
    assert kind_of(Path(path), MOUNTS) == kind


@pytest.mark.parametrize('path', ['/home/me/runs', '/mnt/far place/x'])
def test_a_store_on_a_network_file_system_is_refused_in_plain_words(path: str) -> None:
    with pytest.raises(UserError, match='network file system'):
        refuse_network(Path(path), MOUNTS)
    refuse_network(Path('/home/local/runs'), MOUNTS)


def test_a_store_of_twenty_thousand_rows_opens_in_seconds(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for k in range(0, 20_000, 500):
        store.write([seq_row(s, size=19) for s in range(k, k + 500)])
    store.close()
    begun = time.monotonic()
    store = Store(tmp_path)
    store.close()
    assert store.rows == 20_000
    assert time.monotonic() - begun < 20.0
