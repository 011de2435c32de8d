# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A node's state as ROS diagnostics: rqt and other monitors show a run without our code."""

from __future__ import annotations

from collections.abc import Mapping
import time

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from user_core.messages import stamp
from user_core.states import level

PERIOD_S = 0.9
"""What does not change is told again after this: once a second, as nodes speak once or twice."""


def array(
    name: str, hardware: str, state: str, reason: str, values: Mapping[str, float | str]
) -> DiagnosticArray:
    """One status: its level, `STATE reason`, and its numbers."""
    status = DiagnosticStatus(
        level=bytes([level(state)]),
        name=name,
        hardware_id=hardware,
        message=f'{state} {reason}'.strip(),
        values=[
            KeyValue(key=k, value=v if isinstance(v, str) else f'{v:.6g}')
            for k, v in values.items()
        ],
    )
    message = DiagnosticArray(status=[status])
    message.header.stamp = stamp(time.time_ns())
    return message


class Pulse:
    """Says when it is time to tell a state: now and then, and at once when the word changes."""

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self._said: dict[str, tuple[str, float]] = {}

    def due(self, name: str, state: str) -> bool:
        """To be called whenever the state of `name` is known; true when it is to be told now."""
        now = time.monotonic()
        said, next_s = self._said.get(name, ('', 0.0))
        if state == said and now < next_s:
            return False
        self._said[name] = state, now + self.period_s
        return True
