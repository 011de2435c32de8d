# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Versions on their way to a policy: the newest wins, and only what was published is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
import threading
import time

import numpy as np
import pytest
import torch

from user_core.outcome import Mode
from user_learning.loader import Loader
from user_learning.networks import Actor, Spec
from user_learning.policy import Answer, Policy, Question
from user_learning.weights import Publisher, Version

STATE = np.array([0.3, 1.2, -4.0], np.float32)


def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, 'waited in vain'
        time.sleep(0.005)


class Line:
    """A learner's published versions and the line to a policy on another machine, which can be
    held up.
    """

    def __init__(self, folder: Path, spec: Spec) -> None:
        self.publisher = Publisher(folder / 'shm', folder / 'versions.json', 'abcd', keep_n=500)
        self.actor = Actor(spec, (8,))
        self.versions: dict[int, Version] = {}
        self.fetched: list[int] = []
        self.loaded: list[int] = []
        self.free = threading.Event()
        self.free.set()
        self.policy = Policy(spec, (8,), seed=0)
        self.loader = Loader(
            self.policy, 'abcd', self.fetch, lambda: self.loaded.append(self.newest())
        )

    def publish(self) -> Version:
        """Version k acts tanh(k / 1000)."""
        with torch.no_grad():
            self.actor.net[-1].weight.zero_()
            self.actor.net[-1].bias[:] = (self.publisher.version + 1) / 1000
        version = self.publisher.publish('actor', self.actor.state_dict(), 0, 0)
        self.versions[version.version] = version
        return version

    def fetch(self, policy: str, number: int) -> tuple[bytes, str]:
        self.fetched.append(number)
        assert self.free.wait(30)
        return self.versions[number].path.read_bytes(), self.versions[number].sha256

    def newest(self) -> int:
        return self.policy.newest('actor')

    def acts(self) -> Answer:
        answer = self.policy.act([Question('actor', 0, Mode.EVAL, STATE, 1, 0)])[0]
        assert isinstance(answer, Answer)
        return answer


@pytest.fixture
def line(tmp_path: Path, spec: Spec) -> Iterator[Line]:
    line = Line(tmp_path, spec)
    yield line
    line.free.set()
    line.loader.close()


def test_a_policy_that_is_slow_to_load_skips_from_the_first_to_the_last_of_a_hundred_versions(
    line: Line,
) -> None:
    line.free.clear()
    line.loader.announce(line.publish(), 'far')
    until(lambda: line.fetched == [1])
    for _ in range(99):
        line.loader.announce(line.publish(), 'far')
        assert len(line.loader._mail) <= 1
    line.free.set()
    until(lambda: line.newest() == 100)
    assert line.fetched == [1, 100]
    assert line.acts().version == 100
    assert line.acts().action.tolist() == pytest.approx([np.tanh(0.1)] * 2)
    assert len(line.loader._known) <= 64


def test_an_announcement_that_comes_late_is_forgotten(line: Line) -> None:
    first, second, third = (line.publish() for _ in range(3))
    line.loader.announce(second, 'far')
    until(lambda: line.newest() == 2)
    line.loader.announce(first, 'far')
    line.loader.announce(third, 'far')
    until(lambda: line.newest() == 3)
    assert line.fetched == [2, 3]


@pytest.mark.parametrize(
    ('change', 'word'),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), 'content hash'),
        (lambda data: data[: len(data) // 2], 'content hash'),
        (lambda data: b'', 'content hash'),
    ],
    ids=['one bit', 'half', 'nothing'],
)
def test_bytes_that_are_not_the_published_ones_are_never_acted_with(
    line: Line, change: Callable[[bytes], bytes], word: str
) -> None:
    line.loader.announce(line.publish(), '')
    until(lambda: line.newest() == 1)
    bad, good = line.publish(), line.publish()
    bad.path.write_bytes(change(bad.path.read_bytes()))
    line.loader.announce(bad, '')
    until(lambda: line.loader.reason)
    assert word in line.loader.reason
    assert 'version 2' in line.loader.reason
    assert line.acts().version == 1
    line.loader.announce(good, '')
    until(lambda: line.newest() == 3)
    assert line.loaded == [1, 3]
    assert line.loader.reason == ''


def test_weights_that_were_trained_for_something_else_are_never_acted_with(
    line: Line, tmp_path: Path
) -> None:
    other = Publisher(tmp_path / 'other', tmp_path / 'other.json', 'ffff')
    line.loader.announce(other.publish('actor', line.actor.state_dict(), 0, 0), '')
    until(lambda: line.loader.reason)
    assert 'configuration ffff' in line.loader.reason
    assert line.newest() == 0
    assert line.loaded == []


def test_a_file_that_is_gone_from_this_machine_is_fetched(line: Line, tmp_path: Path) -> None:
    version = line.publish()
    line.loader.announce(replace(version, path=tmp_path / 'gone'), '')
    until(lambda: line.newest() == 1)
    assert line.fetched == [1]


def test_a_version_that_is_asked_for_is_loaded_beside_the_newest(line: Line) -> None:
    old, new = line.publish(), line.publish()
    for version in (old, new):
        line.loader.announce(version, 'far')
        until(lambda v=version: line.newest() == v.version)
    asked = line.publish().version
    line.loader.ask('actor', asked)
    until(lambda: line.policy.has('actor', asked))
    frozen = line.policy.act([Question('actor', asked, Mode.EVAL, STATE, 1, 0)])[0]
    assert isinstance(frozen, Answer)
    assert frozen.action.tolist() == pytest.approx([np.tanh(asked / 1000)] * 2)
