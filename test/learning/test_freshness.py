# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""When weights are too old to act, and how old they were."""

from __future__ import annotations

import math

import pytest

from user_learning.freshness import Freshness


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_limits_weights_are_never_too_old() -> None:
    clock = Clock()
    fresh = Freshness(None, None, clock)
    clock.now += 1e6
    assert fresh.too_old('actor', 10**6) == ''


def test_a_policy_that_is_too_many_versions_behind_holds_until_it_is_not() -> None:
    fresh = Freshness(3, None, Clock())
    assert fresh.too_old('actor', 3) == ''
    assert 'actor is more than 3 versions behind the learner' in fresh.too_old('actor', 4)
    assert fresh.too_old('actor', 0) == ''


def test_a_learner_that_is_not_heard_holds_the_policy_until_it_is_heard() -> None:
    clock = Clock()
    fresh = Freshness(None, 2.0, clock)
    clock.now += 2.0
    assert fresh.too_old('actor', 0) == ''
    clock.now += 0.1
    assert 'the learner has not been heard for 2 s' in fresh.too_old('actor', 0)
    fresh.hear()
    assert fresh.too_old('actor', 0) == ''


def test_a_learner_whose_training_is_stuck_is_not_heard_though_its_node_lives() -> None:
    """Its node tells twice a second how long ago the training got on."""
    clock = Clock()
    fresh = Freshness(None, 2.0, clock)
    for tick in range(10):
        clock.now += 0.5
        fresh.hear(ago_s=0.5 * (tick + 1))
        assert bool(fresh.too_old('actor', 0)) is (tick >= 4)
    fresh.hear(ago_s=0.1)
    assert fresh.too_old('actor', 0) == ''


def test_lag_and_age_are_told() -> None:
    clock = Clock()
    fresh = Freshness(None, None, clock)
    assert fresh.numbers()['weights_age_s'] == 0.0
    fresh.load(7)
    clock.now += 3.0
    fresh.load(7)
    for lag in [0] * 150 + [1] * 90 + [10] * 10:
        fresh.answer(lag)
    numbers = fresh.numbers()
    assert numbers['weights_age_s'] == pytest.approx(3.0)
    assert numbers['lag_p50'] == pytest.approx(0.5)  # of the last 200: a hundred were behind
    assert numbers['lag_p99'] == pytest.approx(10.0)
    assert all(math.isfinite(n) for n in numbers.values())
    fresh.load(8)
    assert fresh.numbers()['weights_age_s'] == 0.0
