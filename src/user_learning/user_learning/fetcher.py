# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Fetches a version of weights part by part over a link that loses, delays and throttles.

Many parts are on their way at once, so that a delay costs no throughput. A part that does not come
is asked for again, alone and smaller; parts grow while all of them come. A link that is slow gets
fewer at a time. The first part names the version, its size and content hash; the rest is asked for
by number, so that what was begun is finished although newer versions appear.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue
from statistics import median
import time

from user_learning.weights import BadWeightsError

BLOCK = 4 << 10
"""Bytes of the smallest part: three frames of Ethernet, of which one in twenty may be lost."""
FIRST, LARGEST = 4 * BLOCK, 15 * BLOCK
"""Bytes of the first and the largest part, which still fits one datagram."""
GROWTH = BLOCK, BLOCK // 4
"""Bytes that parts grow with each that comes, before the first is lost and from then on; each that
is lost halves them.
"""
AHEAD = 2, 16
"""Parts on their way at once, at least and at most."""
QUEUE = 1.5, 0.1
"""A part that takes longer than this times the quickest one, plus this many seconds, stood in a
queue: fewer are sent at once.
"""
PATIENCE_S = 0.3, 10.0
"""A part is lost after three times what parts take, within these bounds."""
GIVE_UP_S = 10.0
"""A learner that sends no part for this long does not answer."""


@dataclass(frozen=True)
class Part:
    """An answer (srv/FetchWeights.srv); `error` is empty when all is well."""

    version: int
    size: int
    sha256: str
    data: bytes
    error: str = ''


@dataclass(frozen=True)
class Fetched:
    """A whole file and the content hash that the learner told; not compared yet."""

    version: int
    data: bytes
    sha256: str


Ask = Callable[[str, int, int, int, Callable[[Part], None]], Callable[[], None]]
"""(policy, version, offset, length, then): asks the learner without waiting; `then` gets the
answer in any thread, if there is one. Returns what forgets the question. Raises BadWeightsError
when there is no learner.
"""


def fetch(ask: Ask, policy: str, version: int, newer_than: int = 0) -> Fetched | None:
    """A version's bytes from the learner; version 0 is its newest, None when that is not newer.

    Raises BadWeightsError with the learner's reason, or when it does not answer.
    """
    fetching = _Fetching(ask, policy, version)
    try:
        return fetching.run(newer_than)
    finally:
        fetching.forget()


@dataclass
class _Question:
    offset: int
    length: int
    at: float
    forget: Callable[[], None]


class _Fetching:
    """One version on its way. Everything but `ask`'s answers happens in the caller's thread."""

    def __init__(self, ask: Ask, policy: str, version: int) -> None:
        self.ask, self.policy, self.version = ask, policy, version
        self.sha256 = ''
        self.data: bytearray | None = None
        self.missing: set[int] = set()  # blocks
        self.next = 0
        self.lost: deque[tuple[int, int]] = deque([(0, FIRST)])
        self.asked: dict[int, _Question] = {}
        self.flying: set[int] = set()
        self.tokens = count()
        self.answers: SimpleQueue[tuple[int, Part]] = SimpleQueue()
        self.length, self.ahead = float(FIRST), AHEAD[0]
        self.growth = GROWTH[0]
        self.took: deque[float] = deque([PATIENCE_S[0]], maxlen=16)
        self.quickest = float('inf')

    def run(self, newer_than: int) -> Fetched | None:
        """Until every block is there."""
        heard = time.monotonic()
        while self.data is None or self.missing:
            self._ask_more()
            try:
                token, part = self.answers.get(timeout=PATIENCE_S[0] / 4)
            except Empty:
                pass
            else:
                self._take(self.asked.pop(token), token, part)
                heard = time.monotonic()
                if self.version <= newer_than:
                    return None
            silent = time.monotonic() - heard
            if silent > GIVE_UP_S:
                raise BadWeightsError('the learner does not answer')
            self._miss(max(3 * median(self.took), silent / 2))
        return Fetched(self.version, bytes(self.data), self.sha256)

    def forget(self) -> None:
        """Whatever comes now is not wanted."""
        for question in self.asked.values():
            question.forget()

    def _ask_more(self) -> None:
        while len(self.flying) < (self.ahead if self.data is not None else 1):
            if (piece := self._piece()) is None:
                return
            token = next(self.tokens)
            offset, length = piece

            def then(part: Part, token: int = token) -> None:
                self.answers.put((token, part))

            forget = self.ask(self.policy, self.version, offset, length, then)
            self.asked[token] = _Question(offset, length, time.monotonic(), forget)
            self.flying.add(token)

    def _piece(self) -> tuple[int, int] | None:
        """What to ask for next: lost parts first, and of them what has not come late."""
        fits = int(self.length) // BLOCK * BLOCK
        while self.lost:
            offset, length = self.lost.popleft()
            if self.data is not None and not self._missing(offset, length):
                continue
            if length > fits:
                self.lost.appendleft((offset + fits, length - fits))
            return offset, min(length, fits)
        if self.data is None or self.next >= len(self.data):
            return None
        offset, self.next = self.next, self.next + fits
        return offset, min(fits, len(self.data) - offset)

    def _take(self, question: _Question, token: int, part: Part) -> None:
        """An answer, in time or late."""
        if part.error:
            raise BadWeightsError(part.error)
        if self.data is None:
            self.version, self.sha256 = part.version, part.sha256
            self.data = bytearray(part.size)
            self.missing = self._blocks(0, part.size)
            self.next = question.length
        if (part.version, part.sha256, part.size) != (self.version, self.sha256, len(self.data)):
            if part.version != self.version:  # the newest was asked for twice
                return
            raise BadWeightsError('the learner has another file under that version by now')
        if len(part.data) != min(question.length, part.size - question.offset):
            raise BadWeightsError('the learner sent a part that is not the one asked for')
        self.data[question.offset : question.offset + len(part.data)] = part.data
        self.missing -= self._blocks(question.offset, len(part.data))
        took = time.monotonic() - question.at
        self.took.append(took)
        self.quickest = min(self.quickest, took)
        if took < QUEUE[0] * self.quickest + QUEUE[1]:
            self.ahead = min(self.ahead + 1, AHEAD[1])
            self.length = min(self.length + self.growth, LARGEST)
        else:
            self.ahead = max(self.ahead - 1, AHEAD[0])
        self.flying.discard(token)

    def _miss(self, patience_s: float) -> None:
        """Gives up waiting for what should have come; it is taken all the same if it comes."""
        now, (least, most) = time.monotonic(), PATIENCE_S
        patience_s = min(max(patience_s, least), most)
        for token in [t for t in self.flying if now - self.asked[t].at > patience_s]:
            question = self.asked[token]
            self.flying.remove(token)
            self.lost.append((question.offset, question.length))
            self.growth = GROWTH[1]
            if self.length == BLOCK:
                self.ahead = max(self.ahead - 1, AHEAD[0])
            self.length = max(self.length / 2, BLOCK)

    def _missing(self, offset: int, length: int) -> bool:
        return not self.missing.isdisjoint(self._blocks(offset, length))

    @staticmethod
    def _blocks(offset: int, length: int) -> set[int]:
        return set(range(offset // BLOCK, -(-(offset + length) // BLOCK)))
