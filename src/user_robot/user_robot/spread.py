# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Percentiles of a stream of times at a fixed cost."""

from __future__ import annotations

import numpy as np

BIN_S = 5e-5
BINS = 20_000


class Spread:
    """Counts times in bins of 0.05 ms up to 1 s; longer ones are in the last. Thread safe enough
    for one writer and one reader.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(BINS, np.int64)
        self.count = 0

    def add(self, seconds: float) -> None:
        """One time; a negative one counts as 0."""
        self._counts[min(max(int(seconds / BIN_S), 0), BINS - 1)] += 1
        self.count += 1

    def ms(self, share: float) -> float:
        """Upper edge in ms of the bin that holds this share of the times; 0 without any."""
        if not self.count:
            return 0.0
        passed = np.cumsum(self._counts)
        at = int(np.searchsorted(passed, share * passed[-1]))
        return (at + 1) * BIN_S * 1e3
