# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The ARX driver on the unmodified SDK, whose CAN bus is emulated."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
import os
from pathlib import Path
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from user_core.arm_config import ArxConfig, ArxSimConfig
from user_core.config import Safety, load
from user_core.errors import UserError
from user_core.geometry import Pose, angle
from user_robot.arm import make_arm
from user_robot.arx import arm as arx
from user_robot.arx import can
from user_robot.arx.arm import ArxArm
from user_robot.drive import Drive
from user_robot.latch import Mode
from user_robot.task import make_task

PATIENCE_S = 30.0
JOINTS = (1, 2, 4, 5, 6, 7)
FRAME = struct.Struct('=IB3x8s')
SCALE_ID = 0x700
UP = np.array([0.0, 0.0, 0.08])


class Probe:
    """A node on the bus: hears the commands to the joints, reads the scale under the table."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(folder / 'can0'))
        self.socket.setblocking(False)

    def commands(self, seconds: float) -> np.ndarray:
        """(n, 6) from now on: when, motor, angle, speed, stiffness, torque."""
        self.drain()
        rows, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                can_id, _, d = FRAME.unpack(self.socket.recv(16))
            except BlockingIOError:
                time.sleep(0.002)
                continue
            if can_id in JOINTS and d[:7] != b'\xff' * 7:
                p = (d[0] << 8 | d[1]) * 25 / 65535 - 12.5
                v = (d[2] << 4 | d[3] >> 4) * 90 / 4095 - 45
                kp = ((d[3] & 15) << 8 | d[4]) * 500 / 4095
                t = ((d[6] & 15) << 8 | d[7]) * 36 / 4095 - 18
                rows.append((time.monotonic(), can_id, p, v, kp, t))
        return np.array(rows).reshape(-1, 6)

    def drain(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self.socket.recv(16)

    def send(self, can_id: int, data: bytes) -> None:
        self.socket.send(FRAME.pack(can_id, 8, data))

    def table_force(self) -> np.ndarray:
        """(3,) N."""
        self.drain()
        self.send(SCALE_ID, bytes(8))
        while True:
            try:
                can_id, _, data = FRAME.unpack(self.socket.recv(16))
            except BlockingIOError:
                continue
            if can_id == SCALE_ID:
                return np.array(struct.unpack('=hhh2x', data)) / 100


class Cell:
    """A bus process and a driver on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._arm: ArxArm | None = None
        self.start_bus()

    @property
    def arm(self) -> ArxArm:
        """The driver; a new one when there is none, as soon as its bus is there."""
        self._arm = self._arm or make_arm(ArxSimConfig(), 0.1)
        assert isinstance(self._arm, ArxArm)
        return self._arm

    def close(self) -> None:
        """Ends the driver."""
        arm, self._arm = self._arm, None
        if arm is not None:
            arm.close()

    def start_bus(self) -> None:
        self.bus = subprocess.Popen(
            [sys.executable, '-m', 'user_sim.arx.bus', '--object-m', '0.03'],
            stdout=subprocess.DEVNULL,
        )

    def run(self, seconds: float):
        """The arm's thread of a node: asks for samples; returns the last one."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state = self.arm.state()
            time.sleep(0.005)
        return state

    def until(self, true):
        """Samples until `true(sample)`; returns how long that took."""
        began = time.monotonic()
        while not true(self.arm.state()):
            assert time.monotonic() < began + PATIENCE_S, self.arm.state()
            time.sleep(0.005)
        return time.monotonic() - began

    def follow(self, target: Pose, true):
        """Commands the target again and again, as a cell does, until `true(sample)`."""
        for _ in range(int(PATIENCE_S / 0.05)):
            self.arm.servo(target, float('nan'))
            state = self.run(0.05)
            if true(state):
                return state
        raise AssertionError(state)

    def reach(self, target: Pose):
        """Follows a target until the arm has settled there."""
        settled = 0

        def there(state) -> bool:
            nonlocal settled
            near = np.linalg.norm(state.pose.position - target.position) < 0.005
            settled = settled + 1 if near and angle(state.pose, target) < 0.02 else 0
            return settled == 8

        return self.follow(target, there)

    def recover(self) -> None:
        self.arm.recover()
        self.until(lambda s: not s.fault)

    def move(self, q: tuple[float, ...]) -> None:
        """Again when this process lost the CPU for 0.2 s, whereupon the arm holds."""
        for _ in range(5):
            self.arm.move_joints(np.array(q), 1.0)
            self.until(lambda s: not s.moving)
            if np.abs(self.arm.state().q - q).max() < 0.05:
                return
        raise AssertionError(self.arm.state())


@pytest.fixture(scope='module')
def folder() -> Iterator[Path]:
    with (
        tempfile.TemporaryDirectory(prefix='user-can-') as name,
        pytest.MonkeyPatch.context() as m,
    ):
        m.setenv('USER_CAN_FOLDER', name)
        yield Path(name)


@pytest.fixture(scope='module')
def running(folder: Path) -> Iterator[Cell]:
    cell = Cell(folder)
    yield cell
    cell.close()
    cell.bus.terminate()
    assert cell.bus.wait() == 0


@pytest.fixture
def cell(running: Cell) -> Cell:
    """At home, without a fault."""
    if running.arm.state().fault:
        running.recover()
    running.move((0, 0.6, 0.6, 0, 0, 0))
    return running


@pytest.fixture
def probe(cell: Cell) -> Iterator[Probe]:
    probe = Probe(cell.folder)
    yield probe
    probe.socket.close()


def test_the_pose_follows_targets_in_spite_of_gravity(cell: Cell) -> None:
    start = cell.arm.state().pose
    for off, turn in (([0, 0, 0.06], [0, 0, 0]), ([0.05, 0.06, 0], [0.1, 0.2, 0.3])):
        target = Pose(
            start.position + off, (Rotation.from_rotvec(turn) * start.rotation).as_quat()
        )
        state = cell.reach(target)
        assert not state.fault
    assert np.linalg.norm(state.wrench[:3]) < 3.0, 'nothing touches it'


def test_a_sample_is_of_now_and_its_twist_is_that_of_the_pose(cell: Cell) -> None:
    start = cell.arm.state().pose
    samples = []
    cell.follow(
        Pose(start.position + UP, start.quaternion),
        lambda s: samples.append(s) or len(samples) > 40,
    )
    stamps = np.array([s.stamp_s for s in samples])
    assert (np.diff(stamps) >= 0).all()
    assert abs(time.time() - stamps[-1]) < 1.0
    way = samples[-1].pose.position - samples[0].pose.position
    speeds = np.array([s.twist[:3] for s in samples])
    integral = np.trapezoid(speeds, stamps, axis=0)
    assert way[2] > 0.03
    np.testing.assert_allclose(integral, way, atol=0.02)


def test_a_joint_motion_ends_where_it_should(cell: Cell) -> None:
    goal = (0.4, 1.0, 0.9, 0.2, 0.1, 0.3)
    cell.arm.move_joints(np.array(goal), 1.0)
    assert cell.arm.state().moving
    cell.move(goal)
    np.testing.assert_allclose(cell.arm.state().q, goal, atol=0.02)
    with pytest.raises(UserError, match='6 joints'):
        cell.arm.move_joints(np.zeros(7), 1.0)


def test_an_emergency_stop_holds_the_arm_until_it_is_cleared(cell: Cell) -> None:
    cell.move((0.4, 1.0, 0.9, 0.2, 0.1, 0.3))
    wide = Safety(
        box_min_m=(-0.6,) * 3, box_max_m=(0.6,) * 3, box_rotation_rad=(1.7,) * 3, max_step_m=0.05
    )
    drive = Drive(cell.arm, wide, make_task(load('arx_reach').task), 0.1)
    here = drive.sample().state.pose
    ahead = Pose(here.position + np.array([0.0, 0.04, 0.0]), here.quaternion)

    def pass_time(seconds: float) -> np.ndarray:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            drive.advance(0.005)
            time.sleep(0.005)
        return drive.sample().state.pose.position

    assert drive.follow(ahead)
    pass_time(0.15)
    drive.emergency(True)
    stopped = pass_time(2.0)  # a soft arm swings out
    assert drive.sample().mode is Mode.DISARMED
    assert not drive.follow(ahead)
    assert np.linalg.norm(pass_time(0.5) - stopped) < 0.002
    assert not drive.clear_stop()[0]
    drive.emergency(False)
    assert drive.clear_stop()[0]
    assert np.linalg.norm(pass_time(0.3) - stopped) < 0.002
    assert drive.follow(ahead)


def test_the_gripper_opens_and_feels_what_it_grasps(cell: Cell) -> None:
    cell.arm.servo(cell.arm.state().pose, 0.08)
    cell.until(lambda s: abs(s.gripper_m - 0.08) < 0.003)
    assert not cell.arm.state().grasped
    cell.arm.grip(0.0, 0.2, 20.0)
    cell.until(lambda s: s.grasped)
    assert cell.arm.state().gripper_m == pytest.approx(0.03, abs=0.002)


def test_pressing_on_the_table_is_felt_with_its_sign_and_size(cell: Cell, probe: Probe) -> None:
    down = Rotation.from_euler('y', 0.9).as_quat()
    for z in (0.10, 0.02):
        cell.reach(Pose(np.array([0.38, 0.0, z]), down))
    seen = []

    def pressed(state) -> bool:
        seen.append((state, probe.table_force()))
        return len(seen) > 12 and seen[-1][1][2] < -5.0 and seen[-12][1][2] < -5.0

    cell.follow(Pose(np.array([0.38, 0.0, -0.035]), down), pressed)
    state, truth = seen[-1]
    np.testing.assert_allclose(state.wrench[:3], truth, atol=2.5)
    assert state.peak_force_n == pytest.approx(np.linalg.norm(truth), abs=2.5)
    cell.arm.hold()
    cell.until(lambda s: s.wrench[2] > -5.0)  # holding where it is, it no longer pushes


def test_no_target_makes_a_joint_faster_than_its_limit(cell: Cell) -> None:
    rng, start, samples = np.random.default_rng(0), cell.arm.state().pose, []
    for _ in range(60):
        wild = Pose(start.position + rng.normal(0, 0.5, 3), Rotation.random(rng=rng).as_quat())
        cell.arm.servo(wild, rng.uniform(-1, 1))
        samples += [cell.run(0.02), cell.run(0.02)]
    assert not samples[-1].fault
    when, q = np.array([s.stamp_s for s in samples]), np.array([s.q for s in samples])
    later = np.searchsorted(when, when + 0.4)
    late = later[later < when.size]
    way = np.abs(q[late] - q[: late.size])
    assert way.max() > 0.1, 'it moves at all'
    # 1 rad/s, and what the arm lags or swings besides.
    assert (way.max(axis=1) < 1.0 * (when[late] - when[: late.size]) + 0.15).all()


def test_a_target_that_is_no_number_changes_nothing(cell: Cell) -> None:
    before = cell.run(1.0).pose
    cell.arm.servo(Pose(np.full(3, np.nan), before.quaternion), float('nan'))
    after = cell.run(0.3)
    assert not after.fault
    assert np.linalg.norm(after.pose.position - before.position) < 0.003


def test_the_arm_holds_when_its_driver_falls_silent(cell: Cell, probe: Probe) -> None:
    cell.arm.move_joints(np.array([2.0, 1.0, 1.0, 0, 0, 0]), 0.5)
    cell.run(0.3)
    probe.commands(0.5)  # nobody asks for a sample
    still = probe.commands(0.5)
    first = still[still[:, 1] == 1][:, 2]
    assert np.ptp(first) < 0.02
    assert first[-1] < 1.5, 'far from its goal'
    cell.until(lambda s: not s.moving)


@pytest.mark.parametrize('how', [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_is_a_fault_at_once_and_recover_brings_it_back(cell: Cell, how) -> None:
    process = cell.arm._host.process
    process.send_signal(how)
    assert cell.until(lambda s: s.fault) < 1.0
    assert 'SDK' in cell.arm.state().fault
    stays = cell.arm.state().pose
    cell.arm.servo(Pose(stays.position + UP, stays.quaternion), float('nan'))
    cell.recover()
    assert process.poll() is not None
    start = cell.arm.state().pose
    assert np.linalg.norm(start.position - stays.position) < 0.1, 'it did not fall'
    target = Pose(start.position + UP / 2, start.quaternion)
    cell.reach(target)


def test_a_motor_that_gives_up_is_named_and_recover_enables_it(cell: Cell, probe: Probe) -> None:
    probe.send(5, b'\xff' * 7 + b'\xfd')
    cell.until(lambda s: s.fault)
    assert 'motor 5 is disabled' in cell.arm.state().fault
    cell.recover()
    cell.move((0.1, 0.6, 0.6, 0.2, 0, 0))
    assert cell.arm.state().q[3] == pytest.approx(0.2, abs=0.02)


def test_a_bus_that_dies_is_a_fault_with_its_reason(cell: Cell) -> None:
    cell.bus.kill()
    cell.bus.wait()
    cell.until(lambda s: s.fault)
    assert 'can0' in cell.arm.state().fault
    cell.arm.recover()
    cell.run(1.0)
    assert cell.arm.state().fault, 'nothing to recover to'
    cell.start_bus()
    time.sleep(1.0)
    cell.recover()
    cell.move((0.1, 0.6, 0.6, 0, 0, 0))
    assert not cell.arm.state().fault


def test_closing_holds_then_goes_home_then_damps(cell: Cell, probe: Probe) -> None:
    cell.move((0.5, 0.8, 0.8, 0, 0, 0))
    cell.arm.move_joints(np.array([1.5, 1.2, 0.8, 0, 0, 0]), 1.0)
    cell.run(0.2)
    began, ended = time.monotonic(), []
    closing = threading.Thread(target=lambda: (cell.close(), ended.append(time.monotonic())))
    closing.start()
    seen = probe.commands(4.0)
    closing.join()
    assert ended[0] - began < 9.0
    first = seen[seen[:, 1] == 1]
    stiff, damped = first[first[:, 4] > 0], first[first[:, 4] == 0]
    assert stiff[0, 2] > 0.3
    assert stiff[-1, 2] == pytest.approx(0.0, abs=0.03), 'home before it is let go'
    assert damped[0, 0] >= stiff[-1, 0], 'damped for good'


DRIVER = """
import time, numpy
from user_core.arm_config import ArxSimConfig
from user_robot.arx.arm import ArxArm
arm = ArxArm(ArxSimConfig(), 0.1)
arm.move_joints(numpy.array([2.0, 1.0, 1.0, 0, 0, 0]), 0.3)
print('host', arm._host.process.pid, flush=True)
while True:
    arm.state()
    time.sleep(0.01)
"""


def test_a_killed_driver_leaves_damped_motors(running: Cell) -> None:
    running.close()
    probe = Probe(running.folder)
    driver = subprocess.Popen([sys.executable, '-c', DRIVER], stdout=subprocess.PIPE, text=True)
    host = int(next(line for line in driver.stdout if line.startswith('host')).split()[1])
    probe.commands(0.5)
    driver.kill()
    driver.wait()
    driver.stdout.close()
    seen = probe.commands(3.0)
    joint = seen[seen[:, 1] == 2]
    damped = joint[joint[:, 4] == 0]
    assert damped.size, 'its stiffness went'
    assert (joint[joint[:, 0] > damped[0, 0]][:, 4] == 0).all(), 'for good'
    assert abs(damped[-1, 5]) < 0.02, 'and no torque is left that lasts'
    assert np.ptp(seen[(seen[:, 1] == 1) & (seen[:, 4] > 0)][:, 2]) < 0.3, 'the way was not gone'
    end = time.monotonic() + PATIENCE_S
    while Path(f'/proc/{host}').exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not Path(f'/proc/{host}').exists()
    probe.socket.close()


def test_a_missing_interface_says_what_to_do(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(arx, 'interface', partial(can.interface, folder=tmp_path))
    with pytest.raises(UserError, match='ip link set can7 up type can bitrate 1000000'):
        ArxArm(ArxConfig(interface='can7'), 0.1)
    (tmp_path / 'can7').mkdir()
    (tmp_path / 'can7' / 'flags').write_text('0x80\n')
    with pytest.raises(UserError, match='down'):
        ArxArm(ArxConfig(interface='can7'), 0.1)
    monkeypatch.setenv('USER_CAN_FOLDER', str(tmp_path / 'none'))
    with pytest.raises(UserError, match=r'user_sim\.arx\.bus'):
        ArxArm(ArxSimConfig(), 0.1)


def test_the_folder_of_a_bus_is_short_and_its_own(monkeypatch) -> None:
    monkeypatch.delenv('USER_CAN_FOLDER')
    deep = Path('/data/' + 200 * 'x')
    a, b = can.can_folder(deep, 'arm0'), can.can_folder(Path('/data'), 'arm1')
    assert a != b
    assert len(os.fsencode(a / 'can0')) < 108
    assert a == can.can_folder(deep, 'arm0')
