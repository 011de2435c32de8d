# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""How old the weights that act are, and when they are too old to act in training."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import time

import numpy as np

ANSWERS_N = 200
"""Answers over which the lag is measured."""


class Freshness:
    """Lag in versions, age in seconds on the steady clock.

    The learner is heard when its training gets on: a node that answers while its training thread
    is stuck leaves the robot to work for nothing, like one that is gone.
    """

    def __init__(
        self,
        max_policy_lag: int | None,
        max_stale_s: float | None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_policy_lag, self.max_stale_s, self._steady = max_policy_lag, max_stale_s, steady
        self._heard = self._loaded = steady()
        self._version = 0
        self._lags: deque[int] = deque(maxlen=ANSWERS_N)

    @property
    def quiet_s(self) -> float:
        """Time since the learner's training was heard."""
        return self._steady() - self._heard

    def hear(self, ago_s: float = 0.0) -> None:
        """The learner's training got on, that long ago."""
        self._heard = max(self._heard, self._steady() - ago_s)

    def load(self, version: int) -> None:
        """The newest version that can act."""
        if version != self._version:
            self._version, self._loaded = version, self._steady()

    def answer(self, lag: int) -> None:
        """An action of weights that were so many versions behind."""
        self._lags.append(max(lag, 0))

    def too_old(self, policy: str, lag: int) -> str:
        """Why the newest weights may not act in training, or ''."""
        if self.max_policy_lag is not None and lag > self.max_policy_lag:
            return (
                f'{policy} is more than {self.max_policy_lag} versions behind the learner '
                '(learner.max_policy_lag)'
            )
        if self.max_stale_s is not None and self.quiet_s > self.max_stale_s:
            return (
                f'the learner has not been heard for {self.max_stale_s:g} s (learner.max_stale_s)'
            )
        return ''

    def numbers(self) -> dict[str, float]:
        """Quantiles of the lag of the last answers, in versions; the age of the weights, in s."""
        lags = np.array(self._lags) if self._lags else np.zeros(1)
        return {
            'lag_p50': float(np.median(lags)),
            'lag_p99': float(np.quantile(lags, 0.99)),
            'weights_age_s': self._steady() - self._loaded if self._version else 0.0,
            'learner_quiet_s': self.quiet_s,
        }
