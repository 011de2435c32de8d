# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Encoders that learn where demonstrations ended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
import threading

import numpy as np
import pytest
from squares import VIEWS, reaching, sighted
import torch

from user_core.config import RunConfig
from user_core.errors import UserError
from user_core.footprint import Footprint
from user_core.outcome import Boundary, Mode
from user_learning.augment import Shift
from user_learning.hindsight import RowEncoder, aim_loss, lesson_of, stacked, teach
from user_learning.learner import Learner
from user_learning.networks import Actor
from user_learning.row import Row
from user_learning.store import Store
from user_learning.weights import Publisher, Version

FIELDS = {
    'teacher': 'hindsight', 'pool': 'keypoints', 'features': None, 'channels': (8, 16),
}  # fmt: skip


def actor(seed: int = 0) -> Actor:
    return Actor(sighted(**FIELDS), (16,), torch.Generator().manual_seed(seed))


def episodes(numbers: range, **fields: object) -> list[Row]:
    return [row for k in numbers for row in reaching(k, **fields)]


def taught(updates: int, seed: int = 0) -> Actor:
    pupil = actor(seed)
    lesson = lesson_of(episodes(range(80)), sighted(**FIELDS))
    teach(pupil, lesson, updates, Shift(0, torch.Generator()), seed)
    return pupil


def test_a_lesson_is_the_way_left_to_the_end_of_each_successful_demonstration() -> None:
    rows = episodes(range(2))
    rows += reaching(2, boundary=Boundary.TIMEOUT) + reaching(3, mode=Mode.TRAIN)
    lesson = lesson_of(rows, sighted(**FIELDS))
    assert len(lesson) == 12
    assert {c: p.shape for c, p in lesson.pictures[0].items()} == {
        c: (*size, 3) for c, size in VIEWS.items()
    }
    for k, row in enumerate(rows[:12]):
        end = rows[k // 6 * 6 + 5]
        assert np.array_equal(lesson.offset[k], end.state[:2] - row.state[:2])
        assert np.array_equal(lesson.pictures[k]['side'].reshape(-1), row.images[0].data)


def test_a_lesson_takes_the_newest_training_episodes_that_fit_and_every_demonstration() -> None:
    rows = episodes(range(2)) + episodes(range(2, 6), mode=Mode.TRAIN)
    rows += reaching(6, mode=Mode.TRAIN)[:3]  # its cell was killed
    rows += reaching(7, mode=Mode.TRAIN) + reaching(8, mode=Mode.EVAL)
    lesson = lesson_of(rows, sighted(**FIELDS), most=13)
    expected = [row.state for k in (0, 1, 5, 7) for row in reaching(k)]
    assert np.array_equal(lesson.state, np.stack(expected))
    assert len(lesson.pictures) == len(lesson.offset) == 24


@pytest.mark.parametrize('state', [np.zeros(4, np.float32), np.full(3, np.nan, np.float32)])
def test_an_episode_whose_state_is_not_the_task_s_is_no_lesson(state: np.ndarray) -> None:
    rows = episodes(range(3))
    rows[8] = replace(rows[8], state=state)
    assert len(lesson_of(rows, sighted(**FIELDS))) == 12


def test_without_a_success_there_is_no_lesson() -> None:
    with pytest.raises(UserError, match='No demonstration succeeded'):
        lesson_of(reaching(1, boundary=Boundary.TIMEOUT), sighted(**FIELDS))


def test_the_loss_forgives_a_tenth_of_the_way_and_half_the_fine_scale() -> None:
    fine = torch.full((2,), 0.1)
    offset, guess = torch.tensor([[0.6, 0.8]]), torch.tensor([[0.9, 0.8]])
    # |d| = 1, so w = 0.05 + 0.1; errors of 2 and 0 widths cost 2 - 1/2 and 0
    assert aim_loss(guess, offset, fine).item() == pytest.approx((2.0 - 0.5) / 2)
    assert aim_loss(offset, offset, fine).item() == 0.0


def test_taught_encoders_see_where_a_fresh_episode_will_end() -> None:
    pupil = taught(150)
    fresh = lesson_of(episodes(range(1000, 1020)), sighted(**FIELDS))
    with torch.no_grad():
        _, guess = pupil.look(torch.from_numpy(fresh.state), stacked(fresh.pictures, 'cpu'))
    error = np.square(guess.numpy() - fresh.offset).mean()
    assert error < 0.5 * np.square(fresh.offset).mean()


def test_taught_encoders_rest_and_the_same_seed_teaches_the_same() -> None:
    a, b = taught(3), taught(3)
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    untaught = actor().state_dict()
    changed = {k for k, v in a.state_dict().items() if not torch.equal(v, untaught[k])}
    assert {k.split('.')[0] for k in changed} == {'encoders', 'aim'}
    assert all(p.requires_grad == k.startswith('net.') for k, p in a.named_parameters())


def test_an_encoded_row_is_what_the_network_would_see_and_has_no_pictures() -> None:
    pupil, spec = actor(), sighted(**FIELDS)
    rows = episodes(range(30))
    refused = []
    seen = list(RowEncoder(pupil, spec).encode(rows, lambda *why: refused.append(why)))
    assert [r.step for r in seen] == [r.step for r in rows]
    lesson = lesson_of(rows, spec)
    with torch.no_grad():
        x = pupil.see(torch.from_numpy(lesson.state), stacked(lesson.pictures, 'cpu'))
    assert x.shape == (len(rows), spec.input_n)
    for row, expected in zip(seen, x, strict=True):
        assert np.allclose(row.state, expected, atol=1e-5)
        assert row.images == ()
    assert refused == []


def test_a_row_without_its_pictures_is_refused_by_name_and_evaluations_are_not_looked_at() -> None:
    rows = reaching(1)
    rows[2] = replace(rows[2], images=rows[2].images[:1])
    refused = []
    encoder, others = RowEncoder(actor(), sighted(**FIELDS)), reaching(2, mode=Mode.EVAL)
    seen = list(encoder.encode(rows + others, lambda _, why: refused.append(why)))
    assert len(seen) == 5
    assert refused == ['it has no picture of camera wrist']


# ---------------------------------------------------------------- in the learner


@pytest.fixture
def page(small: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    def build(**policy: object) -> RunConfig:
        cameras = {
            c: {'kind': 'sim', 'scene': c, 'height': h, 'width': w} for c, (h, w) in VIEWS.items()
        }
        return small(
            policy={'kind': 'cnn', 'kernels': (5, 3), 'strides': (2, 2), **FIELDS, **policy},
            learner={'hindsight_updates': 20, 'hindsight_every': 12},
            cells={'arm0': {'cameras': cameras}},
        )

    return build


def learner(config: RunConfig, folder: Path, announced: list[Version]) -> Learner:
    publisher = Publisher(folder / 'shm', folder / 'versions.json', 'abcd')
    spec = sighted(**config.policy.model_dump(exclude={'kind'}))
    return Learner(config, spec, folder, publisher, announced.append, lambda *_: None)


def settle(one: Learner) -> Learner:
    for _ in range(500):
        if one.turn() > 0:
            return one
    raise AssertionError(f'still {one.state}')


def run(one: Learner, stop: threading.Event) -> None:
    """Runs it to its end in a thread of its own: it changes how its thread computes."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(one.run, stop).result()


@pytest.mark.parametrize('policy', [{}, {'teacher': 'critics', 'features': 4}])
def test_a_learner_with_pictures_trains_and_comes_back_bit_for_bit(
    page, tmp_path: Path, policy: dict
) -> None:
    config, announced = page(**policy), []
    with closing(Store(tmp_path / 'store')) as store:
        rows = episodes(range(3)) + episodes(range(10, 14), mode=Mode.TRAIN)
        store.write([replace(row, seq=k) for k, row in enumerate(rows)])
        first = settle(learner(config, tmp_path, announced))
        assert first.state == 'IDLE'
        assert first.rlpd.updates == 20 + 2 * 20
        assert first.rows.refused == 0
        assert [v.policy for v in announced][:2] == ['clone', 'actor']
        first._save()
        more = episodes(range(20, 22), mode=Mode.TRAIN)
        store.write([replace(row, seq=len(rows) + k) for k, row in enumerate(more)])
    second = learner(config, tmp_path, announced)
    assert second.state == 'RESTORING'
    before = {k: v.clone() for k, v in second.rlpd.actor.encoders.state_dict().items()}
    for one in (first, second):
        settle(one)
        assert one.rlpd.updates == 80
        assert one.training.taught_rows == (20 if one.spec.taught else 0)
    state = second.rlpd.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in first.rlpd.state_dict().items())
    after = second.rlpd.actor.encoders.state_dict()
    rested = all(torch.equal(v, after[k]) for k, v in before.items())
    assert rested is (config.policy.teacher == 'hindsight')
    assert second.rows.online.pictures is None or config.policy.teacher == 'critics'


def test_while_encoders_are_taught_the_learner_owes_more_than_lockstep_allows(
    page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = page()
    with closing(Store(tmp_path / 'store')) as store:
        rows = episodes(range(3)) + episodes(range(10, 14), mode=Mode.TRAIN)
        store.write([replace(row, seq=k) for k, row in enumerate(rows)])
    one, owed = learner(config, tmp_path, []), []
    go_on = one._go_on
    monkeypatch.setattr(one, '_go_on', lambda: (owed.append(one.numbers['backlog']), go_on())[1])
    settle(one)
    assert min(owed[:20]) > config.learner.max_backlog_updates
    one._tell(now=True)
    reads = 2  # of some rows each: for the lesson, and to encode them
    assert one.numbers['lessons'] == 20 + reads + config.learner.clone_updates
    assert one.numbers['backlog'] == 0


def test_encoders_learn_anew_from_successes_and_every_row_is_encoded_anew(
    page, tmp_path: Path
) -> None:
    config, announced = page(), []
    with closing(Store(tmp_path / 'store')) as store:
        rows = episodes(range(3)) + episodes(range(10, 14), mode=Mode.TRAIN)
        store.write([replace(row, seq=k) for k, row in enumerate(rows)])
        one = settle(learner(config, tmp_path, announced))
        before = {k: v.clone() for k, v in one.rlpd.average.state_dict().items()}
        more = episodes(range(20, 23), mode=Mode.TRAIN)
        store.write([replace(row, seq=len(rows) + k) for k, row in enumerate(more)])
    settle(one)
    assert (one.training.taught_rows, one.rows.train_rows, one.rows.demo_episodes) == (35, 35, 3)
    assert one.rlpd.updates == 20 + 2 * 35
    lesson = lesson_of(rows + more, one.spec, most=1000)
    with torch.no_grad():
        x = one.rlpd.actor.see(torch.from_numpy(lesson.state), stacked(lesson.pictures, 'cpu'))
    kept = np.concatenate([one.rows.demos.observation['state'][:18],
                           one.rows.online.observation['state'][:42]])  # fmt: skip
    assert np.allclose(kept, x, atol=1e-5)
    after, actor = one.rlpd.average.state_dict(), one.rlpd.actor.state_dict()
    sight = [k for k in after if k.startswith(('encoders.', 'aim.net'))]
    assert all(torch.equal(after[k], actor[k]) for k in sight)
    assert not any(torch.equal(after[k], before[k]) for k in sight)
    one._save()
    again = settle(learner(config, tmp_path, announced))
    assert (again.training.taught_rows, again.rows.train_rows) == (35, 35)


def test_a_learner_that_was_saved_before_its_first_lesson_still_takes_it(
    page, tmp_path: Path
) -> None:
    config, announced = page(), []
    with closing(Store(tmp_path / 'store')) as store:
        store.write(reaching(0))
        waiting = learner(config, tmp_path, announced)
        waiting.turn()
        assert waiting.state == 'WAIT_DEMOS'
        waiting._save()
        store.write([replace(row, seq=6 + k) for k, row in enumerate(episodes(range(1, 3)))])
    one = learner(config, tmp_path, announced)
    untaught = {k: v.clone() for k, v in one.rlpd.actor.encoders.state_dict().items()}
    assert one.experience.encoder is None
    settle(one)
    assert one.experience.encoder is not None
    assert one.rows.refused == 0
    taught = one.rlpd.actor.encoders.state_dict()
    assert not all(torch.equal(v, taught[k]) for k, v in untaught.items())


def test_a_stop_while_encoders_learn_anew_saves_those_that_act(
    page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, announced, stop = page(), [], threading.Event()
    with closing(Store(tmp_path / 'store')) as store:
        rows = episodes(range(3)) + episodes(range(10, 14), mode=Mode.TRAIN)
        store.write([replace(row, seq=k) for k, row in enumerate(rows)])
        one = settle(learner(config, tmp_path, announced))
        before = {k: v.clone() for k, v in one.rlpd.state_dict().items()}
        more = episodes(range(20, 23), mode=Mode.TRAIN)
        store.write([replace(row, seq=len(rows) + k) for k, row in enumerate(more)])
    at, go_on = one.lessons, one._go_on

    def cut() -> bool:
        if one.lessons == at + 3:
            stop.set()
        return go_on()

    monkeypatch.setattr(one, '_go_on', cut)
    run(one, stop)
    assert one.lessons == at + 4
    again = learner(config, tmp_path, announced)
    state = again.rlpd.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in before.items())
    again.training.restore(lambda: None)
    assert (again.training.taught_rows, again.rows.train_rows) == (20, 35)


def test_a_clone_that_was_cut_is_not_published(
    page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, announced, stop = page(teacher='critics', features=4), [], threading.Event()
    with closing(Store(tmp_path / 'store')) as store:
        rows = episodes(range(3))
        store.write([replace(row, seq=k) for k, row in enumerate(rows)])
    one = learner(config, tmp_path, announced)
    go_on = one._go_on
    monkeypatch.setattr(one, '_go_on', lambda: (one.lessons == 3 and stop.set(), go_on())[1])
    run(one, stop)
    assert one.lessons == 4
    assert one.training.clone is None
    assert announced == []


def test_what_encoders_make_of_rows_counts_as_memory(page, tmp_path: Path) -> None:
    config = page(pool='flatten')
    one = learner(config, tmp_path, [])
    by_page, rows = Footprint.of(config), config.budget.env_steps * 9 // 8
    wide = one.experience.footprint.memory_bytes - by_page.memory_bytes
    assert one.spec.input_n > 2000
    assert wide > 4 * one.spec.input_n * rows
