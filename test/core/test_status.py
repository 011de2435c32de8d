# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The panel of a run: what it shows, in place on a terminal, block after block elsewhere."""

import fcntl
import json
import math
import os
from pathlib import Path
import pty
import signal
import struct
import subprocess
import sys
import termios
import time

import numpy as np
import pytest

from user_core import run_folder, status
from user_core.config import load
from user_core.outcome import Boundary, Episode, Goal, Mode
from user_core.vitals import Rate, vitals

USER = str(Path(sys.executable).with_name('user'))
NODES = {
    '/arm0/arm': {'state': 'FAULT', 'reason': 'force 43 N', 'silent_s': 0.2, 'steps': 12.0},
    '/arm0/episode': {
        'state': 'RUNNING', 'reason': '', 'silent_s': 0.1, 'rows_unacknowledged': 3.0,
        'wrist_age_s': 0.031, 'side_age_s': 0.012,
    },
    '/arm1/episode': {'state': 'IDLE', 'silent_s': 0.1, 'rows_unacknowledged': 4.0},
    '/learning/learner': {'state': 'WAIT_DEMOS', 'reason': 'has 3 of 20 demonstrations',
                          'silent_s': 0.4, 'q': 0.5, 'alpha': 0.01, 'backlog': 0.0},
    '/learning/replay': {'state': 'STORING', 'silent_s': 12.0, 'rows': 40.0, 'bytes': 2e6},
}  # fmt: skip
SAID = {
    'phase': 'TRAINING', 'env_steps': 7, 'live': 'TRAINING 93 s', 'reason': 'nothing of note',
    'vitals': {'success': 0.25, 'episodes': 4, 'interventions': 0.125}, 'nodes': NODES,
}  # fmt: skip


def panel(**changes: object) -> str:
    return '\n'.join(
        status.panel('mine', SAID | changes, 1.0, [*NODES, '/learning/policy', '/run'])
    )


def test_the_panel_names_who_is_silent_who_holds_and_why_the_worst_first():
    lines = panel().splitlines()
    assert lines[:3] == ['mine: said 1 s ago', '  TRAINING 93 s', '  reason: nothing of note']
    assert lines[3:8] == [
        '  /learning/policy was not heard yet',
        '  /run was not heard yet',
        '  /learning/replay silent for 13 s',
        '  trouble: /arm0/arm FAULT force 43 N',
        '  waits: /learning/learner WAIT_DEMOS has 3 of 20 demonstrations',
    ]
    ended = panel(phase='END')
    assert 'mine: ended' in ended
    assert 'silent' not in ended, 'they have ended, too'


def test_the_panel_sums_over_cells_and_marks_what_is_unknown_or_no_number():
    text = panel()
    assert 'unacknowledged 7 ' in text
    assert 'success % 25   of the last 4   interventions % 12.5' in text
    assert 'Q 0.5   critic loss -' in text
    assert text.count('all finite') == 1
    assert '/arm0   wrist 0.031 s   side 0.012 s' in text
    broken = json.loads(json.dumps(NODES))
    broken['/learning/learner']['critic_loss'] = math.nan
    assert 'critic loss nan' in panel(nodes=broken)
    assert 'NOT FINITE: critic_loss' in panel(nodes=broken)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = run_folder.create(load('peg_rlpd', [f'runs={tmp_path}/runs']), 'mine')
    (made / 'status.json').write_text(json.dumps(SAID))
    return made


def test_live_on_a_pipe_is_a_block_a_second_without_escapes_and_ends_with_the_run(folder):
    live = subprocess.Popen([USER, 'status', '--live'], stdout=subprocess.PIPE, text=True)
    assert live.stdout is not None
    lines = [live.stdout.readline()]
    while sum(line.startswith('mine: ') for line in lines) < 3:
        lines.append(live.stdout.readline())
    (folder / 'status.json').write_text(json.dumps(SAID | {'phase': 'END'}))
    rest = live.communicate(timeout=30)[0]
    assert live.returncode == 0
    assert '\x1b' not in ''.join(lines) + rest
    assert '\n\nmine: s' in ''.join(lines)  # said, or stale on a busy machine
    assert 'mine: ended' in rest


def test_live_on_a_terminal_refreshes_in_place_and_ctrl_c_ends_it_well(folder):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 8, 30, 0, 0))
    live = subprocess.Popen([USER, 'status', 'mine', '--live'], stdout=theirs, stderr=theirs)
    shown, end = b'', time.monotonic() + 40
    while shown.count(b'\x1b[2J\x1b[Hmine: ') < 3:
        assert time.monotonic() < end, shown
        shown += os.read(ours, 65536)
    live.send_signal(signal.SIGINT)
    assert live.wait(20) == 0
    assert b'Traceback' not in shown
    block = shown.split(b'\x1b[2J\x1b[H')[2].decode().splitlines()
    assert len(block) == 7, 'as many lines as the terminal has, less one for the cursor'
    assert max(map(len, block)) == 29
    os.close(ours)
    os.close(theirs)


def test_a_run_that_has_not_begun_is_waited_for(folder):
    (folder / 'status.json').unlink()
    live = subprocess.Popen([USER, 'status', '--live'], stdout=subprocess.PIPE, text=True)
    assert live.stdout is not None
    assert 'no status yet' in live.stdout.readline()
    (folder / 'status.json').write_text(json.dumps(SAID | {'phase': 'END'}))
    assert 'mine: ended' in live.communicate(timeout=30)[0]


def test_the_nodes_that_should_speak_are_those_of_the_page_without_the_devices():
    expected = status.speaking(load('peg_rlpd', ['arm=franka_sim']))
    assert '/arm0/arm' in expected
    assert '/run' in expected
    assert not any('franka_server' in path for path in expected)


def test_a_rate_is_a_mean_over_half_a_minute_and_begins_anew_with_its_counter():
    rate = Rate()
    assert rate(100.0, now=0.0) == 0.0
    assert rate(150.0, now=5.0) == 10.0
    assert rate(1150.0, now=105.0) == 0.0, 'what is older than half a minute is forgotten'
    assert rate(1250.0, now=110.0) == 20.0
    assert rate(3.0, now=111.0) == 0.0
    assert rate(7.0, now=113.0) == 2.0


def test_what_the_run_alone_knows_is_shares_of_steps_and_periods_and_nothing_before_the_first():
    assert vitals([], {}, Rate()) == {}
    goal = Goal(Mode.TRAIN, 'actor', 0, 1)
    episodes = [
        Episode(goal, 'arm0', boundary, '', length=n, interventions=2, late_steps=1,
                period_s=np.full(n, 0.1, np.float32))
        for boundary, n in ((Boundary.SUCCESS, 30), (Boundary.TIMEOUT, 50))
    ]  # fmt: skip
    told = vitals(episodes, {'/learning/replay': {'rows': 5.0}}, Rate())
    assert told == pytest.approx({
        'steps_per_s': 0.0, 'success': 0.5, 'episodes': 2, 'interventions': 4 / 80,
        'late_steps': 2 / 80, 'period_p50_s': 0.1, 'period_p99_s': 0.1,
    })  # fmt: skip
