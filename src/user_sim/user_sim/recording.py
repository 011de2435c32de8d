# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Writes recordings that pyrealsense2 plays: a RealSense camera for who has none.

    python -m user_sim.recording camera.db3 [frames]

A bar walks over a grey picture, one step a picture; depth is a slope.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
import sys
import time

import numpy as np
from numpy.typing import NDArray
import pyrealsense2 as rs

SERIAL = '017322071690'
FPS = 30
WIDTH, HEIGHT = 640, 480
FOCAL_PX = 600.0
_WRITE_S = 1 / FPS
"""The recorder notes when a picture came: it is played at this pace."""

Pictures = tuple[NDArray[np.uint8], NDArray[np.uint16]]


def record(file: Path, pictures: Iterable[Pictures], serial: str = SERIAL) -> None:
    """Writes (480, 640, 3) RGB pictures with their (480, 640) depth in mm, FPS a second."""
    device = rs.software_device()
    device.register_info(rs.camera_info.serial_number, serial)
    device.register_info(rs.camera_info.name, 'Recorded camera')
    sensors = [
        _sensor(device, 'RGB Camera', rs.stream.color, rs.format.rgb8, 3),
        _sensor(device, 'Stereo Module', rs.stream.depth, rs.format.z16, 2),
    ]
    sensors[1][0].add_read_only_option(rs.option.depth_units, 0.001)
    file.unlink(missing_ok=True)
    recorder = rs.recorder(str(file), device)
    queue = rs.frame_queue(4)
    writers = recorder.query_sensors()
    for writer in writers:
        writer.open(writer.get_stream_profiles()[0])
        writer.start(queue)
    for number, pair in enumerate(pictures, start=1):
        for (sensor, profile, size), picture in zip(sensors, pair, strict=True):
            sensor.on_video_frame(_frame(profile, size, np.ascontiguousarray(picture), number))
        time.sleep(_WRITE_S)
    for writer in writers:
        writer.stop()
        writer.close()


def bar(frames: int) -> Iterable[Pictures]:
    """What `main` records."""
    depth = np.tile(np.linspace(300, 900, WIDTH).astype(np.uint16), (HEIGHT, 1))
    for number in range(frames):
        color = np.full((HEIGHT, WIDTH, 3), 96, np.uint8)
        left = 8 * number % WIDTH
        color[:, left : left + 32] = (220, 60, 40)
        yield color, depth


def _sensor(
    device: rs.software_device, name: str, stream: rs.stream, format_: rs.format, size: int
) -> tuple[rs.software_sensor, rs.video_stream_profile, int]:
    lens = rs.intrinsics()
    lens.width, lens.height, lens.fx, lens.fy = WIDTH, HEIGHT, FOCAL_PX, FOCAL_PX
    lens.ppx, lens.ppy, lens.model = WIDTH / 2, HEIGHT / 2, rs.distortion.brown_conrady
    video = rs.video_stream()
    video.type, video.index, video.uid, video.fmt = stream, 0, size, format_
    video.width, video.height, video.fps, video.bpp = WIDTH, HEIGHT, FPS, size
    video.intrinsics = lens
    sensor = device.add_sensor(name)
    return sensor, sensor.add_video_stream(video).as_video_stream_profile(), size


def _frame(
    profile: rs.video_stream_profile, size: int, picture: NDArray, number: int
) -> rs.software_video_frame:
    frame = rs.software_video_frame()
    frame.pixels, frame.stride, frame.bpp = picture.reshape(-1), size * WIDTH, size
    frame.timestamp, frame.frame_number = 1000 * number / FPS, number
    frame.domain, frame.profile = rs.timestamp_domain.system_time, profile
    return frame


def main() -> None:
    """Entry point."""
    frames = int(sys.argv[2]) if len(sys.argv) > 2 else WIDTH // 8
    record(Path(sys.argv[1]), bar(frames))


if __name__ == '__main__':
    main()
