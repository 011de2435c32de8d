# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What does a batch of pictures cost, and does the learner wait for a store larger than memory?

First: 256 rows with two pictures of 128x128x3, now and next, from a window in memory, beside the
floor, `np.take` of the same bytes into preallocated arrays. Both take turns. Budget: window_ratio
<= 1.5.

Then: a store of `rows` rows whose window has memory for two fifths of their pictures. A learner
computes for `step_ms` a batch and asks for the next one, in turns of the product's length; once
with the page cache as it is, once with the store dropped from it before every batch. Budget: the
learner waits <= 5 % of its time. `shortest_step_ms` is the shortest step for which that holds.

    .venv/bin/python bench/replay.py [rows=10000] [step_ms=150] [place=/tmp] [peers=PYTHON]

rows=100000 is the full size: 10 GB of disk and 4 GB of memory. PYTHON is an interpreter that has
the libraries to compare with (bench/requirements.txt). Prints one JSON line; `load` is what else
the machine did, and the waiting is only worth something where that is little.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
import os
from pathlib import Path
import random
import shutil
import subprocess
import sys
import tempfile
import time

if os.environ.get('OMP_NUM_THREADS') != '1':
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {'OMP_NUM_THREADS': '1'})

import numpy as np
import torch

from user_core.outcome import Boundary, Mode
from user_learning.filesystem import kind_of
from user_learning.learner import TURN_UPDATES
from user_learning.row import Picture, Row
from user_learning.rows import Rows
from user_learning.sampler import Sampler
from user_learning.store import Store
from user_learning.tail import Tail, pictures_path, segment_path, segments

BATCH, STATE_N, ACTION_N, EPISODE_N = 256, 19, 6, 100
VIEWS = {'side': (128, 128), 'wrist': (128, 128)}
PAIR_BYTES = 2 * 128 * 128 * 3
IN_MEMORY_N = 5000
"""Rows of the first question: 0.5 GB, far beyond every processor cache."""


def rows_of(number: int) -> Iterator[Row]:
    """Training rows with noise for pictures, taken from a block that is made once."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, PAIR_BYTES + 4096, np.uint8)
    for k in range(number):
        episode, step = divmod(k, EPISODE_N)
        closing, last = step == EPISODE_N - 1, step == EPISODE_N - 2
        at = k * 977 % 4096
        yield Row(
            'bench', 'arm0', episode, step, 1, k,
            mode=Mode.TRAIN,
            state=rng.normal(0, 0.02, STATE_N).astype(np.float32),
            images=tuple(
                Picture(name, 'rgb8', *size, k, noise[at + half : at + half + PAIR_BYTES // 2])
                for half, (name, size) in zip((0, PAIR_BYTES // 2), VIEWS.items(), strict=True)
            ),
            executed_action=rng.uniform(-1, 1, ACTION_N).astype(np.float32),
            reward=float(last),
            terminated=last,
            boundary=Boundary.SUCCESS if last or closing else Boundary.NONE,
            closing=closing,
            valid=not closing,
        )  # fmt: skip


def resident() -> int:
    """Anonymous memory of this process in bytes."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith('RssAnon:'):
            return int(line.split()[1]) * 1024
    raise RuntimeError('/proc/self/status names no RssAnon')


def in_memory(rounds: int = 40) -> dict[str, float]:
    """A batch beside its floor, milliseconds of the processor each: the machine may be shared."""
    rows, before = Rows(IN_MEMORY_N, STATE_N, ACTION_N, views=VIEWS), resident()
    for row in rows_of(IN_MEMORY_N):
        rows.add(row)
    taken = resident() - before
    sampler = Sampler(rows, BATCH, 0.5, 0)
    assert rows.online.pictures is not None
    memory = rows.online.pictures.memory
    outs = {c: np.empty((2, BATCH, *size, 3), np.uint8) for c, size in VIEWS.items()}
    rng, ours, floor = np.random.default_rng(1), [], []
    for k in range(rounds):
        begun = time.thread_time()
        sampler(k)
        ours.append(time.thread_time() - begun)
        index = rng.integers(0, IN_MEMORY_N - 1, BATCH)
        begun = time.thread_time()
        for camera, out in outs.items():
            np.take(memory[camera], index, axis=0, out=out[0], mode='clip')
            np.take(memory[camera], index + 1, axis=0, out=out[1], mode='clip')
        floor.append(time.thread_time() - begun)
    return {
        'window_ratio': round(float(np.median(np.array(ours[4:]) / np.array(floor[4:]))), 3),
        'window_ms': round(float(np.median(ours[4:])) * 1e3, 2),
        'floor_ms': round(float(np.median(floor[4:])) * 1e3, 2),
        'memory_gb_per_100k_steps': round(taken / IN_MEMORY_N * 1e-4, 2),
    }


def bandwidth(store: Path) -> float:
    """What the device gives to random reads of one row, one at a time, in MB/s."""
    forget(store)
    rng, numbers, begun, n = random.Random(0), segments(store), time.perf_counter(), 0
    while time.perf_counter() - begun < 2.0:
        path = pictures_path(store, rng.choice(numbers))
        with path.open('rb', 0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            at = rng.randrange(max(path.stat().st_size - PAIR_BYTES, 1))
            n += len(os.pread(file.fileno(), PAIR_BYTES, at))
    return n / (time.perf_counter() - begun) / 1e6


def forget(store: Path) -> None:
    """Drops the store from the page cache."""
    for number in segments(store):
        for path in (pictures_path(store, number), segment_path(store, number)):
            with path.open('rb') as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compute(seconds: float) -> None:
    """A learner's step: numerics of that length."""
    a, until = torch.ones(256, 256), time.perf_counter() + seconds
    while time.perf_counter() < until:
        a = (a @ a).clamp_(0, 1)


def waiting(sampler: Sampler, step_s: float, store: Path | None, turns: int = 6) -> float:
    """Share of its time that a learner waits for batches. With `store`, that is dropped from the
    page cache as each batch is asked for (the drop itself counts neither way).
    """
    waited = total = 0.0
    for turn in range(turns):
        batches = sampler.batches(range(turn * TURN_UPDATES, (turn + 1) * TURN_UPDATES))
        for _ in range(TURN_UPDATES):
            if store is not None:
                forget(store)
            begun = time.perf_counter()
            next(batches)
            got = time.perf_counter()
            compute(step_s)
            waited += got - begun
            total += time.perf_counter() - begun
        batches.close()
    return waited / total


def on_disk(folder: Path, number: int, step_ms: float) -> dict[str, object]:
    """The second question."""
    store = Store(folder)
    for row in rows_of(number):
        store.write([row])
    size = store.size
    store.close()
    frames = number * 2 // 5
    rows = Rows(number, STATE_N, ACTION_N, views=VIEWS, frames=(frames, 1), store=folder)
    begun = time.perf_counter()
    for row in Tail(folder).rows():
        assert isinstance(row, Row)
        rows.add(row)
    read_s = time.perf_counter() - begun
    sampler = Sampler(rows, BATCH, 0.0, 0)

    def batch_ms(cold: bool) -> list[float]:
        """Wall time and processor time, milliseconds."""
        took = []
        for k in range(8):
            if cold:
                forget(folder)
            begun = time.perf_counter(), time.thread_time()
            sampler(k)
            took.append((time.perf_counter() - begun[0], time.thread_time() - begun[1]))
        return [round(float(ms), 1) for ms in np.median(took, axis=0) * 1e3]

    def shortest(cold: Path | None) -> float | None:
        lengths = (10, 20, 40, 80, 150, 300, 600, 1200)
        return next((n for n in lengths if waiting(sampler, n / 1e3, cold) <= 0.05), None)

    return {
        'rows': number,
        'memory_share': 0.4,
        'step_ms': step_ms,
        'disk_wait_fraction': round(waiting(sampler, step_ms / 1e3, None), 4),
        'disk_wait_fraction_cold': round(waiting(sampler, step_ms / 1e3, folder), 4),
        'shortest_step_ms': shortest(None),
        'shortest_step_ms_cold': shortest(folder),
        'batch_wall_and_cpu_ms': batch_ms(cold=False),
        'batch_wall_and_cpu_ms_cold': batch_ms(cold=True),
        'device_mb_s_one_read_at_a_time': round(bandwidth(folder)),
        'file_system': kind_of(folder, Path('/proc/self/mountinfo').read_text()),
        'rows_read_per_s': round(number / read_s),
        'disk_gb_per_100k_steps': round(size / number * 1e-4, 2),
    }


def main() -> None:
    """Runs both questions and the peers, one after the other."""
    given = dict(text.split('=', 1) for text in sys.argv[1:])
    torch.set_num_threads(1)
    result: dict[str, object] = {'question': 'a batch of pictures vs its floor; disk wait'}
    result |= in_memory()
    folder = Path(tempfile.mkdtemp(prefix='replay-bench-', dir=given.get('place')))
    try:
        result |= on_disk(folder, int(given.get('rows', 10_000)), float(given.get('step_ms', 150)))
    finally:
        shutil.rmtree(folder)
    if 'peers' in given:
        script = str(Path(__file__).with_name('replay_peers.py'))
        done = subprocess.run([given['peers'], script], stdout=subprocess.PIPE, check=True)
        result['peers'] = json.loads(done.stdout)
    result['load'] = [round(n, 1) for n in os.getloadavg()]
    print(json.dumps(result | {'budgets': {'window_ratio': 1.5, 'disk_wait_fraction': 0.05}}))


if __name__ == '__main__':
    main()
