# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Shared memory after kill -9: what the dead left goes, what the living hold stays."""

from collections.abc import Iterator
import fcntl
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import pytest

from user_core import shared_memory
from user_core.shared_memory import FOLDER, Dead, Lease, clean

TALKER = """
import sys, time
import rclpy
from std_msgs.msg import String

rclpy.init()
name = sys.argv[1]
node = rclpy.create_node(name)
pub = node.create_publisher(String, '/talk', 10)
node.create_subscription(String, '/talk', lambda m: print(m.data, flush=True), 10)
node.create_timer(0.1, lambda: pub.publish(String(data=f'{name} {time.monotonic()}')))
rclpy.spin(node)
"""

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason='there is no /dev/shm')


class Talkers:
    """Processes with a node each; what they hear of each other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, dict[str, subprocess.Popen]()

    def start(self, name: str) -> None:
        out = (self.folder / f'{name}.txt').open('w')
        command = [sys.executable, '-c', TALKER, name]
        self.processes[name] = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def hears(self, name: str, other: str, since: float = 0.0) -> bool:
        lines = [line.split() for line in (self.folder / f'{name}.txt').read_text().splitlines()]
        return any(len(w) == 2 and w[0] == other and float(w[1]) > since for w in lines)

    def until_all_hear(self, *names: str, since: float = 0.0) -> None:
        end = time.monotonic() + 40
        while not all(self.hears(a, b, since) for a in names for b in names):
            assert time.monotonic() < end, f'{names} do not hear each other'
            time.sleep(0.1)

    def segments(self, name: str) -> set[Path]:
        """The segments that a process owns: it has their lock files open."""
        fds = Path(f'/proc/{self.processes[name].pid}/fd')
        opened = {fd.readlink() for fd in fds.iterdir() if fd.is_symlink()}
        return {
            p.with_name(p.name[:-3])
            for p in opened
            if p.parent == FOLDER and p.name.endswith(('_el', '_sl'))
        }


@pytest.fixture
def talkers(tmp_path) -> Iterator[Talkers]:
    made = Talkers(tmp_path)
    yield made
    for name in made.processes:
        made.kill(name)
    clean()


def parts(segment: Path) -> list[Path]:
    beside = [segment.with_name(f'{segment.name}{end}') for end in ('_el', '_sl')]
    return [segment, segment.with_name(f'sem.{segment.name}_mutex'), *beside]


def test_segments_of_a_killed_node_go_and_the_living_talk_on(talkers):
    for name in 'abc':
        talkers.start(name)
    talkers.until_all_hear('a', 'b', 'c')
    dead, alive = talkers.segments('a'), talkers.segments('b') | talkers.segments('c')
    assert len(dead) >= 2, 'a segment and a port'
    assert len(alive) >= 4
    clean()
    assert all(segment.exists() for segment in dead | alive), 'nobody was dead'
    talkers.kill('a')
    assert all(segment.exists() for segment in dead), 'kill -9 leaves them'
    cleaned, now = clean(), time.monotonic()
    assert cleaned.segments >= len(dead)
    assert cleaned.bytes > 500_000
    assert f'removed {cleaned.segments} dead segments of Fast DDS' in cleaned.text
    assert [p for segment in dead for p in parts(segment) if p.exists()] == []
    assert all(segment.exists() for segment in alive)
    talkers.until_all_hear('b', 'c', since=now + 0.5)
    talkers.start('d')  # takes the ports that the dead one had
    talkers.until_all_hear('b', 'c', 'd', since=now + 0.5)


def made(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).write_bytes(bytes(10))
    return [folder / name for name in names]


def test_a_segment_is_dead_only_when_every_lock_of_it_is_free(tmp_path):
    dead = made(tmp_path, 'fastrtps_0123456789abcdef', 'fastrtps_0123456789abcdef_el')
    port = made(tmp_path, 'fastrtps_port7000', 'sem.fastrtps_port7000_mutex')
    locks = made(tmp_path, 'fastrtps_port7000_el', 'fastrtps_port7000_sl')
    foreign = made(tmp_path, 'fastrtps_fedcba9876543210', 'sem.other', 'lttng', 'fastrtps_x_el')
    with locks[1].open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert clean(tmp_path) == Dead(1, 0, 10, 0)
        assert [p.exists() for p in (*dead, *port, *locks)] == [False] * 2 + [True] * 4
    assert clean(tmp_path) == Dead(1, 0, 10, 0)
    assert sorted(tmp_path.iterdir()) == sorted(foreign), 'what has no lock is nobody knows whose'


HOLDER = """
import sys, time
from pathlib import Path
from user_core.shared_memory import Lease
lease = Lease(sys.argv[1], Path(sys.argv[2]))
print('held', flush=True)
time.sleep(600)
"""


def holder(run: str, folder: Path) -> subprocess.Popen:
    command = [sys.executable, '-c', HOLDER, run, str(folder)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == 'held\n'
    return child


def test_what_a_killed_run_left_goes_and_a_living_one_with_a_longer_name_keeps_its_own(tmp_path):
    me = f'user-{os.getuid()}'
    for run in ('peg', 'peg-2', 'old'):
        folder = tmp_path / f'{me}-{run}'
        folder.mkdir()
        made(folder, 'actor-1.safetensors')
        made(tmp_path, f'{me}-{run}-arm0.scene')
    peg, again, other = (holder(run, tmp_path) for run in ('peg', 'peg', 'peg-2'))
    try:
        peg.kill()
        peg.wait()
        assert clean(tmp_path) == Dead(0, 0, 0, 0), 'another node of that run lives'
        again.kill()
        again.wait()
        assert clean(tmp_path) == Dead(0, 1, 20, 0)
        left = {p.name for p in tmp_path.iterdir()}
        longer = {f'{me}-peg-2', f'{me}-peg-2-arm0.scene', f'{me}-peg-2.lock'}
        unknown = {f'{me}-old', f'{me}-old-arm0.scene'}  # it never said that it lived
        assert left == longer | unknown
    finally:
        for child in (peg, again, other):
            child.kill()
            child.wait()


def test_the_last_node_that_ends_in_order_takes_the_lock_file_along(tmp_path):
    first, second = Lease('r', tmp_path), Lease('r', tmp_path)
    first.close()
    assert second.path.exists()
    second.close()
    assert list(tmp_path.iterdir()) == []
    Lease('r', tmp_path / 'nowhere').close()  # a system without shared memory


@pytest.mark.skipif(os.geteuid() != 0, reason='needs root, to be somebody else')
def test_what_another_user_s_dead_left_is_counted_and_left(tmp_path):
    folder = Path('/tmp') / f'user-shm-{os.getpid()}'
    folder.mkdir()
    folder.chmod(0o1777)
    files = made(folder, 'fastrtps_0123456789abcdef', 'fastrtps_0123456789abcdef_el')
    child = os.fork()
    if child == 0:  # as nobody
        os.setuid(65534)
        cleaned = shared_memory.clean(folder)
        os._exit(0 if cleaned == Dead(0, 0, 0, 1) and 'another user' in cleaned.text else 1)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert all(file.exists() for file in files)
    finally:
        for file in files:
            file.unlink(missing_ok=True)
        folder.rmdir()


def test_nothing_to_clean_says_nothing(tmp_path):
    assert clean(tmp_path).text == ''
    assert clean(tmp_path / 'nowhere') == Dead(0, 0, 0, 0)
