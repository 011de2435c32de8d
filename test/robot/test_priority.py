# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""An arm's process takes a real-time priority where it may, in all its threads."""

import os
from pathlib import Path
import subprocess
import sys

import pytest

THREADS = """
import os, threading
from user_robot import priority
go, ends = threading.Event(), []
before = threading.Thread(target=go.wait)
before.start()
why = priority.take()
after = threading.Thread(target=go.wait)
after.start()
every = (threading.main_thread(), before, after)
print(why or [os.sched_getscheduler(thread.native_id) for thread in every])
go.set()
"""


def run(*prefix: str) -> str:
    command = [*prefix, sys.executable, '-c', THREADS]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def may() -> bool:
    return subprocess.run(['chrt', '-f', '10', 'true'], capture_output=True).returncode == 0


@pytest.mark.skipif(not may(), reason='this user may take no real-time priority')
def test_every_thread_and_those_to_come_have_it():
    assert run() == str([os.SCHED_FIFO] * 3)


@pytest.mark.skipif(os.geteuid() != 0 or not Path('/usr/bin/setpriv').exists(), reason='root only')
def test_where_it_is_not_allowed_that_is_said():
    nobody = ('setpriv', '--reuid=65534', '--clear-groups', '--bounding-set=-all')
    limited = ('prlimit', '--rtprio=0')
    assert 'rtprio' in run(*limited, *nobody, '--inh-caps=-all')
