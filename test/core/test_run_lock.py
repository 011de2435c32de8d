# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A run folder has one supervisor; whoever resumes it waits for what a killed one left."""

import os
import signal
import subprocess
import sys
import time

import pytest

from user_core import run_lock
from user_core.errors import UserError
from user_core.run_lock import RUN, SUPERVISOR, claim, claim_when_left

HOLDER = """
import sys, time
from pathlib import Path
from user_core.run_lock import claim
file = claim(Path(sys.argv[1]))
print('held', flush=True)
time.sleep(60)
"""

SUPERVISED = """
import sys
from pathlib import Path
from user_core.run_lock import claim
from user_core.runner import Process, Supervisor
folder = Path(sys.argv[1])
lock = claim(folder / 'supervisor.lock')
code = (
    'import signal, time; signal.signal(signal.SIGTERM, lambda *_: None)\\n'
    'print("up", flush=True); time.sleep(' + sys.argv[2] + ')'
)
part = Process('arm', [sys._base_executable, '-S', '-E', '-c', code])
Supervisor([part], folder / 'logs', lock=lock).run()
"""


@pytest.fixture
def start():
    """Starts a program and waits for its first line; kills it with the test."""
    started = []

    def begin(code: str, *arguments: str) -> subprocess.Popen:
        child = subprocess.Popen(
            [sys.executable, '-c', code, *arguments], stdout=subprocess.PIPE, text=True
        )
        started.append(child)
        return child

    yield begin
    for child in started:
        child.kill()
        child.wait()


def test_a_folder_that_is_held_is_refused_with_the_pid_of_its_holder(tmp_path, start):
    holder = start(HOLDER, str(tmp_path / SUPERVISOR))
    assert holder.stdout.readline() == 'held\n'
    said = []
    for take in (
        lambda: claim(tmp_path / SUPERVISOR),
        lambda: claim_when_left(tmp_path, said.append),
    ):
        with pytest.raises(UserError, match=f'alive. Process {holder.pid} works on it'):
            take()
    assert not said
    holder.kill()
    holder.wait()
    os.close(claim(tmp_path / SUPERVISOR))


def test_a_run_node_without_a_supervisor_holds_its_folder_too(tmp_path, start):
    """As after `ros2 launch`, whose nodes outlive it."""
    node = start(HOLDER, str(tmp_path / RUN))
    assert node.stdout.readline() == 'held\n'
    with pytest.raises(UserError, match=f'Process {node.pid} works on it'):
        claim_when_left(tmp_path, print)
    node.kill()
    node.wait()
    os.close(claim_when_left(tmp_path, print))


def test_what_a_killed_supervisor_left_is_waited_for_and_that_is_said(tmp_path, start):
    supervisor = start(SUPERVISED, str(tmp_path), '2')
    assert 'up' in supervisor.stdout.readline()
    children = [p for p in run_lock.holders(tmp_path / SUPERVISOR) if p != supervisor.pid]
    assert len(children) == 1
    supervisor.kill()
    supervisor.wait()
    said, begun = [], time.monotonic()
    os.close(claim_when_left(tmp_path, said.append))
    assert said == ['waits for what is left of the killed run to end: 1 processes']
    assert time.monotonic() - begun > 0.3
    assert not run_lock.holders(tmp_path / SUPERVISOR)


def test_what_never_ends_is_named_in_the_end(tmp_path, start, monkeypatch):
    monkeypatch.setattr('user_core.run_lock.LEAVE_S', 0.5)
    supervisor = start(SUPERVISED, str(tmp_path), '60')
    assert 'up' in supervisor.stdout.readline()
    (left,) = [p for p in run_lock.holders(tmp_path / SUPERVISOR) if p != supervisor.pid]
    supervisor.kill()
    supervisor.wait()
    try:
        with pytest.raises(UserError, match=f'Processes {left} are left'):
            claim_when_left(tmp_path, print)
    finally:
        os.kill(left, signal.SIGKILL)
