# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Is a learner that comes back the one that was killed, and how long does it take?

Rows of three cells, demonstrations between training episodes, come in bursts; the window lets old
ones go and the store deletes segments. A learner trains, saves, and goes on: its run folder is
copied as it saves. A fresh process comes back from that copy, gets the same rows and goes on as
long. Compared bit by bit: every batch that was drawn since, and at the end every network, target,
moment, temperature and generator. Once for rows without pictures, once for pictures whose encoders
the critics train, once for encoders that hindsight teaches. One word a case: `bit-exact`.

Then: a store of `rows` rows, what a checkpoint of them takes, and the time from a learner that is
built to its first batch, and from the start of the process. `pictures=64` gives them two pictures
of 64 x 64; `cold` drops the run's folder from the page cache first. Budget: 5 s for 100,000.

    .venv/bin/python bench/resume.py [rows=100000] [pictures=0] [cold] [place=/tmp] [only]

`only` leaves out the comparison. Prints one JSON line at the end; the exit code is 1 where
anything differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
import hashlib
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile
import time

if os.environ.get('OMP_NUM_THREADS') != '1':
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {'OMP_NUM_THREADS': '1'})

import numpy as np
from safetensors.torch import load_file, save_file
import torch

from user_core.config import RunConfig, load
from user_core.outcome import Boundary, Mode
from user_learning.checkpoint import held_place
from user_learning.learner import Learner
from user_learning.rlpd import Batch
from user_learning.row import Picture, Row
from user_learning.spec import spec_of
from user_learning.store import Store
from user_learning.tail import segments
from user_learning.weights import Publisher

CAMERAS = '{side: {kind: sim, width: 32, height: 32}, wrist: {kind: sim, width: 32, height: 32}}'
SMALL = [
    'replay.window_rows=400', 'algorithm.batch=32', 'learner.start_rows=20',
    'learner.clone_updates=50', 'learner.warmup_updates=40', 'budget.demos=6', 'algorithm.utd=1',
]  # fmt: skip
CASES = {
    'rlpd state': ('peg_rlpd', []),
    'pictures, taught by critics': (
        'peg_rlpd_vision',
        [
            'policy.teacher=critics', 'policy.features=8', f'cells.arm0.cameras={CAMERAS}',
            'algorithm.shift_px=2', 'replay.memory_gb=0.0012', 'algorithm.batch=16',
            'algorithm.utd=0.5',
        ],
    ),
    'pictures, taught by hindsight': (
        'peg_rlpd_vision',
        [
            f'cells.arm0.cameras={CAMERAS}', 'algorithm.shift_px=2',
            'learner.hindsight_updates=60', 'learner.hindsight_every=300',
        ],
    ),
}  # fmt: skip
"""A page and settings of it. The second keeps pictures of a part of its window in memory."""

BURSTS, SAVED_AFTER = 40, (20, 22, 24)
"""Bursts of rows, and after how many of them the learner is saved: the store deletes nothing
behind the oldest checkpoint."""


def bursts(config: RunConfig) -> Iterator[list[Row]]:
    """What three cells send: six demonstrations, then training with a demonstration here and
    there, some that fail. An episode goes on from burst to burst.
    """
    rng = np.random.default_rng(5)
    spec = spec_of(config)
    cells = [_episodes(f'arm{k}', k, spec, np.random.default_rng(k)) for k in range(3)]
    for _ in range(BURSTS):
        yield [next(cells[rng.integers(3)]) for _ in range(int(rng.integers(30, 60)))]


def _episodes(cell: str, first: int, spec, rng: np.random.Generator) -> Iterator[Row]:
    seq, number = 0, first
    while True:
        number += 1000
        demo = number < 3000 or rng.random() < 0.03
        end = Boundary.SUCCESS if number < 3000 or rng.random() < 0.6 else Boundary.TIMEOUT
        length = int(rng.integers(8, 16))
        goal = rng.normal(0, 0.02, spec.state_n)
        for step in range(length + 1):
            closing, last = step == length, step == length - 1
            state = goal * step / length + rng.normal(0, 0.001, spec.state_n)
            yield Row(
                'bench', cell, number, step, 1, seq,
                mode=Mode.DEMO if demo else Mode.TRAIN,
                state=state.astype(np.float32),
                images=tuple(
                    Picture(name, 'rgb8', h, w, seq, rng.integers(0, 256, h * w * 3, np.uint8))
                    for name, (h, w) in spec.views.items()
                ),
                executed_action=rng.uniform(-1, 1, 0 if closing else 6).astype(np.float32),
                reward=float(last and end == Boundary.SUCCESS),
                terminated=last and end == Boundary.SUCCESS,
                truncated=last and end == Boundary.TIMEOUT,
                boundary=end if last or closing else Boundary.NONE,
                closing=closing,
                valid=not closing and rng.random() > 0.02,
            )  # fmt: skip
            seq += 1


def learner_of(config: RunConfig, folder: Path) -> Learner:
    """A learner over a run folder; its weights go nowhere."""
    publisher = Publisher(folder / 'weights', folder / 'versions.json', 'bench')
    return Learner(config, spec_of(config), folder, publisher, lambda _: None, lambda *_: None)


def store_of(config: RunConfig, folder: Path) -> Store:
    """Small segments, and a budget that the rows pass soon."""
    row_bytes = 700 + config.picture_bytes
    return Store(
        folder / 'store',
        segment_bytes=60 * row_bytes,
        disk_bytes=200 * row_bytes,
        window_rows=config.replay.window_rows,
        held=partial(held_place, folder / 'checkpoints'),
    )


def settle(learner: Learner) -> None:
    """Turns until it waits for rows."""
    while learner.turn() == 0:
        pass
    if learner.state == 'HALTED':
        raise SystemExit(learner.reason)


def train(case: str, folder: Path, second: bool) -> None:
    """One process of the comparison; leaves `state.safetensors` and `drawn` in its folder."""
    torch.set_num_threads(1)
    page, settings = CASES[case]
    config = load(page, [*SMALL, *settings])
    learner, store = learner_of(config, folder), store_of(config, folder)
    drawn: list[str] = []
    update = learner.rlpd.update

    def watched(batch: Batch, *given) -> dict[str, float]:
        seen = hashlib.sha256()
        for tensor in (
            batch.state, batch.action, batch.reward, batch.discount, batch.next_state,
            *batch.pictures.values(), *batch.next_pictures.values(),
        ):  # fmt: skip
            seen.update(tensor.numpy())
        drawn.append(f'{learner.rlpd.updates + 1} {seen.hexdigest()}')
        return update(batch, *given)

    learner.rlpd.update = watched
    for k, rows in enumerate(bursts(config)):
        if second and k < SAVED_AFTER[-1]:
            continue
        store.write(rows)
        settle(learner)
        store._prune()
        if k + 1 in SAVED_AFTER:
            learner._save()
        if k + 1 == SAVED_AFTER[-1]:
            drawn.clear()
            gone = segments(store.folder)[-1] - len(segments(store.folder))
            print(f'{gone} segments gone, {learner.rows.online.rows} rows, ', end='')
            shutil.copytree(folder, folder.with_name('second'))
    store.close()
    print(f'{len(drawn)} batches, {learner.rlpd.updates} updates')
    (folder / 'drawn').write_text('\n'.join(drawn))
    save_file({k: v.contiguous() for k, v in learner.rlpd.state_dict().items()},
              folder / 'state.safetensors')  # fmt: skip


def compared(case: str, folder: Path) -> bool:
    """Runs both processes of a case and compares what they leave."""
    first, second = folder / 'first', folder / 'second'
    first.mkdir(parents=True)
    told = [
        _process('train', case, str(first), ''),
        _process('train', case, str(second), 'second'),
    ]
    drawn = [(path / 'drawn').read_text().split('\n') for path in (first, second)]
    states = [load_file(path / 'state.safetensors') for path in (first, second)]
    others = [k for k, v in states[0].items() if not _same(v, states[1].get(k))]
    same = len(drawn[0]) > 100 and drawn[0] == drawn[1] and not others
    print(f'{case}: {"bit-exact" if same else "DIFFERENT"}  ({told[0]}; {len(states[0])} tensors)')
    if not same:
        at = next((a for a, b in zip(*drawn, strict=False) if a != b), '')
        print(f'  first other batch: {at[:20]}; {told[1]}; other tensors: {others[:5]}')
    return same


def _same(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    return b is not None and a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()


def _process(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()


# ---------------------------------------------------------------- how long it takes


def config_of(rows_n: int, side: int) -> RunConfig:
    """The shipped page, with room for so many rows."""
    settings = [f'budget.env_steps={rows_n}']
    if not side:
        return load('peg_rlpd', settings)
    sees = f'{{kind: sim, width: {side}, height: {side}}}'
    cameras = f'side: {sees}, wrist: {sees}'
    settings += [f'cells.arm0.cameras={{{cameras}}}', 'policy.teacher=critics']
    return load('peg_rlpd_vision', settings)


def prepare(folder: Path, rows_n: int, side: int) -> dict[str, float]:
    """A store of `rows_n` rows and a checkpoint at its end."""
    torch.set_num_threads(1)
    config = config_of(rows_n, side)
    spec = spec_of(config)
    rng, size = np.random.default_rng(0), side * side * 3
    noise = rng.integers(0, 256, size + 4096, np.uint8)
    store, rows = Store(folder / 'store'), list[Row]()
    for k in range(rows_n):
        episode, step = divmod(k, 100)
        images = tuple(
            Picture(name, 'rgb8', side, side, k, noise[k * 977 % 4096 :][:size])
            for name in spec.views
        )
        closing, last = step == 99, step == 98
        rows.append(
            Row(
                'bench', 'arm0', episode, step, 1, k,
                mode=Mode.DEMO if episode < 30 else Mode.TRAIN,
                task='insert the peg', policy='actor', policy_version=k // 100,
                captured_ns=1_700_000_000_000_000_000 + k,
                arrived_ns=1_700_000_000_001_000_000 + k,
                state=rng.normal(0, 0.02, spec.state_n).astype(np.float32),
                images=images,
                policy_action=rng.uniform(-1, 1, 6).astype(np.float32),
                executed_action=rng.uniform(-1, 1, 6).astype(np.float32),
                intervention=np.zeros(6, bool),
                reward=float(last), terminated=last,
                boundary=Boundary.SUCCESS if last or closing else Boundary.NONE,
                closing=closing, valid=not closing,
            )
        )  # fmt: skip
        if len(rows) == 16:
            store.write(rows)
            rows.clear()
    store.write(rows)
    store.close()
    learner = learner_of(config, folder)
    learner.experience.read()
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        path = learner.training.save()
        took.append(time.perf_counter() - begun)
    return {
        'checkpoint_mb': round(path.stat().st_size / 1e6, 2),
        'checkpoint_s': round(float(np.median(took)), 3),
    }


def restore(folder: Path, rows_n: int, side: int, started: float) -> dict[str, float]:
    """A process that comes back; `started` is when it was called, by the wall clock."""
    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # imports more than all before
    imported = time.time() - started
    config = config_of(rows_n, side)
    begun = time.perf_counter(), time.process_time()
    learner = learner_of(config, folder)
    assert learner.state == 'RESTORING'
    built = time.perf_counter()
    learner.training.restore(lambda: None)
    restored = time.perf_counter()
    batch = learner.experience.sample(1)
    first, from_exec = time.perf_counter(), time.time() - started
    cpu_s = time.process_time() - begun[1]
    assert len(batch.state) == config.algorithm.batch
    assert learner.rows.online.rows + learner.rows.demos.rows == rows_n
    return {
        'imported_s': round(imported, 2),
        'built_s': round(built - begun[0], 2),
        'rows_s': round(restored - built, 2),
        'first_batch_s': round(first - restored, 3),
        'restore_100k_s': round((first - begun[0]) * 1e5 / rows_n, 2),
        'cpu_s': round(cpu_s, 2),
        'from_exec_s': round(from_exec, 2),
    }


def forget(folder: Path) -> None:
    """Drops a run folder from the page cache."""
    for path in folder.rglob('*'):
        if path.is_file():
            with path.open('rb') as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(folder: Path, given: dict[str, str]) -> dict[str, object]:
    """The second question."""
    rows_n, side = given.get('rows', '100000'), given.get('pictures', '0')
    folder.mkdir()
    result = json.loads(_process('prepare', str(folder), rows_n, side))
    if 'cold' in given:
        forget(folder)
    result |= json.loads(_process('restore', str(folder), rows_n, side, str(time.time())))
    return {'rows': int(rows_n), 'pictures': int(side), 'cold': 'cold' in given} | result


def main() -> int:
    """Both questions, one after the other."""
    match sys.argv[1:]:
        case ['train', case, folder, second]:
            train(case, Path(folder), bool(second))
            return 0
        case ['prepare', folder, rows_n, side]:
            print(json.dumps(prepare(Path(folder), int(rows_n), int(side))))
            return 0
        case ['restore', folder, rows_n, side, started]:
            print(json.dumps(restore(Path(folder), int(rows_n), int(side), float(started))))
            return 0
    given = dict([*text.split('=', 1), ''][:2] for text in sys.argv[1:])
    place = Path(tempfile.mkdtemp(prefix='resume-bench-', dir=given.get('place')))
    try:
        same = True
        for k, case in enumerate([] if 'only' in given else CASES):
            same &= compared(case, place / str(k))
        result = {'question': 'is a learner that comes back the same, and how soon', 'same': same}
        result |= timed(place / 'timed', given)
    finally:
        shutil.rmtree(place)
    result['load'] = [round(n, 1) for n in os.getloadavg()]
    print(json.dumps(result | {'budgets': {'restore_100k_s': 5.0}}))
    return 0 if same else 1


if __name__ == '__main__':
    sys.exit(main())
