# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files: whole or not there, and never passed over in silence."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

import pytest
import torch

from user_core.errors import UserError
from user_learning import checkpoint

SAVER = """
import os, pathlib, random, signal, sys, time
import torch
from user_learning import checkpoint
torch.set_num_threads(1)
folder, rng, whole = pathlib.Path(sys.argv[1]), random.Random(0), 0
for _ in range(20):
    child = os.fork()
    if not child:
        saved = checkpoint.load(folder, 'h')
        updates = saved.progress['updates'] if saved else 0
        while True:
            updates += 1
            tensors = {'x': torch.full((200_000,), float(updates))}
            progress = {'updates': updates, 'resume_hash': 'h', 'segment': 1, 'offset': updates}
            checkpoint.save(folder, tensors, progress)
    until = time.monotonic() + 30
    while not checkpoint.found(folder)[-1:] > [checkpoint.path_of(folder, whole)]:
        assert time.monotonic() < until
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    saved = checkpoint.load(folder, 'h')
    assert saved.lost == ''
    assert (saved.tensors['x'] == saved.progress['updates']).all()
    assert saved.progress['updates'] > whole, (whole, saved.progress)
    whole = saved.progress['updates']
    assert whole - 2 <= checkpoint.held_place(folder)[1] <= whole
assert not list(folder.glob('*.damaged'))
print(whole)
"""
"""Children that save in a loop and are killed at random points."""


def saved(folder: Path, updates: int, resume_hash: str = 'h') -> Path:
    tensors = {
        'x': torch.full((300,), float(updates)),
        'n': torch.tensor([updates, 2]),
        'none': torch.zeros(0, 4),
        'bit': torch.tensor(True),
    }
    progress = {
        'updates': updates, 'resume_hash': resume_hash, 'segment': 3, 'offset': 10 * updates,
    }  # fmt: skip
    return checkpoint.save(folder, tensors, progress)


def test_the_newest_checkpoint_comes_back_and_two_are_kept(tmp_path: Path) -> None:
    for updates in (1, 5, 20, 100):
        path = saved(tmp_path, updates)
    found = checkpoint.load(tmp_path, 'h')
    assert found is not None
    assert (found.path, found.progress['updates'], found.place) == (path, 100, (3, 1000))
    assert found.tensors['x'].tolist() == [100.0] * 300
    assert found.lost == ''
    assert [int(p.stem[-4:]) for p in checkpoint.found(tmp_path)] == [20, 100]


def test_what_was_loaded_is_saved_as_the_same_bytes(tmp_path: Path) -> None:
    path = saved(tmp_path / 'a', 7)
    found = checkpoint.load(tmp_path / 'a', 'h')
    assert found is not None
    again = checkpoint.save(tmp_path / 'b', found.tensors, found.progress)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize('damage', ['cut', 'empty', 'a bit of a tensor', 'a digit of the place'])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_with_a_word(
    tmp_path: Path, damage: str
) -> None:
    saved(tmp_path, 1)
    path = saved(tmp_path, 20)
    data = bytearray(path.read_bytes())
    if damage == 'cut':
        del data[-30:]
    elif damage == 'empty':
        data.clear()
    elif damage == 'a bit of a tensor':
        data[-500] ^= 4
    else:
        at = data.index(b'200')
        data[at : at + 3] = b'300'
    path.write_bytes(data)
    found = checkpoint.load(tmp_path, 'h')
    assert found is not None
    assert found.progress['updates'] == 1
    assert 'learner-0000000020.safetensors is damaged: updates 2 to 20' in found.lost
    # Set aside, it is not in the way of the ones to come.
    saved(tmp_path, 10)
    assert [int(p.stem[-4:]) for p in checkpoint.found(tmp_path)] == [1, 10]
    assert len(list(tmp_path.glob('*.damaged'))) == 1


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(tmp_path: Path) -> None:
    for updates in (1, 2):
        saved(tmp_path, updates).write_bytes(b'')
    for _ in range(2):
        with pytest.raises(UserError, match='readable'):
            checkpoint.load(tmp_path, 'h')


def test_a_checkpoint_of_another_configuration_or_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 1)
    with pytest.raises(UserError, match='configuration'):
        checkpoint.load(tmp_path, 'other')
    monkeypatch.setattr(checkpoint, 'SCHEMA', checkpoint.SCHEMA + 1)
    with pytest.raises(UserError, match='another version of USER'):
        checkpoint.load(tmp_path, 'h')


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path / 'none', 'h') is None
    assert checkpoint.held_place(tmp_path / 'none') is None


def test_the_store_is_held_where_the_oldest_kept_checkpoint_was(tmp_path: Path) -> None:
    paths = []
    for updates in (1, 2, 3):
        paths.append(saved(tmp_path, updates))
        assert checkpoint.held_place(tmp_path) == (3, 10 * max(updates - 1, 1))
    paths[1].write_bytes(paths[1].read_bytes()[:40])
    assert checkpoint.held_place(tmp_path) == (3, 30)
    paths[2].write_bytes(b'\xff' * 100)
    assert checkpoint.held_place(tmp_path) is None


def test_a_saver_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, '-c', SAVER, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20
