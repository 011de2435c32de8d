# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Where a success would end, guessed from what is seen now."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from user_learning.networks import Spec

HIDDEN = (128, 128)


class Aim(nn.Module):
    """State and features to the offset of a success's end from now, in the state's own units.

    The offset concerns the state's values at `spec.aim_index`, e.g. the TCP's position. It enters
    actor and critics twice, like the state: at the coarse and at the fine scale of those values.
    """

    coarse: Tensor
    fine: Tensor

    def __init__(
        self, spec: Spec, inputs_n: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        coarse, fine = spec.aim_scales
        self.register_buffer('coarse', torch.tensor(coarse))
        self.register_buffer('fine', torch.tensor(fine))
        layers: list[nn.Module] = []
        for width in HIDDEN:
            layers += [nn.Linear(inputs_n, width), nn.ReLU(inplace=True)]
            inputs_n = width
        self.net = nn.Sequential(*layers, nn.Linear(inputs_n, len(coarse)))
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, math.sqrt(2.0), generator)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Offsets [batch, k] from normalised states and features [batch, inputs_n]."""
        offset: Tensor = self.net(x) * self.coarse
        return offset

    def scaled(self, offset: Tensor) -> Tensor:
        """What enters the networks, [batch, 2 k]."""
        return torch.cat([offset / self.coarse, torch.tanh(offset / self.fine)], -1)
