# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""An emulated CAN bus with an ARX arm on it, for the unmodified SDK.

Every client of the AF_UNIX socket is a CAN node: a frame that one sends reaches all others and
the motors, and a motor's answer reaches all. The SDK becomes a client through canshim.c. The
motors speak Damiao's protocol; behind them is a MuJoCo arm in real time. Until its motors are
first enabled the arm stands on a prop; after that a disabled motor is limp.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
import gc
import math
import os
from pathlib import Path
import selectors
import signal
import socket
import struct
import sys
import time
from types import FrameType

from user_core.arm_config import ArxSimConfig
from user_core.errors import UserError
from user_robot.arm import BY_HAND
from user_robot.arx.arm import sdk_model
from user_robot.arx.can import can_folder
from user_sim.arx.canshim import place_shim
from user_sim.arx.motors import ArxMotors
from user_sim.arx.scene import STEP_S
from user_sim.device import placed

FRAME = struct.Struct('=IB3x8s')
FILTER = struct.Struct('=II')
SCALE = struct.Struct('=hhh2x')
REPLY_ID = 0
"""CAN id of every motor's answer."""
SCALE_ID = 0x700
"""A scale under the table answers frames with this id, the asker alone (the SDK dies of frames
with strange ids): three int16, the force on it in 0.01 N."""
IDLE_S = 0.002
PRIORITY = 5
"""Among realtime processes."""
CATCH_UP_S = 0.05
"""Physics that is this late does not catch up: the lost time is counted."""


class Bus:
    """The socket of one CAN interface and the real-time loop.

    Attributes:
        frames: frames received.
        lost_s: time that physics skipped because the process came too late.
    """

    def __init__(self, arm: ArxMotors, folder: Path, interface: str) -> None:
        self.arm = arm
        self.frames, self.lost_s = 0, 0.0
        self.clients: dict[socket.socket, tuple[int, int]] = {}
        self.path = folder / interface
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.shim = place_shim(folder)
        self.listener = _listen(self.path)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.stopping = False

    def stop(self, number: int = 0, stack: FrameType | None = None) -> None:
        """Ends `run` soon; fit for a signal handler."""
        self.stopping = True

    def run(self) -> None:
        """Serves until `stop`; frames are answered at once, physics follows the steady clock."""
        done = warmed = time.monotonic()
        while not self.stopping:
            events = self.selector.select(0.05 if self.arm.propped else IDLE_S)
            now = time.monotonic()
            if now - done > CATCH_UP_S:
                if not self.arm.propped:
                    self.lost_s += now - done - STEP_S
                done = now - STEP_S
            steps = math.floor((now - done) / STEP_S)
            if steps:
                done += steps * STEP_S
                self.arm.advance(steps)
            if now - warmed > 0.1:
                self.arm.heat(now - warmed)
                warmed = now
            for key, _ in events:
                if key.fileobj is self.listener:
                    self.accept()
                else:
                    self.receive(key.fileobj)  # type: ignore[arg-type]  # only sockets are there

    def accept(self) -> None:
        """A node joins."""
        client, _ = self.listener.accept()
        client.setblocking(False)
        self.clients[client] = (0, 0)
        self.selector.register(client, selectors.EVENT_READ)

    def receive(self, client: socket.socket) -> None:
        """Hands on what a node sent; its end is one, too."""
        while True:
            try:
                packet = client.recv(FRAME.size)
            except BlockingIOError:
                return
            except OSError:
                packet = b''
            if not packet:
                self.leave(client)
                return
            if len(packet) == FRAME.size:
                self.frames += 1
                can_id, length, data = FRAME.unpack(packet)
                if can_id == SCALE_ID:
                    force = (round(100 * f) for f in self.arm.table_force())
                    answer = SCALE.pack(*(min(max(f, -32768), 32767) for f in force))
                    self.deliver(client, FRAME.pack(SCALE_ID, 8, answer))
                    continue
                if len(self.clients) > 1:
                    self.send(can_id, packet, client)
                reply = self.arm.frame(can_id & 0x7FF, data[:length])
                if reply is not None:
                    self.send(REPLY_ID, FRAME.pack(REPLY_ID, 8, reply), None)
            elif len(packet) == FILTER.size:
                self.clients[client] = FILTER.unpack(packet)

    def send(self, can_id: int, packet: bytes, but: socket.socket | None) -> None:
        """To every node whose filter lets it pass."""
        for client, (wanted, mask) in tuple(self.clients.items()):
            if client is not but and (can_id ^ wanted) & mask == 0:
                self.deliver(client, packet)

    def deliver(self, client: socket.socket, packet: bytes) -> None:
        """To one node; a full queue loses the frame."""
        try:
            client.send(packet)
        except BlockingIOError:
            return
        except OSError:
            self.leave(client)

    def leave(self, client: socket.socket) -> None:
        """A node is gone; motors keep what they were last told."""
        if self.clients.pop(client, None) is not None:
            self.selector.unregister(client)
            client.close()

    def close(self) -> None:
        """Removes the interface."""
        for client in tuple(self.clients):
            self.leave(client)
        self.listener.close()
        self.path.unlink(missing_ok=True)
        if set(self.path.parent.iterdir()) <= {self.shim}:
            self.shim.unlink(missing_ok=True)
            self.path.parent.rmdir()


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
        else:
            listener.close()
            raise UserError(
                f'there is an emulated CAN bus at {path} already',
                'another process of this user serves it',
                'end that one, or choose another folder or interface',
            )
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise UserError(
            f'the emulated CAN bus cannot be made at {path}', str(error), 'choose a shorter folder'
        ) from error
    listener.listen(8)
    return listener


def _arguments() -> tuple[ArxSimConfig, Path, float]:
    """The arm, the folder, the object's width: from a plan's parameters or by hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--folder', type=Path, help='where the sockets of the interfaces are')
    parser.add_argument('--interface', default='can0')
    parser.add_argument('--model', default='L5')
    parser.add_argument('--object-m', type=float, default=0.0, help='width held by the fingers')
    parser.add_argument('--ros-args', action='store_true', help=argparse.SUPPRESS)
    parser.add_argument('--params-file', type=Path, help=argparse.SUPPRESS)
    parser.add_argument('-r', action='append', default=[], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.params_file is None:
        by_hand = ArxSimConfig(interface=given.interface, model=given.model)
        return by_hand, given.folder or can_folder(BY_HAND.folder, BY_HAND.cell), given.object_m
    here = placed(sys.argv[1:])
    arm = here.cell.arm
    if not isinstance(arm, ArxSimConfig):
        raise UserError(
            f'cell {here.cell_name} has no emulated ARX arm', f'its arm is of kind {arm.kind}'
        )
    return arm, given.folder or can_folder(here.folder, here.cell_name), given.object_m


def serve() -> int:
    """Runs the bus until a signal; returns the exit code."""
    arm, folder, object_m = _arguments()
    import arx5_interface as sdk

    factory = sdk.RobotConfigFactory.get_instance()
    bus = Bus(
        ArxMotors(factory.get_config(sdk_model(arm.model)), arm.home_q_rad, object_m),
        folder,
        arm.interface,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, bus.stop)
    print(f'an ARX {arm.model} is on the emulated CAN bus {bus.path}', flush=True)
    gc.freeze()
    with suppress(OSError):  # realtime where the user may: motors do not wait for a learner
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    began = time.monotonic()
    try:
        bus.run()
    finally:
        bus.close()
    lasted_s = time.monotonic() - began
    print(f'{bus.frames} frames in {lasted_s:.1f} s; physics lost {bus.lost_s:.2f} s', flush=True)
    return 0


def main() -> None:
    """Entry point: exits with 2 and one sentence when the bus cannot be made."""
    try:
        code = serve()
    except UserError as error:
        print(f'FATAL arx_bus: {error}', flush=True)
        code = 2
    with suppress(OSError):
        sys.stdout.flush()
    raise SystemExit(code)


if __name__ == '__main__':
    main()
