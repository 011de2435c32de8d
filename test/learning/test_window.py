# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a learner may sample, and that a next observation is never a neighbour by accident."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import itertools
import random
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from user_core.errors import UserError
from user_core.outcome import Boundary, Mode
from user_learning.row import Row
from user_learning.window import Rows, Sampler, Window

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


def test_an_observation_is_kept_once() -> None:
    """3000 steps with two 32x32x3 pictures through a window of 2500, everything that was
    allocated counted: at most 1.1 times a single copy, and samples equal to the pictures.
    """
    shape, steps_n, capacity = (2, 32, 32, 3), 3000, 2500
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (steps_n, *shape), dtype=np.uint8)
    actions = np.zeros(2, np.float32)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        layout = {'state': ((3,), np.dtype(np.float32)), 'pixels': (shape, np.dtype(np.uint8))}
        window = Window(capacity, layout, 2)
        for step in range(steps_n):
            closing = step == steps_n - 1
            row = Row('r', 'arm0', 1, step, executed_action=actions, closing=closing)
            window.add(row, {'state': np.full(3, step, np.float32), 'pixels': pixels[step]})
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    single = capacity * int(np.prod(shape))
    assert single <= window.nbytes <= taken <= 1.1 * single
    assert len(window) == capacity - 1
    slots = window.ready[rng.integers(len(window), size=256)]
    steps = window.observation['state'][slots, 0].astype(int)
    assert np.array_equal(window.observation['pixels'][slots], pixels[steps])
    assert np.array_equal(window.observation['pixels'][window.next[slots]], pixels[steps + 1])


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


def test_evaluation_rows_are_neither_sampled_nor_counted(episode: Build) -> None:
    rows = Rows(100, 3, 2)
    for k, mode in enumerate((Mode.EVAL, Mode.EVAL_SAMPLED)):
        for row in episode(k, 5, mode=mode):
            rows.add(row)
    assert (len(rows.online), len(rows.demos), rows.train_rows) == (0, 0, 0)
    for row in episode(9, 5):
        rows.add(row)
    assert rows.train_rows == 5


def test_only_successful_demonstrations_are_demonstrations(episode: Build) -> None:
    rows = Rows(100, 3, 2)
    for k, boundary in enumerate(
        (Boundary.SUCCESS, Boundary.FAILURE, Boundary.TIMEOUT, Boundary.ABORT)
    ):
        for row in episode(k, 5, mode=Mode.DEMO, boundary=boundary):
            rows.add(row)
    assert rows.demo_episodes == 1
    assert {p[0] for p in pairs(rows.demos)} == {0}
    assert rows.train_rows == 0


def test_an_unfinished_demonstration_is_none(episode: Build) -> None:
    rows = Rows(100, 3, 2)
    for row in episode(1, 5, mode=Mode.DEMO)[:-1] + episode(2, 5, mode=Mode.DEMO):
        rows.add(row)
    assert rows.demo_episodes == 1
    assert {p[0] for p in pairs(rows.demos)} == {2}


@pytest.mark.parametrize(
    ('change', 'word'),
    [
        ({'state': np.array([1, np.nan, 0], np.float32)}, 'not finite'),
        ({'executed_action': np.array([np.inf, 0], np.float32)}, 'not finite'),
        ({'reward': float('nan')}, 'reward'),
        ({'state': np.zeros(4, np.float32)}, '4 values'),
        ({'executed_action': np.zeros(3, np.float32)}, '3 values'),
    ],
)
def test_a_row_that_would_poison_the_networks_is_left_out_by_name(
    episode: Build, change: dict, word: str
) -> None:
    rows = Rows(100, 3, 2)
    for row in episode(1, 5):
        rows.add(dataclasses.replace(row, **change) if row.step == 2 else row)
    assert rows.refused == 1
    assert word in rows.last_refused
    assert 'arm0' in rows.last_refused
    assert {p[1] for p in pairs(rows.online)} == {0.0, 3.0, 4.0}


@pytest.fixture
def both(episode: Build) -> Rows:
    rows = Rows(1000, 3, 2)
    for k in range(3):
        for row in episode(100 + k, 20, mode=Mode.DEMO):
            rows.add(row)
    for k in range(5):
        for row in episode(k, 30, boundary=Boundary.TIMEOUT):
            rows.add(row)
    return rows


def test_a_batch_is_half_demonstrations_whatever_the_windows_hold(both: Rows) -> None:
    batch = Sampler(both, 64, 0.5, seed=0)(1)
    episodes = batch.state[:, 0].numpy()
    assert batch.demos_n == 32
    assert (episodes[:32] >= 100).all()
    assert (episodes[32:] < 100).all()


def test_a_batch_equals_the_rows_it_was_drawn_from(both: Rows) -> None:
    sampler = Sampler(both, 64, 0.5, seed=0)
    for update in range(50):
        b = sampler(update)
        step, last = b.state[:, 1], b.state[:, 1] == 19
        assert (b.next_state[:, 0] == b.state[:, 0]).all()
        assert (b.next_state[:, 1] == step + 1).all()
        assert np.allclose(b.action[:, 0], 0.1 * step, atol=1e-6)
        demo = b.state[:, 0] >= 100
        assert (b.reward == (demo & last).float()).all()
        assert np.allclose(b.discount, 0.96 * (1 - (demo & last).float()))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n_step=st.integers(1, 6))
def test_n_step_returns_equal_a_walk_along_the_episode(seed: int, n_step: int) -> None:
    """Ends of every kind, invalid and missing rows, two robots interleaved."""
    rng = random.Random(seed)
    rows, known = Rows(1000, 3, 1, gamma=0.9, n_step=n_step), {}
    stream = []
    for cell in range(2):
        for number in range(4):
            length = rng.randint(1, 9)
            end = rng.choice(list(Boundary)[1:])
            for step in range(length + 1):
                last = step == length - 1
                row = Row('r', f'arm{cell}', number, step,
                          state=np.array([cell, number, step], np.float32),
                          executed_action=np.zeros(1, np.float32),
                          reward=rng.random(), terminated=last and end <= Boundary.FAILURE,
                          truncated=last and end > Boundary.FAILURE, closing=step == length,
                          valid=step < length and rng.random() > 0.1)  # fmt: skip
                if rng.random() > 0.05:
                    known[cell, number, step] = row
                    stream.append((number * 10 + step + rng.uniform(0, 3), row))
    for _, row in sorted(stream, key=lambda x: x[0]):
        rows.add(row)
    if not len(rows.online):
        return
    b = Sampler(rows, 32, 0.0, seed)(0)
    for k in range(32):
        cell, number, step = map(int, b.state[k].tolist())
        total, discount, at = 0.0, 1.0, step
        for _ in range(n_step):
            row = known.get((cell, number, at))
            if row is None or not row.valid or (cell, number, at + 1) not in known:
                break
            total, discount, at = total + discount * row.reward, discount * 0.9, at + 1
            if row.terminated:
                discount = 0.0
                break
        assert b.reward[k].item() == pytest.approx(total, rel=1e-5)
        assert b.discount[k].item() == pytest.approx(discount, rel=1e-5)
        assert b.next_state[k].tolist() == [cell, number, at]


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


def test_every_row_is_drawn_sooner_or_later(both: Rows) -> None:
    sampler, seen = Sampler(both, 64, 0.5, seed=0), set()
    for update in range(300):
        seen |= set(map(tuple, sampler(update).state[:, :2].tolist()))
    assert len(seen) == 3 * 20 + 5 * 30


def test_update_k_draws_the_same_rows_whatever_was_drawn_before(both: Rows) -> None:
    a, b = Sampler(both, 32, 0.5, seed=4), Sampler(both, 32, 0.5, seed=4)
    first = [a(k).state.clone() for k in range(10)]
    assert all(np.array_equal(b(k).state, first[k]) for k in (7, 3, 9, 0))
    assert not np.array_equal(Sampler(both, 32, 0.5, seed=5)(0).state, first[0])


def test_the_warm_up_sees_demonstrations_alone(both: Rows) -> None:
    batch = Sampler(both, 32, 0.5, seed=0)(1, demos_only=True)
    assert (batch.state[:, 0] >= 100).all()
    assert batch.demos_n == 32


def test_an_empty_window_says_so() -> None:
    with pytest.raises(UserError, match='nothing to learn from'):
        Sampler(Rows(10, 3, 2), 8, 0.5, seed=0)(1)
