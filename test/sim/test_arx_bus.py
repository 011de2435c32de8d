# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The emulated CAN bus: motors, physics behind them, and its process."""

from collections.abc import Iterator
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import tempfile

import arx5_interface as sdk
import numpy as np
import pytest
import yaml

from user_core.config import load
from user_core.errors import UserError
from user_robot.arx.can import can_folder
from user_sim.arx.bus import FRAME, SCALE, SCALE_ID
from user_sim.arx.canshim import place_shim
from user_sim.arx.motors import CLEAR, DISABLE, ENABLE, OVERHEATED, ZERO, ArxMotors

HOME = (0.0, 0.6, 0.6, 0.0, 0.0, 0.0)
JOINTS = (1, 2, 4, 5, 6, 7)


def robot(model: str):
    return sdk.RobotConfigFactory.get_instance().get_config(model)


def special(code: int) -> bytes:
    return b'\xff' * 7 + bytes([code])


def mit(p: float, kp: float, kd: float, torque: float = 0.0) -> bytes:
    """A command in MIT mode, speed 0."""
    p_, v_ = int((p + 12.5) * 65535 / 25), int(45 * 4095 / 90)
    kp_, kd_ = int(kp * 4095 / 500), int(kd * 4095 / 5)
    t_ = int((torque + 18) * 4095 / 36)
    high = p_ >> 8, p_ & 255, v_ >> 4, (v_ & 15) << 4 | kp_ >> 8
    return bytes((*high, kp_ & 255, kd_ >> 4, (kd_ & 15) << 4 | t_ >> 8, t_ & 255))


def reading(answer: bytes | None) -> tuple[int, int, float, float]:
    """Id, code, angle in rad, torque in the motor's unit."""
    assert answer is not None
    angle = (answer[1] << 8 | answer[2]) * 25 / 65535 - 12.5
    torque = ((answer[4] & 15) << 8 | answer[5]) * 36 / 4095 - 18
    return answer[0] & 15, answer[0] >> 4, angle, torque


@pytest.fixture
def arm() -> ArxMotors:
    return ArxMotors(robot('L5'), HOME)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix='user-can-') as name:
        yield Path(name)


def test_the_arm_stands_until_its_motors_are_enabled_and_is_limp_when_they_are_not(arm) -> None:
    arm.advance(1000)
    assert reading(arm.frame(4, special(CLEAR)))[:3] == (4, 0, pytest.approx(0.6, abs=1e-3))
    for motor in JOINTS:
        arm.frame(motor, special(ENABLE))
        arm.frame(motor, special(DISABLE))
    arm.advance(1500)
    assert arm.data.qpos[2] < 0.2, 'a limp arm falls'
    assert np.abs(arm.data.qpos[:6]).max() < 2.7, 'onto its stops or the table'


def test_a_motor_gives_stiffness_damping_and_torque_within_its_limit(arm) -> None:
    for motor in JOINTS:
        arm.frame(motor, special(ENABLE))
        arm.frame(motor, mit(0.0, 80.0, 2.0))
    arm.frame(1, mit(0.5, 80.0, 2.0))
    arm.advance(1)
    assert arm.data.actuator_force[0] == pytest.approx(30.0), '40 Nm wanted, 30 Nm there'
    arm.advance(2000)
    _, code, angle, _ = reading(arm.frame(1, mit(0.5, 80.0, 2.0)))
    assert (code, angle) == (1, pytest.approx(0.5, abs=0.01))
    arm.frame(1, mit(0.0, 0.0, 0.0, 3.0))
    arm.advance(1)
    assert reading(arm.frame(1, mit(0.0, 0.0, 0.0, 3.0)))[3] == pytest.approx(3.0, abs=0.02)


def test_the_sdks_gravity_torques_carry_the_arm(arm) -> None:
    r = robot('L5')
    solver = sdk.Arx5Solver(
        r.urdf_path, 6, r.joint_pos_min, r.joint_pos_max, 'base_link', 'eef_link', r.gravity_vector
    )
    units = [1.0, 1.0, 1.0, 0.424, 0.424, 0.424]
    for motor in JOINTS:
        arm.frame(motor, special(ENABLE))
    for _ in range(200):
        q = arm.data.qpos[:6]
        torques = solver.inverse_dynamics(q, np.zeros(6), np.zeros(6)) / units
        for motor, torque in zip(JOINTS, torques, strict=True):
            arm.frame(motor, mit(0.0, 0.0, 1.0, torque))
        arm.advance(10)
    np.testing.assert_allclose(arm.data.qpos[:6], HOME, atol=0.05)


def test_zero_moves_the_readout_and_not_the_arm(arm) -> None:
    before = arm.data.qpos.copy()
    assert reading(arm.frame(2, special(ZERO)))[2] == pytest.approx(0.0, abs=1e-3)
    np.testing.assert_array_equal(arm.data.qpos, before)
    arm.frame(2, special(ENABLE))
    arm.frame(2, mit(0.1, 200.0, 4.0))
    arm.advance(2000)
    assert arm.data.qpos[1] == pytest.approx(0.7, abs=0.05)


def test_a_motor_that_is_too_hot_gives_up_until_it_is_cleared(arm) -> None:
    arm.frame(1, special(ENABLE))
    arm.frame(1, mit(12.0, 500.0, 0.0))
    for _ in range(3000):
        arm.advance(1)
        arm.data.qpos[0] = 0.0
        arm.heat(0.5)
    assert reading(arm.frame(1, mit(0, 0, 0)))[1] == OVERHEATED
    arm.frame(1, special(ENABLE))
    assert reading(arm.frame(1, special(ENABLE)))[1] == OVERHEATED, 'not before it is cleared'
    arm.celsius[0] = 30.0
    arm.frame(1, special(CLEAR))
    assert reading(arm.frame(1, special(ENABLE)))[1] == 1


def test_nobody_answers_for_an_id_that_no_motor_has(arm) -> None:
    assert arm.frame(3, special(ENABLE)) is None


def test_a_model_whose_motors_are_not_known_is_refused() -> None:
    with pytest.raises(UserError, match='EC_A4310'):
        ArxMotors(robot('X5'), HOME)
    with pytest.raises(UserError, match='7 joints'):
        ArxMotors(robot('X7_left'), HOME)


def test_without_a_compiler_there_is_one_sentence(folder: Path, monkeypatch) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', str(folder / 'cache'))
    monkeypatch.setenv('PATH', '')
    with pytest.raises(UserError, match='sudo apt install gcc'):
        place_shim(folder)


def test_the_process_of_a_plan_serves_a_bus_and_ends_cleanly(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv('USER_CAN_FOLDER', raising=False)
    page = tmp_path / 'page.yaml'
    content = {'name': 'c', 'cells': {'arm0': {'arm': {'kind': 'arx_sim'}}}, 'pace': 'realtime'}
    kinds = {'task': 'peg', 'policy': 'mlp', 'algorithm': 'rlpd'}
    content |= {key: {'kind': kind} for key, kind in kinds.items()}
    page.write_text(yaml.safe_dump(content))
    values = {'config': load(page).to_json(), 'run': 'r', 'run_folder': str(tmp_path)}
    parameters = tmp_path / 'parameters.yaml'
    parameters.write_text(yaml.safe_dump({'/**': {'ros__parameters': values}}))
    arguments = ['--ros-args', '-r', '__node:=arx_bus', '-r', '__ns:=/arm0']
    command = [sys.executable, '-m', 'user_sim.arx.bus', *arguments, '--params-file', parameters]
    bus = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said = next(line for line in bus.stdout if 'emulated' in line)
    place = can_folder(tmp_path, 'arm0') / 'can0'
    assert str(place) in said
    assert (place.parent / 'canshim.so').exists()

    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 2
    assert 'There is an emulated CAN bus' in second.stdout
    assert 'Traceback' not in second.stdout + second.stderr

    nodes = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    for node in nodes:
        node.connect(str(place))
        node.settimeout(10)
    nodes[0].send(FRAME.pack(SCALE_ID, 8, bytes(8)))
    can_id, _, data = FRAME.unpack(nodes[0].recv(16))
    assert (can_id, SCALE.unpack(data)) == (SCALE_ID, (0, 0, 0))
    nodes[0].send(FRAME.pack(2, 8, special(ENABLE)))
    heard = [FRAME.unpack(nodes[1].recv(16))[0] for _ in range(2)]
    assert heard == [2, 0], 'a frame reaches every other node, and so does the answer'
    for node in nodes:
        node.close()

    bus.send_signal(signal.SIGTERM)
    rest = bus.communicate(timeout=20)[0]
    assert bus.returncode == 0
    assert 'frames' in rest
    assert not place.exists()


def test_a_bus_that_was_killed_leaves_its_place_to_the_next(folder: Path) -> None:
    command = [sys.executable, '-m', 'user_sim.arx.bus', '--folder', str(folder)]
    for _ in range(2):
        bus = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        assert any('emulated CAN bus' in line for line in bus.stdout)
        bus.kill()
        bus.communicate()
