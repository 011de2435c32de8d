# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a batch is drawn from: the same rows for the same update, whoever reads ahead."""

from __future__ import annotations

from collections.abc import Callable
import random
import time

from colours import VIEWS, run_of, stored, window_of
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from user_core.errors import UserError
from user_core.outcome import Boundary, Mode
from user_learning.row import Row
from user_learning.rows import Rows
from user_learning.sampler import Sampler
from user_learning.tail import Tail

Build = Callable[..., list[Row]]


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


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    turns=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    left_early=st.booleans(),
)
def test_reading_ahead_changes_no_batch(
    tmp_path_factory: pytest.TempPathFactory, seed: int, turns: list[int], left_early: bool
) -> None:
    """Rows come between turns; a loop may end before its last batch."""
    store, stream = tmp_path_factory.mktemp('store'), run_of(8)
    stored(store, stream)
    rows = [Rows(60, 3, 2, views=VIEWS, frames=(9, 5), store=store) for _ in range(2)]
    ahead, plain = (Sampler(r, 8, 0.5, seed) for r in rows)
    tails = [Tail(store), Tail(store)]
    update = 0
    for k, n in enumerate(turns):
        for tail, window in zip(tails, rows, strict=True):
            for row in tail.rows(limit=24 if k == 0 else 5):
                window.add(row)
        turn = range(update, update + n)
        for at, batch in zip(turn, ahead.batches(turn), strict=True):
            wanted = plain(at)
            assert batch.state.equal(wanted.state)
            assert batch.reward.equal(wanted.reward)
            for camera in VIEWS:
                assert batch.pictures[camera].equal(wanted.pictures[camera])
                assert batch.next_pictures[camera].equal(wanted.next_pictures[camera])
            if left_early and at == turn.start + 1:
                break
        update += n


def test_a_batch_is_good_until_the_next_one_is_asked_for(tmp_path) -> None:
    rows = window_of(stored(tmp_path, run_of(8)), 60, (9, 5))
    for batch in Sampler(rows, 8, 0.5, seed=0).batches(range(10)):
        before = batch.pictures['side'].clone()
        time.sleep(0.01)
        assert batch.pictures['side'].equal(before)


def test_an_empty_window_says_so_when_read_ahead() -> None:
    with pytest.raises(UserError, match='nothing to learn from'):
        list(Sampler(Rows(10, 3, 2, views=VIEWS), 8, 0.5, seed=0).batches(range(3)))
