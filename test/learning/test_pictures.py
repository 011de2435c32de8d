# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of rows, in memory and in the store: each one once, and always the row's own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
import random
import tracemalloc

from colours import VIEWS, episode, run_of, stored, tone, window_of, without
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from user_core.outcome import Mode
from user_learning.pictures import Pictures
from user_learning.rlpd import Batch
from user_learning.row import Picture, Row
from user_learning.rows import Rows
from user_learning.sampler import Sampler
from user_learning.store import Store
from user_learning.tail import Tail, pictures_path, segments
from user_learning.window import Window


def assert_own(batch: Batch, tolerance: int = 0) -> None:
    """Every picture is of the row whose state stands beside it."""
    for states, pictures in (
        (batch.state, batch.pictures),
        (batch.next_state, batch.next_pictures),
    ):
        for k, camera in enumerate(VIEWS):
            for state, picture in zip(states.tolist(), pictures[camera].numpy(), strict=True):
                wanted = tone(int(state[0]), int(state[1]), k).astype(int)
                assert np.abs(picture.astype(int) - wanted).max() <= tolerance


def test_bursts_of_steps_with_gaps_get_the_pictures_of_their_own_steps() -> None:
    rows = Rows(100, 3, 2, views=VIEWS)
    for row in episode(1, 24):
        if row.step % 10 < 4:
            rows.add(row)
    sampler, seen = Sampler(rows, 32, 0.0, seed=0), set()
    for update in range(20):
        batch = sampler(update)
        assert_own(batch)
        assert (batch.next_state[:, 1] == batch.state[:, 1] + 1).all()
        seen |= set(batch.state[:, 1].tolist())
    assert seen == {s for s in range(23) if s % 10 < 3}


@pytest.mark.parametrize('rows_n', [2, 9, 10, 11, 25])
@pytest.mark.parametrize('frames', [1, 3, 10])
def test_no_unwritten_or_overwritten_picture_is_ever_sampled(
    tmp_path: Path, rows_n: int, frames: int
) -> None:
    """Sizes around a capacity of 10, of which `frames` stay in memory."""
    store = stored(tmp_path, episode(1, 40)[:rows_n])
    rows = window_of(store, 10, (frames, frames))
    sampler, seen = Sampler(rows, 16, 0.0, seed=0), set()
    for update in range(20):
        batch = sampler(update)
        assert_own(batch)
        seen |= set(batch.state[:, 1].tolist())
    assert seen == set(range(max(0, rows_n - 10), rows_n - 1))


def test_a_picture_is_kept_once() -> None:
    """3000 steps with two 32x32x3 pictures through a window of 2500, everything that was
    allocated counted: at most 1.1 times a single copy.
    """
    views, steps_n, capacity = {'a': (32, 32), 'b': (32, 32)}, 3000, 2500
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        layout = {'state': ((3,), np.dtype(np.float32))}
        window = Window(capacity, layout, 2, pictures=Pictures(views, capacity, capacity))
        for step in range(steps_n):
            state, raw = np.full(3, step, np.float32), np.full((32, 32, 3), step % 256, np.uint8)
            actions, closing = np.zeros(2, np.float32), step == steps_n - 1
            row = Row('r', 'arm0', 1, step, executed_action=actions, closing=closing)
            window.add(row, {'state': state}, dict.fromkeys(views, raw))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    single = capacity * 2 * 32 * 32 * 3
    assert single <= taken <= 1.1 * single
    assert len(window) == capacity - 1


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    capacity=st.integers(15, 60),
    frames=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    encoding=st.sampled_from(['rgb8', 'jpeg']),
)
def test_a_window_larger_than_memory_samples_what_one_in_memory_does(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    capacity: int,
    frames: tuple[int, int],
    encoding: str,
) -> None:
    store = stored(tmp_path_factory.mktemp('store'), run_of(10, encoding=encoding))
    large, small = window_of(store, capacity), window_of(store, capacity, frames)
    ours, theirs = (Sampler(rows, 16, 0.5, seed) for rows in (small, large))
    for update in range(5):
        a, b = ours(update), theirs(update)
        assert_own(a, tolerance=0 if encoding == 'rgb8' else 4)
        for camera in VIEWS:
            assert a.pictures[camera].equal(b.pictures[camera])
            assert a.next_pictures[camera].equal(b.next_pictures[camera])


@pytest.mark.parametrize(
    ('change', 'word'),
    [
        (lambda row: without(row, 'wrist'), 'no picture of camera wrist'),
        (lambda row: _side(row, encoding='mono8'), 'camera side .* mono8'),
        (lambda row: _side(row, width=12), 'camera side is 12x9, its view 10x9'),
        (lambda row: _side(row, data=np.zeros(100, np.uint8)), 'camera side is unreadable'),
        (lambda row: _side(row, encoding='jpeg'), 'camera side is unreadable'),
    ],
)
def test_a_row_with_a_wrong_picture_is_left_out_by_name(change, word: str) -> None:
    rows = Rows(100, 3, 2, views=VIEWS)
    for row in episode(1, 5):
        rows.add(change(row) if row.step == 2 else row)
    assert rows.refused == 1
    assert rows.online.rows == 5
    with pytest.raises(AssertionError, match=word):
        raise AssertionError(rows.last_refused)


def _side(row: Row, **change: object) -> Row:
    first, second = row.images
    return dataclasses.replace(row, images=(dataclasses.replace(first, **change), second))


def test_without_views_pictures_cost_the_learner_nothing() -> None:
    rows = Rows(100, 3, 2)
    for row in episode(1, 5):
        rows.add(row)
    assert rows.online.pictures is None
    assert Sampler(rows, 4, 0.0, seed=0)(1).pictures == {}


def test_a_place_in_the_store_holds_the_picture_s_bytes(tmp_path: Path) -> None:
    for row in Tail(stored(tmp_path, run_of(3))).rows():
        assert isinstance(row, Row)
        for picture in row.images:
            assert isinstance(picture, Picture)
            assert picture.place is not None
            number, begin = picture.place
            data = pictures_path(tmp_path, number).read_bytes()
            assert data[begin : begin + picture.data.nbytes] == picture.data.tobytes()


def test_a_learner_draws_on_from_segments_that_were_deleted_under_it(tmp_path: Path) -> None:
    store = stored(tmp_path, run_of(20))
    rows = window_of(store, 100, (1, 1))
    sampler = Sampler(rows, 32, 0.5, seed=0)
    want = [{c: t.clone() for c, t in sampler(u).pictures.items()} for u in range(5)]
    for path in store.glob('segment-*'):
        path.unlink()
    for update in range(5):
        assert all(sampler(update).pictures[c].equal(t) for c, t in want[update].items())


def test_segments_that_no_row_needs_are_closed(tmp_path: Path) -> None:
    store = stored(tmp_path, run_of(30, demos=0))
    rows = window_of(store, 30, (5, 5))
    assert rows.online.pictures is not None
    held = rows.online.pictures.segments
    assert held is not None
    assert 1 <= len(held._files) <= 5 < len(segments(store))


def test_a_full_disk_budget_deletes_old_training_rows_and_never_demonstrations(
    tmp_path: Path,
) -> None:
    rows = run_of(40, demos=2)
    rows += episode(40, 7, Mode.DEMO, seq=len(rows)) + episode(41, 7, seq=len(rows) + 8)
    limit = 8 * 20_000
    stored(tmp_path, rows[:200], disk_bytes=limit, window_rows=40)
    stored(tmp_path, rows[200:], disk_bytes=limit, window_rows=40)
    store = Store(tmp_path, segment_bytes=20_000, disk_bytes=limit, window_rows=40)
    store._prune()
    size, next_seq = store.size, store.next_seq('arm0', 7)
    store.close()
    left = [r for r in Tail(tmp_path).rows() if isinstance(r, Row)]
    assert {r.episode for r in left if r.mode == Mode.DEMO} == {0, 1, 40}
    assert len([r for r in left if r.mode == Mode.DEMO]) == 3 * 8
    train = [r.seq for r in left if r.mode == Mode.TRAIN]
    newest = [r.seq for r in rows if r.mode == Mode.TRAIN][-40:]
    assert train[-40:] == newest
    assert len(train) < 38 * 8
    assert size <= limit
    assert next_seq == len(rows)


def test_a_window_larger_than_the_disk_budget_keeps_its_rows(tmp_path: Path) -> None:
    rows = run_of(30, demos=0)
    stored(tmp_path, rows, disk_bytes=1, window_rows=150)
    left = [r.seq for r in Tail(tmp_path).rows() if isinstance(r, Row)]
    assert left[-150:] == list(range(len(rows) - 150, len(rows)))
    assert len(left) < len(rows)


def test_a_restart_after_deletions_samples_the_rows_that_are_left(tmp_path: Path) -> None:
    stored(tmp_path, run_of(40), disk_bytes=100_000, window_rows=60)
    assert 1 < len(segments(tmp_path)) < segments(tmp_path)[-1]
    rows = window_of(tmp_path, 60, (10, 4))
    assert rows.refused == 0
    assert rows.demo_episodes == 2
    assert rows.online.rows == 60
    assert_own(Sampler(rows, 64, 0.5, seed=0)(1))


def test_a_tail_passes_over_deleted_segments_and_stops_where_it_is_told(tmp_path: Path) -> None:
    store = stored(tmp_path, run_of(10))
    tail = Tail(store)
    places = [tail.place for _ in tail.rows()]
    middle = places[len(places) // 2]
    gone = [n for n in segments(store) if n < middle[0]][1:]
    for number in gone:
        (store / f'segment-{number:06d}.log').unlink()
    tail = Tail(store)
    first = [r.seq for r in tail.rows(until=middle) if isinstance(r, Row)]
    assert tail.place == middle
    assert first[-1] == len(places) // 2
    then = [r.seq for r in tail.rows() if isinstance(r, Row)]
    assert then == list(range(len(places) // 2 + 1, len(places)))
    assert tail.bad == 0


def test_rows_from_four_writers_are_never_mixed(tmp_path: Path) -> None:
    """Four cells write rows of one colour each while a learner reads, and draws ahead."""
    store, tail = Store(tmp_path, segment_bytes=20_000), Tail(tmp_path)
    rows = Rows(120, 3, 2, views=VIEWS, frames=(40, 10), store=tmp_path)
    sampler, rng, update = Sampler(rows, 16, 0.0, seed=1), random.Random(0), 0
    todo = {
        cell: [dataclasses.replace(r, cell=f'arm{cell}') for r in run_of_cell(cell)]
        for cell in range(4)
    }
    while any(todo.values()):
        for _ in range(rng.randint(1, 20)):
            cell = rng.choice([c for c in todo if todo[c]] or [0])
            if todo[cell]:
                store.write([todo[cell].pop(0)])
        for row in tail.rows():
            assert isinstance(row, Row)
            rows.add(row)
        if len(rows.online):
            turn = range(update, update + rng.randint(1, 5))
            for batch in sampler.batches(turn):
                assert_own(batch)
            update = turn.stop
    store.close()
    assert update > 50


def run_of_cell(cell: int) -> list[Row]:
    rows: list[Row] = []
    for number in range(8):
        rows += episode(10 * cell + number, 9, seq=len(rows))
    return rows
