# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The latch: who may move the arm, and why not."""

from hypothesis import given
from hypothesis import strategies as st

from user_robot.latch import Latch, Mode


def ready():
    latch = Latch()
    latch.arm()
    return latch


def test_an_arm_that_is_not_connected_takes_no_command():
    assert not Latch().command()


def test_a_missed_deadline_holds_and_the_next_command_goes_on():
    latch = ready()
    assert latch.command()
    latch.deadline(0.25)
    assert latch.mode is Mode.HOLD
    assert '0.25 s' in latch.reason
    assert latch.command()
    assert latch.mode is Mode.ACTIVE
    assert latch.reason == ''


def test_a_deadline_means_nothing_to_an_arm_that_was_not_commanded():
    latch = ready()
    latch.deadline(9.0)
    assert latch.mode is Mode.READY


def test_a_fault_stays_until_it_is_recovered():
    latch = ready()
    latch.fault('reflex')
    assert not latch.command()
    assert latch.reset_allowed() == 'reflex'
    assert latch.recover() == (True, 'recovered from: reflex')
    assert latch.command()


def test_a_reset_is_a_way_out_of_a_fault_that_says_so():
    latch = ready()
    latch.fault('90 N', reset_recovers=True)
    assert not latch.command()
    assert latch.reset_allowed() == ''
    assert latch.command()


def test_recover_answers_in_every_state():
    assert Latch().recover() == (False, 'the arm is not connected')
    assert ready().recover() == (True, 'there was no fault')
    latch = ready()
    latch.stop('button')
    done, why = latch.recover()
    assert not done
    assert 'clear_stop' in why


EDGES = ('arm', 'command', 'rest', 'recover', 'reset_allowed')


@given(st.lists(st.sampled_from(EDGES), max_size=20))
def test_nothing_but_clear_stop_ends_a_stop(edges):
    latch = ready()
    latch.stop('button')
    for edge in edges:
        getattr(latch, edge)()
        latch.fault('noise')
        latch.deadline(1.0)
        assert latch.mode is Mode.DISARMED
        assert not latch.allows()
    assert latch.clear_stop() == 'the stop is cleared, the arm is ready'
    assert latch.command()
