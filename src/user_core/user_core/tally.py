# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a run knows of itself: the sum of its journal's events, whether they happen or are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
import threading
import time
from typing import Any

from user_core.journal import NAME, Event, Journal, episode_of
from user_core.outcome import Attempt, Episode, Mode

ROOM_S = 1.0
"""A full disk is tried again after this long."""


class StoppedError(Exception):
    """Somebody asked the run to end early."""


@dataclass(frozen=True)
class Stored:
    """What the store holds, as the learner counts it, when every cell has handed in its rows."""

    demos: int
    env_steps: int


class Tally:
    """The sum.

    Attributes:
        starts: run nodes that have worked on it.
        demos: attempts at a demonstration.
        unlisted: successful demonstrations in the store beyond those; negative: the store lacks
            some.
        trained: training episodes.
        env_steps: their steps, and steps of episodes that no line tells.
        attempts: complete evaluations.
        open: the evaluation that is under way.
        begun: evaluations that were begun.
        best: the fresh starts that were mastered best.
        seconds: wall time in each phase.
        wall_s: wall time in all.
        over: the last event of a run that ended in order.
    """

    def __init__(self, gate_window: int, events: list[dict[str, Any]]) -> None:
        self.gate_window = gate_window
        self.starts = self.unlisted = self.env_steps = self.begun = 0
        self.demos: list[Episode] = []
        self.trained: list[Episode] = []
        self.attempts: list[Attempt] = []
        self.open: Attempt | None = None
        self.best: Attempt | None = None
        self.seconds: dict[str, float] = {}
        self.wall_s = 0.0
        self.over: Event | None = None
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        """One more event."""
        self.seconds, self.wall_s = dict(event['seconds']), float(event['wall_s'])
        match event['what']:
            case 'start':
                self.starts += 1
                self.over = None
            case 'episode':
                self._add(episode_of(event))
            case 'begin':
                self.begun += 1
                named = {key: event[key] for key in ('kind', 'policy', 'version', 'sha256')}
                self.open = Attempt(**named, at_env_steps=event['at_env_steps'], episodes=())
            case 'end' if self.open is not None:
                self.attempts.append(self.open)
                attempt, self.open = self.open, None
                if attempt.kind == 'fresh' and (
                    self.best is None or attempt.successes > self.best.successes
                ):
                    self.best = attempt
            case 'count':
                self.unlisted = event['demos'] - sum(e.success for e in self.demos)
                self.env_steps = max(self.env_steps, event['env_steps'])
            case 'over':
                self.over = event

    def _add(self, episode: Episode) -> None:
        if episode.goal.mode is Mode.DEMO:
            self.demos.append(episode)
        elif episode.goal.mode is Mode.TRAIN:
            self.trained.append(episode)
            self.env_steps += episode.length
        elif self.open is not None:
            self.open = replace(self.open, episodes=(*self.open.episodes, episode))

    @property
    def recent(self) -> list[Episode]:
        """The training episodes by which the gate to an evaluation opens."""
        return self.trained[-self.gate_window :]

    @property
    def good_demos(self) -> int:
        """Successful demonstrations that the store holds."""
        return sum(e.success for e in self.demos) + self.unlisted


class Recorded(Tally):
    """A tally that writes down what it counts, and goes on from what was written.

    Attributes:
        phase: START, RESTORING, DEMONSTRATIONS, TRAINING, EVALUATION or END.
        waits: why nothing moves, or ''.
        full: whether it waits for room on the disk.
        stop: ends the run early when set, from any thread.
    """

    def __init__(self, folder: Path, gate_window: int) -> None:
        self.journal = Journal(folder / NAME)
        super().__init__(gate_window, self.journal.events)
        self.phase, self.waits, self.full = 'START', '', False
        self.stop = threading.Event()
        self.started = self._lap = time.monotonic()
        self._before_s = self.wall_s

    def record(self, what: str, **event: object) -> None:
        """Writes an event into the journal, then counts it. A full disk is waited for.

        Raises:
            StoppedError: `stop` was set before there was room.
        """
        self.pass_time()
        line = {
            'what': what, 'at': round(time.time(), 3), 'wall_s': round(self.elapsed(), 3),
            'seconds': {phase: round(s, 3) for phase, s in self.seconds.items()}, **event,
        }  # fmt: skip
        self.when_there_is_room(lambda: self.journal.append(line))
        self.take(line)

    def when_there_is_room(self, write: Callable[[], None]) -> None:
        """Writes; as long as the disk is full, again and again, until `stop` is set."""
        while True:
            try:
                write()
                break
            except OSError as error:
                self.full = True
                self.waits = f'the run folder cannot be written: {error.strerror}'
                if self.stop.wait(ROOM_S):
                    raise StoppedError from error
        self.waits, self.full = '', False

    def elapsed(self) -> float:
        """Wall time of the run in seconds, without the pauses in which nobody worked on it."""
        return self._before_s + time.monotonic() - self.started

    def pass_time(self) -> None:
        """The time since the last call belongs to the present phase."""
        now = time.monotonic()
        if self.phase in ('DEMONSTRATIONS', 'TRAINING', 'EVALUATION'):
            self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self._lap
        self._lap = now
