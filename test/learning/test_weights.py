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
from user_learning import weights
from user_learning.weights import (
    LEASES_N,
    BadWeightsError,
    Publisher,
    Version,
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


def whole(
    publisher: Publisher, policy: str, number: int, step: int = 777
) -> tuple[Version, bytes]:
    """A version as parts of it join."""
    version, data = publisher.part(policy, number, 0, step)
    while len(data) < version.size:
        data += publisher.part(policy, version.version, len(data), step)[1]
    return version, data


def test_ranges_of_a_version_join_to_the_whole(publisher: Publisher) -> None:
    version = publisher.publish('actor', {'a': torch.randn(1000)}, 0, 0)
    for number in (1, 0):
        told, parts = whole(publisher, 'actor', number)
        assert told == version
        assert read(parts, version.sha256, 'actor', 1, 'abcd')
    with pytest.raises(UserError, match='no such weights'):
        publisher.part('actor', 2, 0, 10)
    with pytest.raises(UserError, match='published no clone yet'):
        publisher.part('clone', 0, 0, 10)


def test_a_version_that_is_being_fetched_outlives_a_hundred_newer_ones_and_memory_stays_flat(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several policies fetch on slow links, one after the other, while versions stream."""
    slow = publisher.publish('actor', TENSORS, 0, 0)
    publisher.part('actor', 0, 0, 10)
    for k in range(100):
        publisher.publish('actor', TENSORS, 0, 0)
        publisher.part('actor', slow.version, 10, 10)
        if k % 10 == 0:
            publisher.part('actor', 0, 0, 10)  # begun, and never finished
        assert len(list(publisher.folder.iterdir())) <= publisher.keep_n + LEASES_N
    assert whole(publisher, 'actor', slow.version)[0] == slow
    monkeypatch.setattr(weights.time, 'monotonic', lambda: 1e12)
    publisher.publish('actor', TENSORS, 0, 0)
    assert len(list(publisher.folder.iterdir())) == publisher.keep_n


def test_what_a_killed_learner_wrote_and_never_announced_is_the_newest_that_is_asked_for(
    tmp_path: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, '-c', KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    written = max(int(line) for line in ['20', *process.stdout.read().split()])
    process.wait()
    (tmp_path / 'shm' / 'actor-9999.safetensors').write_bytes(b'torn by a power failure')
    publisher = Publisher(tmp_path / 'shm', tmp_path / 'versions.json', 'x')
    newest, data = whole(publisher, 'actor', 0, 4096)
    assert written <= newest.version <= written + 1
    assert read(data, newest.sha256, 'actor', newest.version, 'x')
    assert publisher.publish('actor', TENSORS, 0, 0).version > newest.version


def test_an_evaluated_version_of_the_archive_is_there_after_its_file_is_gone(
    tmp_path: Path,
) -> None:
    publisher = Publisher(tmp_path / 'shm', tmp_path / 'v.json', 'x', archive=tmp_path / 'kept')
    version = publisher.publish('actor', TENSORS, 3, 4)
    (tmp_path / 'kept').mkdir()
    (tmp_path / 'kept' / version.path.name).write_bytes(version.path.read_bytes())
    for _ in range(publisher.keep_n):
        publisher.publish('actor', TENSORS, 0, 0)
    assert not version.path.exists()
    told, data = whole(publisher, 'actor', 1)
    assert read(data, version.sha256, 'actor', 1, 'x')
    assert (told.sha256, told.updates, told.env_steps) == (version.sha256, 3, 4)


def test_runs_of_any_name_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = {
        shared_folder(run, tmp_path / place)
        for run in ('a-1', 'a-2', '../b')
        for place in ('here', 'there')
    }
    assert len(folders) == 6
    assert shared_folder('a-1', tmp_path / 'here') in folders
    assert all('..' not in f.parts for f in folders)
