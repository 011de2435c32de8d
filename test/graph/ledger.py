# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What replay promised during a run, heard from outside, and whether its store keeps the promise.

As a program it is the listener: `python ledger.py FILE` joins the domain and appends one JSON line
for each promise and each hold to FILE, until it is killed:

    ["ack", cell, incarnation, next_seq]    every row below next_seq is kept
    ["hold", cell, seconds, reason]         from the last target applied to the hold, both as heard
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
import json
from pathlib import Path
import subprocess
import sys
import time

from user_core.outcome import Boundary, Mode
from user_learning.row import Row
from user_learning.tail import Tail

PERIOD_NS = 100_000_000
"""One step of a lockstep cell at 10 Hz, by its own clock."""
UNEVEN_NS = 1_000
WRONG = ('rows_lost', 'rows_missing', 'rows_duplicated', 'records_bad', 'episodes_mixed',
         'versions_back')  # fmt: skip
"""What `judge` counts that is 0 in a good store."""


def listen(file: Path, cells: tuple[str, ...]) -> None:
    """Writes down what is heard of replay and of every arm."""
    from user_msgs.msg import RobotState

    from user_core.guest import Guest
    from user_core.topics import TOPICS, name

    acked: dict[tuple[str, int], int] = {}
    sent: dict[tuple[str, int, int], float] = {}
    with file.open('a', buffering=1) as out, Guest('ledger') as guest:

        def on_ack(message) -> None:
            key = message.cell, message.incarnation
            if message.next_seq > acked.get(key, 0):
                acked[key] = message.next_seq
                out.write(json.dumps(['ack', *key, message.next_seq]) + '\n')

        def on_target(cell: str, message) -> None:
            if len(sent) > 1000:
                sent.clear()
            sent[cell, message.id.episode, message.id.step] = time.monotonic()

        def on_state(cell: str, message) -> None:
            key = cell, message.id.episode, message.id.step
            if message.mode == RobotState.HOLD and key in sent:
                held_s = time.monotonic() - sent.pop(key)
                out.write(json.dumps(['hold', cell, held_s, message.reason]) + '\n')

        def sub(key: str, callback, cell: str | None = None) -> None:
            topic = TOPICS[key]
            guest.node.create_subscription(topic.type, name(key, cell), callback, topic.reader)

        sub('ack', on_ack)
        for cell in cells:
            sub('target', partial(on_target, cell), cell)
            sub('robot_state', partial(on_state, cell), cell)
        guest.executor.spin()


@contextmanager
def listener(file: Path, inside: Sequence[str] = ()) -> Iterator[None]:
    """A listener at work on cell arm0 while the block runs; `inside` are words that lead into
    another network namespace.
    """
    process = subprocess.Popen([*inside, sys.executable, __file__, str(file), 'arm0'])
    try:
        yield
        assert process.poll() is None, 'the listener ended early: nothing can be judged'
    finally:
        process.kill()
        process.wait()


def heard(file: Path) -> tuple[dict[tuple[str, int], int], list[float]]:
    """What a listener wrote: the highest promise for each incarnation, and every hold in s."""
    acked: dict[tuple[str, int], int] = {}
    holds = []
    for line in file.read_text().splitlines() if file.exists() else ():
        kind, *values = json.loads(line)
        if kind == 'ack':
            cell, incarnation, next_seq = values
            acked[cell, incarnation] = max(next_seq, acked.get((cell, incarnation), 0))
        else:
            holds.append(values[1])
    return acked, holds


def judge(
    store: Path, acked: dict[tuple[str, int], int], period_ns: int | None = PERIOD_NS
) -> dict:
    """Counts what is WRONG in a store.

    `rows_lost`: promised, and not there. `rows_missing`: not there though a later one of the same
    incarnation is. `rows_duplicated`: the same row of an incarnation, or of an episode, once more.
    `episodes_mixed`: not the steps 0, 1, 2, ... of one node in one mode on one clock that
    goes on by `period_ns` a step (None: never back), or a closing row that is not the last.
    `versions_back`: a training row by older weights than the row before it of that cell.

    And counts what is right: episodes, `episodes_open` (killed before their closing row),
    demonstrations, training rows with the one after them. `mixed` tells the first few in words.
    """
    tail = Tail(store)
    rows = [row for row in tail.rows() if isinstance(row, Row)]
    kept: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    episodes: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        kept[row.cell, row.incarnation][row.seq] += 1
        episodes[row.cell, row.episode].append(row)
    twice = [s for seqs in kept.values() for s, n in seqs.items() for _ in range(n - 1)]
    again = [
        (r.cell, r.episode, r.step)
        for steps in episodes.values()
        for r, before in pairwise(sorted(steps, key=lambda r: r.step))
        if r.step == before.step and r.seq != before.seq
    ]
    mixed = {
        key: problem for key, steps in episodes.items() if (problem := _problem(steps, period_ns))
    }
    trained = [r for r in rows if r.mode == Mode.TRAIN and not r.closing]
    trained.sort(key=lambda r: (r.cell, r.episode, r.step))
    good = {
        key
        for key, steps in episodes.items()
        if steps[0].mode == Mode.DEMO and any(r.boundary == Boundary.SUCCESS for r in steps)
    }
    return {
        'rows': len(rows),
        'rows_acked': sum(acked.values()),
        'rows_lost': sum(
            not kept.get(key, {}).get(seq) for key, n in acked.items() for seq in range(n)
        ),
        'rows_missing': sum(max(seqs) + 1 - len(seqs) for seqs in kept.values()),
        'rows_duplicated': len(twice) + len(again),
        'records_bad': tail.bad,
        'episodes': len(episodes),
        'episodes_open': sum(not steps[-1].closing for steps in episodes.values()),
        'episodes_mixed': len(mixed),
        'mixed': [f'{cell} {episode}: {why}' for (cell, episode), why in mixed.items()][:5],
        'incarnations': len(kept),
        'versions_back': sum(
            a.cell == b.cell and b.policy_version < a.policy_version
            for a, b in pairwise(r for r in trained if r.policy_version)
        ),
        'demos_stored': len(good),
        'env_steps_stored': sum(
            r.step + 1 in {s.step for s in episodes[r.cell, r.episode]} for r in trained
        ),
    }


def _problem(steps: list[Row], period_ns: int | None) -> str:
    """Why these rows, in the order of the store, are not one episode; '' if they are."""
    if [r.step for r in steps] != list(range(len(steps))):
        return f'its steps are {[r.step for r in steps][:200]}'
    if len({r.incarnation for r in steps}) > 1:
        return 'two nodes wrote it'
    if len({r.mode for r in steps}) > 1:
        return f'its modes are {sorted({r.mode for r in steps})}'
    if any(r.closing for r in steps[:-1]):
        return 'it goes on after its closing row'
    if any(r.boundary != Boundary.NONE for r in steps[:-2]):
        return 'it goes on after its boundary'
    for before, after in pairwise(steps):
        gap = after.captured_ns - before.captured_ns
        if gap < 0 or (period_ns and abs(gap - period_ns) > UNEVEN_NS):
            return f'its clock goes on by {gap} ns at step {after.step}'
    return ''


if __name__ == '__main__':
    listen(Path(sys.argv[1]), tuple(sys.argv[2:]))
