# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Two rooms: network namespaces of this machine with a lossy, slow link between them.

The kernel's own emulator is not everywhere, so a process carries every Ethernet frame from one
room's TAP device to the other's, drops and delays them by a seeded dice, and lets only so many
bytes a second through.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
from pathlib import Path
import random
import select
import shutil
import struct
import subprocess
import sys
import time

ROOMS = ('left', 'right')
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
MTU = 1500
QUEUE_S = 0.5
"""A frame that would wait longer before a narrow link is dropped, as a router does."""


def missing() -> str:
    """Why rooms cannot be had here, '' if they can."""
    if os.geteuid() != 0:
        return 'network namespaces need root'
    if not Path('/dev/net/tun').exists():
        return 'there is no /dev/net/tun'
    if shutil.which('ip') is None:
        return 'there is no `ip` (iproute2)'
    probe = ('ip', 'netns', 'add', f'user-{os.getpid()}-probe')
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    subprocess.run(('ip', 'netns', 'del', probe[-1]), capture_output=True, check=False)
    return '' if done.returncode == 0 else f'no network namespace: {done.stderr.strip()}'


class Rooms:
    """Two namespaces and their link, for a `with` statement.

    Args:
        loss: share of frames that are dropped, each way.
        delay_s: time that every frame takes.
        seed: of the dice.
        rate: bytes a second that pass each way, 0: any.
    """

    def __init__(
        self, loss: float = 0.0, delay_s: float = 0.0, seed: int = 0, rate: float = 0.0
    ) -> None:
        self.names = {room: f'user-{os.getpid()}-{room}' for room in ROOMS}
        self._link = [sys.executable, __file__, *self.names.values()]
        self._link += [str(loss), str(delay_s), str(seed), str(rate)]
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> Rooms:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        for number, name in enumerate(self.names.values(), 1):
            _run('ip', 'netns', 'add', name)
            inside = ('ip', '-n', name)
            _run(*inside, 'link', 'set', 'lo', 'up')
            _run(*inside, 'tuntap', 'add', 'link0', 'mode', 'tap')
            _run(*inside, 'addr', 'add', f'10.77.0.{number}/24', 'dev', 'link0')
            _run(*inside, 'link', 'set', 'link0', 'mtu', str(MTU), 'up')
        self._process = subprocess.Popen(self._link, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == 'up\n'

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for name in self.names.values():
            subprocess.run(['ip', 'netns', 'del', name], capture_output=True, check=False)

    def start(self, room: str, *command: str, **options: object) -> subprocess.Popen:
        """Starts a command in a room."""
        words = ['ip', 'netns', 'exec', self.names[room], *command]
        return subprocess.Popen(words, **options)  # type: ignore[call-overload]


def carry(left: str, right: str, loss: float, delay_s: float, seed: int, rate: float) -> None:
    """Carries frames between the namespaces' devices until it is killed."""
    dice = random.Random(seed)
    ends = [_device(name) for name in (left, right)]
    other = dict(zip(ends, reversed(ends), strict=True))
    due: list[tuple[float, int, int, bytes]] = []
    clear = dict.fromkeys(ends, 0.0)
    number = 0
    print('up', flush=True)
    while True:
        wait = max(due[0][0] - time.monotonic(), 0.0) if due else None
        for end in select.select(ends, [], [], wait)[0]:
            frame, now = os.read(end, 65536), time.monotonic()
            if dice.random() < loss or clear[end] - now > QUEUE_S:
                continue
            number += 1
            clear[end] = max(clear[end], now) + (len(frame) / rate if rate else 0.0)
            heapq.heappush(due, (clear[end] + delay_s, number, other[end], frame))
        while due and due[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(due)
            os.write(end, frame)


def _device(namespace: str) -> int:
    """The descriptor of a namespace's `link0`; it stays good outside of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path('/var/run/netns', namespace).open() as place:
        if libc.setns(place.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f'cannot enter {namespace}')
    tap = os.open('/dev/net/tun', os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack('16sH22x', b'link0', IFF_TAP | IFF_NO_PI))
    return tap


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


if __name__ == '__main__':
    LOSS, DELAY_S, SEED, RATE = sys.argv[3:]
    carry(sys.argv[1], sys.argv[2], float(LOSS), float(DELAY_S), int(SEED), float(RATE))
