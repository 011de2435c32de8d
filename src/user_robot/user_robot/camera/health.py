# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""How a camera is: in a word and in numbers."""

from __future__ import annotations

from dataclasses import dataclass


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
