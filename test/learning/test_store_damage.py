# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A store whose writer was killed, whose disk lost power or rots, opens and says what is gone."""

from __future__ import annotations

import os
from pathlib import Path
import random
import signal
import subprocess
import sys
import time

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from writing import killed, seq_row, seqs

from user_core.errors import UserError
from user_learning.row import Row
from user_learning.store import Store
from user_learning.tail import Tail, pictures_path, segment_path, segments

PIXELS = 60


def rows_of(number: int) -> list[Row]:
    return [seq_row(k, pixels=PIXELS) for k in range(number)]


def ends(folder: Path) -> list[int]:
    """Where each record of the first segment's log ends."""
    tail = Tail(folder)
    return [tail.offset for _ in tail.rows()]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def set_aside(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob('*.torn-*')}


def test_a_reader_waits_at_a_tail_torn_at_any_byte(tmp_path: Path) -> None:
    folder = killed(tmp_path, rows_of(3), synced=0)
    log = segment_path(folder, 1)
    whole, (_, second, third) = log.read_bytes(), ends(folder)
    assert third == len(whole)
    for cut in range(second, third):
        log.write_bytes(whole[:cut])
        tail = Tail(folder)
        assert [r.seq for r in tail.rows() if isinstance(r, Row)] == [0, 1]
        assert (tail.place, tail.bad) == ((1, second), 0)
        log.write_bytes(whole)
        assert [r.seq for r in tail.rows() if isinstance(r, Row)] == [2]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_tail_torn_at_any_byte_costs_the_row_that_it_tears(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """What is cut off is kept aside and told, its picture too; the sender's next try is stored."""
    folder = killed(tmp_path_factory.mktemp('torn'), rows_of(3), synced=0)
    log, pictures = segment_path(folder, 1), pictures_path(folder, 1)
    whole, (_, second, third) = log.read_bytes(), ends(folder)
    cut = data.draw(st.integers(second + 1, third - 1))
    log.write_bytes(whole[:cut])
    pixels = b''.join(p.data.tobytes() for p in rows_of(3)[2].images)
    store = Store(folder)
    assert store.next_seq('arm0', 1) == 2
    assert set_aside(folder) == {
        f'{log.name}.torn-{second}': whole[second:cut],
        f'{pictures.name}.torn-{4 * PIXELS}': pixels,
    }
    told = (folder / 'damage.log').read_text().splitlines()
    assert [line.partition(' ')[2] for line in told] == store.damage
    assert f'{log.name} byte {second}: a torn tail of {cut - second} bytes' in told[0]
    assert f'{pictures.name} byte {4 * PIXELS}: a torn tail of {2 * PIXELS} bytes' in told[1]
    assert store.write(rows_of(4)) == 2
    store.close()
    assert seqs(folder) == [0, 1, 2, 3]


@pytest.mark.parametrize('lost', range(1, 2 * PIXELS + 1, 7))
def test_pictures_that_the_disk_has_not_got_cost_the_row_that_nobody_acknowledged(
    tmp_path: Path, lost: int
) -> None:
    """A power loss may leave a row whose picture is short, while its log is whole."""
    folder = killed(tmp_path, rows_of(4), synced=2)
    pictures = pictures_path(folder, 1)
    whole = pictures.read_bytes()
    pictures.write_bytes(whole[:-lost])
    store = Store(folder)
    assert store.next_seq('arm0', 1) == 3
    assert len(store.damage) == (2 if lost < 2 * PIXELS else 1)
    assert store.write(rows_of(5)) == 2
    store.close()
    assert seqs(folder) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize('file', ['log', 'pix'])
@pytest.mark.parametrize('synced', [0, 1, 2])
def test_what_a_power_loss_left_in_another_order_is_not_acknowledged(
    tmp_path: Path, file: str, synced: int
) -> None:
    """A page in the middle of what was not synced was never written; those behind it were."""
    folder = killed(tmp_path, rows_of(6), synced)
    second, third = ends(folder)[1:3]
    path = segment_path(folder, 1) if file == 'log' else pictures_path(folder, 1)
    begin, end = (second, third) if file == 'log' else (4 * PIXELS, 6 * PIXELS)
    data = path.read_bytes()
    path.write_bytes(data[:begin] + bytes(end - begin) + data[end:])
    reader = Tail(folder)
    assert [r.seq for r in reader.rows()] == [0, 1]
    assert reader.bad == 0
    store = Store(folder)
    assert store.next_seq('arm0', 1) == 2
    assert store.write(rows_of(6)) == 4
    store.close()
    assert seqs(folder) == list(range(6))
    assert reader.place[1] == second
    assert [r.seq for r in reader.rows()] == [2, 3, 4, 5]


def test_whole_pictures_without_a_row_are_cut_off(tmp_path: Path) -> None:
    folder = killed(tmp_path, rows_of(3), synced=3)
    with pictures_path(folder, 1).open('ab') as file:
        file.write(b'pixels of a row that was not written')
    store = Store(folder)
    assert store.next_seq('arm0', 1) == 3
    assert len(store.damage) == 1
    store.write(rows_of(4))
    store.close()
    assert seqs(folder) == [0, 1, 2, 3]


def test_a_record_that_rots_anywhere_costs_itself_and_is_told_once(tmp_path: Path) -> None:
    folder = tmp_path / 'store'
    store = Store(folder)
    store.write(rows_of(5))
    store.close()
    path, places = segment_path(folder, 1), ends(folder)
    for at in range(places[1], places[2], 23):
        flip(path, at)
        tail = Tail(folder)
        assert [r.seq for r in tail.rows() if isinstance(r, Row)] == [0, 1, 3, 4]
        assert tail.bad == 1
        assert 'checksum' in tail.last_bad
        assert seqs(folder, pictures=False) == [0, 1, 3, 4]
        flip(path, at)
    flip(path, places[1] + 100)
    for told in (1, 0):
        store = Store(folder)
        assert store.bad == 1
        assert len(store.damage) == told
        assert store.next_seq('arm0', 1) == 5
        store.close()
    text = (folder / 'damage.log').read_text()
    assert text.count('\n') == 1
    assert f'byte {places[1]}: {places[2] - places[1]} bytes were left out' in text
    assert not set_aside(folder)


def test_rotten_records_in_an_older_segment_are_passed_to_its_end(tmp_path: Path) -> None:
    store = Store(tmp_path, segment_bytes=2000)
    store.write(rows_of(9))
    store.close()
    assert segments(tmp_path) == [1, 2, 3]
    last = ends(tmp_path)[2]
    path = segment_path(tmp_path, 1)
    flip(path, path.stat().st_size - 5)
    assert seqs(tmp_path) == [0, 1, *range(3, 9)], last
    store = Store(tmp_path)
    assert store.bad == 1
    assert store.next_seq('arm0', 1) == 9
    store.close()


@pytest.mark.parametrize('at', range(0, 2 * PIXELS, 17))
def test_a_picture_that_rots_costs_its_row_where_pictures_are_read(
    tmp_path: Path, at: int
) -> None:
    store = Store(tmp_path)
    store.write(rows_of(4))
    store.close()
    flip(pictures_path(tmp_path, 1), 2 * PIXELS + at)
    tail = Tail(tmp_path)
    assert [r.seq for r in tail.rows() if isinstance(r, Row)] == [0, 2, 3]
    assert tail.bad == 1
    assert 'checksum of a picture' in tail.last_bad
    assert seqs(tmp_path, pictures=False) == [0, 1, 2, 3]


def test_rows_whose_pictures_are_missing_are_set_aside_by_name(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write([*rows_of(2), seq_row(2)])
    store.close()
    pictures_path(tmp_path, 1).unlink()
    tail = Tail(tmp_path)
    assert [r.seq for r in tail.rows() if isinstance(r, Row)] == [2]
    assert tail.bad == 2
    assert 'segment-000001.pix is missing' in tail.last_bad


def writing(folder: Path) -> subprocess.Popen[str]:
    """A process that forks a writer of the store for each line that it is told."""
    return subprocess.Popen(
        [sys.executable, '-c', WRITERS, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def test_what_was_acknowledged_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    """One store, its writer killed 20 times: nothing that it acknowledged is lost, twice there or
    out of order, and nothing but whole rows is left.
    """
    writers = writing(tmp_path)
    assert writers.stdin is not None
    assert writers.stdout is not None
    rng, acked = random.Random(0), 0
    for _ in range(20):
        writers.stdin.write('another\n')
        writer = int(writers.stdout.readline())
        said = writers.stdout.readline()  # it has begun
        time.sleep(rng.uniform(0.0, 0.15))
        os.kill(writer, signal.SIGKILL)
        while said != 'dead\n':
            acked, said = max(acked, int(said)), writers.stdout.readline()
        store = Store(tmp_path)
        stored = store.next_seq('arm0', 1)
        assert stored >= acked
        assert store.bad == 0
        store.close()
        assert seqs(tmp_path, pictures=False) == list(range(stored))
    writers.stdin.close()
    assert writers.wait(60) == 0
    assert seqs(tmp_path) == list(range(stored))
    assert len(segments(tmp_path)) > 1
    assert acked > 100


WRITERS = f"""
import os, pathlib, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from user_learning.store import Store
from writing import seq_row
for _ in sys.stdin:
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        os.waitpid(pid, 0)
        print('dead', flush=True)
        continue
    store = Store(pathlib.Path(sys.argv[1]), segment_bytes=1 << 20)
    k = store.next_seq('arm0', 1)
    while True:
        store.write([seq_row(k, size=50, pixels=9000)])
        k += 1
        print(store.next_seq('arm0', 1), flush=True)
"""


def test_a_dead_writer_leaves_no_lock(tmp_path: Path) -> None:
    writers = writing(tmp_path)
    assert writers.stdin is not None
    assert writers.stdout is not None
    writers.stdin.write('one\n')
    writer = int(writers.stdout.readline())
    writers.stdout.readline()
    with pytest.raises(UserError, match='in use'):
        Store(tmp_path)
    os.kill(writer, signal.SIGKILL)
    writers.communicate(timeout=60)
    Store(tmp_path).close()
