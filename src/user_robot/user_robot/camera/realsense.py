# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The driver of RealSense cameras and of their recordings, through pyrealsense2."""

from __future__ import annotations

from pathlib import Path
import time
from typing import Any

import numpy as np
import pyrealsense2

from user_core.camera_config import RealsenseConfig
from user_core.errors import UserError
from user_robot.camera.camera import Frame, Lens

MAX_EXPOSURE_S = 0.2
"""A camera that says it exposed longer ago than this before sending says something else."""


class RealsenseCamera:
    """A RealSense by its serial number, or a .db3 file in a loop through the same pipeline.

    Without a device the library's start blocks for 15 s, so devices are looked up first. Frames
    are copied and given back at once: their pool is small. Stamps are the library's global time
    less what lies between exposure and sending, where the camera tells it.

    Args:
        config: of the camera.
        library: pyrealsense2, or what has its interface.
    """

    def __init__(self, config: RealsenseConfig, library: Any = pyrealsense2) -> None:
        self.config = config
        played = config.recording is not None
        self.open_gap_s = 0.0 if played else config.open_gap_s
        self.resets = 0 if played else config.resets
        self.lens: Lens | None = None
        self._rs = library
        self._context = library.context()
        self._pipeline: Any = None
        self._align: Any = None
        self._depth_mm = 1.0
        self._busy = False
        self._recording = _Loop() if played else None
        self.title = f'the recording {config.recording}' if config.recording else (
            f'the RealSense {config.serial}' if config.serial else 'the RealSense'
        )  # fmt: skip

    def open(self) -> None:
        """Begins to capture; of a device without a serial it takes the only one there is."""
        rs, c, self._busy = self._rs, self.config, False
        streams = rs.config()
        if c.recording is not None:
            if not Path(c.recording).is_file():
                raise UserError(
                    f'there is no recording {c.recording}', '', 'give the path of a .db3 file'
                )
            streams.enable_device_from_file(c.recording, repeat_playback=True)
        else:
            streams.enable_device(self._serial())
            size, fps = (c.capture_width, c.capture_height), round(c.fps)
            streams.enable_stream(rs.stream.color, *size, rs.format.rgb8, fps)
            if c.depth:
                streams.enable_stream(rs.stream.depth, *size, rs.format.z16, fps)
        pipeline = rs.pipeline(self._context)
        try:
            profile = pipeline.start(streams)
            self._pipeline = pipeline
            self._prepare(profile)
        except RuntimeError as error:
            self.close()
            self._busy = 'busy' in str(error).lower()
            raise UserError(
                f'{self.title} does not begin', str(error), self._advice(error)
            ) from error

    def _prepare(self, profile: Any) -> None:
        """Exposure, depth and lens of what was started."""
        rs, device = self._rs, profile.get_device()
        color = profile.get_stream(rs.stream.color).as_video_stream_profile()
        self.lens = _lens(color.get_intrinsics())
        if self.config.depth:
            self._depth_mm = 1000 * device.first_depth_sensor().get_depth_scale()
            self._align = rs.align(rs.stream.color)
        if self._recording is None and self.config.exposure_us is not None:
            sensor = device.first_color_sensor()
            # The colour sensor counts in 0.1 ms; where the stereo module is it (D405), in us.
            stereo = sensor.get_info(rs.camera_info.name) == 'Stereo Module'
            sensor.set_option(rs.option.enable_auto_exposure, 0)
            sensor.set_option(rs.option.exposure, self.config.exposure_us / (1 if stereo else 100))

    def read(self, within_s: float) -> Frame | None:
        """The newest picture; a set of frames without colour counts as none."""
        try:
            came, frames = self._pipeline.try_wait_for_frames(round(1000 * within_s))
            if came and self._align is not None and frames.get_depth_frame():
                frames = self._align.process(frames)
            color = frames.get_color_frame() if came else None
            if not color:
                return None
            number = color.get_frame_number()
            if self._recording is not None:
                number = self._recording.number(number)
            depth = frames.get_depth_frame() if self.config.depth else None
            return Frame(
                np.array(color.get_data()),
                self._exposed_s(color),
                number,
                self._millimetres(depth),
            )
        except RuntimeError as error:
            raise UserError(f'{self.title} is lost', str(error)) from error

    def _exposed_s(self, frame: Any) -> float:
        """Middle of the exposure, system clock; of a recording: when it is shown."""
        rs = self._rs
        unrelated = frame.get_frame_timestamp_domain() == rs.timestamp_domain.hardware_clock
        if self._recording is not None or unrelated:
            return time.time()
        seconds: float = frame.get_timestamp() / 1000
        kinds = (rs.frame_metadata_value.frame_timestamp, rs.frame_metadata_value.sensor_timestamp)
        if all(frame.supports_frame_metadata(kind) for kind in kinds):
            sent, exposed = (frame.get_frame_metadata(kind) for kind in kinds)  # us, its own clock
            before_s = (sent - exposed) / 1e6
            seconds -= before_s if 0 <= before_s <= MAX_EXPOSURE_S else 0.0
        return seconds

    def _millimetres(self, depth: Any) -> np.ndarray | None:
        if not depth:
            return None
        units = np.array(depth.get_data())
        if abs(self._depth_mm - 1.0) < 1e-6:
            return units
        return np.minimum(units * self._depth_mm, 65535).astype(np.uint16)

    def present(self) -> bool:
        """Whether a device with the serial is listed, and no other program was said to have it."""
        if self._recording is not None:
            return Path(str(self.config.recording)).is_file()
        serials = [serial for serial, _ in self._devices()]
        there = self.config.serial in serials if self.config.serial else len(serials) == 1
        return there and not self._busy

    def reset(self) -> None:
        """A hardware reset: the device leaves the bus and comes back within some seconds."""
        for serial, device in self._devices():
            if self.config.serial in ('', serial):
                try:
                    device.hardware_reset()
                except RuntimeError:
                    return  # it went by itself

    def close(self, again: bool = False) -> None:
        """Ends capturing."""
        del again
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            try:
                pipeline.stop()
            except RuntimeError:
                return  # it was unplugged

    def others(self) -> list[str]:
        """The devices there are: serial, name, USB type."""
        info = self._rs.camera_info
        keys = (info.serial_number, info.name, info.usb_type_descriptor)
        return [
            ', '.join(
                ('USB ' if key == info.usb_type_descriptor else '') + device.get_info(key)
                for key in keys
                if device.supports(key)
            )
            for _, device in self._devices()
        ]

    def _devices(self) -> list[tuple[str, Any]]:
        """Serial number and device of all that are plugged in, whatever the order on the bus."""
        try:
            return [
                (device.get_info(self._rs.camera_info.serial_number), device)
                for device in self._context.query_devices()
            ]
        except RuntimeError:  # one went while it was asked
            return []

    def _serial(self) -> str:
        serials = [serial for serial, _ in self._devices()]
        wanted = self.config.serial
        if wanted in serials:
            return wanted
        if not wanted and len(serials) == 1:
            return serials[0]
        there = '; '.join(self.others()) or 'none'
        if not wanted and serials:
            raise UserError(
                'several RealSense cameras are connected',
                f'they are: {there}',
                'choose one by its serial, in quotes',
            )
        raise UserError(
            f'{self.title} is not connected',
            f'connected are: {there}',
            'plug it in, see its cable, or correct cells.<cell>.cameras.<camera>.serial',
        )

    def _advice(self, error: RuntimeError) -> str:
        if 'resolve' in str(error):
            return 'choose a capture size and fps that the camera offers: fewer at USB 2'
        return 'end other programs that use it, or plug it in again'


class _Loop:
    """Numbers the pictures of a recording on when it begins anew."""

    def __init__(self) -> None:
        self._last = self._base = self._count = 0

    def number(self, recorded: int) -> int:
        """In the endless film; a picture that comes twice keeps its number."""
        if recorded < self._last:
            self._base = self._count
        self._last = recorded
        self._count = self._base + recorded
        return self._count


def _lens(intrinsics: Any) -> Lens:
    """What sensor_msgs calls plumb_bob is Brown and Conrady's model here, inverse or not."""
    return Lens(
        intrinsics.fx, intrinsics.fy, intrinsics.ppx, intrinsics.ppy, 'plumb_bob',
        tuple(intrinsics.coeffs),
    )  # fmt: skip
