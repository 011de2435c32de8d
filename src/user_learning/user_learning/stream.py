# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The order of one sender's rows on their way to the store."""

from __future__ import annotations

from user_learning.row import Row


class Stream:
    """One incarnation of a cell. Every seq below `next_seq` is written or given up as lost; the
    store says so to the sender only below `synced`.

    A row that comes early waits in memory until the gap before it is filled. A sender has at most
    `window_n` rows in flight, so one that is `window_n` or more ahead proves that the missing rows
    will never come. When the stream is `over`, no missing row will.
    """

    def __init__(self, window_n: int, next_seq: int = 0) -> None:
        self.window_n = window_n
        self.next_seq = self.synced = next_seq
        self.over = False
        self.lost = 0
        self._early: dict[int, Row] = {}

    def __len__(self) -> int:
        """Rows that wait."""
        return len(self._early)

    def __contains__(self, row: Row) -> bool:
        return row.seq < self.next_seq or row.seq in self._early

    def take(self, row: Row) -> bool:
        """Lets a row wait; False when a window of them does already."""
        if len(self._early) >= self.window_n and self.next_seq in self._early:
            return False
        self._early[row.seq] = row
        return True

    def first(self) -> Row | None:
        """The row whose turn it is; None when that one is missing."""
        if self._early and self.next_seq not in self._early:
            if not self.over and max(self._early) - self.next_seq < self.window_n:
                return None
            self.lost += min(self._early) - self.next_seq
            self.next_seq = min(self._early)
        return self._early.get(self.next_seq)

    def written(self) -> None:
        """The first one needs to wait no longer."""
        del self._early[self.next_seq]
        self.next_seq += 1
