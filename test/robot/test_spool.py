# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Rows survive the death of the process and arrive in order, sent until acknowledged."""

from contextlib import suppress
import os
from pathlib import Path
import random
import shutil
import signal
import subprocess
import sys
import time

import disks
from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from user_robot import spool as spools
from user_robot.spool import RESEND_MOST_S, RESEND_S, WINDOW, Spool


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def row(seq, incarnation=1):
    return f'row {incarnation}:{seq}'.encode() * 20


def open_spool(folder, incarnation=1, clock=None):
    sent = []
    return Spool(folder, incarnation, sent.append, clock or Clock()), sent


def fill(spool, n):
    for _ in range(n):
        spool.put(row(spool.seq, spool.incarnation))


def test_at_most_sixteen_rows_are_in_flight_and_an_acknowledgement_lets_the_next_ones_go(tmp_path):
    spool, sent = open_spool(tmp_path)
    fill(spool, 40)
    assert sent == [row(i) for i in range(WINDOW)]
    spool.acknowledge(1, 10)
    assert sent == [row(i) for i in range(WINDOW + 10)]
    spool.acknowledge(1, 26)
    assert len(spool) == 14
    spool.acknowledge(1, 40)
    assert sent == [row(i) for i in range(40)]
    assert len(spool) == 0


def test_rows_without_an_answer_are_sent_again_after_a_while_and_not_before(tmp_path):
    clock = Clock()
    spool, sent = open_spool(tmp_path, clock=clock)
    fill(spool, 3)
    spool.poll()
    assert len(sent) == 3
    clock.now += RESEND_S + 0.1
    spool.poll()
    assert sent == [row(0), row(1), row(2)] * 2
    assert spool.resent == 3
    spool.acknowledge(1, 3)
    clock.now += 10
    spool.poll()
    assert len(sent) == 6


def test_acknowledgements_of_others_and_old_ones_change_nothing(tmp_path):
    spool, _ = open_spool(tmp_path)
    fill(spool, 5)
    spool.acknowledge(2, 100)
    spool.acknowledge(1, 3)
    spool.acknowledge(1, 2)
    assert len(spool) == 2


def test_rows_that_are_never_answered_are_sent_again_ever_more_seldom(tmp_path):
    clock = Clock()
    spool, sent = open_spool(tmp_path, clock=clock)
    fill(spool, 40)
    for _ in range(600):
        clock.now += 0.1
        spool.poll()
    assert len(sent) <= WINDOW * (3 + 60 / RESEND_MOST_S)
    assert len(sent) >= WINDOW * 60 / RESEND_MOST_S
    spool.acknowledge(1, 1)
    sent.clear()
    clock.now += RESEND_S + 0.1
    spool.poll()
    assert sent == [row(i) for i in range(1, WINDOW + 1)]


def test_an_answer_that_takes_as_long_as_a_sync_of_the_disk_causes_no_second_sending(tmp_path):
    """Sixteen rows in flight are enough for 20 rows a second, each acknowledged 0.4 s later."""
    clock = Clock()
    spool, sent = open_spool(tmp_path, clock=clock)
    for k in range(400):
        fill(spool, 1)
        clock.now += 0.05
        spool.acknowledge(1, max(0, k - 8))
        if k % 10 == 0:
            spool.poll()
    assert spool.resent == 0
    assert sent == [row(i) for i in range(400)]
    assert len(spool) == 9


def test_a_new_process_sends_what_the_old_one_left_before_its_own(tmp_path):
    old, _ = open_spool(tmp_path, 1)
    fill(old, 5)
    old.acknowledge(1, 5)
    fill(old, 3)
    new, sent = open_spool(tmp_path, 2)
    new.poll()
    fill(new, 2)
    assert sent == [row(5), row(6), row(7), row(0, 2), row(1, 2)]
    new.acknowledge(1, 8)
    new.acknowledge(2, 2)
    assert len(new) == 0
    third, sent = open_spool(tmp_path, 3)
    third.poll()
    assert sent == []
    assert [p.stat().st_size for p in tmp_path.iterdir() if p.name.startswith('2')] == []


def test_rows_that_were_acknowledged_before_a_kill_are_released_by_the_first_answer(tmp_path):
    old, _ = open_spool(tmp_path, 1)
    fill(old, 200)
    old.acknowledge(1, 150)
    new, sent = open_spool(tmp_path, 2)
    new.poll()
    assert len(sent) == WINDOW
    new.acknowledge(1, 150)
    assert len(new) == 50
    assert sent[WINDOW] == row(150)


def test_files_are_deleted_when_their_rows_are_acknowledged(tmp_path, monkeypatch):
    monkeypatch.setattr(spools, 'SEGMENT_BYTES', 2000)
    spool, _ = open_spool(tmp_path)
    fill(spool, 100)
    assert len(list(tmp_path.glob('*.spool'))) > 5
    for seq in range(101):
        spool.acknowledge(1, seq)
    assert len(list(tmp_path.glob('*.spool'))) <= 1
    fill(spool, 1)
    again, sent = open_spool(tmp_path, 2)
    again.poll()
    assert sent == [row(100)]


@pytest.mark.parametrize('cut', [1, 10, 30])
def test_a_row_that_was_torn_by_a_kill_is_skipped_and_the_others_are_sent(tmp_path, cut):
    old, _ = open_spool(tmp_path)
    fill(old, 4)
    (path,) = tmp_path.glob('*.spool')
    os.truncate(path, path.stat().st_size - cut)
    new, sent = open_spool(tmp_path, 2)
    new.poll()
    assert sent == [row(0), row(1), row(2)]
    assert new.damaged == 1


def test_a_damaged_row_in_the_middle_is_skipped_and_counted(tmp_path):
    old, _ = open_spool(tmp_path)
    fill(old, 4)
    (path,) = tmp_path.glob('*.spool')
    data = bytearray(path.read_bytes())
    data[len(data) // 4 + 40] ^= 0xFF
    path.write_bytes(data)
    new, sent = open_spool(tmp_path, 2)
    new.poll()
    assert sent == [row(0), row(2), row(3)]
    assert new.damaged == 1


@pytest.mark.parametrize('behind', [3, WINDOW + 5])
def test_rows_behind_a_damaged_one_never_block_the_rows_of_the_next_process(tmp_path, behind):
    """Replay passes a gap when a whole window lies behind it; fewer rows would wait for ever."""
    old, _ = open_spool(tmp_path)
    fill(old, 2 + behind)
    (path,) = tmp_path.glob('*.spool')
    data = bytearray(path.read_bytes())
    data[data.index(row(1)) + 5] ^= 0xFF
    path.write_bytes(data)
    clock, kept, early = Clock(), {1: [], 2: []}, {1: {}, 2: {}}

    def receive(data):
        number, seq = map(int, data[4 : data.index(b'row', 1)].split(b':'))
        if seq >= len(kept[number]) and seq not in kept[number]:
            early[number][seq] = data
        follow = max(kept[number], default=-1) + 1
        if early[number] and max(early[number]) - follow >= WINDOW:
            follow = min(early[number])
        while follow in early[number]:
            early[number].pop(follow)
            kept[number].append(follow)
            follow += 1

    new = Spool(tmp_path, 2, receive, clock)
    fill(new, 4)
    for _ in range(20):
        clock.now += RESEND_MOST_S + 0.1
        new.poll()
        for number, seqs in kept.items():
            new.acknowledge(number, max(seqs, default=-1) + 1)
    assert kept[2] == [0, 1, 2, 3]
    assert len(new) == 0
    given_up = behind if behind < WINDOW else 0
    assert new.damaged == 1 + given_up
    assert kept[1] == [0, *range(2, 2 + behind - given_up)]
    assert len(list(tmp_path.glob('*.aside'))) == bool(given_up)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.just('put'), st.integers(0, 60), st.just('lose'), st.just('restart')),
        max_size=80,
    )
)
def test_whatever_happens_every_row_arrives_in_order(tmp_path_factory, events):
    folder, clock, store = tmp_path_factory.mktemp('spool'), Clock(), {}
    state = {'deaf': False}

    def receive(data):
        if not state['deaf']:
            text = (
                data[: data.index(b'row', 1)].decode() if data.count(b'row') > 1 else data.decode()
            )
            incarnation, seq = map(int, text.split()[1].split(':'))
            known = store.setdefault(incarnation, 0)
            if seq == known:
                store[incarnation] = seq + 1

    incarnation = 1
    spool = Spool(folder, incarnation, receive, clock)
    written = {1: 0}
    for event in events:
        if event == 'put':
            fill(spool, 1)
            written[incarnation] += 1
        elif event == 'lose':
            state['deaf'] = not state['deaf']
        elif event == 'restart':
            incarnation += 1
            written[incarnation] = 0
            spool = Spool(folder, incarnation, receive, clock)
        else:
            for number, known in list(store.items()):
                spool.acknowledge(number, min(known, event))
    state['deaf'] = False
    for _ in range(60):
        clock.now += RESEND_S + 0.1
        spool.poll()
        for number, known in list(store.items()):
            spool.acknowledge(number, known)
    assert {k: v for k, v in written.items() if v} == {k: v for k, v in store.items() if v}
    assert len(spool) == 0


WRITER = """
import sys, time
from pathlib import Path
from user_robot.spool import Spool
spool = Spool(Path(sys.argv[1]), 7, lambda row: None)
for _ in range(30):
    spool.put(f'row {spool.seq}'.encode() * 10)
spool.acknowledge(7, 12)
print('written', flush=True)
time.sleep(60)
"""


def test_a_killed_process_loses_nothing_and_sends_only_one_window_again(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, '-c', WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout.readline() == 'written\n'
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    sent = []
    spool = Spool(tmp_path, 8, sent.append)
    spool.poll()
    spool.acknowledge(7, 28)
    assert sent == [f'row {i}'.encode() * 10 for i in (*range(16), 28, 29)]


TORN = """
import sys
from pathlib import Path
from user_robot.spool import Spool
spool = Spool(Path(sys.argv[1]), int(sys.argv[2]), lambda row: None)
while True:
    spool.put(b'%d:%d ' % (spool.incarnation, spool.seq) + bytes(3_000_000))
    print(spool.seq, flush=True)
"""


def test_twenty_kills_at_random_moments_lose_no_row_and_damage_none_but_the_one_that_was_torn(
    tmp_path,
):
    """Rows of 3 MB, so that many kills fall into a write."""
    rng = random.Random(7)
    for incarnation in range(1, 21):
        folder = tmp_path / str(incarnation)
        writer = subprocess.Popen(
            [sys.executable, '-c', TORN, str(folder), str(incarnation)], stdout=subprocess.PIPE
        )
        put = int(writer.stdout.readline())
        time.sleep(rng.uniform(0.0, 0.04))
        writer.kill()
        put = int(([put, *writer.stdout.read().split()])[-1])
        writer.wait()
        sent = []
        spool = Spool(folder, 100, sent.append)
        assert spool.damaged <= 1
        assert put <= len(spool) <= put + 1  # it may have died after the write, before it told
        for seq in range(len(spool)):
            spool.poll()
            spool.acknowledge(incarnation, seq)
        assert [int(r[: r.index(b' ')].split(b':')[1]) for r in sent] == list(range(len(sent)))
        assert len(sent) >= put
        shutil.rmtree(folder)


SPOOLER = """
import sys
from pathlib import Path
from user_robot.spool import Spool
sent, folder = [], Path(sys.argv[1])
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except SyntaxError:
        exec(line)
        print(None, flush=True)
"""


@pytest.fixture
def spooler(tmp_path):
    """A process with a small disk that does what it is told; `do(text)` gives the answer."""
    processes = []

    def start(options='size=12m'):
        disk = tmp_path / 'disk'
        process = subprocess.Popen(
            [*disks.small_disk(disk, options), sys.executable, '-c', SPOOLER, str(disk)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(process)

        def do(text):
            process.stdin.write(f'{text}\n')
            process.stdin.flush()
            return eval(process.stdout.readline())

        do('None')  # now it has mounted its disk
        return do, disks.seen_by(process, disk)

    yield start
    for process in processes:
        process.kill()
        process.wait()


OPEN = 'spool = Spool(folder / "spool", 1, sent.append)'
PUT = 'spool.put(b"row 1:%d" % spool.seq * 20000)'


def left(disk, folder):
    """The seqs that a process finds which comes after a kill -9 of this moment."""
    shutil.copytree(disk / 'spool', folder)
    spool = Spool(folder, 9, lambda row: None)
    assert spool.damaged <= 1
    return [w.seq for w in spool._waiting]


def test_a_full_disk_loses_no_row_and_when_there_is_room_all_are_on_it_in_order(spooler, tmp_path):
    do, disk = spooler()
    do(OPEN)
    for _ in range(3):
        do(PUT)
    ballast = disks.fill(disk)
    for _ in range(20):
        do(PUT)
    full = do('spool.full')
    assert 'No space left' in full
    assert 'free some space' in full
    assert do('(spool.in_memory, len(spool), len(sent))') == (20, 23, WINDOW)
    assert left(disk, tmp_path / 'killed') == [0, 1, 2]  # 20 no disk ever took
    do('spool.acknowledge(1, 2)')
    do('spool.poll()')
    assert do('(bool(spool.full), spool.in_memory, len(spool))') == (True, 20, 21)
    ballast.unlink()
    do('spool.poll()')
    assert do('(spool.full, spool.in_memory, len(spool))') == ('', 0, 21)
    do(PUT)
    assert left(disk, tmp_path / 'after') == list(range(24))
    do('[spool.acknowledge(1, k) for k in range(24)] and None')
    assert do('[int(r[6:].split(b"row")[0]) for r in sent]') == list(range(24))


def test_a_disk_with_hardly_any_room_keeps_what_it_can_and_takes_no_new_episode(spooler, tmp_path):
    do, disk = spooler()
    do(OPEN)
    ballast = disks.fill(disk)
    do(PUT)
    os.truncate(ballast, ballast.stat().st_size - 8192)
    do('spool.put(b"small")')  # there is room for it, but none for the one before it
    assert do('spool.in_memory') == 2
    os.truncate(ballast, ballast.stat().st_size - 1_000_000)
    do('spool.poll()')
    assert do('(bool(spool.full), spool.in_memory)') == (True, 0)
    assert left(disk, tmp_path / 'killed') == [0, 1]
    ballast.unlink()
    do('spool.poll()')
    assert do('spool.full') == ''


@pytest.mark.parametrize('made', [False, True], ids=['no folder', 'no file'])
def test_a_disk_that_takes_no_new_file_is_full_too_from_the_start_on(spooler, made):
    """Every inode is used: neither the folder nor a file of rows can be made."""
    do, disk = spooler('size=12m,nr_inodes=30')
    if made:
        (disk / 'spool').mkdir()
    names = [disk / f'{i}' for i in range(40)]
    with suppress(OSError):
        for name in names:
            name.touch()
    do(OPEN)
    do(PUT)
    assert do('(bool(spool.full), spool.in_memory, len(sent))') == (True, 1, 1)
    for name in names[:20]:
        name.unlink()
    do('spool.poll()')
    assert do('(spool.full, spool.in_memory)') == ('', 0)


def test_rows_that_no_disk_took_are_counted_when_the_process_ends(spooler):
    do, disk = spooler()
    do(OPEN)
    do(PUT)
    disks.fill(disk)
    do(PUT)
    do(PUT)
    assert do('spool.close()') == 2


def test_a_replay_ten_times_slower_than_the_rows_costs_disk_and_no_memory(tmp_path):
    spool, _ = open_spool(tmp_path)
    size = 100_000

    def resident_mb():
        pages = int(Path('/proc/self/statm').read_text().split()[1])
        return pages * os.sysconf('SC_PAGESIZE') / 1e6

    spool._send = lambda row: None
    spool.put(bytes(size))
    before = resident_mb()
    for k in range(1500):
        spool.put(bytes([k % 256]) * size)
        if k % 10 == 0:
            spool.acknowledge(1, k // 10)
    on_disk = sum(p.stat().st_size for p in tmp_path.glob('*.spool'))
    assert len(spool) == 1501 - 149
    assert on_disk >= len(spool) * size
    assert resident_mb() - before < 20
    spool.acknowledge(1, 1501)
    assert sum(p.stat().st_size for p in tmp_path.glob('*.spool')) == 0


def test_keeping_a_row_is_cheap_enough_for_the_control_step(tmp_path):
    spool, _ = open_spool(tmp_path)
    begun = time.perf_counter()
    for i in range(500):
        spool.put(b'x' * 600)
        spool.acknowledge(1, i)
    assert (time.perf_counter() - begun) / 500 < 0.005
