# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Kill -9 for the nodes of a run, at seeded times, and what their processes take meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
import os
from pathlib import Path
import random
import signal
import sys
import time

from running import Running

ROLES = ('arm0/arm', 'arm0/episode', 'arm0/expert', 'learning/policy', 'learning/replay',
         'learning/learner', 'run')  # fmt: skip
PAIR_S = (0.5, 6.0)
"""Time between two pairs of kills."""
YOUNG_S = (0.1, 2.0)
"""Age at which a successor is killed: it imports, joins the graph, reads what was left."""
UP_S = 10.0
"""A node that has not been heard of by then is taken for up."""
LIKE_AGE_S = 15.0
"""Processes are compared at this age ..."""
STARTED_FDS = 8
"""... or, on a busy machine, when they have joined the graph: they hold more descriptors."""
TICKS = os.sysconf('SC_CLK_TCK')


def say(text: str) -> None:
    """A line of progress."""
    print(f'{time.strftime("%T")} {text}', file=sys.stderr, flush=True)


def age_of(pid: int) -> float:
    """Seconds since the process was started; 0 when it is gone."""
    try:
        ticks = int(Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19])
    except (OSError, IndexError):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / TICKS


def size_of(pid: int) -> tuple[float, int] | None:
    """Resident megabytes and open descriptors of a process."""
    try:
        text = Path(f'/proc/{pid}/status').read_text()
        rss = next(line for line in text.splitlines() if line.startswith('VmRSS'))
        return int(rss.split()[1]) / 1024, len(os.listdir(f'/proc/{pid}/fd'))
    except (OSError, StopIteration):
        return None


class Sizes:
    """Memory and descriptors of every process at the same age, and of each when last seen."""

    def __init__(self) -> None:
        self.like: dict[str, dict[int, tuple[float, int]]] = {}
        self.last: dict[int, tuple[float, int, float]] = {}

    def look(self, pids: dict[str, int]) -> None:
        """Takes those that have come of age, about once a second."""
        for name, pid in pids.items():
            age, size = age_of(pid), size_of(pid)
            if size and age >= LIKE_AGE_S and size[1] > STARTED_FDS:
                self.like.setdefault(name, {}).setdefault(pid, size)
                self.last[pid] = (*size, age)

    def of_like_age(self) -> dict[str, list]:
        """For each role: MB and descriptors of the largest process of the run's first half and of
        the smallest of its second half, all at the same age, and how many there were.
        """
        found = {}
        for name, sizes in self.like.items():
            lives = list(sizes.values())
            half = len(lives) // 2
            if half:
                (mb, fds), (mb_end, fds_end) = (
                    [most(column) for column in zip(*part, strict=True)]
                    for most, part in ((max, lives[:half]), (min, lives[half:]))
                )
                found[name] = [round(mb), round(mb_end), fds, fds_end, len(lives)]
        return found

    def supervisor(self) -> list:
        """The longest life of a supervisor: MB and descriptors young and old, and its age."""
        lives = self.like.get('supervisor', {})
        if not lives:
            return []
        pid = max(lives, key=lambda p: self.last[p][2])
        (mb, fds), (mb_end, fds_end, age) = lives[pid], self.last[pid]
        return [round(mb), round(mb_end), fds, fds_end, round(age)]


class Campaign:
    """A run of one or two machines, and seeded kills of what runs there."""

    def __init__(
        self, sides: dict[str, Callable[..., Running]], roles: tuple[str, ...], seed: int
    ) -> None:
        self.start, self.roles, self.dice = sides, roles, random.Random(seed)
        self.runs = {side: start() for side, start in sides.items()}
        self.kills: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        self.resumes = 0
        self.sizes, self.looked = Sizes(), 0.0
        self.young = 0

    @property
    def lead(self) -> Running:
        """The machine with the run's node."""
        return next(reversed(self.runs.values()))

    def pids(self) -> dict[str, int]:
        """Every node's process, without the leading slash of its path."""
        return {k.strip('/'): v for run in self.runs.values() for k, v in run.nodes().items()}

    def phase(self) -> str:
        """What the run does, as it said last."""
        return self.lead.status().get('phase', 'START')

    def ended(self) -> bool:
        """Whether any side has ended."""
        return any(run.process.poll() is not None for run in self.runs.values())

    def rest(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Waits, watching sizes; False when the run ended meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            if self.ended():
                return False
            if time.monotonic() - self.looked > 1.0:
                self.looked = time.monotonic()
                self.sizes.look(self.pids() | {'supervisor': self.lead.process.pid})
            time.sleep(0.1)
        return not self.ended()

    def is_up(self, role: str) -> bool:
        """Whether the role's present process has been heard of."""
        pid = self.pids().get(role)
        age = age_of(pid) if pid else 0.0
        status = self.lead.status()
        if role == 'run':
            return age > time.time() - status.get('at', 0.0) + 0.5 and age > 1.0
        heard = status.get('nodes', {}).get(f'/{role}')
        if heard is None:
            return age > 3.0
        since = time.time() - status['at'] + heard['silent_s']
        return age > since + 0.5 and age > 1.0

    def kill(self, role: str, what: str) -> int:
        """Kill -9 of a role's process; its pid, 0 when it was not there."""
        pid = self.pids().get(role, 0)
        if not pid:
            return 0
        phase, age = self.phase(), age_of(pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return 0
        self.kills[role] += 1
        self.phases[phase] += 1
        status = self.lead.status()
        told = f'{status.get("demos", 0)} demonstrations, {status.get("env_steps", 0)} steps'
        say(f'kill {self.kills.total()}: {role} ({what}, {age:.1f} s old) in {phase}; {told}')
        return pid

    def pair(self, role: str, both: bool) -> None:
        """A node that is up, and its successor before it is."""
        self.rest(UP_S, lambda: self.is_up(role))
        killed = self.kill(role, 'up')
        if both and killed:
            self.rest(10.0, lambda: self.pids().get(role, killed) != killed)
            if self.rest(self.dice.uniform(*YOUNG_S)):
                self.young += bool(self.kill(role, 'starting'))

    def whole(self) -> None:
        """Everything at once, or the supervisor alone by turns, and on from there."""
        self.phases[self.phase()] += 1
        self.kills['whole'] += 1
        everything = self.kills['whole'] % 2
        say(f'kill {self.kills.total()}: {"everything" if everything else "the supervisor"}')
        for run in self.runs.values():
            if everything:
                run.kill_all()
            else:  # the kernel tells the nodes to end, and the next one begins meanwhile
                run.process.kill()
                run.process.wait()
        self.resumes += 1
        begun = time.time()
        self.runs = {side: start('resume=latest') for side, start in self.start.items()}
        self.rest(60.0, lambda: self.lead.status().get('at', 0.0) > begun)

    def go(self, kills: int, whole: int, due: Callable[[dict], float], wall_s: float) -> None:
        """Kills until there were enough, `whole` of them of the run as a whole, then waits for the
        end. `due` says of the run's status what share of the kills may be used up by now.
        """
        end = time.monotonic() + wall_s
        order: list[str] = []
        self.rest(60.0, lambda: bool(self.lead.status()))
        while self.kills.total() < kills and time.monotonic() < end:
            phase = self.phase()
            if not self.rest(0.5 if phase == 'EVALUATION' else self.dice.uniform(*PAIR_S)):
                break
            if self.kills.total() >= due(self.lead.status()) * kills:
                continue
            done = self.kills['whole']
            if whole > done and self.kills.total() >= (done + 0.5) * kills / whole:
                self.whole()
                continue
            if not order:
                order = self.dice.sample(self.roles, len(self.roles))
            self.pair(order.pop(), kills - self.kills.total() > 1)
        say(f'{self.kills.total()} kills done, waiting for the end')
        while time.monotonic() < end and self.rest(5.0):
            pass

    def end(self) -> int | None:
        """Ends what still runs; the leading machine's exit code, None when it had to be ended."""
        code = self.lead.process.poll()
        if code is not None and len(self.runs) > 1:
            time.sleep(3.0)
        for run in reversed(self.runs.values()):
            run.close()
        return code
