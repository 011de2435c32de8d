# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A robot's samples are stamped with the time they were measured, on this computer's clock."""

from __future__ import annotations

import numpy as np
import pytest

from user_robot.franka.robot_clock import LAG_S, RobotClock


def test_stamps_are_when_it_was_measured_whatever_the_delay_of_reading() -> None:
    clock, delays = RobotClock(), np.random.default_rng(0).uniform(0, LAG_S, 2000)
    stamps = [clock.stamp(0.002 * i, 100 + 0.002 * i + d) for i, d in enumerate(delays)]
    errors = np.array(stamps) - (100 + 0.002 * np.arange(2000))
    assert np.abs(errors).mean() < 0.3 * delays.mean()
    assert (np.diff(stamps) >= 0).all()


@pytest.mark.parametrize('speed', [1.00005, 0.99995, 0.5])
def test_a_drifting_or_slow_robot_clock_is_followed(speed: float) -> None:
    clock, stamp_s = RobotClock(), 0.0
    for i in range(100_000):
        stamp_s = clock.stamp(speed * 0.005 * i, 0.005 * i)
    assert abs(stamp_s - 0.005 * 99_999) < 1.01 * LAG_S


def test_after_a_standstill_stamps_are_new_at_once_and_never_go_back() -> None:
    clock = RobotClock()
    stamps = [clock.stamp(0.005 * i, 0.005 * i) for i in range(100)]
    stamps += [clock.stamp(0.005 * 99, 0.495 + 0.1 * i) for i in range(10)]
    assert stamps[-1] == stamps[99]
    stamps.append(clock.stamp(0.5, 2.0))
    assert stamps[-1] >= 2.0 - LAG_S
    clock.restart()
    stamps.append(clock.stamp(0.0, 1.5))
    assert (np.diff(stamps) >= 0).all()
