# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What does the learner's step cost beside the same networks in a bare PyTorch loop?

One step is `actor_every` critic updates and one update of actor and temperature. The bare loop
has its rows ready and checks nothing; ours draws them, checks gradients and adds numbers up; both
shift pictures by the same code. They take turns, so that a busy machine hurts them alike. Prints
one JSON line for rows without pictures and one for rows with two of them, which pass through
encoders at every update; budget: ratio <= 1.05.

    .venv/bin/python bench/learner.py [rounds]
"""

from __future__ import annotations

from collections.abc import Callable
import json
import os
import sys
import time

ALLOCATOR = {
    'MALLOC_MMAP_THRESHOLD_': '1000000000',
    'MALLOC_TRIM_THRESHOLD_': '1000000000',
    'MALLOC_TOP_PAD_': '67108864',
    'OMP_NUM_THREADS': '1',
    'THP_MEM_ALLOC_ENABLE': '1',
}

if any(os.environ.get(k) != v for k, v in ALLOCATOR.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)

import numpy as np  # noqa: E402 (libraries read the environment when they are loaded)
import torch  # noqa: E402

from user_core.config import RunConfig, load  # noqa: E402
from user_learning.augment import Shift  # noqa: E402
from user_learning.networks import Actor, CriticEnsemble, squashed  # noqa: E402
from user_learning.rlpd import Rlpd  # noqa: E402
from user_learning.row import Boundary, Mode, Picture, Row  # noqa: E402
from user_learning.rows import Rows  # noqa: E402
from user_learning.sampler import Sampler  # noqa: E402
from user_learning.spec import spec_of  # noqa: E402

CAMERAS = '{side: {kind: sim, width: 64, height: 64}, wrist: {kind: sim, width: 64, height: 64}}'
RUNS: dict[str, tuple[int, list[str]]] = {
    'state': (20, []),
    'pictures': (
        2,
        ['policy.kind=cnn', f'cells.arm0.cameras={CAMERAS}', 'algorithm.batch=64'],
    ),
}
"""What is compared: steps of one side before the other one's turn, and settings of peg_rlpd."""


def filled(config: RunConfig) -> Rows:
    """A window as it is in the middle of a run: 20 demonstrations and 5000 training rows."""
    rng = np.random.default_rng(0)
    c, views = config.algorithm, spec_of(config).views
    rows = Rows(8192, 19, 6, c.gamma, c.n_step, views=views)
    for number in range(70):
        mode = Mode.DEMO if number < 20 else Mode.TRAIN
        for step in range(101):
            closing, last = step == 100, step == 99
            images = tuple(
                Picture(name, 'rgb8', h, w, step, rng.integers(0, 256, h * w * 3, np.uint8))
                for name, (h, w) in views.items()
            )
            rows.add(
                Row(
                    'bench',
                    'arm0',
                    number,
                    step,
                    mode=mode,
                    state=rng.normal(0, 0.02, 19).astype(np.float32),
                    images=images,
                    executed_action=rng.uniform(-1, 1, 6).astype(np.float32),
                    reward=float(last),
                    terminated=last,
                    boundary=Boundary.SUCCESS if last or closing else Boundary.NONE,
                    closing=closing,
                    valid=not closing,
                )
            )
    return rows


def ours(config: RunConfig, rows: Rows) -> Callable[[int], None]:
    """The product's steps."""
    c = config.algorithm
    rlpd = Rlpd(c, spec_of(config), config.policy.hidden)
    sample = Sampler(rows, c.batch, c.demo_fraction, 0)

    def steps(n: int) -> None:
        first = rlpd.updates
        for batch in sample.batches(range(first, first + n * c.actor_every)):
            rlpd.update(batch, 10**6)

    return steps


def bare(config: RunConfig, rows: Rows) -> Callable[[int], None]:
    """The same networks and losses, as short as PyTorch allows."""
    c, spec = config.algorithm, spec_of(config)
    batch = Sampler(rows, c.batch, c.demo_fraction, 0)(0)
    actor = Actor(spec, config.policy.hidden)
    critic, target = (CriticEnsemble(spec, c.critic_hidden, c.ensemble) for _ in range(2))
    shift = Shift(c.shift_px, torch.Generator())
    log_alpha = torch.tensor(-6.0, requires_grad=True)
    targets, critics = list(target.parameters()), list(critic.parameters())
    actor_adam = torch.optim.Adam(actor.net.parameters(), c.lr, fused=True)
    encoders = list(actor.encoders.parameters()) if actor.encoders else []
    critic_adam = torch.optim.Adam([*critics, *encoders], c.lr, fused=True)
    alpha_adam = torch.optim.Adam([log_alpha], c.lr, fused=True)

    def step() -> None:
        for _ in range(c.actor_every):
            with torch.no_grad():
                next_x = actor.see(batch.next_state, shift(batch.next_pictures))
                a, _ = squashed(*actor.head(next_x), torch.randn(c.batch, 6))
                y = (batch.reward + batch.discount * target(next_x, a).amin(0)).clamp_(0, 1)
            x = actor.see(batch.state, shift(batch.pictures))
            loss = (critic(x, batch.action) - y).square().mean(1).sum()
            critic_adam.zero_grad()
            loss.backward()
            critic_adam.step()
            with torch.no_grad():
                torch._foreach_lerp_(targets, critics, c.tau)
        critic.requires_grad_(False)
        x = x.detach()
        a, log_prob = squashed(*actor.head(x), torch.randn(c.batch, 6))
        loss = (log_alpha.detach().exp() * log_prob - critic(x, a).mean(0)).mean()
        actor_adam.zero_grad()
        loss.backward()
        actor_adam.step()
        critic.requires_grad_(True)
        alpha_loss = -(log_alpha.exp() * (log_prob.detach().mean() + c.target_entropy))
        alpha_adam.zero_grad()
        alpha_loss.backward()
        alpha_adam.step()

    def steps(n: int) -> None:
        for _ in range(n):
            step()

    return steps


def main() -> None:
    """Takes turns and prints medians."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    for name, (block, settings) in RUNS.items():
        config = load('peg_rlpd', settings)
        rows = filled(config)
        sides = {'ours': ours(config, rows), 'bare': bare(config, rows)}
        took: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, steps in sides.items():
                begun = time.process_time()  # the core is shared: count only what we used
                steps(block)
                took[side].append((time.process_time() - begun) / block * 1e3)
        medians = {side: float(np.median(times[2:])) for side, times in took.items()}
        ratios = np.array(took['ours'][2:]) / np.array(took['bare'][2:])
        result = {
            'question': 'learner step vs bare PyTorch loop',
            'rows': name,
            'batch': config.algorithm.batch,
            'updates_per_step': config.algorithm.actor_every,
            'ours_ms': round(medians['ours'], 3),
            'bare_ms': round(medians['bare'], 3),
            'ratio': round(float(np.median(ratios)), 3),
            'budget': 1.05,
        }
        print(json.dumps(result), flush=True)


if __name__ == '__main__':
    main()
