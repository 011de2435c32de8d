# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The process that owns the ARX SDK, seen from the driver."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
import json
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from user_core.arm_config import Arx
from user_robot.arx.report import Report, unpack

START_S = 20.0
"""A process that has sent no sample by then has failed; the SDK may have locked itself up."""


class Process:
    """The process that owns the SDK, and the link to it.

    Attributes:
        said: the last error that it printed.
    """

    def __init__(self, config: Arx, engage: bool, environment: Mapping[str, str]) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, '-m', 'user_robot.arx.host', str(theirs.fileno())],
                env=environment, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                process_group=0,  # it outlives a killed driver: somebody has to damp the motors
            )  # fmt: skip
        self._out = self._link.dup()  # of its own, as a wait in `report` would be one here, too
        self._out.setblocking(False)
        self.said = ''
        self._reader = threading.Thread(target=self._read, name='arx says', daemon=True)
        self._reader.start()
        self.tell({'config': config.model_dump(mode='json'), 'engage': engage})

    def first(self) -> Report:
        """Waits for the first report; one without a sample says why there is none."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if (report := self.report(0.2)) is not None:
                return report
            if self.ended():
                break
        return Report(None, self.why('is not ready'))

    def report(self, seconds: float) -> Report | None:
        """The next report; None when there is none in this time or the process ended."""
        self._link.settimeout(seconds)
        try:
            data = self._link.recv(65536)
        except OSError:
            return None
        if not data:
            time.sleep(seconds)  # the other end is closed: a wait would return at once
        return unpack(data) if data else None

    def tell(self, command: Mapping[str, Any]) -> None:
        """Sends a command; a process that takes none has no use for it."""
        try:
            self._out.send(json.dumps(command).encode())
        except OSError:
            return

    def ended(self) -> bool:
        """The process is gone."""
        return self.process.poll() is not None

    def why(self, what: str) -> str:
        """A sentence about what is wrong with the process."""
        return f'the process that owns the ARX SDK {what}' + (
            f'; it said: {self.said}' if self.said else ''
        )

    def end(self, by_s: float) -> None:
        """Waits for its end until this time of the steady clock, then kills it."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(by_s - time.monotonic(), 0.0))
        self.kill()

    def kill(self) -> None:
        """Ends it at once; the motors keep their last command."""
        self.process.kill()
        self.process.wait()
        self._reader.join(1.0)
        self._link.close()
        self._out.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                text = line.decode(errors='replace').rstrip()
                if 'error' in text.lower() or 'what()' in text:
                    self.said = text.split('] ', 1)[-1]
                print(f'arx: {text}', file=sys.stderr, flush=True)
