# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The replay's node on real DDS: what it acknowledges, and what it does beside storing a row."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
import json
from pathlib import Path
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

from colours import episode
from disks import fill, seen_by, small_disk
import pytest

pytest.importorskip('user_msgs.msg')
from user_msgs.msg import Ack, Image, Metrics, StepId, Transition

from user_core import jpeg, topics
from user_core.config import RunConfig
from user_core.guest import Guest
from user_core.messages import octets
from user_core.outcome import Mode
from user_learning.replay_node import ReplayNode
from user_learning.row import Row
from user_learning.store import Store
from user_learning.tail import Tail
from user_learning.video import Videos

pytestmark = pytest.mark.needs_ros


def message(row: Row) -> Transition:
    """What a cell sends of it, as far as videos need it."""
    images = [
        Image(name=p.name, encoding=p.encoding, height=p.height, width=p.width,
              data=array('B', p.data.tobytes()))
        for p in row.images
    ]  # fmt: skip
    return Transition(
        id=StepId(run=row.run, cell=row.cell, episode=row.episode, step=row.step),
        incarnation=row.incarnation, seq=row.seq, mode=int(row.mode), policy=row.policy,
        policy_version=row.policy_version, boundary=int(row.boundary), closing=row.closing,
        images=images,
    )  # fmt: skip


def test_a_row_that_comes_twice_is_once_in_the_video(tmp_path: Path) -> None:
    store, said = Store(tmp_path / 'store'), []
    node = SimpleNamespace(
        shell=SimpleNamespace(run='run'),
        store=store,
        videos=Videos(tmp_path / 'videos', 10.0, said.append),
        acked={},
        acknowledge=lambda: None,
    )
    for row in episode(1, 12, Mode.EVAL):
        for _ in range(2):
            ReplayNode.on_row(node, message(row))
    ReplayNode.close(node)
    assert store.duplicates == 13
    assert said == []
    cv2 = jpeg.codec()
    video = cv2.VideoCapture(str(tmp_path / 'videos' / 'eval-actor-3-side.webm'))
    frames = 0
    while video.read()[0]:
        frames += 1
    assert frames == 13


WINDOW = 16


class Cell:
    """The sender's side of the wire, and the replay's process. A row is sent once."""

    def __init__(self, page: Path, folder: Path, begin: list[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = RunConfig.model_validate({'name': 'replay', 'cells': {'arm0': {}}})
        values = {'config': config.to_json(), 'run': 'run', 'run_folder': str(folder)}
        page.write_text(json.dumps({'/**': {'ros__parameters': values}}))
        self.guest = Guest('arm0')
        self.sent = self.acked = 0
        self.numbers: dict = {}
        topic = topics.TOPICS['transition']
        self.rows = self.guest.node.create_publisher(
            topic.type, topics.name('transition', 'arm0'), topic.writer
        )
        for key, hear in {'ack': self.on_ack, 'metrics': self.on_metrics}.items():
            self.guest.node.create_subscription(
                topics.TOPICS[key].type, topics.name(key), hear, topics.TOPICS[key].reader
            )
        arguments = ['-r', '__node:=replay', '-r', '__ns:=/learning', '--params-file', str(page)]
        self.process = subprocess.Popen(
            [*begin, sys.executable, '-m', 'user_learning.replay_node', '--ros-args', *arguments]
        )

    def on_ack(self, msg: Ack) -> None:
        assert msg.next_seq >= self.acked
        self.acked = msg.next_seq

    def on_metrics(self, msg: Metrics) -> None:
        if msg.node == '/learning/replay':
            values = dict(zip(msg.names, msg.values, strict=True))
            self.numbers = {**values, 'state': msg.state, 'reason': msg.reason}

    def until(self, true: Callable[[], bool], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert self.process.poll() is None
            assert time.monotonic() < end, self.numbers
            self.guest.executor.spin_once(timeout_sec=0.02)

    def ready(self) -> None:
        self.until(lambda: self.rows.get_subscription_count() > 0 and bool(self.numbers))

    def send(self, pixels: int = 0) -> None:
        images = [Image(name='side', encoding='rgb8', height=1, width=pixels // 3,
                        data=octets(bytes(pixels)))] * bool(pixels)  # fmt: skip
        identity = StepId(run='run', cell='arm0', episode=1, step=self.sent)
        self.rows.publish(
            Transition(id=identity, incarnation=1, seq=self.sent, mode=Mode.TRAIN, images=images)
        )
        self.sent += 1

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Callable[..., Cell]]:
    cells: list[Cell] = []

    def start(folder: Path = tmp_path / 'run', begin: list[str] | None = None) -> Cell:
        cells.append(Cell(tmp_path / 'replay.yaml', folder, begin or []))
        return cells[-1]

    yield start
    for one in cells:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        one.guest.close()


def test_a_replay_that_is_told_to_end_loses_no_row_and_acknowledges_the_last_ones(
    cell: Callable[..., Cell], tmp_path: Path
) -> None:
    one = cell()
    one.ready()
    while one.acked < 100:
        if one.sent - one.acked < WINDOW:
            one.send(pixels=3000)
        one.guest.executor.spin_once(timeout_sec=0.0)
    one.until(lambda: one.acked == one.sent)
    for _ in range(WINDOW):
        one.send(pixels=3000)
    store = Tail(tmp_path / 'run' / 'store')
    while not any(isinstance(r, Row) and r.seq >= one.acked for r in store.rows()):
        pass  # now the first of them are written, and no sync was yet
    one.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + 20
    while one.process.poll() is None and time.monotonic() < end:
        one.guest.executor.spin_once(timeout_sec=0.02)
    assert one.process.poll() == 0
    for _ in range(20):
        one.guest.executor.spin_once(timeout_sec=0.02)
    rows = [r.seq for r in Tail(tmp_path / 'run' / 'store').rows() if isinstance(r, Row)]
    assert rows == list(range(one.acked))
    assert one.acked >= 100


def test_a_full_disk_is_a_state_and_replay_goes_on_by_itself(
    cell: Callable[..., Cell], tmp_path: Path
) -> None:
    folder = tmp_path / 'disk' / 'run'
    one = cell(folder, small_disk(tmp_path / 'disk'))
    one.ready()
    assert one.numbers['state'] == 'STORING'
    ballast = fill(seen_by(one.process, tmp_path / 'disk'))
    for _ in range(8):
        one.send(pixels=30_000)
    one.until(lambda: one.numbers['state'] == 'DISK_FULL')
    assert 'No space left' in one.numbers['reason']
    for _ in range(8):
        one.send(pixels=30_000)
    one.until(lambda: one.numbers['waiting'] + one.numbers['rows'] == 16)
    held = one.acked
    assert held == one.numbers['rows'] < 16
    ballast.unlink()
    one.until(lambda: one.acked == 16)
    one.until(lambda: one.numbers['state'] == 'STORING')
    assert one.numbers['dropped'] == one.numbers['lost'] == one.numbers['duplicates'] == 0
    rows = Tail(seen_by(one.process, folder) / 'store').rows()
    assert [r.seq for r in rows if isinstance(r, Row)] == list(range(16))
    one.close()


def test_a_replay_that_starts_on_a_full_disk_says_so_and_opens_when_there_is_room(
    cell: Callable[..., Cell], tmp_path: Path
) -> None:
    folder = tmp_path / 'disk' / 'run'
    begin = small_disk(tmp_path / 'disk', 'size=12m,nr_inodes=3')
    ballast = 'mkdir -p "$0" && touch "$0/ballast" && exec "$@"'
    one = cell(folder, [*begin, 'sh', '-c', ballast, str(folder)])
    one.ready()
    assert one.numbers['state'] == 'DISK_FULL'
    one.send()
    one.until(lambda: one.numbers['state'] == 'DISK_FULL')
    assert one.acked == 0
    command = ['nsenter', '-t', str(one.process.pid), '-U', '--preserve-credentials', '-m']
    more = ['mount', '-o', 'remount,size=12m,nr_inodes=99', str(tmp_path / 'disk')]
    subprocess.run([*command, *more], check=True)
    one.until(lambda: one.numbers['state'] == 'STORING')
    one.sent = 0  # its sender sends it again
    one.send()
    one.until(lambda: one.acked == 1)
    one.close()


def test_a_row_that_comes_again_is_acknowledged_again(cell: Callable[..., Cell]) -> None:
    one = cell()
    one.ready()
    one.send()
    one.until(lambda: one.acked == 1)
    one.sent = one.acked = 0
    one.send()
    one.until(lambda: one.acked == 1)
    assert one.numbers['rows'] <= 1
    one.close()
