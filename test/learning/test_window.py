# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a learner may sample, and that a next observation is never a neighbour by accident."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from user_core.outcome import Boundary
from user_learning.row import Row
from user_learning.window import Window

LAYOUT = {'state': ((3,), np.dtype(np.float32))}
Build = Callable[..., list[Row]]


def fill(window: Window, rows: list[Row]) -> None:
    for row in rows:
        window.add(row, {'state': row.state})


def pairs(window: Window) -> set[tuple[float, float, float, float]]:
    """(episode, step, next episode, next step) of everything that can be sampled."""
    now = window.observation['state'][window.ready]
    after = window.observation['state'][window.next[window.ready]]
    return {(a[0], a[1], b[0], b[1]) for a, b in zip(now.tolist(), after.tolist(), strict=True)}


def test_the_next_observation_is_the_next_step_of_the_same_episode(episode: Build) -> None:
    window = Window(100, LAYOUT, 2)
    fill(window, episode(1, 4) + episode(2, 3))
    assert pairs(window) == {(1, s, 1, s + 1) for s in range(4)} | {
        (2, s, 2, s + 1) for s in range(3)
    }


def test_bursts_of_steps_with_gaps_between_never_pair_across_a_gap(episode: Build) -> None:
    window = Window(100, LAYOUT, 2)
    rows = episode(1, 24)
    fill(window, [r for r in rows if r.step % 10 < 4])
    assert pairs(window) == {(1, s, 1, s + 1) for s in range(23) if s % 10 < 3}


@pytest.mark.parametrize('rows', [1, 2, 9, 10, 11, 25])
def test_no_unwritten_or_overwritten_slot_is_ever_sampled(episode: Build, rows: int) -> None:
    """Sizes around a capacity of 10."""
    window = Window(10, LAYOUT, 2)
    made = episode(1, 40)[:rows]
    fill(window, made[:1])
    assert len(window.observation['state']) == 10
    window.observation['state'][1:] = np.nan
    fill(window, made[1:])
    kept = range(max(0, rows - 10), rows - 1)
    assert pairs(window) == {(1, s, 1, s + 1) for s in kept}
    assert len(window) == len(kept)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), capacity=st.integers(1, 40))
def test_interleaved_late_and_lost_rows_give_only_true_pairs(
    seed: int,
    capacity: int,
) -> None:
    """Two robots, one stream: whatever order rows come in, a pair is (k, k+1) of one episode of
    one robot.
    """
    rng = random.Random(seed)
    stream = list(itertools.product(range(2), range(3), range(7)))
    rng.shuffle(stream)
    stream.sort(key=lambda x: x[1] * 7 + x[2] + rng.uniform(0, 4))
    stream = [s for s in stream if rng.random() > 0.1]
    window = Window(capacity, {'state': ((3,), np.dtype(np.float32))}, 1)
    for cell, number, step in stream:
        row = Row(
            'r',
            f'arm{cell}',
            number,
            step,
            state=np.array([cell, number, step], np.float32),
            executed_action=np.zeros(1, np.float32),
            closing=step == 6,
            valid=step < 6,
        )
        window.add(row, {'state': row.state})
        now = window.observation['state'][window.ready]
        after = window.observation['state'][window.next[window.ready]]
        assert np.array_equal(now + np.array([0, 0, 1], np.float32), after)
        assert len(set(map(tuple, now.tolist()))) == len(now)
    newest = {tuple(s) for s in stream[-capacity:]}
    expected = {s for s in newest if s[2] < 6 and (s[0], s[1], s[2] + 1) in newest}
    assert {
        tuple(map(int, s)) for s in window.observation['state'][window.ready].tolist()
    } == expected


@pytest.mark.parametrize(
    ('boundary', 'bootstrap'),
    [
        (Boundary.SUCCESS, 0.0),
        (Boundary.FAILURE, 0.0),
        (Boundary.TIMEOUT, 1.0),
        (Boundary.ABORT, 1.0),
    ],
)
def test_every_end_cuts_the_episode_and_only_the_task_s_end_cuts_the_bootstrap(
    episode: Build, boundary: Boundary, bootstrap: float
) -> None:
    window = Window(100, LAYOUT, 2)
    fill(window, episode(1, 4, boundary=boundary) + episode(2, 4))
    slot = next(s for s in window.ready if window.observation['state'][s].tolist()[:2] == [1, 3])
    assert window.bootstrap[slot] == bootstrap
    after = window.observation['state'][window.next[slot]]
    assert after.tolist()[:2] == [1, 4]


def test_an_invalid_row_is_the_end_of_a_pair_but_not_its_beginning(episode: Build) -> None:
    window = Window(100, LAYOUT, 2)
    rows = episode(1, 4)
    rows[2] = dataclasses.replace(rows[2], valid=False)
    fill(window, rows)
    assert pairs(window) == {(1, 0, 1, 1), (1, 1, 1, 2), (1, 3, 1, 4)}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), capacity=st.integers(2, 30), n_step=st.integers(1, 6))
def test_n_step_returns_never_hold_a_row_that_was_overwritten(
    seed: int, capacity: int, n_step: int
) -> None:
    """After every row, each return is what a walk along the present links gives."""
    rng = random.Random(seed)
    window = Window(capacity, LAYOUT, 1, gamma=0.9, n_step=n_step)
    stream = [(number, step) for number in range(6) for step in range(rng.randint(1, 9))]
    stream.sort(key=lambda x: x[0] * 9 + x[1] + rng.uniform(0, 3))
    for number, step in stream:
        row = Row(
            'r',
            'arm0',
            number,
            step,
            state=np.array([number, step, 0], np.float32),
            executed_action=np.zeros(1, np.float32),
            reward=rng.random(),
            terminated=rng.random() < 0.1,
            valid=rng.random() > 0.1,
        )
        window.add(row, {'state': row.state})
        ready = set(window.ready.tolist())
        for slot in ready:
            total, discount, at = 0.0, 1.0, slot
            for _ in range(n_step):
                if at not in ready or discount == 0:
                    break
                total += discount * window.reward[at]
                discount *= 0.9 * window.bootstrap[at]
                at = window.next[at]
            assert window.returns[slot] == pytest.approx(total, rel=1e-5)
            assert window.discount[slot] == pytest.approx(discount, rel=1e-5)
            assert window.last[slot] == at


def stream_of(rng: random.Random, again: float) -> list[Row]:
    """Rows of several cells as they come: interleaved, late, lost, invalid, some of them twice."""
    stream = []
    for cell, number in itertools.product(range(rng.randint(1, 4)), range(rng.randint(1, 6))):
        for step in range(rng.randint(1, 9)):
            for _ in range(1 + (rng.random() < again)):
                row = Row(
                    'r',
                    f'arm{cell}',
                    number,
                    step,
                    state=np.array([rng.random(), number, step], np.float32),
                    executed_action=np.full(1, rng.random(), np.float32),
                    reward=rng.random(),
                    terminated=rng.random() < 0.1,
                    valid=rng.random() > 0.1,
                )
                stream.append((number * 9 + step + rng.uniform(0, 4), row))
    return [row for _, row in sorted(stream, key=lambda x: x[0]) if rng.random() > 0.05]


def drawn(window: Window) -> list[bytes]:
    """Everything that a batch takes of each row that can be drawn, in order."""
    slots = window.pick(np.arange(len(window)))
    assert slots.tolist() == window.ready.tolist()
    last = window.last[slots]
    state = window.observation['state']
    arrays = (state[slots], window.action[slots], window.returns[slots], state[last])
    columns = (*arrays, window.discount[slots])
    return [b''.join(c[k].tobytes() for c in columns) for k in range(len(slots))]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    capacity=st.integers(1, 40),
    n_step=st.integers(1, 4),
    again=st.sampled_from([0.0, 0.1]),
)
def test_what_is_drawn_follows_from_the_rows_in_the_window_alone(
    seed: int, capacity: int, n_step: int, again: float
) -> None:
    """A window that saw a long history and one that is built from its survivors, which lie in
    other slots, draw the same rows in the same order, now and after more rows.
    """
    rng = random.Random(seed)
    stream = stream_of(rng, again)
    cut = rng.randint(0, len(stream))
    old, new = (Window(capacity, LAYOUT, 1, 0.9, n_step) for _ in range(2))
    fill(old, stream[:cut])
    fill(new, stream[max(0, cut - capacity) : cut])
    assert drawn(new) == drawn(old)
    for row in stream[cut:]:
        fill(old, [row])
        fill(new, [row])
        assert drawn(new) == drawn(old)
    assert len(old._episodes) == len({(r.cell, r.episode) for r in stream[-old.rows :]})


def test_of_rows_of_the_same_step_the_newest_counts(episode: Build) -> None:
    window = Window(100, LAYOUT, 2)
    rows = episode(1, 3)
    again = dataclasses.replace(rows[1], state=np.array([9, 1, 0], np.float32))
    fill(window, [*rows, again])
    assert pairs(window) == {(1, 0, 9, 1), (9, 1, 1, 2), (1, 2, 1, 3)}


def test_rows_can_be_drawn_in_the_order_in_which_they_came(episode: Build) -> None:
    """Not in the order in which the step after them came."""
    window = Window(100, LAYOUT, 2)
    a, b = episode(1, 3, cell='arm0'), episode(2, 3, cell='arm1')
    fill(window, [a[0], b[0], b[1], a[1], a[2], b[2], b[3], a[3]])
    came = window.observation['state'][window.ready, :2].tolist()
    assert came == [[1, 0], [2, 0], [2, 1], [1, 1], [1, 2], [2, 2]]
