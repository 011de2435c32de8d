# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Every arm that a page can name speaks the whole protocol: a missing stop is found here."""

from importlib import import_module
import inspect

import pytest

from user_robot.arm import ARMS, Arm

CALLS = [n for n, f in vars(Arm).items() if inspect.isfunction(f) and not n.startswith('_')]


def driver(kind):
    module, _, name = ARMS[kind].partition(':')
    return getattr(import_module(module), name)


def test_the_protocol_can_stop_an_arm():
    assert {'hold', 'close', 'recover', 'state', 'servo'} <= set(CALLS)


@pytest.mark.parametrize('kind', ARMS)
@pytest.mark.parametrize('call', CALLS)
def test_every_arm_has_every_call_with_its_arguments(kind, call):
    theirs = inspect.signature(getattr(driver(kind), call)).parameters
    ours = inspect.signature(getattr(Arm, call)).parameters
    assert list(theirs) == list(ours)


@pytest.mark.parametrize('kind', ARMS)
def test_every_arm_says_how_often_it_is_sampled(kind):
    assert 0 < driver(kind).slice_s <= 0.02
