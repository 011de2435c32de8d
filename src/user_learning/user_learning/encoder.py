# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""From pictures to features: one encoder for each camera, or one for all.

A picture passes through a trunk of convolutions, a pool that makes one vector of the map, a linear
layer, layer norm and tanh. Pictures are uint8 [batch, height, width, 3] as cameras and the window
hold them: in memory that is channels-last already, so that only their numbers are converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
import math
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
import torch
from torch import Tensor, nn

from user_core.config import CnnPolicy
from user_core.errors import UserError

SPATIAL_N = 8
"""Weighted sums that the pool `embedding` takes of each channel, as SERL does."""


@dataclass(frozen=True)
class Sight:
    """What encoders are built from: height and width of each camera's view, in the order of their
    names, and the policy's section.
    """

    views: Mapping[str, tuple[int, int]]
    config: CnnPolicy

    @cached_property
    def features_n(self) -> int:
        """Features of all cameras together."""
        with torch.device('meta'):
            return Encoders(self).features_n


class SmallTrunk(nn.Sequential):
    """A few convolutions from scratch, ReLU between them."""

    mean, std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

    def __init__(self, config: CnnPolicy) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for width, stride, kernel in zip(
            config.channels, config.strides, config.kernels, strict=True
        ):
            layers += [nn.Conv2d(channels, width, kernel, stride, kernel // 2)]
            layers += [nn.ReLU(inplace=True)]
            channels = width
        super().__init__(*layers[:-1])  # a pool begins where it wants to


class Block(nn.Module):
    """Two 3x3 convolutions with group norm beside a shortcut (He et al., arXiv 1512.03385)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.GroupNorm(4, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.GroupNorm(4, outputs)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.downsample.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.downsample.append(nn.GroupNorm(4, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, inputs, h, w] to [batch, outputs, h / stride, w / stride]."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet10(nn.Module):
    """ResNet-10 with group norm, as SERL and RLinf use it, to 512 channels.

    Its tensors have torchvision's names: conv1, bn1, layer1.0.conv1 and so on.
    """

    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's

    def __init__(self, config: CnnPolicy) -> None:
        del config
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.GroupNorm(4, 64)
        self.pool = nn.MaxPool2d(3, 2, 1)
        for k, (inputs, outputs) in enumerate(((64, 64), (64, 128), (128, 256), (256, 512))):
            block = Block(inputs, outputs, 1 if k == 0 else 2)
            self.add_module(f'layer{k + 1}', nn.Sequential(block))

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [batch, 3, h, w] to maps [batch, 512, h / 32, w / 32]."""
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        for k in range(4):
            x = self.get_submodule(f'layer{k + 1}')(x)
        return x


TRUNKS = {'small': SmallTrunk, 'resnet10': ResNet10}


class Flatten(nn.Module):
    """Every value of the map."""

    features_n: int

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.features_n = channels * height * width

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, channels, h, w] to [batch, features_n]."""
        return torch.relu(x).permute(0, 2, 3, 1).flatten(1)  # the map's own order in memory


class Keypoints(nn.Module):
    """Where each channel looks: the mean place of its softmax, both axes in [-1, 1], with a
    temperature that each channel learns (Levine et al., arXiv 1504.00702).
    """

    features_n: int
    place: Tensor

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.features_n = 2 * channels
        self.log_gain = nn.Parameter(torch.zeros(channels))
        y, x = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
        self.register_buffer('place', torch.cartesian_prod(y, x).reshape(-1, 2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, channels, h, w] to y and x of each channel, [batch, features_n]."""
        x = x.permute(0, 2, 3, 1).flatten(1, 2) * self.log_gain.exp()
        return (x.softmax(1).transpose(1, 2) @ self.place).flatten(1)


class Embedding(nn.Module):
    """Weighted sums of each channel with learned weights for every place (SERL's spatial learned
    embeddings, arXiv 2401.16013).
    """

    features_n: int

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.features_n = channels * SPATIAL_N
        places = height * width
        self.weight = nn.Parameter(torch.empty(channels, places, SPATIAL_N))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, channels, h, w] to [batch, features_n]."""
        # [channels, batch, places] @ [channels, places, sums]
        x = torch.relu(x).flatten(2).transpose(0, 1)
        return (x @ self.weight).transpose(0, 1).flatten(1)


Pool = Flatten | Keypoints | Embedding

POOLS: dict[str, type[Pool]] = {'flatten': Flatten, 'keypoints': Keypoints, 'embedding': Embedding}


class Encoder(nn.Module):
    """One camera's pictures to features, in (-1, 1) behind a layer of `features`."""

    mean: Tensor
    scale: Tensor

    def __init__(self, config: CnnPolicy, view: tuple[int, int]) -> None:
        super().__init__()
        self.trunk = TRUNKS[config.encoder](config)
        self.frozen = config.frozen
        # A line of pixels each: three numbers for every pixel would cost 15 times as much.
        mean, std = (torch.tensor(c).repeat(view[1]) for c in (self.trunk.mean, self.trunk.std))
        self.register_buffer('mean', 255.0 * mean, persistent=False)
        self.register_buffer('scale', 1.0 / (255.0 * std), persistent=False)
        with torch.no_grad():
            _, *size = self.trunk(torch.zeros(1, 3, *view)).shape
        pool = POOLS[config.pool](*size)
        self.pool, self.features_n = pool, config.features or pool.features_n
        self.out = nn.Sequential()
        if config.features:
            self.out.append(nn.Linear(pool.features_n, config.features))
            self.out.append(nn.LayerNorm(config.features, elementwise_affine=False))
            self.out.append(nn.Tanh())

    def forward(self, pictures: Tensor) -> Tensor:
        """uint8 [batch, height, width, 3] to features [batch, features]."""
        x = pictures.flatten(2).float().sub_(self.mean).mul_(self.scale)
        x = x.view(pictures.shape).permute(0, 3, 1, 2)
        if self.frozen:
            with torch.no_grad():
                x = self.trunk(x)
        else:
            x = self.trunk(x)
        return self.out(self.pool(x))


class Encoders(nn.Module):
    """All cameras' features, one camera behind the other in the order of their names.

    Weights begin at random by `generator` alone; `load_trunk` puts pretrained ones in their place.
    """

    def __init__(self, sight: Sight, generator: torch.Generator | None = None) -> None:
        super().__init__()
        config, views = sight.config, sight.views
        n = 1 if config.shared else len(views)
        self.cameras = tuple(views)
        members = [Encoder(config, view) for view in list(views.values())[:n]]
        self.members = nn.ModuleList(members)
        self.features_n = sum(members[k % n].features_n for k in range(len(views)))
        for member in members:
            _begin(member, generator)
            # Gradients of convolutions come channels-last: the fused Adam takes no other layout.
            member.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            member.trunk.requires_grad_(not config.frozen)

    def forward(self, pictures: Mapping[str, Tensor]) -> Tensor:
        """uint8 [batch, height, width, 3] of each camera to features [batch, features_n]."""
        features = [
            self.members[k % len(self.members)](pictures[camera])
            for k, camera in enumerate(self.cameras)
        ]
        return torch.cat(features, -1)

    def load_trunk(self, path: Path) -> None:
        """Puts a file's pretrained weights into every trunk; a classifier's `fc` is ignored.

        Raises UserError: no such file, or one of another network.
        """
        try:
            tensors = {k: v for k, v in load_file(path).items() if not k.startswith('fc.')}
            for member in self.members:
                member.get_submodule('trunk').load_state_dict(tensors)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f'the encoder weights {path} cannot be read',
                str(error),
                'policy.weights names a safetensors file on the learner machine',
            ) from error
        except RuntimeError as error:
            raise UserError(
                f'the encoder weights {path} belong to another network',
                str(error).splitlines()[1].strip(),
                'the tensors need the names and shapes of policy.encoder (resnet10: torchvision)',
            ) from error


@torch.no_grad()
def _begin(encoder: Encoder, generator: torch.Generator | None) -> None:
    """He's normal for convolutions, LeCun's for the sums over places, orthogonal linear layers."""
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity='relu', generator=generator)
        elif isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, 1.0, generator)
        elif isinstance(module, Embedding):
            places = module.weight.shape[1]
            nn.init.normal_(module.weight, 0.0, 1.0 / math.sqrt(places), generator)
            continue
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
