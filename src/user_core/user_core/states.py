# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The state words of every node, and how bad each is."""

from __future__ import annotations

from enum import IntEnum


class Level(IntEnum):
    """As in diagnostic_msgs/DiagnosticStatus: it works; it waits or holds, and goes on by itself;
    it needs somebody, or something else that is broken.
    """

    OK = 0
    WARN = 1
    ERROR = 2


WORDS = {
    Level.OK: (
        'START', 'DEMONSTRATIONS', 'TRAINING', 'EVALUATION', 'END',  # the run
        'READY', 'ACTIVE',  # arm, policy, demonstrator
        'IDLE', 'RUNNING', 'RESET', 'STORING', 'WARMUP', 'STREAMING', 'DEMO', 'STOPPED',
    ),
    Level.WARN: (
        'HOLD', 'OPENING', 'WAIT_ARM', 'WAIT_CAMERA', 'WAIT_READY', 'WAIT_WEIGHTS', 'WAIT_POLICY',
        'WAIT_DEMONSTRATOR', 'WAIT_REPLAY', 'WAIT_DEMOS',
        'LOADING', 'RESTORING',
    ),
    Level.ERROR: (
        'DISARMED', 'FAULT', 'LOST', 'FAILED', 'BLIND', 'REFUSED', 'STALE', 'DISK_FULL', 'HALTED',
    ),
}  # fmt: skip
"""Every state word."""

_LEVEL = {word: level for level, words in WORDS.items() for word in words}


def level(state: str) -> Level:
    """How bad a state is. An unknown word is a WARN: somebody should look, and nothing is known to
    be wrong.
    """
    return _LEVEL.get(state, Level.WARN)
