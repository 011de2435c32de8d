# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Cameras for who has none: a RealSense recording and a video file, each made in a moment."""

from pathlib import Path

import cv2
import numpy as np

from user_sim.recording import bar, record


def recorded(folder: Path, frames: int = 12) -> Path:
    """A recording that pyrealsense2 plays, 640 x 480, 30 Hz, colour and depth."""
    file = folder / 'camera.db3'
    record(file, bar(frames))
    return file


def film(folder: Path, frames: int = 10, width: int = 640, height: int = 480) -> Path:
    """A video that grows redder, picture by picture."""
    file = folder / 'film.avi'
    out = cv2.VideoWriter(str(file), cv2.VideoWriter.fourcc(*'MJPG'), 30, (width, height))
    for number in range(frames):
        red = 80 + 100 * number // frames
        out.write(np.full((height, width, 3), (20, 20, red), np.uint8))
    out.release()
    return file
