# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Rows survive the death of the process and arrive in order, sent until acknowledged."""

import os
from pathlib import Path
import signal
import subprocess
import sys
import time

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from user_robot import spool as spools
from user_robot.spool import RESEND_S, WINDOW, Spool


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


def test_a_new_process_sends_what_the_old_one_left_before_its_own_and_nothing_twice(tmp_path):
    old, _ = open_spool(tmp_path, 1)
    fill(old, 8)
    old.acknowledge(1, 5)
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
    assert [p.name for p in tmp_path.iterdir()] == []


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


def test_a_killed_process_loses_nothing_and_only_what_was_not_acknowledged_is_sent_again(tmp_path):
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
    assert sent == [f'row {i}'.encode() * 10 for i in range(12, 30)]


def test_a_full_disk_is_said_in_a_sentence(tmp_path):
    if not Path('/dev/full').exists():
        pytest.skip('needs /dev/full')
    spool, _ = open_spool(tmp_path)
    fill(spool, 1)
    spool._file = os.open('/dev/full', os.O_WRONLY)
    with pytest.raises(spools.UserError, match='could not be written'):
        fill(spool, 1)


def test_keeping_a_row_is_cheap_enough_for_the_control_step(tmp_path):
    spool, _ = open_spool(tmp_path)
    begun = time.perf_counter()
    for i in range(500):
        spool.put(b'x' * 600)
        spool.acknowledge(1, i)
    assert (time.perf_counter() - begun) / 500 < 0.005
