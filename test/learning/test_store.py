# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The store keeps what it acknowledged, whoever is killed."""

from __future__ import annotations

from pathlib import Path
import random
import signal
import subprocess
import sys
import threading
import time

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from user_core.errors import UserError
from user_learning.filesystem import kind_of, refuse_network
from user_learning.row import Label, Row
from user_learning.store import Store
from user_learning.tail import Tail, segment_path, segments


def seq_row(seq: int, cell: str = 'arm0', incarnation: int = 1, size: int = 4) -> Row:
    return Row(
        'r', cell, 9, seq, incarnation=incarnation, seq=seq, state=np.full(size, seq, np.float32)
    )


def seqs(folder: Path) -> list[int]:
    return [r.seq for r in Tail(folder).rows() if isinstance(r, Row)]


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / 'store')
    yield store
    store.close()


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
    assert store.next_seq('arm0', 1) == 1
    store.write([seq_row(1)])
    assert store.next_seq('arm0', 1) == 4
    assert store.lost == 0


def test_a_gap_that_can_never_be_filled_is_counted_and_passed(store: Store) -> None:
    """A sender with 16 in flight that shows row e+16 has given up row e."""
    store.write([seq_row(0)])
    store.write([seq_row(k) for k in range(3, 17)])
    assert store.next_seq('arm0', 1) == 1
    store.write([seq_row(17)])
    assert store.next_seq('arm0', 1) == 18
    assert store.lost == 2


@settings(max_examples=60, deadline=None)
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
        acked = {c: store.next_seq(c, 1) for c in total}
        if rng.random() < 0.2:
            store.close()
            store = Store(folder)
            assert {c: store.next_seq(c, 1) for c in total} == acked
    store.close()
    assert store.lost == 0
    rows = [(r.cell, r.seq) for r in Tail(folder).rows() if isinstance(r, Row)]
    for cell, count in total.items():
        assert [seq for name, seq in rows if name == cell] == list(range(count))


def test_incarnations_of_a_cell_count_apart(store: Store) -> None:
    store.write([seq_row(0), seq_row(0, incarnation=2), seq_row(0, cell='arm1')])
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


def test_a_torn_tail_is_cut_off_and_kept_aside(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write([seq_row(k) for k in range(3)])
    store.close()
    path = segment_path(tmp_path, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    store = Store(tmp_path)
    assert store.torn > 0
    assert store.next_seq('arm0', 1) == 2
    store.write([seq_row(2)])
    store.close()
    assert seqs(tmp_path) == [0, 1, 2]
    assert list(tmp_path.glob('*.torn-*'))


@pytest.mark.parametrize('cut', range(1, 60, 7))
def test_every_place_to_tear_a_tail_leaves_the_rows_before_it(tmp_path: Path, cut: int) -> None:
    store = Store(tmp_path)
    store.write([seq_row(k) for k in range(3)])
    store.close()
    path = segment_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-cut])
    store = Store(tmp_path)
    store.write([seq_row(k) for k in range(3)])
    store.close()
    assert seqs(tmp_path) == [0, 1, 2]


def test_a_record_that_rotted_is_set_aside_and_the_others_are_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sizes = []
    for k in range(5):
        store.write([seq_row(k)])
        sizes.append(store.size)
    store.close()
    path = segment_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    data[sizes[1] + 100] ^= 0xFF
    path.write_bytes(data)
    tail = Tail(tmp_path)
    assert [r.seq for r in tail.rows() if isinstance(r, Row)] == [0, 1, 3, 4]
    assert tail.bad == 1
    assert 'checksum' in tail.last_bad
    store = Store(tmp_path)
    assert store.bad == 1
    store.close()


def test_twelve_segments_are_read_in_order(tmp_path: Path) -> None:
    store = Store(tmp_path, segment_bytes=2000)
    for k in range(40):
        store.write([seq_row(k, size=100)])
    store.close()
    assert len(segments(tmp_path)) >= 12
    assert seqs(tmp_path) == list(range(40))


def test_a_reader_follows_a_growing_store_across_segments(tmp_path: Path) -> None:
    store = Store(tmp_path, segment_bytes=3000)
    tail, got = Tail(tmp_path), []
    for k in range(60):
        store.write([seq_row(k, size=50)])
        if k % 3 == 0:
            got += [r.seq for r in tail.rows()]
    got += [r.seq for r in tail.rows()]
    assert got == list(range(60))
    assert list(tail.rows()) == []
    store.close()


def test_a_reader_never_sees_half_a_row_while_another_process_writes(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, '-c', WRITER, str(tmp_path), '400', '3000'])
    tail, got = Tail(tmp_path), []
    deadline = time.monotonic() + 60
    while len(got) < 400 and time.monotonic() < deadline:
        for row in tail.rows():
            assert np.all(row.state == row.seq)
            got.append(row.seq)
    assert writer.wait(30) == 0
    assert got == list(range(400))
    assert tail.bad == 0


WRITER = """
import sys, pathlib, numpy as np
from user_learning.store import Store
from user_learning.row import Row
store = Store(pathlib.Path(sys.argv[1]), segment_bytes=1 << 20)
n, size = int(sys.argv[2]), int(sys.argv[3])
first = store.next_seq('arm0', 1)
for k in range(first, n):
    store.write([Row('r', 'arm0', 9, k, incarnation=1, seq=k, state=np.full(size, k, np.float32))])
    print(store.next_seq('arm0', 1), flush=True)
store.close()
"""


@pytest.mark.parametrize('seed', range(6))
def test_what_was_acknowledged_survives_kill_9_at_any_moment(tmp_path: Path, seed: int) -> None:
    writer = subprocess.Popen(
        [sys.executable, '-c', WRITER, str(tmp_path), '100000', '2000'],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    acked = int(writer.stdout.readline())
    kill_at = random.Random(seed).randrange(5, 400)
    killer = threading.Timer(20.0, writer.kill)
    killer.start()
    for line in writer.stdout:
        acked = int(line)
        if acked >= kill_at:
            writer.send_signal(signal.SIGKILL)
            acked = int((writer.stdout.readlines() or [line])[-1].strip() or acked)
            break
    writer.wait()
    killer.cancel()
    store = Store(tmp_path)
    assert store.next_seq('arm0', 1) >= acked
    assert store.bad == 0
    store.close()
    got = seqs(tmp_path)
    assert got == list(range(len(got)))
    assert len(got) >= acked


FULL = """
import sys, pathlib, resource, signal, numpy as np
from user_learning.store import Store
from user_learning.row import Row
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(pathlib.Path(sys.argv[1]))
limit = 20000
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
row = lambda k: Row('r', 'arm0', 9, k, incarnation=1, seq=k, state=np.full(200, k, np.float32))
k = 0
while store.write([row(k)]):
    k += 1
assert store.refused, 'no reason'
assert store.next_seq('arm0', 1) == k
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert store.write([row(k)]) == 1 and not store.refused
assert store.next_seq('arm0', 1) == k + 1
store.close()
print(k + 1)
"""


def test_a_full_disk_stops_the_acknowledgements_and_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, '-c', FULL, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert seqs(tmp_path) == list(range(int(done.stdout)))


def test_two_writers_of_one_store_are_refused(store: Store) -> None:
    with pytest.raises(UserError, match='in use'):
        Store(store.folder)


def test_a_dead_writer_leaves_no_lock(tmp_path: Path) -> None:
    done = subprocess.Popen(
        [sys.executable, '-c', WRITER, str(tmp_path), '100000', '10'], stdout=subprocess.PIPE
    )
    assert done.stdout is not None
    done.stdout.readline()
    done.kill()
    done.wait()
    Store(tmp_path).close()


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
