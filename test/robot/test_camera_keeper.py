# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A camera is bound to its name, is opened in turn, and comes back by itself or says why not."""

import fcntl
import gc
import random
import time

import pytest
from usb import Bus, Device

from user_core.config import RealsenseConfig
from user_core.errors import UserError
from user_robot.camera import keeper as module
from user_robot.camera.keeper import Keeper
from user_robot.camera.realsense import RealsenseCamera

SERIALS = ('017322071690', '017322071691', '230322271234')


@pytest.fixture
def keep(tmp_path):
    """Starts keepers of cameras on a bus; they end with the test."""
    keepers = []

    def start(bus: Bus, serial: str = SERIALS[0], max_age_s: float = 3.0, **config) -> Keeper:
        config = {'open_gap_s': 0.05, **config}
        camera = RealsenseCamera(RealsenseConfig(serial=serial, **config), library=bus)
        keepers.append(Keeper(camera, max_age_s, lock=tmp_path / 'lock'))
        return keepers[-1]

    yield start
    for keeper in keepers:
        keeper.close()


def until(true, seconds=20.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, 'waited in vain'
        time.sleep(0.01)


def is_in(keeper, state):
    return lambda: keeper.health().state == state


def picture(keeper):
    """The next picture."""
    found = []
    until(lambda: found.append(keeper.take()) or found[-1] is not None)
    return found[-1]


def test_names_stay_with_their_serials_in_whatever_order_the_bus_lists_them(keep):
    for seed in range(3):
        devices = [Device(serial, shade=10 * i) for i, serial in enumerate(SERIALS)]
        random.Random(seed).shuffle(devices)
        bus = Bus(devices)
        keepers = [keep(bus, serial) for serial in SERIALS]
        assert [int(picture(k).color[0, 0, 0]) for k in keepers] == [0, 10, 20]
        assert sorted(bus.asked) == sorted(SERIALS)  # the same characters, zero first
        for keeper in keepers:
            keeper.close()


def test_a_camera_that_another_one_has_says_so_and_disturbs_nobody(keep):
    bus = Bus([Device(SERIALS[0])])
    first = keep(bus)
    until(is_in(first, 'STREAMING'))
    second = keep(bus)
    until(is_in(second, 'LOST'))
    assert 'resource busy. End other programs that use it' in second.health().reason
    until(lambda: bus.refused >= 3)
    assert first.health().state == 'STREAMING'
    assert bus.devices[0].resets == 0


def test_cameras_that_are_busy_when_opened_at_once_are_opened_in_turn(keep):
    bus = Bus([Device(serial) for serial in SERIALS], gap_s=0.5)
    keepers = [keep(bus, serial, open_gap_s=0.6) for serial in SERIALS]
    until(lambda: all(k.health().state == 'STREAMING' for k in keepers), 10)
    assert bus.refused == 0


def test_a_camera_that_waits_for_its_turn_says_so_and_is_not_reset(keep, monkeypatch, tmp_path):
    monkeypatch.setattr(module, 'TURN_S', 0.1)
    monkeypatch.setattr(module, 'BACK_OFF_S', (0.05,))
    bus = Bus([Device(SERIALS[0])])
    with (tmp_path / 'lock').open('w') as other:  # its opening hangs
        fcntl.flock(other, fcntl.LOCK_EX)
        keeper = keep(bus)
        until(is_in(keeper, 'LOST'))
        time.sleep(0.5)
        assert 'Another camera is being opened' in keeper.health().reason
        assert bus.asked == []
    until(is_in(keeper, 'STREAMING'))
    assert bus.devices[0].resets == 0


def test_a_camera_that_is_pulled_out_is_lost_and_streams_again_when_it_is_back(keep):
    device = Device(SERIALS[0])
    keeper = keep(Bus([device, Device(SERIALS[2])]))
    until(is_in(keeper, 'STREAMING'))
    device.plugged = False
    until(is_in(keeper, 'LOST'))
    assert 'no picture for' in keeper.health().reason
    until(lambda: 'is not connected' in keeper.health().reason)
    assert f'{SERIALS[2]}, Fake D405, USB 2.1' in keeper.health().reason  # what there is
    keeper.take()
    age_s = keeper.health().age_s
    time.sleep(1.0)
    health = keeper.health()
    assert health.age_s > age_s + 0.9
    assert keeper.take() is None  # nothing old is given out meanwhile
    device.plugged = True
    until(is_in(keeper, 'STREAMING'), 5)
    assert keeper.health().reason == ''
    assert device.resets == 0


def test_a_frozen_camera_gives_nothing_is_lost_and_is_started_anew(keep):
    device = Device(SERIALS[0])
    keeper = keep(Bus([device]), max_age_s=0.3)
    last = picture(keeper)
    device.frozen = True
    until(is_in(keeper, 'LOST'))
    while (frame := keeper.take()) is not None:
        last = frame
    frames = keeper.health().frames
    until(lambda: 'only the last one again' in keeper.health().reason)
    assert (keeper.health().frames, keeper.take()) == (frames, None)
    assert keeper.health().dropped > 0
    device.frozen = False
    assert picture(keeper).stamp_s > last.stamp_s


def test_a_silent_camera_is_reset_and_comes_back(keep, monkeypatch):
    monkeypatch.setattr(module, 'FIRST_S', 0.3)
    device = Device(SERIALS[0], silent=True)
    keeper = keep(Bus([device]))
    until(is_in(keeper, 'STREAMING'))
    assert device.resets == keeper.health().resets == 1


def test_resets_are_bounded_and_a_failed_camera_is_looked_for_all_the_same(keep, monkeypatch):
    monkeypatch.setattr(module, 'FIRST_S', 0.1)
    monkeypatch.setattr(module, 'BACK_OFF_S', (0.05,))
    device = Device(SERIALS[0], silent=True, heals=False)
    keeper = keep(Bus([device]), resets=2)
    until(is_in(keeper, 'FAILED'))
    assert '2 resets did not help: pull it out and plug it in again.' in keeper.health().reason
    assert device.resets == 2
    device.plugged = False
    until(is_in(keeper, 'LOST'))
    device.silent, device.plugged = False, True
    until(is_in(keeper, 'STREAMING'))


def test_a_slow_consumer_gets_the_newest_picture_and_the_library_its_frames_back(keep):
    bus = Bus([Device(SERIALS[0])])
    keeper = keep(bus)
    picture(keeper)
    for _ in range(10):  # 5 Hz against 30
        time.sleep(0.2)
        newest = bus.newest
        assert picture(keeper).number >= newest - 1  # the last one may be on its way to the slot
        gc.collect()
        assert len(bus.frames) <= 2
    assert keeper.health().dropped > 0


def test_a_fault_of_the_program_reaches_whoever_takes(keep):
    bus = Bus([Device(SERIALS[0])])
    bus.pipeline = None
    keeper = keep(bus)
    until(lambda: not keeper._thread.is_alive())
    with pytest.raises(TypeError):
        keeper.take()


def test_without_a_serial_the_only_camera_is_taken_and_of_several_none():
    bus = Bus([Device(SERIALS[0])])
    camera = RealsenseCamera(RealsenseConfig(), library=bus)
    camera.open()
    assert bus.asked == [SERIALS[0]]
    camera.close()
    bus.devices.append(Device(SERIALS[1]))
    with pytest.raises(UserError, match='Choose one by its serial'):
        camera.open()
