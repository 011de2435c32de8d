# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What does a batch of pictures cost with the replay buffers of other libraries?

256 rows with two uint8 pictures of 128x128x3, now and next, out of 3000 rows in memory, each
library in its own words and a process of its own, beside the same floor as in replay.py. Prints
one JSON line; a library that is not installed is a note. It needs none of our packages:

    PYTHON bench/replay_peers.py [NAME]

LeRobot and RLinf are loaded as the one file that holds their buffer, since both ask for far more
than a buffer needs; `PYTHONPATH` may name a folder with their unpacked wheels.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import util
import json
import logging
import os
import subprocess
import sys
import time
import types
from typing import Any

import numpy as np

ROWS, BATCH, STATE_N, ACTION_N, ROUNDS = 3000, 256, 19, 6, 20
CAMERAS, SHAPE = ('side', 'wrist'), (128, 128, 3)
NOISE = np.random.default_rng(0).integers(0, 256, (64, *SHAPE), np.uint8)

Sample = Callable[[], Any]


def stable_baselines3() -> Sample:
    """DictReplayBuffer as its off-policy algorithms use it; it keeps next observations, too."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import DictReplayBuffer

    seen: dict[str, spaces.Space] = {c: spaces.Box(0, 255, SHAPE, np.uint8) for c in CAMERAS}
    seen['state'] = spaces.Box(-1, 1, (STATE_N,), np.float32)
    buffer = DictReplayBuffer(
        ROWS,
        spaces.Dict(seen),
        spaces.Box(-1, 1, (ACTION_N,), np.float32),
        'cpu',
        optimize_memory_usage=False,
        handle_timeout_termination=False,
    )
    for k in range(ROWS):
        now, after = observation(k), observation(k + 1)
        one = np.zeros(1, np.float32)
        buffer.add(now, after, np.zeros((1, ACTION_N), np.float32), one, one, [{}])
    return lambda: buffer.sample(BATCH)


def torchrl() -> Sample:
    """A ReplayBuffer on LazyTensorStorage with its default sampler."""
    from tensordict import TensorDict
    import torch
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS), batch_size=BATCH)
    for k in range(0, ROWS, 100):
        now = {name: torch.from_numpy(np.stack([observation(j)[name] for j in range(k, k + 100)]))
               for name in (*CAMERAS, 'state')}  # fmt: skip
        buffer.extend(
            TensorDict(
                {
                    **now,
                    'action': torch.zeros(100, ACTION_N),
                    'next': {**now, 'reward': torch.zeros(100, 1), 'done': torch.zeros(100, 1)},
                },
                [100],
            )
        )
    return buffer.sample


def lerobot() -> Sample:
    """LeRobot's ReplayBuffer with its learner's own setting, without augmentation."""
    import torch

    for name in ('lerobot', 'lerobot.datasets', 'lerobot.utils', 'lerobot.utils.constants',
                 'lerobot.utils.transition'):  # fmt: skip
        sys.modules[name] = types.ModuleType(name)
    sys.modules['lerobot.datasets'].LeRobotDataset = None  # type: ignore[attr-defined]
    for key, value in {'ACTION': 'action', 'DONE': 'done', 'OBS_IMAGE': 'observation.image',
                       'REWARD': 'reward'}.items():  # fmt: skip
        setattr(sys.modules['lerobot.utils.constants'], key, value)
    sys.modules['lerobot.utils.transition'].Transition = dict  # type: ignore[attr-defined]
    ours = [f'observation.image.{c}' for c in CAMERAS]
    buffer = file_of('lerobot/rl/buffer.py').ReplayBuffer(
        ROWS, 'cpu', ['observation.state', *ours], None, False, 'cpu', True
    )
    for k in range(ROWS):
        seen = observation(k)
        state = {
            key: torch.from_numpy(np.moveaxis(seen[c], -1, 0).copy())
            for key, c in zip(ours, CAMERAS, strict=True)
        }
        state['observation.state'] = torch.from_numpy(seen['state'])
        buffer.add(state, torch.zeros(ACTION_N), 0.0, state, False, False)
    return lambda: buffer.sample(BATCH)


def rlinf() -> Sample:
    """RLinf's TrajectoryReplayBuffer with every trajectory of 100 steps in its cache."""
    import torch

    for name in ('rlinf', 'rlinf.data', 'rlinf.utils'):
        sys.modules[name] = types.ModuleType(name)
    quiet = types.ModuleType('rlinf.utils.logging')
    quiet.get_logger = lambda: logging.getLogger('rlinf')  # type: ignore[attr-defined]
    sys.modules['rlinf.utils.logging'] = quiet
    for name in ('utils.nested_dict_process', 'data.embodied_io_struct'):
        path = f'rlinf/{name.replace(".", "/")}.py'
        sys.modules[f'rlinf.{name}'] = file_of(path, f'rlinf.{name}')
    trajectory = sys.modules['rlinf.data.embodied_io_struct'].Trajectory
    number = ROWS // 100
    buffer = file_of('rlinf/data/replay_buffer.py').TrajectoryReplayBuffer(
        cache_size=number, sample_window_size=number
    )

    def seen(first: int) -> dict[str, Any]:
        rows = [observation(k) for k in range(first, first + 100)]
        return {n: torch.from_numpy(np.stack([r[n] for r in rows])[:, None]) for n in rows[0]}

    for k in range(number):
        buffer.add_trajectories(
            [
                trajectory(
                    max_episode_length=100,
                    actions=torch.zeros(100, 1, ACTION_N),
                    rewards=torch.zeros(100, 1, 1),
                    dones=torch.zeros(100, 1, 1, dtype=torch.bool),
                    curr_obs=seen(100 * k),
                    next_obs=seen(100 * k + 1),
                )
            ]
        )
    return lambda: buffer.sample(BATCH)


PEERS = {f.__name__: f for f in (stable_baselines3, torchrl, lerobot, rlinf)}


def observation(k: int) -> dict[str, np.ndarray]:
    """The observation of step k."""
    seen = {c: NOISE[(k + 7 * j) % len(NOISE)] for j, c in enumerate(CAMERAS)}
    return {**seen, 'state': np.full(STATE_N, k, np.float32)}


def file_of(path: str, name: str = 'peer') -> Any:
    """A module from its file alone. Raises ModuleNotFoundError."""
    for folder in sys.path:
        where = os.path.join(folder, path)
        if os.path.exists(where):
            spec = util.spec_from_file_location(name, where)
            assert spec is not None
            assert spec.loader is not None
            module = util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            return module
    raise ModuleNotFoundError(f'No module named {path!r}')


def measure(sample: Sample) -> dict[str, float]:
    """Milliseconds of the processor for a batch, beside the floor; both take turns."""
    memory = np.empty((ROWS, *SHAPE), np.uint8)
    memory[:] = NOISE[np.arange(ROWS) % len(NOISE)]
    outs = np.empty((4, BATCH, *SHAPE), np.uint8)
    rng, took, floor = np.random.default_rng(1), [], []
    for _ in range(ROUNDS):
        begun = time.thread_time()
        sample()
        took.append(time.thread_time() - begun)
        index = rng.integers(0, ROWS, (4, BATCH))
        begun = time.thread_time()
        for some, out in zip(index, outs, strict=True):
            np.take(memory, some, axis=0, out=out, mode='clip')
        floor.append(time.thread_time() - begun)
    ms = float(np.median(took[3:])) * 1e3
    ratio = float(np.median(np.array(took[3:]) / np.array(floor[3:])))
    return {'window_ratio': round(ratio, 2), 'window_ms': round(ms, 1)}


def main() -> None:
    """Each peer in a process of its own."""
    if len(sys.argv) > 1:
        import torch

        torch.set_num_threads(1)
        try:
            print(json.dumps(measure(PEERS[sys.argv[1]]())))
        except ImportError as error:
            print(json.dumps(f'not measured: {error}'))
        return
    results = {}
    for name in PEERS:
        done = subprocess.run([sys.executable, __file__, name], stdout=subprocess.PIPE)
        last = done.stdout.decode().strip().rpartition('\n')[2]
        results[name] = json.loads(last) if done.returncode == 0 else 'not measured: it failed'
    print(json.dumps(results))


if __name__ == '__main__':
    main()
