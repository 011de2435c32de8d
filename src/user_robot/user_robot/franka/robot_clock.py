# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A robot's own time on this computer's clock."""

from __future__ import annotations

RISE_S = 0.1
"""Time constant with which the offset follows when samples come later than before."""
LAG_S = 0.002
"""A new sample is never stamped earlier than this before it was read: a robot that stood still, or
whose simulated time runs slowly, does not look late."""


class RobotClock:
    """Stamps samples with the time they were measured, although they are read later.

    The smallest (host - robot) time seen is the one with the least delay: it counts at once.
    Larger ones count slowly, so that reads late by up to LAG_S are seen through and a drifting
    clock is followed. Stamps never go back.
    """

    def __init__(self) -> None:
        self._offset_s: float | None = None
        self._robot_s = self._host_s = 0.0
        self._stamp_s = 0.0

    def restart(self) -> None:
        """The robot's time begins anew (another connection)."""
        self._offset_s = None

    def stamp(self, robot_s: float, host_s: float) -> float:
        """Seconds on the host's clock when the sample of `robot_s`, read at `host_s`, was
        measured.
        """
        if self._offset_s is None:
            self._offset_s = host_s - robot_s
        elif robot_s == self._robot_s:
            return self._stamp_s
        else:
            rise = host_s - robot_s - self._offset_s
            if rise > 0:
                rise *= min(1.0, max(host_s - self._host_s, 0.0) / RISE_S)
            self._offset_s = max(self._offset_s + rise, host_s - robot_s - LAG_S)
        self._robot_s, self._host_s = robot_s, host_s
        self._stamp_s = max(self._stamp_s, robot_s + self._offset_s)
        return self._stamp_s
