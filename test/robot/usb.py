# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A USB bus with RealSense cameras on it, behind pyrealsense2's interface.

The driver above is the real one; unplugging, freezing and being busy are words here.
"""

from dataclasses import dataclass, field
from functools import partial
import threading
import time
from types import SimpleNamespace
from weakref import WeakSet

import numpy as np

PERIOD_S = 1 / 30
BUSY_S = 0.5


@dataclass
class Device:
    """One camera on the bus; its pictures show its `shade`."""

    serial: str
    shade: int = 0
    plugged: bool = True
    frozen: bool = False
    silent: bool = False
    heals: bool = True
    """Whether a reset ends being silent."""
    resets: int = 0
    used: bool = False
    gone_until: float = 0.0

    def get_info(self, key):
        return {'serial_number': self.serial, 'name': 'Fake D405', 'usb': '2.1'}[key]

    def supports(self, key):
        return True

    def there(self):
        return self.plugged and time.monotonic() >= self.gone_until

    def hardware_reset(self):
        self.resets += 1
        self.gone_until = time.monotonic() + 0.3
        self.silent = self.silent and not self.heals


@dataclass
class Bus:
    """What plays the part of the module pyrealsense2."""

    devices: list[Device]
    gap_s: float = 0.0
    """Opening one sooner than this after another fails, as hubs do."""
    opened: float = -1e9
    refused: int = 0
    newest: int = 0
    """Number of the last picture that somebody got."""
    asked: list[str] = field(default_factory=list)
    frames: WeakSet = field(default_factory=WeakSet)
    """Those that somebody still holds."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    stream = SimpleNamespace(color='color', depth='depth')
    format = SimpleNamespace(rgb8='rgb8', z16='z16')
    option = SimpleNamespace(enable_auto_exposure='auto', exposure='exposure')
    camera_info = SimpleNamespace(
        serial_number='serial_number', name='name', usb_type_descriptor='usb'
    )
    timestamp_domain = SimpleNamespace(hardware_clock=0, system_time=1, global_time=2)
    frame_metadata_value = SimpleNamespace(frame_timestamp='sent', sensor_timestamp='exposed')

    def context(self):
        return self

    def query_devices(self):
        return [d for d in self.devices if d.there()]

    def config(self):
        wanted = SimpleNamespace(serial='')
        wanted.enable_device = lambda serial: setattr(wanted, 'serial', serial)
        wanted.enable_stream = lambda *given: None
        return wanted

    def pipeline(self, context):
        return Pipeline(context)


class Pipeline:
    """One stream; a device that goes makes it silent, as it is on a real bus."""

    def __init__(self, bus: Bus) -> None:
        self.bus, self.device, self.number = bus, None, 0
        self.due = 0.0

    def start(self, wanted):
        bus, now = self.bus, time.monotonic()
        with bus.lock:
            bus.asked.append(wanted.serial)
            soon, bus.opened = now - bus.opened < bus.gap_s, now
            (device,) = [d for d in bus.query_devices() if d.serial == wanted.serial]
            if soon or device.used:
                bus.refused += 1
                raise RuntimeError('Device or resource busy' if device.used else 'power state')
            device.used = True
        self.device, self.due = device, now
        lens = SimpleNamespace(fx=1.0, fy=1.0, ppx=0.0, ppy=0.0, coeffs=[0.0] * 5)
        profile = SimpleNamespace(get_intrinsics=lambda: lens)
        profile.as_video_stream_profile = lambda: profile
        return SimpleNamespace(get_device=lambda: device, get_stream=lambda stream: profile)

    def stop(self):
        self.device.used = False
        if not self.device.there():
            raise RuntimeError('no such device')

    def try_wait_for_frames(self, within_ms):
        device = self.device
        end = time.monotonic() + within_ms / 1000
        while time.monotonic() < end:
            wait_s = self.due - time.monotonic()
            if wait_s > 0:
                time.sleep(min(wait_s, end - time.monotonic()) if end > time.monotonic() else 0)
                continue
            if not device.there() or device.silent:
                time.sleep(0.01)
                continue
            self.due = time.monotonic() + PERIOD_S
            self.number += not device.frozen
            frame = Frame(self.number, time.time(), device.shade)
            self.bus.frames.add(frame)
            self.bus.newest = self.number
            return True, SimpleNamespace(get_color_frame=partial(_same, frame))
        return False, None


def _same(frame):
    return frame


class Frame:
    """One picture in the library's own memory."""

    def __init__(self, number: int, exposed_s: float, shade: int) -> None:
        self.number, self.exposed_s = number, exposed_s
        self.data = np.full((4, 4, 3), shade, np.uint8)

    def get_frame_number(self):
        return self.number

    def get_timestamp(self):
        return 1000 * self.exposed_s

    def get_frame_timestamp_domain(self):
        return Bus.timestamp_domain.global_time

    def supports_frame_metadata(self, key):
        return False

    def get_data(self):
        return self.data
