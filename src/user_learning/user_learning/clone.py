# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Behaviour cloning of the demonstrations: the baseline that a learned policy has to beat."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from user_learning.networks import Actor

ACTION_LIMIT = 0.99
"""Demonstrated actions are brought inside +- this before atanh: at +-1 a tanh-Gaussian has no
density.
"""

MIN_LOG_STD = -2.0
"""Floor of the cloned standard deviation, so that a few rows cannot make the density peak without
end.
"""


def clone_loss(actor: Actor, state: Tensor, action: Tensor) -> Tensor:
    """Negative log-likelihood of demonstrated actions, up to a term that no parameter changes.

    L = mean_batch sum_dim 0.5 * ((atanh(a) - mu(s)) / sigma(s))^2 + log sigma(s)
    """
    mean, log_std = actor(state)
    log_std = log_std.clamp_min(MIN_LOG_STD)
    u = torch.atanh(action.clamp(-ACTION_LIMIT, ACTION_LIMIT))
    return (0.5 * ((u - mean) * torch.exp(-log_std)).square() + log_std).sum(-1).mean()


def train_clone(
    actor: Actor, batches: Iterator[tuple[Tensor, Tensor]], lr: float, updates: int
) -> float:
    """Fits the actor in place on (state, action) batches, `updates` of them, and returns the last
    loss.

    The step size falls to zero on a cosine.
    """
    optimizer = torch.optim.Adam(actor.parameters(), lr, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    loss = torch.zeros(())
    for state, action in batches:
        loss = clone_loss(actor, state, action)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()
