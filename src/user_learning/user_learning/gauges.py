# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The learner's numbers, for people and the run, and as curves of what was trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import time

CURVES = {
    'losses/critic': 'critic_loss',
    'losses/actor': 'actor_loss',
    'q/mean': 'q',
    'policy/entropy': 'entropy',
    'policy/alpha': 'alpha',
    'learner/utd': 'utd',
    'learner/updates_per_s': 'updates_per_s',
    'learner/backlog': 'backlog',
    'learner/policy_lag': 'policy_lag',
    'learner/version': 'version',
    'buffer/online': 'online_rows',
    'buffer/demos': 'demos_rows',
}
"""TensorBoard names of the learner (docs/tensorboard.md) and the numbers behind them."""

EVERY_S = 0.5
"""Time between two tellings, at least."""

_OF_UPDATES = ('q', 'critic_loss', 'actor_loss', 'entropy', 'alpha')
"""What updates told last stays until they tell anew."""


class Gauges:
    """Means of what updates return, beside counts that are asked for when they are told.

    `numbers` is replaced whole: any thread may read it. `curve` is called with (name, value,
    environment steps).
    """

    def __init__(self, curve: Callable[[str, float, int], None]) -> None:
        self.curve = curve
        self.numbers: dict[str, float] = {}
        self.updates = 0
        self._sums: dict[str, tuple[float, int]] = {}
        self._told_at = time.monotonic()

    def gather(self, numbers: Mapping[str, float]) -> None:
        """Takes in what one update returned."""
        for name, value in numbers.items():
            total, n = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, n + 1)

    @property
    def due(self) -> bool:
        """Whether it is time to tell."""
        return time.monotonic() - self._told_at >= EVERY_S

    def tell(self, counts: Mapping[str, float]) -> None:
        """Replaces `numbers`, and draws curves if there were updates. `counts` hold `updates`,
        `env_steps` and what else there is to tell.
        """
        now = time.monotonic()
        since, updates = now - self._told_at, int(counts['updates'])
        means = {name: total / n for name, (total, n) in self._sums.items()}
        kept = {k: v for k, v in self.numbers.items() if k in _OF_UPDATES}
        rate = (updates - self.updates) / since if since > 0 else 0.0
        self.numbers = {**kept, **means, **counts, 'updates_per_s': rate}
        self._told_at, self.updates, self._sums = now, updates, {}
        if means:
            for name, key in CURVES.items():
                if key in self.numbers:
                    self.curve(name, self.numbers[key], int(counts['env_steps']))
