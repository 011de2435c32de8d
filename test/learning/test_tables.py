# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The window as a checkpoint keeps it: what comes back draws what the one that was saved drew."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from pathlib import Path
import random
import time

from colours import VIEWS, episode, look, run_of, stored
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from user_core.outcome import Boundary, Mode
from user_learning.row import Row
from user_learning.rows import Rows
from user_learning.sampler import Sampler
from user_learning.tables import packed, take_in
from user_learning.tail import Tail, pictures_path, segments


def back(rows: Rows, **fields: object) -> Rows:
    """Empty windows that took in what the others gave."""
    again = Rows(rows.online.capacity, rows.state_n, rows.action_n, n_step=3, **fields)
    take_in(again, *packed(rows))
    return again


def same_draws(a: Rows, b: Rows, updates: int = 6) -> bool:
    ours, theirs = Sampler(a, 16, 0.5, seed=3), Sampler(b, 16, 0.5, seed=3)
    for update in range(updates):
        x, y = ours(update), theirs(update)
        pairs = [
            (x.state, y.state), (x.action, y.action), (x.reward, y.reward),
            (x.discount, y.discount), (x.next_state, y.next_state),
        ]  # fmt: skip
        for camera in a.views:
            pairs.append((x.pictures[camera], y.pictures[camera]))
            pairs.append((x.next_pictures[camera], y.next_pictures[camera]))
        if x.demos_n != y.demos_n or not all(p.equal(q) for p, q in pairs):
            return False
    return True


def shuffled(rng: random.Random) -> list[Row]:
    """Demonstrations and training of three cells, interleaved; the last episodes are not over."""
    stream = []
    for cell in range(3):
        for number in range(1, 9):
            mode = Mode.DEMO if rng.random() < 0.4 or number < 3 else Mode.TRAIN
            end = Boundary.SUCCESS if rng.random() < 0.7 or number < 3 else Boundary.FAILURE
            for row in episode(number, rng.randint(2, 7), mode):
                row = dataclasses.replace(row, cell=f'arm{cell}', boundary=row.boundary and end)
                stream.append((number * 8 + row.step + rng.uniform(0, 3), row))
    stream = [row for _, row in sorted(stream, key=lambda x: x[0])]
    return stream[: len(stream) - rng.randint(0, 12)]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    capacity=st.integers(30, 90),
    frames=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    encoding=st.sampled_from(['rgb8', 'jpeg']),
)
def test_a_window_comes_back_with_its_pictures_and_goes_on_alike(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    capacity: int,
    frames: tuple[int, int],
    encoding: str,
) -> None:
    """Also in the middle of a demonstration, and of a ring that has wrapped."""
    rng = random.Random(seed)
    stream = shuffled(rng)
    for row in stream:
        row.images = look(row.episode, row.step, encoding)
    for cell in {row.cell for row in stream}:  # each counts for itself
        for k, row in enumerate(r for r in stream if r.cell == cell):
            row.seq = k
    store = stored(tmp_path_factory.mktemp('store'), stream)
    fields = {'views': VIEWS, 'frames': frames, 'store': store}
    read = list(Tail(store).rows())
    cut = rng.randint(len(read) * 2 // 3, len(read))
    rows = Rows(capacity, 3, 2, n_step=3, **fields)
    for row in read[:cut]:
        rows.add(row)
    again = back(rows, **fields)
    assert (again.online.rows, again.demos.rows) == (rows.online.rows, rows.demos.rows)
    assert same_draws(rows, again)
    for row in read[cut:]:
        rows.add(row)
        again.add(row)
    assert same_draws(rows, again)
    assert [r.step for r in again.begun] == [r.step for r in rows.begun]


def test_what_came_back_is_packed_as_the_same_tensors(tmp_path: Path) -> None:
    store = stored(tmp_path, run_of(9)[:-3])
    fields = {'views': VIEWS, 'frames': (9, 5), 'store': store}
    rows = Rows(30, 3, 2, n_step=3, **fields)
    for row in Tail(store).rows():
        rows.add(row)
    first, cells = packed(rows)
    second, others = packed(back(rows, **fields))
    assert cells == others == ['arm0']
    assert first.keys() == second.keys()
    assert all(first[k].equal(second[k]) for k in first)


def test_pictures_that_came_back_take_no_memory_before_new_ones_come(tmp_path: Path) -> None:
    store = stored(tmp_path, run_of(9))
    fields = {'views': VIEWS, 'store': store}
    rows = Rows(100, 3, 2, n_step=3, **fields)
    for row in Tail(store).rows():
        rows.add(row)
    again = back(rows, **fields)
    assert again.online.pictures is not None
    assert again.online.pictures._put == 0
    assert same_draws(rows, again)


def test_a_lost_segment_that_rows_have_pictures_in_is_an_error(tmp_path: Path) -> None:
    store = stored(tmp_path, run_of(9))
    fields = {'views': VIEWS, 'frames': (9, 5), 'store': store}
    rows = Rows(100, 3, 2, n_step=3, **fields)
    for row in Tail(store).rows():
        rows.add(row)
    pictures_path(store, segments(store)[-1]).unlink()
    with pytest.raises(FileNotFoundError, match='segment'):
        back(rows, **fields)


def test_an_episode_number_is_any_of_64_bits() -> None:
    rows = Rows(100, 3, 2, n_step=3)
    for row in episode(0, 4):
        rows.add(dataclasses.replace(row, episode=2**64 - 1, images=()))
    again = back(rows)
    assert [e.key for e in again.online.episode] == [('arm0', 2**64 - 1)] * 5


def test_a_hundred_thousand_rows_come_back_within_seconds(episode: Callable) -> None:
    """The figure itself is in bench/resume.py; what this can break by is a walk over all rows for
    each of them.
    """
    rows, one = Rows(100_000, 3, 2, n_step=3), episode(1, 99)
    for number in range(1000):
        for row in one:
            row.episode = number
            rows.add(row)
    begun = time.monotonic()
    again = back(rows)
    Sampler(again, 256, 0.0, 0)(1)
    assert time.monotonic() - begun < 60
    assert len(again.online) == len(rows.online) == 99_000
    assert np.array_equal(again.online.returns[again.online.ready],
                          rows.online.returns[rows.online.ready])  # fmt: skip
