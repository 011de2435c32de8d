# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What clients of the simulated FR3 may do wrong, and what the arm does then."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import os
import signal
import socket
import struct
import subprocess
import sys
import time

from franka_rig import (
    DOWN,
    HOME,
    HOME_Q,
    START_S,
    Server,
    connect,
    follow,
    home,
    motion_rad,
    serve,
    tracker,
    wait_for,
)
import franky
from franky_sim.franka_robot_protocol import MoveStatus, UDPCommand
import numpy as np
import pytest

from user_sim.franka.state import Fault

CLIENT = """
import sys, time, numpy as np, franky
robot = franky.Robot(sys.argv[1], realtime_config=franky.RealtimeConfig.Ignore)
robot.set_collision_behavior(250.0, 250.0)
law = franky.CartesianImpedanceTracker(robot, translational_stiffness=1500.0,
    rotational_stiffness=60.0, translational_error_clip=np.full(3, 0.02), period=0.02)
n = 0
while law.tick():
    n += 1
    # Moves all the time: a hold shows.
    offset = [0.0, 0.05 * np.sin(4.0 * n * 0.02), 0.05]
    law.set_target(franky.Affine(np.array([0.5, 0.0, 0.232]) + offset, np.array([1.0, 0, 0, 0])))
    if n == 25:
        print('moving', flush=True)
print('lost', *[e for e in dir(robot.state.current_errors)
    if getattr(robot.state.current_errors, e) is True], flush=True)
sys.stdout.flush()
import os; os._exit(0)
"""


@contextmanager
def moving_client(server: Server) -> Iterator[subprocess.Popen[str]]:
    """A client in control, in a process that may be killed."""
    client = subprocess.Popen(
        [sys.executable, '-c', CLIENT, server.address], stdout=subprocess.PIPE, text=True
    )
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == 'moving\n'
        yield client
    finally:
        client.kill()
        client.wait()
        client.stdout.close()


def test_a_killed_client_leaves_a_holding_arm_to_the_next_one(server: Server) -> None:
    reader = server.picture()
    with moving_client(server) as client:
        assert motion_rad(reader) > 5e-3
        client.kill()
        motion_rad(reader, 0.2)
        assert motion_rad(reader) < 1e-3
    robot = connect(server)
    assert robot.state.robot_mode == franky.RobotMode.Idle
    robot.move(franky.CartesianMotion(franky.Affine(HOME, DOWN)))


def test_a_silent_client_violates_the_communication_constraints(server: Server) -> None:
    reader = server.picture()
    with moving_client(server) as client:
        os.kill(client.pid, signal.SIGSTOP)
        time.sleep(0.3)
        motion_rad(reader, 0.5)
        assert motion_rad(reader) < 1e-3
        os.kill(client.pid, signal.SIGCONT)
        assert client.stdout is not None
        assert client.stdout.readline().split() == [
            'lost', 'communication_constraints_violation'
        ]  # fmt: skip
    robot = connect(server)
    robot.move(franky.CartesianMotion(franky.Affine(HOME, DOWN)))


def test_a_second_client_is_refused_at_once_and_the_first_one_goes_on(server: Server) -> None:
    robot = connect(server)
    law = tracker(robot)
    assert law.tick()
    began = time.monotonic()
    with pytest.raises(franky.NetworkException):
        franky.Robot(server.address, realtime_config=franky.RealtimeConfig.Ignore)
    assert time.monotonic() - began < 5.0
    assert law.tick()
    law.stop()


def test_nonsense_from_a_client_costs_only_its_connection(server: Server) -> None:
    with socket.create_connection((server.address, 1337), timeout=5.0) as line:
        line.sendall(b'\xff' * 64)
        with suppress(ConnectionResetError):
            assert line.recv(16) == b''
    assert connect(server).state.robot_mode == franky.RobotMode.Idle


@pytest.mark.parametrize('torque_nm', [8.0, float('nan')])
def test_a_jump_of_torque_is_a_fault_and_moves_nothing(server: Server, torque_nm: float) -> None:
    # franky limits its own torques, so this client speaks the protocol itself.
    with (
        socket.create_connection((server.address, 1337), timeout=5.0) as line,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as states,
    ):
        states.bind(('127.0.0.1', 0))
        states.settimeout(5.0)
        port = states.getsockname()[1]
        line.sendall(struct.pack('<IIIHH', 0, 0, 16, 10, port))
        line.recv(64)
        state, box = states.recvfrom(4096)
        deviations = [0.01] * 6
        line.sendall(struct.pack('<IIIII6d', 1, 1, 12 + 8 + 48, 2, 4, *deviations))
        assert line.recv(64)[12] == MoveStatus.kMotionStarted
        for torque in (0.0, 0.5, torque_nm):
            state = states.recv(4096)
            number = struct.unpack_from('<Q', state)[0]
            zeros = [0.0] * 39
            command = (number, *zeros[:38], False, False, *zeros[:6], torque, False)
            states.sendto(UDPCommand.STRUCT.pack(*command), box)
        assert line.recv(64)[12] == MoveStatus.kReflexAborted
        states.settimeout(0.05)
        with suppress(TimeoutError):
            for _ in range(5):
                state = states.recv(4096)
        bits = np.frombuffer(state[-87:-46], np.uint8)
        assert np.flatnonzero(bits).tolist() == [Fault.CONTROLLER_TORQUE_DISCONTINUITY]
        line.sendall(struct.pack('<III', 10, 2, 12))
        assert line.recv(64)[12] == 0
    time.sleep(0.05)
    assert np.isfinite(connect(server).state.q).all()


def test_a_released_button_stops_the_arm_and_refuses_motions() -> None:
    with serve('--sticky-reflex') as server:
        robot = connect(server)
        law = tracker(robot)
        assert law.tick()
        server.process.send_signal(signal.SIGUSR1)
        wait_for(lambda: not robot.is_in_control)
        assert law.tick() is None
        with pytest.raises(franky.CommandException, match='safety'):
            law.stop()
        assert robot.state.robot_mode == franky.RobotMode.UserStopped
        with pytest.raises(franky.CommandException):
            robot.move(franky.JointMotion(franky.JointState(HOME_Q.tolist())))
        server.process.send_signal(signal.SIGUSR1)
        wait_for(lambda: robot.state.robot_mode == franky.RobotMode.Idle)

        # The same server: an error that recovery cannot clear.
        robot.set_collision_behavior(8.0, 8.0)
        law = tracker(robot)
        above, into = home(0.012, 0.0, 0.0), home(0.012, 0.0, -0.092)
        assert follow(law, HOME, above)
        assert not follow(law, above, into)
        with pytest.raises(franky.ControlException, match='reflex'):
            law.stop()
        with suppress(franky.CommandException):
            robot.recover_from_errors()
        wait_for(lambda: robot.has_errors)
        assert robot.state.robot_mode == franky.RobotMode.Reflex


def test_an_address_in_use_is_a_sentence(server: Server) -> None:
    second = subprocess.run(
        [sys.executable, '-m', 'user_sim.franka.server', '--address', server.address],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert second.returncode == 2
    assert 'belong to another program' in second.stdout
    assert 'Traceback' not in second.stdout + second.stderr
