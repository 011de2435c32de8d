# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What two cameras at 30 Hz cost, and how old a view is when it is received.

    .venv/bin/python bench/cameras.py [seconds=10] [kinds=realsense,v4l2,sim]

Two cameras, wrist and side, with views of 128 x 128, as the plan starts them (`only=camera`, for
drawn ones `only=arm,cameras pace=realtime`), and one subscriber. realsense is a recording of
640 x 480 through pyrealsense2, v4l2 a video file (MJPG) of that size through OpenCV, sim the drawn
cameras of the peg's scene. Prints one JSON line:

    fps          views that were received a second, of each camera
    view_ms      stamp of a view to its arrival here [p50, p99]; a drawn one, whose stamp is
                 simulated time: from the scene's writing to its publication, told by its node
    cpu          share of a core of each camera (a drawn one: half of the node that draws both)
    budget       cpu at most
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile
import time

import cv2
import numpy as np

from user_core.guest import Guest
from user_core.messages import NS, nanoseconds
from user_core.topics import TOPICS, name
from user_sim.recording import FPS, HEIGHT, WIDTH, bar, record

CAMERAS = ('wrist', 'side')
BUDGET = 0.25
WARM_UP_S = 3.0
STARTS_S = 60.0


def page(kind: str, folder: Path) -> list[str]:
    """The settings of two cameras of a kind; makes their files."""
    film = folder / f'film.{"db3" if kind == "realsense" else "avi"}'
    if kind == 'realsense':
        record(film, bar(2 * FPS))
    elif kind == 'v4l2':
        out = cv2.VideoWriter(str(film), cv2.VideoWriter.fourcc(*'MJPG'), FPS, (WIDTH, HEIGHT))
        for color, _ in bar(2 * FPS):
            out.write(color)
        out.release()
    part = {'realsense': f'recording: {film}', 'v4l2': f'device: {film}', 'sim': ''}[kind]
    wrist = f'cells.arm0.cameras.wrist={{kind: {kind}, {part}}}'
    if kind == 'v4l2':  # one device is one camera
        (folder / 'other.avi').symlink_to(film)
        part = f'device: {folder / "other.avi"}'
    only = 'arm,cameras' if kind == 'sim' else 'camera'
    return [
        wrist, f'cells.arm0.cameras.side={{kind: {kind}, {part}}}', f'only={only}',
        'pace=realtime', f'runs={folder}', 'run=bench',
    ]  # fmt: skip


class Looker:
    """Subscribes to both views and to what the nodes say of themselves."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.ages: dict[str, list[float]] = {camera: [] for camera in CAMERAS}
        self.numbers: dict[str, float] = {}
        view, metrics = TOPICS['view'], TOPICS['metrics']
        for camera in CAMERAS:
            guest.node.create_subscription(
                view.type, name('view', 'arm0', camera),
                lambda m, c=camera: self.on_view(c, m), view.reader,
            )  # fmt: skip
        guest.node.create_subscription(
            metrics.type, name('metrics'), self.on_metrics, metrics.reader
        )

    def on_view(self, camera: str, message) -> None:
        """A view, and its age."""
        stamp = nanoseconds(message.header.stamp)
        self.ages[camera].append((time.time_ns() - stamp) / NS)

    def on_metrics(self, message) -> None:
        """The drawn cameras' own numbers."""
        if message.node == '/arm0/cameras':
            self.numbers = dict(zip(message.names, message.values, strict=True))

    def spin(self, seconds: float) -> None:
        """Listens."""
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            self.guest.executor.spin_once(left_s)


def pids(folder: Path) -> list[int]:
    """The processes of the run's cameras."""
    found = []
    for place in Path('/proc').glob('[0-9]*'):
        try:
            words = (place / 'cmdline').read_bytes().decode().split('\0')
        except OSError:
            continue
        ours = any(w.startswith(str(folder)) for w in words)
        if ours and any(w in ('__node:=camera', '__node:=cameras') for w in words):
            found.append(int(place.name))
    return found


def used_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def measure(kind: str, seconds: float) -> dict:
    """Two cameras of a kind."""
    with tempfile.TemporaryDirectory() as place, Guest('looker') as guest:
        folder = Path(place)
        log = folder / 'log'
        command = [str(Path(sys.executable).with_name('user')), 'run', 'peg_rlpd']
        command += page(kind, folder)
        with log.open('w') as out:
            run = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            looker = Looker(guest)
            end = time.monotonic() + STARTS_S
            while not all(looker.ages.values()):
                looker.spin(0.1)
                if time.monotonic() > end or run.poll() is not None:
                    raise SystemExit(f'no views: {log.read_text()}')
            looker.spin(WARM_UP_S)
            nodes = pids(folder)
            before, begun = {pid: used_s(pid) for pid in nodes}, time.monotonic()
            for ages in looker.ages.values():
                ages.clear()
            looker.spin(seconds)
            span_s = time.monotonic() - begun
            cpu = [(used_s(pid) - before[pid]) / span_s for pid in nodes]
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(30)
    ages = np.concatenate([np.array(a) for a in looker.ages.values()])
    drawn = kind == 'sim'
    ms = [1e3 * float(np.quantile(ages, q)) for q in (0.5, 0.99)]
    if drawn:
        ms = [looker.numbers['latency_p50_ms'], looker.numbers['latency_p99_ms']]
        cpu = [cpu[0] / 2] * 2
    return {
        'fps': [round(len(a) / span_s, 1) for a in looker.ages.values()],
        'view_ms': [round(m, 2) for m in ms],
        'cpu': [round(share, 3) for share in cpu],
    }


def main() -> None:
    """Every kind, one line."""
    words = dict(word.split('=', 1) for word in sys.argv[1:])
    seconds = float(words.get('seconds', '10'))
    kinds = words.get('kinds', 'realsense,v4l2,sim').split(',')
    os.environ.setdefault('ROS_DOMAIN_ID', '93')
    os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    numbers = {kind: measure(kind, seconds) for kind in kinds}
    print(json.dumps(numbers | {'budget': BUDGET, 'cores': os.cpu_count()}))


if __name__ == '__main__':
    main()
