# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The rows of two robots on their way from the wire through the store to what is sampled."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from itertools import chain
from pathlib import Path

import numpy as np

from user_learning.row import Row
from user_learning.rows import Rows
from user_learning.store import Store
from user_learning.tail import Tail

STEPS, EPISODES, N_STEP = 5, 6, 3
LOST = 8  # of arm0: step 2 of its second episode
DOUBLED, LATE = 10, 20  # of arm1


def stream(episode: Callable[..., list[Row]], cell: int) -> list[Row]:
    """Both robots number their episodes alike; the state says whose it is."""
    rows = []
    for number in range(EPISODES):
        for row in episode(number, STEPS, cell=f'arm{cell}', seq=len(rows)):
            state = np.array([cell, number, row.step], np.float32)
            rows.append(dataclasses.replace(row, state=state, seq=len(rows)))
    return rows


def test_two_robots_with_a_lost_a_doubled_and_a_late_row_give_windows_of_one_episode_each(
    tmp_path: Path, episode: Callable[..., list[Row]]
) -> None:
    left, right = stream(episode, 0), stream(episode, 1)
    del left[LOST]
    right.insert(DOUBLED, right[DOUBLED])
    late = right.index(next(r for r in right if r.seq == LATE))
    right.insert(late + 4, right.pop(late))
    store = Store(tmp_path)
    pairs = zip(left, right[: len(left)], strict=True)
    for row in (*chain.from_iterable(pairs), *right[len(left) :]):
        store.write([row])
    assert store.sync()
    total = EPISODES * (STEPS + 1)
    assert store.next_seq('arm0', 7) == store.next_seq('arm1', 7) == total
    assert (store.duplicates, store.lost) == (1, 1)
    store.close()

    rows = Rows(1000, 3, 2, n_step=N_STEP)
    for row in Tail(tmp_path).rows():
        assert isinstance(row, Row)
        rows.add(row)
    window = rows.online
    states = window.observation['state']
    seen, wanted = {}, {}
    for slot in window.ready.tolist():
        begin, after, end = states[[slot, window.next[slot], window.last[slot]]].astype(int)
        seen[tuple(begin)] = tuple(after), tuple(end)
    gap = (0, *divmod(LOST, STEPS + 1))
    for cell in (0, 1):
        for number in range(EPISODES):
            for step in range(STEPS):
                here, after = (cell, number, step), (cell, number, step + 1)
                if gap in (here, after):
                    continue
                end = min(step + N_STEP, STEPS)
                if gap[:2] == here[:2] and step < gap[2]:
                    end = min(end, gap[2] - 1)
                wanted[here] = after, (cell, number, end)
    assert seen == wanted
    assert rows.train_rows == len(wanted)
