# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What each segment of a store holds, and which segments nobody needs."""

from __future__ import annotations

from dataclasses import dataclass
import threading

from user_core.outcome import Mode
from user_learning.row import Label, Row
from user_learning.tail import Place


@dataclass
class Kept:
    """One segment's content."""

    size: int = 0
    train_rows: int = 0
    demos: bool = False


class Inventory:
    """Thread-safe."""

    def __init__(self) -> None:
        self._segments: dict[int, Kept] = {}
        self._demos: set[tuple[str, int]] = set()
        self._guard = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        with self._guard:
            return sum(kept.size for kept in self._segments.values())

    def resize(self, number: int, size: int) -> None:
        """A segment is there and has this many bytes."""
        with self._guard:
            self._segments.setdefault(number, Kept()).size = size

    def count(self, record: Row | Label, number: int) -> None:
        """A segment holds this record."""
        episode = record.cell, record.episode
        with self._guard:
            kept = self._segments[number]
            if isinstance(record, Row) and record.mode == Mode.DEMO:
                self._demos.add(episode)
            elif isinstance(record, Row):
                kept.train_rows += record.mode == Mode.TRAIN
            kept.demos |= episode in self._demos

    def spare(self, most: float, window_rows: int, held: Place) -> list[int]:
        """Takes the oldest segments out of the books until at most `most` bytes are left, and
        returns them.

        Those stay that hold a demonstration, that end behind `held`, or that hold one of the
        `window_rows` training rows before it.
        """
        with self._guard:
            size = sum(kept.size for kept in self._segments.values())
            old = [(n, kept) for n, kept in sorted(self._segments.items())[:-1] if n < held[0]]
            newer, gone = sum(kept.train_rows for _, kept in old), []
            for number, kept in old:
                newer -= kept.train_rows
                if size <= most or newer < window_rows:
                    break
                if not kept.demos:
                    size -= kept.size
                    gone.append(number)
            for number in gone:
                del self._segments[number]
            return gone
