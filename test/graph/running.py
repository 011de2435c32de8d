# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A whole run as a user starts it, on the test's own domain: start, look, kill, wait."""

from contextlib import suppress
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

SHORT = (
    'budget.demos=2',
    'learner.warmup_updates=20',
    'evaluation.gate_successes=20',
    'learner.clone_updates=50',
)


class Running:
    """One `user run`; its folder, its processes, its numbers."""

    def __init__(
        self,
        runs: Path,
        *overrides: str,
        config: str = 'peg_rlpd',
        verb: str = 'run',
        inside: tuple[str, ...] = (),
    ) -> None:
        self.folder = runs / 'r'
        self.log = runs / 'log.txt'
        user = Path(sys.executable).with_name('user')
        command = [*inside, str(user), verb, config, f'runs={runs}', 'run=r', *overrides]
        with self.log.open('a') as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def status(self) -> dict:
        """The run's own status, {} before the first."""
        file = self.folder / 'status.json'
        return json.loads(file.read_text()) if file.exists() else {}

    def until(self, true, seconds: float = 90.0) -> dict:
        """Waits until `true(status)`; a run that ends meanwhile fails the test with its log."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            status = self.status()
            if status and true(status):
                return status
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.1)
        raise AssertionError(
            f'waited {seconds} s in vain: {self.status().get("live")}\n'
            f'{self.log.read_text()[-3000:]}'
        )

    def pid(self, executable: str, node: str = '') -> int:
        """The newest process of a node of this run."""
        found = []
        for folder in Path('/proc').iterdir():
            try:
                words = (folder / 'cmdline').read_bytes().decode().split('\0')
            except OSError:
                continue
            ours = any(str(self.folder) in w and node in w for w in words)
            if ours and any(w.endswith(f'/{executable}') for w in words):
                found.append(int(folder.name))
        assert found, f'no process of {executable}'
        return max(found)

    def nodes(self) -> dict[str, int]:
        """The newest process of each node, by its place in the graph, e.g. /arm0/arm."""
        found: dict[str, int] = {}
        for folder in Path('/proc').iterdir():
            try:
                words = (folder / 'cmdline').read_bytes().decode().split('\0')
            except OSError:
                continue
            if any(w.startswith(f'{self.folder}/params/') for w in words):
                parts = dict(w.split(':=') for w in words if ':=' in w)
                path = f'{parts["__ns"].rstrip("/")}/{parts["__node"]}'
                found[path] = max(int(folder.name), found.get(path, 0))
        return found

    def kill_all(self, seconds: float = 30.0) -> None:
        """Kill -9 of the supervisor and of every node at once; waits until all are gone."""
        pids = [self.process.pid, *self.nodes().values()]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        end = time.monotonic() + seconds
        while left := self.nodes():
            assert time.monotonic() < end, f'still there after {seconds} s: {left}'
            time.sleep(0.05)

    def kill(self, executable: str, node: str = '') -> int:
        """Kill -9 of a node."""
        pid = self.pid(executable, node)
        os.kill(pid, signal.SIGKILL)
        return pid

    def end(self, seconds: float = 120.0) -> dict:
        """Waits for the end and gives the report."""
        self.process.wait(timeout=seconds)
        return json.loads((self.folder / 'report.json').read_text())

    def close(self) -> None:
        """Ends what still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
