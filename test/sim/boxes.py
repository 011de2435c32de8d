# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Control boxes at loopback addresses: the simulated one as a process, and one that only answers
the first question.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import Any

from user_robot.franka.version import PORT


def address() -> str:
    """A loopback address that hardly another test takes."""
    return f'127.{os.getpid() % 250 + 1}.{os.urandom(1)[0]}.{os.urandom(1)[0] % 253 + 1}'


@dataclass
class Box:
    """A simulated control box in its own process."""

    options: tuple[str, ...] = ('--exact',)
    address: str = field(default_factory=address)
    process: Any = None

    def start(self) -> None:
        """Waits until it serves."""
        command = [sys.executable, '-m', 'user_sim.franka.server', '--address', self.address]
        self.process = subprocess.Popen(
            [*command, *self.options], stdout=subprocess.PIPE, text=True
        )
        assert 'answers at' in self.process.stdout.readline()

    def press_button(self) -> None:
        """The enabling button: released, or held again."""
        self.process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@contextmanager
def box(*options: str) -> Iterator[Box]:
    """A box without unobserved errors."""
    running = Box(('--exact', *options))
    running.start()
    try:
        yield running
    finally:
        running.kill()


@contextmanager
def answering(where: str, answer: bytes | None) -> Iterator[list[bytes]]:
    """What notes each request on the robot's port and gives one answer to it, None for none."""
    requests: list[bytes] = []
    done = threading.Event()
    with socket.create_server((where, PORT)) as listener:

        def serve() -> None:
            while True:
                try:
                    tcp, _ = listener.accept()
                except OSError:
                    return
                with tcp, suppress(ConnectionResetError):
                    requests.append(tcp.recv(64))
                    if answer is not None:
                        tcp.sendall(answer)
                        tcp.recv(64)
                    else:
                        done.wait(5)

        thread = threading.Thread(target=serve)
        thread.start()
        yield requests
        done.set()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def reply(status: int, version: int) -> bytes:
    """Libfranka's answer to Connect."""
    return struct.pack('<IIIHH4x', 0, 1, 20, status, version)
