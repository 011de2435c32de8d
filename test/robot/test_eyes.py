# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Views of cameras as they come: ages, repeats, refusals, and the episode that sees with them."""

from array import array
from itertools import pairwise
import math
import time

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from rig import Cell, Clock, answer

from user_core import config as schema
from user_core import jpeg
from user_core.messages import image
from user_core.outcome import Boundary
from user_robot.episode import PATIENCE_S
from user_robot.eyes import Eyes
from user_robot.latch import Mode as ArmMode
from user_robot.wire import Writer

DOWN = (0, 0, 1, 0, 0, 0)
NS = 1_000_000_000


def device(**changes):
    return schema.TopicsCameraConfig(width=8, height=8, **changes)


def drawn(**changes):
    return schema.SimCameraConfig(width=8, height=8, scene='side', **changes)


def flow(cell, seconds, fps=30.0, cameras=None):
    """Realtime: time passes; the arm sends 100 samples a second, the cameras their pictures."""
    for _ in range(round(seconds / 0.01)):
        before, cell.clock.now = cell.clock.now, cell.clock.now + 0.01
        while cell.sent.commands:
            cell.drive.command(cell.sent.commands.pop(0))
        sample = cell.drive.advance(0.01)
        cell.eyes.hear(sample)
        cell.episode.on_sample(sample)
        if math.floor(before * fps) != math.floor(cell.clock.now * fps):
            for name in cell.eyes.cameras if cameras is None else cameras:
                cell.see(name)


def begun(cameras, **settings):
    cell = Cell(realtime=True, cameras=cameras, **settings)
    for name in cell.eyes.cameras:
        cell.see(name)
    cell.begin(seed=1)
    return cell


def steps(cell, n, **changes):
    for _ in range(n):
        if cell.episode.running:
            cell.episode.on_answer(answer(cell.episode, np.zeros(6)))
            flow(cell, 0.1, **changes)
            cell.episode.tick()


def stamps(row):
    return [p.view.stamp_ns for p in row.pictures]


# ---------------------------------------------------------------------- ages


@given(
    st.lists(
        st.tuples(st.floats(0.001, 0.2), st.floats(-0.1, 0.5), st.booleans()),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_order_views_come_in_the_latest_exposed_counts_and_its_age_is_a_subtraction(ways):
    """In order, late and early (a clock that is ahead); between them the system clock jumps."""
    clock, jump_ns, best = Clock(), 0, -math.inf
    eyes = Eyes({'wrist': device()}, True, 0.1, clock, lambda: round(clock.now * NS) + jump_ns)
    for wait_s, late_s, jumps in ways:
        clock.now += wait_s
        jump_ns += jumps * 10 * NS
        stamp_ns = round((clock.now - late_s) * NS) + jump_ns
        assert eyes.see('wrist', stamp_ns, 'rgb8', 8, 8, array('B', bytes(192))) == ''
        best = max(best, clock.now - max(0.0, late_s))
        assert eyes.look()[0].age_s == pytest.approx(clock.now - best, abs=1e-6)
        assert eyes.ages() == {'wrist': eyes.look()[0].age_s}


def test_a_drawn_camera_is_as_old_as_the_simulated_clock_says():
    cell = begun({'side': drawn()})
    flow(cell, 0.05, cameras=())
    now_ns = round(cell.drive.sample().state.stamp_s * NS)
    cell.see('side', stamp_ns=now_ns - 40_000_000)
    flow(cell, 0.02, cameras=())
    assert cell.eyes.look()[0].age_s == pytest.approx(0.06)


def test_a_picture_is_repeated_when_the_step_before_had_it():
    cell = begun({'a': device(), 'b': device()})
    first = cell.eyes.look()
    cell.clock.now += 0.05
    cell.see('b')
    second = cell.eyes.look(first)
    assert [(p.name, p.repeated) for p in second] == [('a', True), ('b', False)]
    assert [p.repeated for p in first] == [False, False]


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({'width': 16}, '16 x 8 rgb8'),
        ({'encoding': 'bgr8'}, '8 x 8 bgr8'),
        ({'data': array('B', bytes(100))}, '100 bytes'),
        ({'encoding': 'jpeg', 'width': 0, 'height': 0}, '0 x 0 jpeg'),
    ],
    ids=str,
)
def test_a_view_that_is_not_as_agreed_is_refused_by_name_once(changes, said):
    cell = begun({'wrist': device()})
    problem = cell.see('wrist', **changes)
    assert 'camera wrist sends' in problem
    assert said in problem
    assert cell.see('wrist', **changes) == ''
    assert cell.eyes.problem(cell.drive.sample()) == problem
    assert cell.see('wrist') == ''
    assert cell.eyes.problem(cell.drive.sample()) == ''
    assert cell.see('wrist', **changes) == problem


def test_a_clock_that_is_off_is_told_from_a_camera_that_is_gone():
    cell = begun({'wrist': device()})
    cell.clock.now += 1.0
    assert 'compare the clocks' not in cell.eyes.problem(cell.drive.sample())
    cell.see('wrist', late_s=0.5)
    assert 'compare the clocks' in cell.eyes.problem(cell.drive.sample())


def test_a_picture_of_the_future_is_refused_by_name_once_and_a_small_offset_is_not():
    cell = begun({'wrist': device(), 'side': drawn()})
    said = cell.see('wrist', late_s=-0.5)
    assert said == 'camera wrist sends pictures of 0.50 s in the future: compare the clocks'
    assert cell.see('wrist', late_s=-0.6) == ''
    assert 'compare the clocks' in cell.eyes.problem(cell.drive.sample())
    assert cell.see('wrist', late_s=-0.2) == ''
    assert cell.eyes.look()[1].age_s == 0.0
    now_ns = round(cell.drive.sample().state.stamp_s * NS)
    assert cell.see('side', stamp_ns=now_ns + NS) == '', 'its clock is told by the arm, later'
    assert cell.eyes.problem(cell.drive.sample()) == ''


# ---------------------------------------------------------------------- realtime


def test_the_tick_takes_the_newest_views_and_the_row_says_how_old_they_were():
    cell = begun({'side': device(), 'wrist': device()})
    steps(cell, 5)
    rows = cell.sent.rows
    assert [r.step for r in rows] == [0, 1, 2, 3, 4]
    for row, observation in zip(rows, cell.sent.observations, strict=False):
        assert [p.name for p in row.pictures] == ['side', 'wrist']
        assert row.pictures == observation.pictures
        assert all(0 <= p.age_s <= 0.05 for p in row.pictures)
    assert all(r.valid for r in rows)
    assert len({s for r in rows for s in stamps(r)}) == 5


def test_a_camera_slower_than_the_steps_is_reused_and_the_rows_say_so():
    """15 fps under 20 Hz: every fourth picture or so serves two steps."""
    cell = begun({'wrist': device(fps=7.5)}, task=schema.PegTask(max_steps=300))
    steps(cell, 40, fps=7.5)
    rows = cell.sent.rows
    assert [r.step for r in rows] == list(range(40))
    again = [stamps(b) == stamps(a) for a, b in pairwise(rows)]
    assert [r.pictures[0].repeated for r in rows] == [False, *again]
    assert 5 <= sum(again) <= 15
    assert all(r.valid for r in rows)


def test_a_frozen_camera_ends_the_episode_and_no_row_to_learn_from_repeats_its_picture():
    cell = begun({'side': device(), 'wrist': device()})
    steps(cell, 5)
    frozen = stamps(cell.sent.rows[-1])[1]
    steps(cell, 20, cameras=['side'])
    result, rows = cell.episode.result, cell.sent.rows
    assert (result.boundary, result.void) == (Boundary.ABORT, True)
    assert 'camera wrist' in result.reason
    assert '0.3 s is the limit' in result.reason
    assert [(r.closing, r.truncated, r.terminated) for r in rows[-1:]] == [(True, True, False)]
    assert all(p.age_s <= 0.3 for r in rows for p in r.pictures)
    for row, following in pairwise(rows):
        if row.valid:
            assert not any(p.repeated for p in row.pictures + following.pictures)
    assert sum(stamps(r)[1] >= frozen and not r.valid for r in rows) >= 2
    assert cell.episode.counts['missed_views'] >= 1


def test_an_answer_to_a_view_that_went_stale_meanwhile_never_moves_the_arm():
    cell = begun({'wrist': device(max_age_s=0.05)})
    flow(cell, 0.08, cameras=())
    cell.episode.on_answer(answer(cell.episode, DOWN))
    assert cell.sent.commands == []
    assert not cell.episode.running
    assert 'camera wrist' in cell.episode.result.reason


def test_the_arm_holds_after_its_camera_was_lost():
    cell = begun({'wrist': device()})
    steps(cell, 3)
    steps(cell, 6, cameras=())
    flow(cell, 0.3, cameras=())
    assert not cell.episode.running
    assert cell.drive.latch.mode is ArmMode.HOLD


def test_an_episode_begins_with_views_taken_after_the_reset():
    cell = begun({'side': device(), 'wrist': device()})
    since = cell.clock.now
    assert 'camera side sent no picture since the reset' in problem(cell, since + 0.001)
    cell.clock.now += 0.05
    cell.see('side')
    cell.see('wrist', late_s=0.1)
    assert 'camera wrist sent no picture since the reset' in problem(cell, since + 0.001)
    cell.see('wrist')
    assert problem(cell, since + 0.001) == ''


def problem(cell, since_s):
    return cell.eyes.problem(cell.drive.sample(), since_s)


def test_without_a_view_no_episode_begins_and_no_row_is_left():
    cell = Cell(realtime=True, cameras={'wrist': device()})
    cell.begin()
    assert 'camera wrist sent no picture' in cell.episode.result.reason
    assert cell.sent.rows == []
    assert cell.sent.observations == []


# ---------------------------------------------------------------------- lockstep


def test_in_lockstep_a_step_waits_for_every_view_of_its_instant():
    cell = Cell(cameras={'side': drawn(), 'wrist': drawn()})
    cell.begin()
    for step in range(6):
        cell.dark = {('side', 'wrist')[step % 2]} if step < 4 else {'side', 'wrist'}
        cell.act(DOWN)
        assert (cell.episode.step, len(cell.sent.rows)) == (step, step)
        at_ns = round(cell.drive.sample().state.stamp_s * NS)
        for name in cell.dark:
            cell.see(name, stamp_ns=at_ns - 20_000_000)  # of another instant: it does not count
            assert cell.episode.step == step
        for name in cell.dark:
            cell.see(name, stamp_ns=at_ns)
        assert (cell.episode.step, len(cell.sent.rows)) == (step + 1, step + 1)
    for row in cell.sent.rows:
        assert stamps(row) == [round(row.captured_s * NS)] * 2
        assert [(p.age_s, p.repeated) for p in row.pictures] == [(0.0, False)] * 2
        assert row.valid


def test_in_lockstep_a_view_may_come_before_its_sample():
    cell = Cell(cameras={'side': drawn()})
    cell.begin()
    cell.dark = {'side'}
    cell.episode.on_answer(answer(cell.episode, DOWN))
    sample = cell.drive.step(cell.sent.commands.pop())
    cell.see('side', stamp_ns=round(sample.state.stamp_s * NS))
    assert cell.episode.step == 0
    cell.episode.on_sample(sample)
    assert cell.episode.step == 1


def test_in_lockstep_a_camera_that_stays_dark_ends_the_episode_by_name():
    cell = Cell(cameras={'side': drawn(), 'wrist': drawn()})
    cell.begin()
    cell.act(DOWN)
    cell.dark = {'wrist'}
    cell.act(DOWN)
    cell.clock.now += PATIENCE_S / 2
    cell.episode.tick()
    assert cell.episode.running
    cell.clock.now += PATIENCE_S
    cell.episode.tick()
    result = cell.episode.result
    assert (result.boundary, result.void) == (Boundary.ABORT, True)
    assert 'camera wrist sent no picture of this step within' in result.reason
    assert [(r.step, r.closing) for r in cell.sent.rows] == [(0, False), (1, True)]


def test_the_closing_row_keeps_the_final_pictures():
    cell = Cell(cameras={'side': drawn()}, task=schema.PegTask(max_steps=2))
    cell.begin()
    cell.act(DOWN)
    cell.act(DOWN)
    closing = cell.sent.rows[-1]
    assert closing.closing
    assert stamps(closing) == [round(cell.drive.sample().state.stamp_s * NS)]


def test_the_same_seed_and_actions_give_the_same_pictures_in_the_same_rows():
    def record():
        cell = Cell(cameras={'side': drawn()})
        cell.begin(seed=3)
        for _ in range(5):
            cell.clock.now += 0.123  # wall time leaves no trace
            cell.act(DOWN)
        return [
            (p.view.stamp_ns, p.view.data.tobytes(), p.age_s, p.repeated)
            for r in cell.sent.rows
            for p in r.pictures
        ]

    assert record() == record()


# ---------------------------------------------------------------------- the wire


@pytest.mark.parametrize('policy_away', [False, True])
@pytest.mark.parametrize('replay_away', [False, True])
def test_pictures_go_raw_on_this_machine_and_as_one_jpeg_to_others(policy_away, replay_away):
    cell = Cell(cameras={'side': drawn()}, task=schema.PegTask(max_steps=1))
    cell.begin()
    cell.act(DOWN)
    row, asked = cell.sent.rows[0], cell.sent.observations[0]
    view = row.pictures[0].view
    writer = Writer('r', 'arm0', policy_away=policy_away, replay_away=replay_away)
    messages = writer.observation(asked), writer.row(row, 0)
    for message, away in zip(messages, (policy_away, replay_away), strict=True):
        (m,) = message.images
        assert (m.name, m.height, m.width, m.age, m.repeated) == ('side', 8, 8, 0.0, False)
        assert m.encoding == ('jpeg' if away else 'rgb8')
        assert type(m.data) is array
        assert m.data == (view.jpeg if away else view.data)
        pixels = np.frombuffer(view.data, np.uint8).reshape(8, 8, 3).astype(int)
        assert np.abs(image(m) - pixels).max() < 8
    assert ('jpeg' in vars(view)) is (policy_away or replay_away)


def test_a_view_that_came_as_a_jpeg_goes_on_as_it_came():
    cell = Cell(realtime=True, cameras={'wrist': device()})
    file = array('B', jpeg.encode(np.zeros((8, 8, 3), np.uint8)))
    assert cell.see('wrist', encoding='jpeg', data=file) == ''
    cell.begin()
    (m,) = Writer('r', 'arm0').observation(cell.sent.observations[0]).images
    assert (m.encoding, m.data) == ('jpeg', file)


def test_filling_messages_with_pictures_never_goes_element_by_element():
    """The slow way, a list, takes about 100 times as long on the same machine."""
    wide = {'wrist': schema.TopicsCameraConfig(width=640, height=480)}
    cell = Cell(realtime=True, cameras=wide)
    cell.see('wrist')
    cell.begin()
    (asked,) = cell.sent.observations
    writer, pixels = Writer('r', 'arm0'), asked.pictures[0].view.data.tolist()

    def shortest(function):
        times = []
        for _ in range(5):
            begun = time.thread_time()
            function()
            times.append(time.thread_time() - begun)
        return min(times)

    message = writer.observation(asked).images[0]
    fast = shortest(lambda: writer.observation(asked))
    slow = shortest(lambda: setattr(message, 'data', pixels))
    assert type(message.data) is array
    assert message.data.typecode == 'B'
    assert fast < slow / 4
