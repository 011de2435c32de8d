# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of a version on a link that loses, delays and throttles: the whole arrives, nothing twice
without need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
import hashlib
import heapq
import itertools
import random
import threading
import time

import pytest

from user_learning import fetcher
from user_learning.fetcher import BLOCK, FIRST, LARGEST, Part, fetch
from user_learning.weights import BadWeightsError


class Link:
    """A learner at the far end of a link, in a thread.

    `loss` and `delay_s` are each way; `rate` is in bytes a second, a queue before it holds all.
    `lose` says whether a question (its offset and how often it was asked) gets no answer.
    """

    def __init__(
        self,
        files: dict[int, bytes],
        loss: float = 0.0,
        delay_s: float = 0.0,
        rate: float = 1e12,
        lose: Callable[[int, int], bool] = lambda offset, n: False,
    ) -> None:
        self.files, self.loss, self.delay_s, self.rate, self.lose = (
            files, loss, delay_s, rate, lose,
        )  # fmt: skip
        self.dice = random.Random(3)
        self.asked: Counter[tuple[int, int, int]] = Counter()
        self.offsets: Counter[int] = Counter()
        self.sent = 0
        self.clear_at = 0.0
        self.forgotten = 0
        self.most_open = self.open = 0
        self.due: list = []
        self.number = itertools.count()
        self.change = threading.Condition()
        self.stop = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def ask(self, policy: str, version: int, offset: int, length: int, then) -> Callable[[], None]:
        assert policy == 'actor'
        assert length <= LARGEST
        self.asked[version, offset, length] += 1
        self.offsets[offset] += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        part, now = self.answer(version, offset, length), time.monotonic()
        with self.change:
            self.sent += len(part.data)
            self.clear_at = max(self.clear_at, now) + len(part.data) / self.rate
            gone = self.dice.random() < self.loss or self.lose(offset, self.offsets[offset])
            at = self.clear_at + 2 * self.delay_s
            heapq.heappush(self.due, (at, next(self.number), None if gone else part, then))
            self.change.notify()

        def forget() -> None:
            self.forgotten += 1

        return forget

    def answer(self, version: int, offset: int, length: int) -> Part:
        number = version or max(self.files)
        if number not in self.files:
            return Part(0, 0, '', b'', 'There are no such weights.')
        data = self.files[number]
        sha256 = hashlib.sha256(data).hexdigest()
        return Part(number, len(data), sha256, data[offset : offset + length])

    def run(self) -> None:
        with self.change:
            while not self.stop:
                wait = self.due[0][0] - time.monotonic() if self.due else None
                if wait is not None and wait <= 0:
                    _, _, part, then = heapq.heappop(self.due)
                    self.open -= 1
                    if part is not None:
                        then(part)
                else:
                    self.change.wait(wait)

    def close(self) -> None:
        with self.change:
            self.stop = True
            self.change.notify()
        self.thread.join()


@pytest.fixture
def link():
    links = []

    def build(*sizes: int, **how) -> Link:
        rng = random.Random(0)
        files = {k: rng.randbytes(size) for k, size in enumerate(sizes, 1)}
        links.append(Link(files, **how))
        return links[-1]

    yield build
    for one in links:
        one.close()


def check(fetched, link: Link, number: int) -> None:
    assert fetched.version == number
    assert fetched.data == link.files[number]
    assert fetched.sha256 == hashlib.sha256(fetched.data).hexdigest()


@pytest.mark.parametrize('size', [1, BLOCK, FIRST, FIRST + 1, 10 * FIRST - 7, 1_000_003])
def test_a_file_of_any_size_arrives_whole_and_every_byte_once(link, size: int) -> None:
    line = link(size)
    check(fetch(line.ask, 'actor', 1), line, 1)
    assert line.sent == size
    assert set(line.asked.values()) == {1}


def test_the_newest_is_the_one_that_was_newest_when_it_was_asked_for(link) -> None:
    line = link(200_000, 300_000)

    def ask(policy, version, offset, length, then):
        forget = line.ask(policy, version, offset, length, then)
        line.files[max(line.files) + 1] = b'newer' * 40_000
        return forget

    check(fetch(ask, 'actor', 0), line, 2)
    assert [key for key in line.asked if key[0] == 0] == [(0, 0, FIRST)]


def test_a_version_that_is_not_newer_costs_one_part(link) -> None:
    line = link(500_000, 500_000)
    assert fetch(line.ask, 'actor', 0, newer_than=2) is None
    assert sum(line.asked.values()) == 1


def test_a_delay_costs_no_throughput_that_many_parts_at_once_can_keep(link) -> None:
    """A part at a time would take 0.1 s for each of the sixty; the bound is half of that."""
    line = link(60 * LARGEST, delay_s=0.05)
    begun = time.monotonic()
    check(fetch(line.ask, 'actor', 1), line, 1)
    assert time.monotonic() - begun < 3.0
    assert 8 < line.most_open <= fetcher.AHEAD[1]


def test_only_what_was_lost_is_asked_for_again(link) -> None:
    line = link(400_000, delay_s=0.01)
    line.lose = lambda offset, n: len(line.offsets) == 5 and n == 1
    check(fetch(line.ask, 'actor', 1), line, 1)
    again = line.sent - 400_000
    assert 0 < again <= LARGEST


@pytest.mark.parametrize('loss', [0.01, 0.05, 0.4])
def test_a_link_that_loses_parts_brings_the_whole(link, loss: float) -> None:
    line = link(300_000, loss=loss, delay_s=0.01)
    check(fetch(line.ask, 'actor', 1), line, 1)


def test_a_slow_link_is_not_flooded(link) -> None:
    line = link(200_000, rate=50_000)
    check(fetch(line.ask, 'actor', 1), line, 1)
    assert line.sent < 1.3 * 200_000
    assert line.most_open < fetcher.AHEAD[1]


def test_a_link_that_is_away_for_a_while_brings_the_rest_when_it_is_back(link) -> None:
    line = link(400_000, delay_s=0.01)
    away = time.monotonic() + 2.0
    line.lose = lambda offset, n: offset > 0 and time.monotonic() < away
    check(fetch(line.ask, 'actor', 1), line, 1)
    assert sum(line.asked.values()) < 400  # and meanwhile asks more and more rarely


def test_a_learner_that_says_no_or_nothing_is_given_up_and_no_question_is_left(
    link, monkeypatch
) -> None:
    line = link(10_000)
    with pytest.raises(BadWeightsError, match='no such weights'):
        fetch(line.ask, 'actor', 7)
    monkeypatch.setattr(fetcher, 'GIVE_UP_S', 1.0)
    line.lose = lambda offset, n: True
    with pytest.raises(BadWeightsError, match='does not answer'):
        fetch(line.ask, 'actor', 1)
    assert line.forgotten == sum(line.asked.values()) - 1


def test_a_version_that_goes_away_or_changes_meanwhile_is_given_up_at_once(link) -> None:
    for change in ('gone', 'other'):
        line = link(400_000, delay_s=0.01)
        known = line.files[1]

        def ask(policy, version, offset, length, then, line=line, change=change, known=known):
            if offset > 100_000:
                line.files = {9: known} if change == 'gone' else {1: known[::-1]}
            return line.ask(policy, version, offset, length, then)

        with pytest.raises(BadWeightsError, match=r'no such|another file'):
            fetch(ask, 'actor', 1)
