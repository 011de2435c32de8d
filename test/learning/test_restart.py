# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A learner that comes back to a store from which old segments were deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from user_core.config import RunConfig
from user_core.outcome import Boundary, Mode
from user_learning.learner import Learner
from user_learning.networks import Spec
from user_learning.row import Row
from user_learning.store import Store
from user_learning.tail import segments
from user_learning.weights import Publisher


def learner_of(config: RunConfig, spec: Spec, folder: Path) -> Learner:
    publisher = Publisher(folder / 'shm', folder / 'versions.json', 'abcd')
    return Learner(config, spec, folder, publisher, lambda _: None, lambda *_: None)


def test_rows_of_deleted_segments_still_count_for_the_budget_of_updates(
    tmp_path: Path, spec: Spec, small: Callable, episode: Callable[..., list[Row]]
) -> None:
    config = small(replay={'window_rows': 30}, algorithm={'utd': 0.1})
    store = Store(tmp_path / 'store', segment_bytes=5000, disk_bytes=20_000, window_rows=30)
    learner, seq = learner_of(config, spec, tmp_path), 0

    def add(number: int, mode: Mode, boundary: Boundary) -> None:
        nonlocal seq
        rows = episode(number, 5, mode=mode, boundary=boundary, seq=seq)
        seq += len(rows)
        store.write(rows)

    for number in range(2):
        add(number, Mode.DEMO, Boundary.SUCCESS)
    for number in range(2, 40):
        add(number, Mode.TRAIN, Boundary.TIMEOUT)
        learner.turn()
        store._prune()
    while learner.turn() == 0:
        pass
    learner._save()
    for number in range(40, 43):
        add(number, Mode.TRAIN, Boundary.TIMEOUT)
    store.close()
    assert len(segments(tmp_path / 'store')) < segments(tmp_path / 'store')[-1]

    again = learner_of(config, spec, tmp_path)
    assert again.rows.demo_episodes == 2
    assert again.rows.train_rows == learner.rows.train_rows + 3 * 5 == 41 * 5
    assert again.rlpd.updates == learner.rlpd.updates
    assert again.rows.online.rows == 30


def test_a_checkpoint_at_the_very_beginning_of_a_segment_is_gone_on_from(
    tmp_path: Path, spec: Spec, small: Callable, episode: Callable[..., list[Row]]
) -> None:
    store, learner = Store(tmp_path / 'store'), learner_of(small(), spec, tmp_path)
    store.write(episode(0))
    store._open(2)  # as when a row is about to be written there
    learner.turn()
    learner._save()
    assert learner.experience.tail.place == (2, 0)
    again = learner_of(small(), spec, tmp_path)
    store.write(episode(1, seq=6))
    store.close()
    for one in (again, learner_of(small(), spec, tmp_path)):
        one.turn()
        assert one.rows.train_rows == 10


def test_a_checkpoint_in_a_segment_that_was_deleted_since_is_gone_on_from(
    tmp_path: Path, spec: Spec, small: Callable, episode: Callable[..., list[Row]]
) -> None:
    rows = [row for number in range(20) for row in episode(number, seq=6 * number)]
    store = Store(tmp_path / 'store', segment_bytes=5000, disk_bytes=20_000, window_rows=30)
    learner = learner_of(small(), spec, tmp_path)
    store.write([replace(row, mode=Mode.DEMO) for row in rows[:6]])  # stays in the first segment
    for row in rows[6:30]:
        store.write([row])
    learner.turn()
    learner._save()
    segment, _ = learner.experience.tail.place
    for row in rows[30:]:
        store.write([row])
    store._prune()
    store.close()
    assert segments(tmp_path / 'store')[0] < segment < segments(tmp_path / 'store')[1]

    again = learner_of(small(), spec, tmp_path)
    assert again.rows.demo_episodes == 1
    left = sum(isinstance(r, Row) and r.mode == Mode.TRAIN for r in again.experience.stored())
    assert 30 <= again.rows.online.rows == left
    assert again.rows.train_rows >= learner.rows.train_rows + 25
