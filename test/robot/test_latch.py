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
    assert not latch.reset_recovers
    assert latch.recover() == (True, 'recovered from: reflex')
    assert latch.command()


def test_faults_and_recoveries_are_counted_by_their_edges():
    latch = ready()
    latch.fault('90 N', reset_recovers=True)
    latch.fault('91 N', reset_recovers=True)
    assert (latch.faults, latch.recoveries) == (1, 0)
    latch.recover()
    latch.recover()
    assert (latch.faults, latch.recoveries) == (1, 1)


def test_an_emergency_stop_is_an_edge_and_holds_while_it_is_pressed():
    latch = ready()
    assert latch.emergency(True)
    assert not latch.emergency(True)
    assert latch.clear_stop() == (False, 'the emergency stop is still pressed')
    assert not latch.emergency(False)
    assert not latch.allows()
    assert latch.clear_stop()[0]
    assert latch.command()
    assert latch.emergency(True)


def test_recover_answers_in_every_state():
    assert Latch().recover() == (False, 'the arm is not connected')
    assert ready().recover() == (True, 'there was no fault')
    latch = ready()
    latch.stop('button')
    done, why = latch.recover()
    assert not done
    assert 'clear_stop' in why


EDGES = ('arm', 'command', 'rest', 'recover')


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
    assert latch.clear_stop() == (True, 'the stop is cleared, the arm is ready')
    assert latch.command()
