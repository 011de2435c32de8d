# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A learner that comes back: to what it was, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
import threading
import time

import pytest
import torch

from user_core.config import RunConfig
from user_core.errors import UserError
from user_core.outcome import Boundary, Mode
from user_learning import checkpoint, experience
from user_learning.learner import Learner
from user_learning.networks import Spec
from user_learning.row import Row
from user_learning.store import Store
from user_learning.tail import Tail, segments
from user_learning.weights import Publisher

Build = Callable[..., list[Row]]
Small = Callable[..., RunConfig]

FRESH = """
import json, sys
from pathlib import Path
import numpy as np
import torch
from user_core.config import RunConfig
from user_learning.learner import Learner
from user_learning.networks import Spec
from user_learning.weights import Publisher

torch.set_num_threads(1)
folder, page, spec = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
spec = Spec(*(np.array(spec[k], t) for k, t in zip(spec, ('f4', 'f4', bool))), action_n=2)
publisher = Publisher(folder / 'shm', folder / 'versions.json', 'abcd')
one = Learner(RunConfig.model_validate(page), spec, folder, publisher, print, lambda *_: None)
assert one.state == 'RESTORING'
while one.turn() == 0:
    pass
one._save()
"""
"""A process that comes back, trains as long as it may, and saves."""


def learner_of(config: RunConfig, spec: Spec, folder: Path) -> Learner:
    publisher = Publisher(folder / 'shm', folder / 'versions.json', 'abcd')
    return Learner(config, spec, folder, publisher, lambda _: None, lambda *_: None)


def come_back(config: RunConfig, spec: Spec, folder: Path) -> Learner:
    """A learner over the same folder that has taken in all of its store."""
    again = learner_of(config, spec, folder)
    assert again.state == 'RESTORING'
    again.training.restore(lambda: None)
    again.experience.read()
    return again


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

    again = come_back(config, spec, tmp_path)
    assert again.rows.demo_episodes == 2
    assert again.rows.train_rows == learner.rows.train_rows + 3 * 5 == 41 * 5
    assert again.rlpd.updates == learner.rlpd.updates
    assert again.rows.online.rows == 30


def test_a_checkpoint_at_the_very_beginning_of_a_segment_is_gone_on_from(
    tmp_path: Path, spec: Spec, small: Callable, episode: Callable[..., list[Row]]
) -> None:
    store, learner = Store(tmp_path / 'store'), learner_of(small(), spec, tmp_path)
    store.write(episode(0))
    store._next_segment()  # as when a row is about to be written there
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

    again = come_back(small(), spec, tmp_path)
    assert again.rows.demo_episodes == 1
    left = sum(
        isinstance(r, Row) and r.mode == Mode.TRAIN for r in Tail(tmp_path / 'store').rows()
    )
    assert again.rows.online.rows > left >= 30
    assert again.rows.train_rows >= learner.rows.train_rows + 25


def trained(
    config: RunConfig, spec: Spec, folder: Path, episode: Build, saves: int = 1
) -> tuple[Learner, Store]:
    """A learner that has trained on four episodes, and saved after each of the last `saves`."""
    store, learner, seq = Store(folder / 'store'), learner_of(config, spec, folder), 0
    for number in range(6):
        mode = Mode.DEMO if number < 2 else Mode.TRAIN
        rows = episode(number, 5, mode=mode, seq=seq)
        seq += len(rows)
        store.write(rows)
        settle(learner)
        if number >= 6 - saves:
            learner._save()
    return learner, store


def settle(learner: Learner) -> None:
    while learner.turn() == 0:
        pass


def test_in_a_fresh_process_the_next_updates_are_those_of_the_uninterrupted_learner(
    tmp_path: Path, spec: Spec, small: Small, episode: Build
) -> None:
    """Networks, moments, temperature, generator: the checkpoints after them are the same bytes."""
    config, folders = small(), [tmp_path / name for name in ('first', 'second')]
    learner, store = trained(config, spec, folders[0], episode)
    at = learner.rlpd.updates
    store.write([row for k in (6, 7) for row in episode(k, 5, seq=6 * k)])
    store.close()
    shutil.copytree(*folders)
    settle(learner)
    learner._save()
    assert learner.rlpd.updates == at + 20
    page = json.dumps(config.model_dump(mode='json'))
    task = json.dumps({k: getattr(spec, k).tolist() for k in ('mean', 'scale', 'squash')})
    subprocess.run([sys.executable, '-c', FRESH, str(folders[1]), page, task], check=True)
    ours, theirs = (checkpoint.found(folder / 'checkpoints')[-1] for folder in folders)
    assert ours.name == theirs.name == f'learner-{at + 20:010d}.safetensors'
    assert ours.read_bytes() == theirs.read_bytes()


def test_what_comes_back_is_saved_as_the_same_bytes(
    tmp_path: Path, spec: Spec, small: Small, episode: Build
) -> None:
    config = small(replay={'window_rows': 17})
    learner, store = trained(config, spec, tmp_path, episode)
    store.close()
    learner.turn()
    path = learner.training.save()
    before = path.read_bytes()
    again = come_back(config, spec, tmp_path)
    assert again.rows.online.rows == 17
    path.unlink()
    assert again.training.save().read_bytes() == before


def test_the_temperature_and_every_moment_come_back(
    tmp_path: Path, spec: Spec, small: Small, episode: Build
) -> None:
    learner, store = trained(small(algorithm={'alpha': 0.3}), spec, tmp_path, episode)
    store.close()
    again = learner_of(small(algorithm={'alpha': 0.3}), spec, tmp_path)
    assert again.rlpd.alpha == learner.rlpd.alpha != 0.3
    ours, theirs = learner.rlpd.state_dict(), again.rlpd.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)
    moments = {k for k in ours if k.startswith('adam.alpha')}
    assert {k.rpartition('.')[2] for k in moments} == {'step', 'exp_avg', 'exp_avg_sq'}
    assert all(float(ours[k]) != 0 for k in moments)


@pytest.mark.parametrize('left', ['nothing', 'a part', 'no file'])
def test_a_learner_does_not_go_on_without_the_rows_of_its_checkpoint(
    tmp_path: Path, spec: Spec, small: Small, episode: Build, left: str
) -> None:
    _, store = trained(small(), spec, tmp_path, episode)
    store.close()
    for path in (tmp_path / 'store').glob('segment-*.log'):
        if left == 'no file':
            path.unlink()
        else:
            os.truncate(path, 0 if left == 'nothing' else path.stat().st_size - 700)
    with pytest.raises(UserError, match=r'store ends at byte .* start a new run'):
        learner_of(small(), spec, tmp_path)


def test_a_damaged_newest_checkpoint_costs_its_updates_and_no_version_comes_twice(
    tmp_path: Path, spec: Spec, small: Small, episode: Build
) -> None:
    learner, store = trained(small(), spec, tmp_path, episode, saves=2)
    older, newest = checkpoint.found(tmp_path / 'checkpoints')
    newest.write_bytes(newest.read_bytes()[:-9])
    version, updates = learner.publisher.version, learner.rlpd.updates
    again = learner_of(small(), spec, tmp_path)
    assert f'{newest.name} is damaged' in again.lost
    assert again.rlpd.updates == int(older.stem[-5:]) < updates
    assert again.publisher.version > version
    settle(again)
    store.close()
    assert again.rlpd.updates == updates
    assert 'is damaged' in again.reason
    state = again.rlpd.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in learner.rlpd.state_dict().items())


def test_while_rows_come_back_numbers_are_those_of_the_checkpoint_and_a_stop_changes_nothing(
    tmp_path: Path, spec: Spec, small: Small, episode: Build
) -> None:
    learner, store = trained(small(), spec, tmp_path, episode)
    path = checkpoint.found(tmp_path / 'checkpoints')[-1]
    before = path.read_bytes()
    store.write([row for k in range(6, 40) for row in episode(k, 5, seq=6 * k)])
    store.close()
    again, stop, told = learner_of(small(), spec, tmp_path), threading.Event(), []

    def curve(*_: object) -> None:
        raise AssertionError('nothing was trained')

    again.gauges.curve, go_on = curve, again._go_on

    def asked() -> None:
        again._tell(now=True)
        told.append(
            (again.state, again.reason, again.numbers['env_steps'], again.numbers['demos'])
        )
        if len(told) == 2:
            stop.set()
        go_on()

    again._go_on = asked
    thread = threading.Thread(target=again.run, args=(stop,))
    thread.start()
    thread.join(30)
    assert told == [
        ('RESTORING', 'has read 1 rows that came since', 20.0, 2.0),
        ('RESTORING', 'has read 129 rows that came since', 20.0, 2.0),
    ]
    assert again.state == 'STOPPED'
    assert again.rlpd.updates == learner.rlpd.updates
    assert path.read_bytes() == before


def test_no_checkpoint_is_written_of_rows_that_are_not_on_the_disk(
    tmp_path: Path, spec: Spec, small: Small, episode: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, store = trained(small(), spec, tmp_path, episode)
    before = [path.read_bytes() for path in checkpoint.found(tmp_path / 'checkpoints')]

    def fails(_: int) -> None:
        raise OSError(5, 'Input/output error')

    store.write(episode(6, 5, seq=36))
    store.close()
    with monkeypatch.context() as patched:
        patched.setattr(experience.os, 'fdatasync', fails)
        settle(learner)
        learner._save()
    assert [p.read_bytes() for p in checkpoint.found(tmp_path / 'checkpoints')] == before
    learner.turn()
    assert learner.reason == 'no checkpoint could be written: Input/output error'
    learner._save()
    learner.turn()
    assert learner.reason == 'the update budget is used until new rows come'


def test_checkpoints_take_a_hundredth_of_the_time_at_most(
    tmp_path: Path, spec: Spec, small: Small, episode: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, store = trained(small(learner={'checkpoint_every_s': 0.01}), spec, tmp_path, episode)
    store.close()
    monkeypatch.setattr(learner.training, 'save', lambda: time.sleep(0.3))
    learner._save()
    assert learner._save_at >= time.monotonic() + 0.3 * 99 - 1
