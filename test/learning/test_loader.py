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
from user_learning.fetcher import Fetched
from user_learning.loader import Loader
from user_learning.networks import Actor, Spec
from user_learning.policy import Answer, Policy, Question
from user_learning.weights import BadWeightsError, Publisher, Version

STATE = np.array([0.3, 1.2, -4.0], np.float32)


def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, 'waited in vain'
        time.sleep(0.005)


class Line:
    """A learner's published versions and the line to a policy on another machine, which can be
    held up (`free`) and cut (`cut`).
    """

    def __init__(self, folder: Path, spec: Spec) -> None:
        self.publisher = Publisher(folder / 'shm', folder / 'versions.json', 'abcd', keep_n=500)
        self.actor = Actor(spec, (8,))
        self.versions: dict[int, Version] = {}
        self.fetched: list[int] = []
        self.loaded: list[int] = []
        self.failed: list[str] = []
        self.cut = ''
        self.free = threading.Event()
        self.free.set()
        self.policy = Policy(spec, (8,), seed=0)
        self.loader = Loader(
            self.policy,
            'abcd',
            self.fetch,
            loaded=lambda: self.loaded.append(self.newest()),
            failed=lambda: self.failed.append(self.loader.reason),
        )

    def publish(self) -> Version:
        """Version k acts tanh(k / 1000)."""
        with torch.no_grad():
            self.actor.net[-1].weight.zero_()
            self.actor.net[-1].bias[:] = (self.publisher.version + 1) / 1000
        version = self.publisher.publish('actor', self.actor.state_dict(), 0, 0)
        self.versions[version.version] = version
        return version

    def fetch(self, policy: str, number: int, newer_than: int) -> Fetched | None:
        if self.cut:
            raise BadWeightsError(self.cut)
        number = number or max(self.versions, default=0)
        if not number:
            raise BadWeightsError('the learner has published no actor yet')
        if number <= newer_than:
            return None
        self.fetched.append(number)
        assert self.free.wait(30)
        return Fetched(
            number, self.versions[number].path.read_bytes(), self.versions[number].sha256
        )

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
        assert len(line.loader._jobs) <= 1
    line.free.set()
    until(lambda: line.newest() == 100)
    assert line.fetched == [1, 100]
    assert line.acts().version == 100
    assert line.acts().action.tolist() == pytest.approx([np.tanh(0.1)] * 2)
    assert len(line.loader._known) <= 64


def test_an_announcement_that_comes_late_is_forgotten(line: Line) -> None:
    first, second, third = (line.publish() for _ in range(3))
    line.loader.announce(second, '')
    until(lambda: line.newest() == 2)
    line.loader.announce(first, '')
    assert line.loader.announced == {'actor': 2}
    assert not line.loader._jobs
    line.loader.announce(third, '')
    until(lambda: line.newest() == 3)
    until(lambda: line.loaded == [2, 3])


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
    del line.versions[3]
    line.loader.announce(bad, '')
    until(lambda: len(line.failed) >= 2)  # the learner sends the same
    assert line.fetched[:1] == [2]
    for reason in line.failed:
        assert word in reason
        assert 'version 2' in reason
    assert line.acts().version == 1
    line.loader.announce(good, '')
    until(lambda: line.newest() == 3)
    until(lambda: line.loaded == [1, 3])
    assert line.loader.reason == ''


def test_a_file_that_was_damaged_here_is_fetched_anew_at_once(line: Line, tmp_path: Path) -> None:
    version = line.publish()
    damaged = tmp_path / 'damaged'
    damaged.write_bytes(version.path.read_bytes()[:-1] + b'\x07')
    line.loader.announce(replace(version, path=damaged), '')
    until(lambda: line.newest() == 1)
    assert line.fetched == [1]
    assert len(line.failed) == 1
    assert 'content hash' in line.failed[0]
    assert line.loader.reason == ''
    assert line.loader.failures == 1


def test_a_version_that_went_away_while_it_was_fetched_gives_way_to_the_newest_at_once(
    line: Line,
) -> None:
    first = line.publish()
    line.free.clear()
    line.loader.announce(first, 'far')
    until(lambda: line.fetched == [1])
    first.path.unlink()
    del line.versions[1]
    line.publish()  # its announcement is lost
    line.free.set()
    until(lambda: line.newest() == 2)
    assert line.fetched == [1, 2]


def test_a_policy_that_hears_no_announcement_asks_until_there_are_weights(line: Line) -> None:
    line.cut = 'the learner is not there'
    line.loader.ask('actor')
    until(lambda: len(line.failed) >= 2)
    assert line.loader.reason == line.cut
    line.cut = ''
    until(lambda: 'published no actor' in line.loader.reason)
    line.publish()
    until(lambda: line.newest() == 1)
    assert line.loader.announced == {'actor': 1}
    assert line.loader.reason == ''
    assert line.loader.failures == 0
    assert not line.loader._jobs


def test_a_line_that_was_cut_is_tried_until_the_announced_version_is_there(line: Line) -> None:
    line.cut = 'the learner does not answer'
    line.loader.announce(line.publish(), 'far')
    until(lambda: len(line.failed) >= 3)
    assert line.loader.reason == 'actor version 1 was not loaded: the learner does not answer'
    line.cut = ''
    until(lambda: line.newest() == 1)


def test_a_forged_announcement_of_a_far_version_does_not_hide_the_learner_s_own(
    line: Line, tmp_path: Path
) -> None:
    """The learner says which version is its newest, so that the lag is measured against it."""
    version = line.publish()
    forged = tmp_path / 'forged'
    forged.write_bytes(b'x' * 100)
    line.loader.announce(replace(version, version=10**6, path=forged), '')
    until(lambda: line.newest() == 1 and line.loader.announced == {'actor': 1})
    line.loader.announce(line.publish(), 'far')
    until(lambda: line.newest() == 2)


def test_versions_that_do_not_exist_are_asked_for_without_end_but_not_without_number(
    line: Line,
) -> None:
    line.cut = 'there are no such weights'
    for number in range(100, 150):
        line.loader.ask('actor', number)
    assert len(line.loader._jobs) <= 8
    line.cut = ''
    line.loader.announce(line.publish(), 'far')
    until(lambda: line.newest() == 1)


def test_weights_that_were_trained_for_something_else_are_never_acted_with(
    line: Line, tmp_path: Path
) -> None:
    other = Publisher(tmp_path / 'other', tmp_path / 'other.json', 'ffff')
    line.loader.announce(other.publish('actor', line.actor.state_dict(), 0, 0), '')
    until(lambda: len(line.failed) >= 3)
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
        line.loader.announce(version, '')
        until(lambda v=version: line.newest() == v.version)
    asked = line.publish().version
    line.loader.ask('actor', asked)
    until(lambda: line.policy.has('actor', asked))
    frozen = line.policy.act([Question('actor', asked, Mode.EVAL, STATE, 1, 0)])[0]
    assert isinstance(frozen, Answer)
    assert frozen.action.tolist() == pytest.approx([np.tanh(asked / 1000)] * 2)
