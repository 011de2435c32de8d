# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What an arm needs around it without a run: its simulated device, or a place on a graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import os
from pathlib import Path
import signal
import subprocess
import tempfile
import time

from user_core.config import RunConfig
from user_core.errors import UserError
from user_core.plan import DEVICES, plan
from user_core.runner import die_with_parent, processes
from user_robot.arm import Site

START_S, END_S = 30.0, 5.0


@contextmanager
def device(config: RunConfig, cell: str) -> Iterator[Site]:
    """Where a cell's driver works; what a `*_sim` arm talks to is started there and ended again.

    Raises:
        UserError: it does not start.
    """
    executable = DEVICES.get(config.cells[cell].arm.kind)
    if executable is None:
        yield Site(cell)
        return
    nodes = [n for n in plan(config) if (n.executable, n.namespace) == (executable, f'/{cell}')]
    with tempfile.TemporaryDirectory(prefix='user-teach-') as name:
        folder = Path(name)
        process = processes(nodes, config.to_json(), f'teach-{os.getpid()}', folder)[0]
        log = folder / 'said.log'
        with log.open('wb') as out:
            child = subprocess.Popen(
                process.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env=os.environ | dict(process.env), process_group=0,
                preexec_fn=die_with_parent(),
            )  # fmt: skip
        try:
            _await(child, log)
            yield Site(cell, folder)
        finally:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _await(child: subprocess.Popen[bytes], log: Path) -> None:
    """Waits for its first line."""
    end = time.monotonic() + START_S
    while not (said := log.read_text(errors='replace').strip()) or child.poll() is not None:
        if child.poll() is not None or time.monotonic() > end:
            why = said.splitlines()[-1].removeprefix('FATAL ') if said else 'it says nothing'
            raise UserError('the simulated device does not start', why)
        time.sleep(0.05)
