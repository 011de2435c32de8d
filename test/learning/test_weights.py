# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Versions of weights: whole, named, never going backwards."""

from __future__ import annotations

from pathlib import Path
import signal
import subprocess
import sys

import pytest
import torch

from user_core.errors import UserError
from user_learning import checkpoint
from user_learning.weights import (
    BadWeightsError,
    Publisher,
    byte_range,
    metadata_of,
    read,
    shared_folder,
)

TENSORS = {'a': torch.arange(6.0).reshape(2, 3), 'b': torch.tensor([True, False])}


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path / 'shm', tmp_path / 'run' / 'versions.json', 'abcd')


def test_a_published_version_is_read_back_whole(publisher: Publisher) -> None:
    version = publisher.publish('actor', TENSORS, updates=5, env_steps=3)
    data = version.path.read_bytes()
    tensors = read(data, version.sha256, 'actor', 1, 'abcd')
    assert torch.equal(tensors['a'], TENSORS['a'])
    assert version.size == len(data)
    assert metadata_of(data)['updates'] == '5'


@pytest.mark.parametrize('at', [3, 20, -1])
def test_one_wrong_bit_is_noticed(publisher: Publisher, at: int) -> None:
    version = publisher.publish('actor', TENSORS, 0, 0)
    data = bytearray(version.path.read_bytes())
    data[at] ^= 1
    with pytest.raises(BadWeightsError, match='content hash'):
        read(bytes(data), version.sha256, 'actor', 1, 'abcd')


@pytest.mark.parametrize('data', [b'', b'abc', b'\xff' * 100])
def test_a_file_that_holds_no_weights_is_refused_without_a_hash_too(data: bytes) -> None:
    with pytest.raises(BadWeightsError):
        read(data, '', 'actor', 1, '')


def test_weights_of_another_configuration_policy_or_version_are_refused(
    publisher: Publisher,
) -> None:
    v = publisher.publish('actor', TENSORS, 0, 0)
    data = v.path.read_bytes()
    for policy, number, config, word in (
        ('clone', 1, 'abcd', 'holds actor'),
        ('actor', 2, 'abcd', 'version 1'),
        ('actor', 1, 'ffff', 'configuration'),
    ):
        with pytest.raises(BadWeightsError, match=word):
            read(data, v.sha256, policy, number, config)


def test_only_the_newest_few_files_of_each_policy_are_kept(publisher: Publisher) -> None:
    publisher.publish('clone', TENSORS, 0, 0)
    for _ in range(10):
        publisher.publish('actor', TENSORS, 0, 0)
    names = sorted(p.name for p in publisher.folder.iterdir())
    assert names == sorted(
        ['clone-1.safetensors', *(f'actor-{k}.safetensors' for k in range(7, 12))]
    )


def test_versions_never_go_backwards_over_restarts(tmp_path: Path) -> None:
    seen = []
    for _ in range(5):
        publisher = Publisher(tmp_path / 'shm', tmp_path / 'versions.json', 'abcd')
        seen += [publisher.publish('actor', TENSORS, 0, 0).version for _ in range(70)]
    assert seen == sorted(set(seen))


KILLED = """
import sys, pathlib, torch
from user_learning.weights import Publisher
p = Publisher(pathlib.Path(sys.argv[1]) / 'shm', pathlib.Path(sys.argv[1]) / 'versions.json', 'x')
while True:
    print(p.publish('actor', {'a': torch.zeros(1000)}, 0, 0).version, flush=True)
"""


def test_versions_never_go_backwards_over_kill_9(tmp_path: Path) -> None:
    newest = 0
    for n in (1, 40, 90):
        process = subprocess.Popen(
            [sys.executable, '-c', KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        first = int(process.stdout.readline())
        assert first > newest
        for _ in range(n):
            newest = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        newest = max([newest, *(int(line) for line in process.stdout.read().split())])
        process.wait()


def test_a_restarted_learner_leaves_the_files_policies_may_ask_for(tmp_path: Path) -> None:
    first = Publisher(tmp_path / 'shm', tmp_path / 'versions.json', 'abcd')
    kept = first.publish('actor', TENSORS, 0, 0).path
    (tmp_path / 'shm' / 'actor-2.part').write_bytes(b'half')
    second = Publisher(tmp_path / 'shm', tmp_path / 'versions.json', 'abcd')
    assert kept.exists()
    assert not list((tmp_path / 'shm').glob('*.part'))
    for _ in range(5):
        second.publish('actor', TENSORS, 0, 0)
    assert not kept.exists()


def test_a_new_run_of_the_same_name_finds_nothing_of_the_old_one(tmp_path: Path) -> None:
    old = Publisher(tmp_path / 'shm', tmp_path / 'old.json', 'abcd').publish(
        'actor', TENSORS, 0, 0
    )
    Publisher(tmp_path / 'shm', tmp_path / 'new.json', 'abcd')
    assert not old.path.exists()


def test_ranges_of_a_version_join_to_the_whole(publisher: Publisher) -> None:
    version = publisher.publish('actor', {'a': torch.randn(1000)}, 0, 0)
    parts = b''.join(byte_range(version, at, 777) for at in range(0, version.size, 777))
    assert read(parts, version.sha256, 'actor', 1, 'abcd')
    publisher.close()
    with pytest.raises(UserError, match='cannot be read'):
        byte_range(version, 0, 10)
    with pytest.raises(UserError, match='no such weights'):
        byte_range(None, 0, 10)


def test_runs_of_any_name_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = {
        shared_folder(run, tmp_path / run.replace('/', '_')) for run in ('a-1', 'a-2', '../b')
    }
    assert len(folders) == 3
    assert all('..' not in f.parts for f in folders)


# ---------------------------------------------------------------- checkpoints


def test_a_checkpoint_comes_back_and_the_two_newest_are_kept(tmp_path: Path) -> None:
    for k in (1, 5, 20, 100):
        checkpoint.save(
            tmp_path, {'x': torch.full((3,), float(k))}, {'updates': k, 'config_hash': 'h'}
        )
    tensors, progress = checkpoint.load(tmp_path, 'h')
    assert progress['updates'] == 100
    assert tensors['x'].tolist() == [100.0] * 3
    assert len(checkpoint.found(tmp_path)) == 2


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    for k in (1, 2):
        path = checkpoint.save(
            tmp_path, {'x': torch.full((3,), float(k))}, {'updates': k, 'config_hash': 'h'}
        )
    path.write_bytes(path.read_bytes()[:30])
    assert checkpoint.load(tmp_path, 'h')[1]['updates'] == 1


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, {'x': torch.zeros(3)}, {'updates': 1, 'config_hash': 'h'})
    path.write_bytes(b'')
    with pytest.raises(UserError, match='readable'):
        checkpoint.load(tmp_path, 'h')


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, {'x': torch.zeros(3)}, {'updates': 1, 'config_hash': 'h'})
    with pytest.raises(UserError, match='configuration'):
        checkpoint.load(tmp_path, 'other')


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path / 'none', 'h') is None
