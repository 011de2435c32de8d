# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of a run that no node has alone: how fast it collects, how well it does of late."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
import time

import numpy as np

from user_core.outcome import Episode

OVER_S = 30.0
"""Rates are means over this long."""


class Rate:
    """How fast a counter grows; one that falls begins anew (its node was started again)."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def __call__(self, count: float, now: float | None = None) -> float:
        """Growth a second, of late; 0 at first."""
        now = time.monotonic() if now is None else now
        if self._seen and count < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, count))
        while now - self._seen[0][0] > OVER_S:
            self._seen.popleft()
        (begun, before), (end, after) = self._seen[0], self._seen[-1]
        return (after - before) / (end - begun) if end > begun else 0.0


def vitals(
    recent: Sequence[Episode], nodes: Mapping[str, Mapping[str, float]], rate: Rate
) -> dict[str, float]:
    """What status.json says of the run as a whole; what is not known yet is left out.

    `recent` are the newest training episodes, `nodes` every node's newest numbers.
    """
    found: dict[str, float] = {}
    if 'rows' in nodes.get('/learning/replay', {}):
        found['steps_per_s'] = rate(nodes['/learning/replay']['rows'])
    if recent:
        steps = sum(e.length for e in recent)
        found['success'] = sum(e.success for e in recent) / len(recent)
        found['episodes'] = len(recent)
        found['interventions'] = sum(e.interventions for e in recent) / max(steps, 1)
        found['late_steps'] = sum(e.late_steps for e in recent) / max(steps, 1)
        periods = np.concatenate([e.period_s for e in recent])
        if periods.size:
            found['period_p50_s'] = float(np.median(periods))
            found['period_p99_s'] = float(np.quantile(periods, 0.99))
    return found
