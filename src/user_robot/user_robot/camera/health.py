# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""How a camera is: in a word, in numbers, and as diagnostics for rqt and people."""

from __future__ import annotations

from dataclasses import dataclass
import time

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from user_core.messages import stamp
from user_core.node import Shell

PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class Health:
    """A camera at an instant.

    Attributes:
        state: OPENING (nothing was tried in vain yet), STREAMING, LOST (no fresh picture; it is
            looked for), FAILED (it is there and does not work; it is looked for all the same).
        reason: why it does not stream, and what to do; '' when it does.
        age_s: since the exposure of the newest picture; before the first one: since the start.
        fps: pictures a second of late; 0 when none are fresh.
        frames: new pictures since the start.
        dropped: pictures that were not published: overtaken by a newer one, or not new.
        resets: hardware resets since the start.
    """

    state: str
    reason: str = ''
    age_s: float = 0.0
    fps: float = 0.0
    frames: int = 0
    dropped: int = 0
    resets: int = 0

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers by name."""
        return {
            'age_s': self.age_s,
            'fps': self.fps,
            'frames': self.frames,
            'dropped': self.dropped,
            'resets': self.resets,
        }


class Herald:
    """Publishes a camera's health on /diagnostics, each second and at once when its state changes.

    Args:
        shell: the node.
        name: of cell and camera.
        device: what it is.
    """

    def __init__(self, shell: Shell, name: str, device: str) -> None:
        self.name, self.device = name, device
        self._pub = shell.create_pub('diagnostics')
        self._said, self._due = '', 0.0

    def tell(self, health: Health) -> bool:
        """To be called often; true when it was time to tell."""
        now = time.monotonic()
        if health.state == self._said and now < self._due:
            return False
        self._said, self._due = health.state, now + PERIOD_S
        level = {'STREAMING': DiagnosticStatus.OK, 'OPENING': DiagnosticStatus.WARN}
        status = DiagnosticStatus(
            level=level.get(health.state, DiagnosticStatus.ERROR),
            name=self.name,
            hardware_id=self.device,
            message=f'{health.state} {health.reason}'.strip(),
            values=[KeyValue(key=k, value=f'{v:.6g}') for k, v in health.numbers.items()],
        )
        message = DiagnosticArray(status=[status])
        message.header.stamp = stamp(time.time_ns())
        self._pub.publish(message)
        return True
