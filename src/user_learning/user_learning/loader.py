# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Loads announced and asked-for versions in a thread: read or fetch, verify, hand over; the newest
wins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
import socket
import threading
import time

from user_learning.policy import Policy
from user_learning.weights import Version, read

RETRY_S = 0.5
"""Wait after a version could not be had."""

Fetch = Callable[[str, int], tuple[bytes, str]]
"""(policy, version) -> the file's bytes and its content hash, from the learner; raises
BadWeightsError.
"""


class Loader:
    """A mailbox of one announcement a policy, and of versions that somebody waits for.

    `loaded` is called from this thread after each version that was handed over; `reason` says in
    plain words why the last one was not.
    """

    def __init__(
        self, policy: Policy, config_hash: str, fetch: Fetch, loaded: Callable[[], None]
    ) -> None:
        self.policy, self.config_hash, self.fetch, self.loaded = policy, config_hash, fetch, loaded
        self.reason = ''
        self.announced: dict[str, int] = {}
        self._mail: dict[str, tuple[Version, str]] = {}
        self._asked: set[tuple[str, int]] = set()
        self._known: dict[tuple[str, int], tuple[Version, str]] = {}
        self._change = threading.Condition()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name='weights', daemon=True)
        self._thread.start()

    def announce(self, version: Version, host: str) -> None:
        """A new version; one that was announced before and not loaded yet is forgotten."""
        with self._change:
            if version.version <= self.announced.get(version.policy, 0):
                return
            self.announced[version.policy] = version.version
            self._mail[version.policy] = (version, host)
            self._known[version.policy, version.version] = (version, host)
            while len(self._known) > 64:
                del self._known[next(iter(self._known))]
            self._change.notify()

    def ask(self, policy: str, version: int) -> None:
        """Somebody waits for this version."""
        with self._change:
            if (policy, version) not in self._asked:
                self._asked.add((policy, version))
                self._change.notify()

    def close(self) -> None:
        """Ends the thread."""
        with self._change:
            self._stop = True
            self._change.notify()
        self._thread.join(timeout=3.0)

    def _run(self) -> None:
        while True:
            with self._change:
                while not (self._stop or self._mail or self._asked):
                    self._change.wait()
                if self._stop:
                    return
                newest, self._mail = list(self._mail.values()), {}
                asked = list(self._asked)
            for version, host in newest:
                self._load(version.policy, version.version, version, host, asked=False)
            for policy, number in asked:
                known = self._known.get((policy, number))
                version_or_none, host = known if known else (None, '')
                if self._load(policy, number, version_or_none, host, asked=True):
                    with self._change:
                        self._asked.discard((policy, number))
                else:
                    time.sleep(RETRY_S)

    def _load(
        self, policy: str, number: int, version: Version | None, host: str, asked: bool
    ) -> bool:
        if self.policy.has(policy, number):
            return True
        try:
            data, sha256 = self._bytes(policy, number, version, host)
            wanted = self.config_hash if version is None or version.config_hash else ''
            tensors = read(data, sha256, policy, number, wanted)
            self.policy.offer(policy, number, tensors, asked)
        except (ValueError, OSError) as error:
            self.reason = f'{policy} version {number} was not loaded: {error}'
            return False
        self.reason = ''
        self.loaded()
        return True

    def _bytes(
        self, policy: str, number: int, version: Version | None, host: str
    ) -> tuple[bytes, str]:
        """From this machine's file if it is there, else from the learner."""
        if version is not None and host in ('', socket.gethostname()):
            with suppress(
                FileNotFoundError
            ):  # a newer one replaced it: the learner may know an archived copy
                return Path(version.path).read_bytes(), version.sha256
        return self.fetch(policy, number)
