# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The journal of a run: what it knows is what it wrote.

    <run folder>/journal.jsonl, one line an event: {"what": ..., "at": ..., "wall_s": ...,
    "seconds": {phase: s}, ...}
    start     a run node begins or goes on
    episode   a cell's episode that was not void: goal and result
    begin     an evaluation of a frozen version begins; the episodes up to `end` are its own
    end       it is complete
    count     what the store held when a run went on: it also holds what no line tells
    over      the run ended in order: `solved`, and `why` if it ended early

A line is on disk before the next goal is sent, so a kill costs the line of an episode at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from user_core.errors import UserError
from user_core.outcome import Boundary, Episode, Goal, Mode

NAME = 'journal.jsonl'

Event = Mapping[str, Any]


class Journal:
    """Appends events to a file and syncs each; knows those that were there. One process.

    Raises:
        UserError: a line other than the last one is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events, self._size = _read(path)
        self._torn = path.exists() and path.stat().st_size > self._size

    def append(self, event: Event) -> None:
        """Writes and syncs a line, or none of it. Raises OSError: the disk is full."""
        data = json.dumps(event).encode() + b'\n'
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if self._torn:
                os.ftruncate(file, self._size)
            self._torn = True
            if os.pwrite(file, data, self._size) != len(data):
                raise OSError(28, 'the disk took only a part of the line')
            os.fsync(file)
            if not self._size:
                _sync(self.path.parent)
            self._size, self._torn = self._size + len(data), False
        finally:
            os.close(file)
        self.events.append(dict(event))


def _sync(folder: Path) -> None:
    """The name of a new file is on disk, too."""
    there = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(there)
    finally:
        os.close(there)


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Events, and the bytes that they take: a last line that a kill tore counts as not written."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    events, size = list[dict[str, Any]](), 0
    lines = data.split(b'\n')[:-1]
    for n, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            event['what']
        except (ValueError, KeyError, TypeError) as error:
            if n == len(lines):
                break
            raise UserError(
                f'{path}, line {n} is damaged', str(error), 'start a new run'
            ) from error
        events.append(event)
        size += len(line) + 1
    return events, size


def line_of(episode: Episode) -> dict[str, Any]:
    """What a line says of an episode; `episode_of` reads it."""
    said = asdict(episode)
    goal, period_s = said.pop('goal'), said.pop('period_s')
    return {**goal, **said, 'period_s': [round(float(s), 6) for s in period_s]}


def episode_of(event: Event) -> Episode:
    """The episode of a line."""
    known = {key: event[key] for key in Episode.__dataclass_fields__ if key in event}
    known['goal'] = Goal(
        Mode(event['mode']), event['policy'], int(event['version']), int(event['seed'])
    )
    known['boundary'] = Boundary(event['boundary'])
    known['period_s'] = np.asarray(event['period_s'], np.float32)
    return Episode(**known)
