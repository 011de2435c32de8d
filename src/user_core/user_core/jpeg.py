# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""RGB pictures to JPEG files and back; nothing else of the suite knows that OpenCV means BGR."""

from __future__ import annotations

from array import array
from functools import lru_cache
import struct
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from user_core.errors import UserError

Bytes: TypeAlias = 'bytes | memoryview | array[int] | NDArray[np.uint8]'


@lru_cache(maxsize=1)
def codec() -> Any:
    """The module cv2, imported on first use.

    Raises:
        UserError: it is not installed, or does not load.
    """
    try:
        import cv2
    except ImportError as error:
        raise UserError(
            'pictures cannot be coded',
            f'OpenCV does not load: {error}',
            'Install it: pip install opencv-python-headless',
        ) from error
    return cv2


def encode(picture: NDArray[np.uint8], quality: int = 90) -> bytes:
    """One JPEG file of a picture, (height, width, 3) RGB.

    Raises:
        UserError: OpenCV is missing.
        ValueError: the picture cannot be encoded.
    """
    cv2 = codec()
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
        raise ValueError(f'a picture of {picture.dtype} {picture.shape} is no RGB picture')
    bgr = cv2.cvtColor(np.ascontiguousarray(picture), cv2.COLOR_RGB2BGR)
    done, data = cv2.imencode('.jpg', bgr, (cv2.IMWRITE_JPEG_QUALITY, quality))
    if not done:
        raise ValueError(f'a picture of {picture.shape} cannot be encoded')
    return bytes(data)


def decode(data: Bytes) -> NDArray[np.uint8]:
    """The picture, (height, width, 3) RGB, writable, of a JPEG file (or of a PNG).

    Raises:
        UserError: OpenCV is missing.
        ValueError: the bytes are no picture.
    """
    cv2 = codec()
    file = np.frombuffer(data, np.uint8)
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    picture = cv2.imdecode(file, flags) if file.size else None
    if picture is None:
        raise ValueError(f'{file.size} bytes that are no picture')
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), np.uint8)


def size(data: Bytes) -> tuple[int, int]:
    """Height and width of a JPEG file, from its header, in microseconds.

    Raises:
        ValueError: the bytes are no JPEG file.
    """
    view, at = np.frombuffer(data, np.uint8).data, 2
    if bytes(view[:2]) == b'\xff\xd8':
        while at + 9 <= len(view) and view[at] == 0xFF:
            kind = view[at + 1]
            if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):  # a start of frame
                height, width = struct.unpack_from('>HH', view, at + 5)
                return height, width
            at += 2 + struct.unpack_from('>H', view, at + 2)[0]
    raise ValueError(f'{len(view)} bytes that are no JPEG file')
