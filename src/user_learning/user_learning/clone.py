# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Behaviour cloning of the demonstrations: the baseline that a learned policy has to beat."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from user_core.config import RunConfig
from user_learning.augment import Shift
from user_learning.networks import Actor
from user_learning.rlpd import Batch, Rlpd, make_actor
from user_learning.sampler import Sampler

ACTION_LIMIT = 0.99
"""Demonstrated actions are brought inside +- this before atanh: at +-1 a tanh-Gaussian has no
density.
"""

MIN_LOG_STD = -2.0
"""Floor of the cloned standard deviation, so that a few rows cannot make the density peak without
end.
"""


def clone_loss(actor: Actor, x: Tensor, action: Tensor) -> Tensor:
    """Negative log-likelihood of demonstrated actions, up to a term that no parameter changes.

    L = mean_batch sum_dim 0.5 * ((atanh(a) - mu(s)) / sigma(s))^2 + log sigma(s)
    """
    mean, log_std = actor.head(x)
    log_std = log_std.clamp_min(MIN_LOG_STD)
    u = torch.atanh(action.clamp(-ACTION_LIMIT, ACTION_LIMIT))
    return (0.5 * ((u - mean) * torch.exp(-log_std)).square() + log_std).sum(-1).mean()


def train_clone(
    actor: Actor, batches: Iterator[Batch], lr: float, updates: int, shift: Shift
) -> float:
    """Fits the actor and its encoders, unless they rest, in place on `updates` batches.

    Returns the last loss.

    The step size falls to zero on a cosine.
    """
    learned = [p for p in actor.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(learned, lr, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    loss = torch.zeros(())
    for batch in batches:
        x = actor.see(batch.state, shift(batch.pictures))
        loss = clone_loss(actor, x, batch.action)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


def clone_of(
    config: RunConfig, rlpd: Rlpd, sample: Sampler, tell: Callable[[], object]
) -> dict[str, Tensor]:
    """Weights of an actor that was trained on every demonstration; without pictures it takes two
    seconds or so. `tell` is called before each update.
    """
    updates = config.learner.clone_updates
    generator = torch.Generator().manual_seed(config.seed)
    actor = make_actor(rlpd.spec, config.policy.hidden, generator).to(rlpd.device)
    if rlpd.spec.taught:
        actor.adopt_sight(rlpd.actor)

    def batches() -> Iterator[Batch]:
        for batch in sample.batches(range(updates), demos_only=True):
            tell()
            yield batch.to(rlpd.device)

    train_clone(actor, batches(), config.algorithm.lr, updates, rlpd.shift)
    return {k: v.cpu() for k, v in actor.state_dict().items()}
