# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What every test gets: a DDS domain of its own, and an ordinary priority."""

from collections.abc import Iterator
import fcntl
import os
from pathlib import Path
import tempfile

import pytest

DOMAINS_N = 100
"""Domains 1 to 100 keep DDS's ports below the range that Linux hands out to clients."""

_last = os.getpid() % DOMAINS_N


def _take_domain() -> tuple[int, int]:
    """The next domain that no running test of this user holds, and the descriptor that holds it.

    Domains rotate: what a test leaves behind for a moment is not heard by the next one.
    """
    global _last
    folder = Path(tempfile.gettempdir()) / f'user-ros-domains-{os.getuid()}'
    folder.mkdir(exist_ok=True)
    for offset in range(1, DOMAINS_N + 1):
        domain = (_last + offset) % DOMAINS_N + 1
        held = os.open(folder / str(domain), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            continue
        _last = domain - 1
        return domain, held
    pytest.fail(f'All {DOMAINS_N} DDS domains are held by running tests; end some of them.')


@pytest.fixture(autouse=True)
def ros_domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A ROS_DOMAIN_ID that only this test and the processes it starts use, on this machine."""
    domain, held = _take_domain()
    monkeypatch.setenv('ROS_DOMAIN_ID', str(domain))
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    yield domain
    os.close(held)


@pytest.fixture(autouse=True)
def ordinary_priority() -> Iterator[None]:
    """No test leaves a real-time priority to the next ones and to all that they start.

    A driver in this process may have taken one (libfranka takes the highest). At equal real-time
    priority nothing preempts a thread that spins for a lock, not even the one that holds it.
    """
    yield
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
