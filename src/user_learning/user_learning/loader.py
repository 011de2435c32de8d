# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Loads announced and asked-for versions in a thread: read or fetch, verify, hand over; the newest
wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
import socket
import threading
import time

from user_learning.fetcher import Fetched
from user_learning.policy import Policy
from user_learning.weights import Version, read

RETRY_S = 0.5
"""Wait before a version that could not be had is tried a third time and on; a second time is at
once."""
ASKED_N = 8
"""Versions asked for by number that are tried for at the same time."""

Fetch = Callable[[str, int, int], Fetched | None]
"""(policy, version, newer_than) -> a version's bytes from the learner; version 0 is its newest,
None when that is not newer. Raises BadWeightsError.
"""


@dataclass
class _Job:
    """A version to be had: the newest of a policy (number 0), as far as it was announced, or one
    by number.
    """

    policy: str
    number: int
    version: Version | None = None
    host: str = ''
    failures: int = 0
    due: float = field(default_factory=time.monotonic)


class Loader:
    """A mailbox of one version a policy, its newest, and of versions that somebody waits for.

    A version that cannot be had is tried again until it is there or a newer one is announced; on
    another machine, or when its file here is gone or damaged, the learner is asked for its newest.
    Meanwhile the policy acts with what it has. `loaded` is called from the loading thread after
    each version that was handed over, `failed` after each that was not; `reason` says in plain
    words why, until that or a newer one is loaded.

    Attributes:
        announced: newest version that each policy is known to have.
        failures: times that a version which is known to be there was not loaded.
    """

    def __init__(
        self,
        policy: Policy,
        config_hash: str,
        fetch: Fetch,
        loaded: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        self.policy, self.config_hash, self.fetch = policy, config_hash, fetch
        self.loaded, self.failed = loaded, failed
        self.announced: dict[str, int] = {}
        self.failures = 0
        self._reason = ('', 0, '')
        self._jobs: dict[tuple[str, int], _Job] = {}
        self._known: dict[tuple[str, int], tuple[Version, str]] = {}
        self._change = threading.Condition()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name='weights', daemon=True)
        self._thread.start()

    @property
    def reason(self) -> str:
        """Why a version was not loaded, or ''."""
        return self._reason[2]

    def announce(self, version: Version, host: str) -> None:
        """A new version; one that was announced before and not loaded yet is forgotten. A smaller
        number is ignored: versions of a run never go backwards.
        """
        with self._change:
            if version.version <= self.announced.get(version.policy, 0):
                return
            self.announced[version.policy] = version.version
            self._jobs[version.policy, 0] = _Job(version.policy, 0, version, host)
            self._known[version.policy, version.version] = (version, host)
            while len(self._known) > 64:
                del self._known[next(iter(self._known))]
            self._change.notify()

    def ask(self, policy: str, version: int = 0) -> None:
        """Somebody waits for this version; 0: for the newest, of which nothing was announced."""
        with self._change:
            if (policy, version) in self._jobs:
                return
            known, host = self._known.get((policy, version), (None, ''))
            self._jobs[policy, version] = _Job(policy, version, known, host)
            numbered = [key for key in self._jobs if key[1]]
            for key in numbered[:-ASKED_N]:
                del self._jobs[key]
            self._change.notify()

    def close(self) -> None:
        """Ends the thread."""
        with self._change:
            self._stop = True
            self._change.notify()
        self._thread.join(timeout=3.0)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                number, why = self._load(job), ''
            except Exception as error:  # whatever it is: the old version acts, the reason is told
                number, why = 0, str(error)
            with self._change:
                self._settle(job, number, why)
            if why:
                self.failed()
            elif number:
                self.loaded()

    def _next(self) -> _Job | None:
        """Waits for the next job that is due; None at the end."""
        with self._change:
            while not self._stop:
                job = min(self._jobs.values(), key=lambda job: job.due, default=None)
                wait = None if job is None else job.due - time.monotonic()
                if job is not None and wait is not None and wait <= 0:
                    return job
                self._change.wait(wait)
            return None

    def _settle(self, job: _Job, number: int, why: str) -> None:
        """What became of a job; `number` was loaded, 0: none had to be. The caller holds the
        lock.
        """
        policy, key = job.policy, (job.policy, job.number)
        if why:
            wanted = job.number or (job.version.version if job.version else 0)
            if not wanted:
                self._reason = (policy, 0, why)
            elif not job.failures:  # later ones hide what was wrong
                self._reason = (policy, wanted, f'{policy} version {wanted} was not loaded: {why}')
            self.failures += bool(wanted)
            job.due = time.monotonic() + RETRY_S * bool(job.failures)
            job.failures += 1
            return
        failed, wanted, _ = self._reason
        if failed == policy and (number >= wanted or not job.failures):
            self._reason = ('', 0, '')
        if self._jobs.get(key) is job:  # no newer version was announced meanwhile
            del self._jobs[key]
            if not job.number:
                self.announced[policy] = self.policy.newest(policy)

    def _load(self, job: _Job) -> int:
        """Loads a version and returns its number, 0 when there is nothing to do."""
        policy, version = job.policy, job.version
        newest = self.policy.newest(policy)
        if job.number:
            done = self.policy.has(policy, job.number)
        else:
            done = version is not None and version.version <= newest
        fetched = None if done else self._bytes(job, newest)
        if fetched is None:
            return 0
        wanted = self.config_hash if version is None or version.config_hash else ''
        announced = version is not None and version.version == fetched.version
        sha256 = version.sha256 if version is not None and announced else fetched.sha256
        tensors = read(fetched.data, sha256, policy, fetched.version, wanted)
        self.policy.offer(policy, fetched.version, tensors, asked=bool(job.number))
        return fetched.version

    def _bytes(self, job: _Job, newest: int) -> Fetched | None:
        """From this machine's file if it is there, else from the learner."""
        version = job.version
        if version is not None and job.host in ('', socket.gethostname()) and not job.failures:
            try:
                data = Path(version.path).read_bytes()
            except FileNotFoundError:  # a newer one replaced it
                pass
            else:
                return Fetched(version.version, data, version.sha256)
        return self.fetch(job.policy, job.number, 0 if job.number else newest)
