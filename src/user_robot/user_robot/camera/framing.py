# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""How a captured picture becomes its view: a part of it, shrunk to what policies see."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from user_core.camera_config import View

Picture = NDArray[np.uint8]


class Framing:
    """Crops and resizes; every pixel of the part counts in the result (no aliasing)."""

    def __init__(self, config: View) -> None:
        self.width, self.height, self.crop = config.width, config.height, config.crop
        cv2.setNumThreads(1)

    def part(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Left, top, right, bottom of the part in a captured picture of this size, pixels."""
        if self.crop is not None:
            left, top, right, bottom = self.crop
            edges = left * width, top * height, right * width, bottom * height
        else:
            scale = min(width / self.width, height / self.height)
            half_x, half_y = scale * self.width / 2, scale * self.height / 2
            edges = (
                width / 2 - half_x,
                height / 2 - half_y,
                width / 2 + half_x,
                height / 2 + half_y,
            )
        x0, y0, x1, y1 = (round(edge) for edge in edges)
        x0, y0 = min(x0, width - 1), min(y0, height - 1)
        return x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)

    def of(self, picture: Picture) -> Picture:
        """The view, (height, width, 3), contiguous, of a captured (h, w, 3) picture."""
        left, top, right, bottom = self.part(*picture.shape[:2])
        part = picture[top:bottom, left:right]
        # Halves are averages of 2 x 2 pixels, which the library does at the speed of memory.
        while part.shape[0] >= 2 * self.height and part.shape[1] >= 2 * self.width:
            half = part.shape[1] // 2, part.shape[0] // 2
            part = part[: 2 * half[1], : 2 * half[0]]
            part = cv2.resize(part, half, interpolation=cv2.INTER_AREA)
        if part.shape[:2] == (self.height, self.width):
            return np.ascontiguousarray(part)
        shrinks = part.shape[0] >= self.height and part.shape[1] >= self.width
        way = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        return np.asarray(cv2.resize(part, (self.width, self.height), interpolation=way), np.uint8)
