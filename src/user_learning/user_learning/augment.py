# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""DrQ's augmentation: pictures shifted at random by some pixels (arXiv 2004.13649)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


class Shift:
    """Pads each picture by `most` border pixels and crops it at a random place.

    Random numbers come from `generator`, which lives on the pictures' device. On the CPU results
    lie in arrays that the next call with pictures of the same size overwrites.
    """

    def __init__(self, most: int, generator: torch.Generator) -> None:
        self.most, self.generator = most, generator
        self._room: dict[tuple[str, torch.Size], Tensor] = {}

    def __call__(self, pictures: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Shifted copies of uint8 [batch, height, width, 3] by camera; the originals when `most`
        is 0.
        """
        if not self.most:
            return pictures
        return {camera: self._shift(camera, some) for camera, some in pictures.items()}

    def _shift(self, camera: str, pictures: Tensor) -> Tensor:
        by = torch.randint(
            -self.most, self.most + 1, (len(pictures), 2),
            generator=self.generator, device=pictures.device,
        )  # fmt: skip
        if pictures.device.type != 'cpu':
            return gathered(pictures, by)
        out = self._room.get((camera, pictures.shape))
        if out is None:
            out = self._room[camera, pictures.shape] = torch.empty_like(pictures)
        for place, source, (dy, dx) in zip(
            out.numpy(), pictures.numpy(), by.tolist(), strict=True
        ):
            copied(place, source, dy, dx)
        return out


def copied(out: np.ndarray, picture: np.ndarray, dy: int, dx: int) -> None:
    """out[y, x] = picture[y + dy, x + dx], both clamped to the picture: slices, for a CPU."""
    height, width, _ = picture.shape
    top, bottom = max(0, -dy), min(height, height - dy)
    left, right = max(0, -dx), min(width, width - dx)
    middle = out[top:bottom]
    middle[:, left:right] = picture[top + dy : bottom + dy, left + dx : right + dx]
    if dx < 0:
        middle[:, :left] = middle[:, left : left + 1]
    elif dx > 0:
        middle[:, right:] = middle[:, right - 1 : right]
    if dy < 0:
        out[:top] = out[top]
    elif dy > 0:
        out[bottom:] = out[bottom - 1]


def gathered(pictures: Tensor, by: Tensor) -> Tensor:
    """The same for a batch [batch, height, width, 3] and shifts [batch, 2]: one gather, for a
    GPU.
    """
    n, height, width, _ = pictures.shape
    device = pictures.device
    y = (torch.arange(height, device=device) + by[:, :1]).clamp(0, height - 1)
    x = (torch.arange(width, device=device) + by[:, 1:]).clamp(0, width - 1)
    rows = torch.arange(n, device=device)[:, None, None]
    return pictures[rows, y[:, :, None], x[:, None, :]]
