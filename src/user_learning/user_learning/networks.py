# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Networks of learners: normalisation, tanh-Gaussian actor, batched critic ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import copy
from dataclasses import dataclass, field
import itertools
import math
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn
import torch.nn.functional as F  # noqa: N812 (torch's own custom)

from user_learning.aim import Aim
from user_learning.encoder import Encoders, Sight

LOG_STD_MIN, LOG_STD_MAX = -8.0, 1.5
"""Bounds of the actor's log standard deviation before tanh; outside them gradients vanish or
explode.
"""

AVERAGE = 'average.'
"""Prefix of the averaged actor's tensors in a file of weights."""


@dataclass(frozen=True)
class Spec:
    """What a network must know of a task: sizes and the constants of its normalisation.

    `mean`, `scale`, `squash` have shape [state_n]: a value enters the network as (x - mean) /
    scale, and through tanh where `squash` holds (forces: their tails are long). The values at
    `fine_index` enter a second time, as tanh((x - fine_mean) / fine_scale): what is far away at
    one scale decides at the other. `sight` tells of pictures, if the policy has any; if hindsight
    teaches their encoders, they guess where a success ends in the values at `aim_index`.
    """

    mean: np.ndarray
    scale: np.ndarray
    squash: np.ndarray
    action_n: int
    fine_index: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    fine_mean: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    fine_scale: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    aim_index: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    sight: Sight | None = None

    @property
    def state_n(self) -> int:
        """Number of state values."""
        return len(self.mean)

    @property
    def views(self) -> Mapping[str, tuple[int, int]]:
        """Height and width of the pictures that enter a network, by camera."""
        return self.sight.views if self.sight else {}

    @property
    def input_n(self) -> int:
        """Number of values that enter a network: of the state, then features of pictures."""
        n = len(self.mean) + len(self.fine_index)
        if self.sight:
            n += self.sight.features_n + 2 * len(self.aim_index) * self.taught
        return n

    @property
    def taught(self) -> bool:
        """Whether hindsight teaches the encoders."""
        return self.sight is not None and self.sight.config.teacher == 'hindsight'

    @property
    def aim_scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Coarse and fine scale of the values at `aim_index`."""
        fine = self.scale.copy()
        fine[self.fine_index] = self.fine_scale
        return self.scale[self.aim_index], fine[self.aim_index]


class Normalizer(nn.Module):
    """The task's constants as buffers, so that they ride in the weights and cannot be forgotten.

    One affine map of gathered values, then tanh on some: coarse values first, fine ones behind
    them.
    """

    index: Tensor
    mean: Tensor
    scale: Tensor
    squash: Tensor

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        index = np.concatenate([np.arange(spec.state_n), spec.fine_index])
        squash = np.concatenate([spec.squash, np.ones(len(spec.fine_index), bool)])
        for name, values, dtype in (
            ('index', index, torch.int64),
            ('mean', np.concatenate([spec.mean, spec.fine_mean]), torch.float32),
            ('scale', np.concatenate([spec.scale, spec.fine_scale]), torch.float32),
            ('squash', squash, torch.bool),
        ):
            self.register_buffer(name, torch.tensor(values, dtype=dtype))

    def forward(self, state: Tensor) -> Tensor:
        """Raw SI state [..., state_n] to network input [..., input_n]."""
        x = (state.index_select(-1, self.index) - self.mean) / self.scale
        return torch.where(self.squash, torch.tanh(x), x)


class Actor(nn.Module):
    """Tanh-Gaussian policy: a = tanh(mu(s) + sigma(s) * eps), each action in (-1, 1).

    It begins close to mu = 0 and log sigma = `log_std` in every state. It holds the normalisation
    and the encoders of its pictures, so that weights of an actor are all that a policy needs.
    """

    def __init__(
        self,
        spec: Spec,
        hidden: Sequence[int],
        generator: torch.Generator | None = None,
        log_std: float = 0.0,
    ) -> None:
        super().__init__()
        self.normalizer = Normalizer(spec)
        self.encoders = Encoders(spec.sight, generator) if spec.sight else None
        self.aim: Aim | None = None
        if spec.sight and spec.taught:
            seen_n = len(spec.mean) + len(spec.fine_index) + spec.sight.features_n
            self.aim = Aim(spec, seen_n, generator)
        layers: list[nn.Module] = []
        n = spec.input_n
        for width in hidden:
            layers += [_linear(n, width, math.sqrt(2.0), generator)]
            layers += [nn.LayerNorm(width, elementwise_affine=False), nn.ReLU()]
            n = width
        last = _linear(n, 2 * spec.action_n, 0.01, generator)
        with torch.no_grad():
            last.bias[spec.action_n :] = log_std
        layers.append(last)
        self.net = nn.Sequential(*layers)

    def see(self, state: Tensor, pictures: Mapping[str, Tensor]) -> Tensor:
        """What enters the networks, [batch, input_n], for raw states [batch, n] and each camera's
        uint8 pictures [batch, height, width, 3]. Without pictures a state has been seen already.
        """
        if self.encoders is None:
            return self.normalizer(state)
        return self.look(state, pictures)[0] if pictures else state

    def look(self, state: Tensor, pictures: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """What enters the networks, and the offset [batch, k] of a success's end (k = 0 unless
        hindsight teaches).
        """
        assert self.encoders is not None
        x, features = self.normalizer(state), self.encoders(pictures)
        if self.aim is None:
            return torch.cat([x, features], -1), x[:, :0]
        offset = self.aim(torch.cat([x, features], -1))
        return torch.cat([x, self.aim.scaled(offset), features], -1), offset

    def rest(self, resting: bool = True) -> None:
        """Ends the learning of all that is before the head, or begins it."""
        for part in (self.encoders, self.aim):
            if part is not None:
                part.requires_grad_(not resting)

    def adopt_sight(self, other: Actor) -> None:
        """Sees from now on as another actor does now."""
        self.encoders, self.aim = copy.deepcopy((other.encoders, other.aim))

    def head(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before tanh, for network inputs [..., input_n]."""
        mean, log_std = self.net(x).chunk(2, dim=-1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def forward(
        self, state: Tensor, pictures: Mapping[str, Tensor] = MappingProxyType({})
    ) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before tanh, for raw states [..., n] and pictures."""
        return self.head(self.see(state, pictures))


def squashed(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Action and log-probability of a tanh-Gaussian for standard normal `noise` of mean's shape.

    u = mu + sigma * eps, a = tanh(u),
    log p(a) = sum log N(u; mu, sigma) - log(1 - tanh(u)^2)       (SAC, arXiv 1801.01290, eq. 21)
    with log(1 - tanh(u)^2) = 2 * (log 2 - u - softplus(-2u)), which is exact for large |u|.
    """
    u = mean + log_std.exp() * noise
    normal = -0.5 * noise * noise - log_std - 0.5 * math.log(2.0 * math.pi)
    log_prob = (normal - 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))).sum(-1)
    return torch.tanh(u), log_prob


class CriticEnsemble(nn.Module):
    """E independent critics Q(s, a) with layer norm, evaluated as one batched product (RLPD,
    REDQ).
    """

    def __init__(
        self,
        spec: Spec,
        hidden: Sequence[int],
        critics_n: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sizes = [spec.input_n + spec.action_n, *hidden, 1]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for k, (a, b) in enumerate(itertools.pairwise(sizes)):
            gain = 1.0 if k == len(sizes) - 2 else math.sqrt(2.0)
            members = [
                nn.init.orthogonal_(torch.empty(a, b), gain, generator) for _ in range(critics_n)
            ]
            self.weights.append(nn.Parameter(torch.stack(members)))
            self.biases.append(nn.Parameter(torch.zeros(critics_n, 1, b)))

    def forward(self, x: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Values [E, batch] of network inputs x and actions; `members` chooses a subset of
        critics.
        """
        parameters = zip(self.weights, self.biases, strict=True)
        return critic_values(list(parameters), torch.cat([x, action], -1), members)


def critic_values(
    layers: Sequence[tuple[Tensor, Tensor]], x: Tensor, members: Tensor | None = None
) -> Tensor:
    """Forward pass of a critic ensemble given as (weight [E, a, b], bias [E, 1, b]) layers."""
    for k, (weight, bias) in enumerate(layers):
        if members is not None:
            weight, bias = weight[members], bias[members]
        if k:
            x = torch.relu(F.layer_norm(x, x.shape[-1:]))
        x = torch.baddbmm(bias, x if k else x.expand(len(weight), -1, -1), weight)
    return x.squeeze(-1)


def _linear(a: int, b: int, gain: float, generator: torch.Generator | None) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, a, b)
    nn.init.orthogonal_(layer.weight, gain, generator)
    nn.init.zeros_(layer.bias)
    return layer
