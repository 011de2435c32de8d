# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Looks whether the arms and cameras of a page can be used.

`arm_check` and `camera_check` of user_robot do it in the robot's own interpreter: no driver is
imported here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
import json
import os
import subprocess
from typing import NamedTuple

from user_core.config import RunConfig
from user_core.runner import find_executable


class Line(NamedTuple):
    """One verdict: a sentence for people, with what to do when it is not good."""

    good: bool
    text: str


def arms(config: RunConfig, machine: str | None, move: bool) -> Iterator[Line]:
    """Verdicts on the arms of a machine's cells, as they come; `move` allows small motions."""
    for name, cell in config.cells.items():
        if machine not in (None, cell.machine):
            continue
        yield from _ask('arm', name, 'move' if move else '', config.to_json())


def cameras(config: RunConfig, machine: str | None) -> Iterator[Line]:
    """Verdicts on the cameras that are plugged into a machine (null: any), as they come."""
    for name, cell in config.cells.items():
        if any(machine in (None, c.machine or cell.machine) for c in cell.cameras.values()):
            yield from _ask('camera', name, machine or '', config.to_json())


def _ask(device: str, cell: str, word: str, config: str) -> Iterator[Line]:
    command = [str(find_executable('user_robot', f'{device}_check')), cell, word]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {'PYTHONUNBUFFERED': '1'},
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with suppress(BrokenPipeError):  # its exit code tells
                child.stdin.write(config)
                child.stdin.close()
            for line in child.stdout:  # drivers print, too
                if line.startswith('{"good"'):
                    said = json.loads(line)
                    yield Line(bool(said['good']), f'{cell}: {said["text"]}')
            code = child.wait()
        finally:
            child.kill()
    if code:
        yield Line(False, f'{cell}: the check of its {device} failed with exit code {code}.')
