# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The process that owns the ARX SDK: `python -m user_robot.arx.host FD`, started by ArxArm.

It obeys the socket FD and holds when that falls silent. When the driver is gone it damps the
motors and ends; signals do not end it, so that Ctrl-C in a terminal cannot drop an arm.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
import faulthandler
import fcntl
import json
import os
from pathlib import Path
import signal
import socket
import sys
import tempfile
import time
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from user_core.arm_config import Arm as ArmConfig
from user_core.arm_config import Arx
from user_core.errors import UserError
from user_core.geometry import Pose
from user_robot.arm import ArmState
from user_robot.arx.control import Control
from user_robot.arx.monitor import Monitor
from user_robot.arx.report import Report

PERIOD_S = 0.005
DEADLINE_S = 0.2
"""The arm holds when the driver has said nothing for so long."""
ORPHAN_S = 1.0
"""The motors are damped so long after the driver is gone."""
PARK_S = 4.0
"""Parking takes no longer; what is not home then is released where it is."""
STUCK_S = 2.0
"""The process ends itself when the SDK blocks it for so long."""
EXIT_NO_MOTOR = 3
PRIORITY = 5
"""Among realtime processes."""


NOWHERE = open(os.devnull, 'w')  # noqa: SIM115 - for as long as the process lives


class Host:
    """One arm's loop.

    Args:
        link: datagrams: JSON commands in, reports out.
        config: of the arm.
        engage: hold at once; else wait damped for the command `engage`.
    """

    def __init__(self, link: socket.socket, config: Arx, engage: bool) -> None:
        self.link, self.config = link, config
        self.control = Control(config, PERIOD_S)
        robot = self.control.robot
        kinds = dict(zip(robot.motor_id, robot.motor_type, strict=True))
        known = [i for i, kind in kinds.items() if kind.name.startswith('DM')]
        self.monitor = Monitor(config.interface, [*known, robot.gripper_motor_id])
        self.fault, self.motion = '', 0
        self.heard_s = time.monotonic()
        self.gone_s: float | None = None
        self.parking_s: float | None = None
        if engage:
            self.control.engage()

    def run(self) -> int:
        """The cycle, until the driver ends it; returns the exit code."""
        due = time.monotonic()
        watched = 0.0
        while True:
            now = time.monotonic()
            if now - watched > STUCK_S / 4:
                # It works even when the SDK never comes back.
                faulthandler.dump_traceback_later(STUCK_S, exit=True, file=NOWHERE)
                watched = now
            self.listen(now)
            fault, lost = self.monitor.faults()
            if fault and not self.fault:
                self.fault = fault
                self.control.hold()
            state = replace(self.control.step(), fault=self.fault)
            self.say(Report(state, self.fault, motion=self.motion))
            if lost:
                return EXIT_NO_MOTOR
            if self.over(now):
                self.release(state)
                return 0
            due = max(due + PERIOD_S, now)
            time.sleep(max(due - time.monotonic(), 0.0))

    def listen(self, now: float) -> None:
        """Obeys what came; holds when nothing does."""
        try:
            while data := self.link.recv(4096, socket.MSG_DONTWAIT):
                self.heard_s = now
                self.obey(json.loads(data))
            self.gone_s = self.gone_s or now
        except BlockingIOError:
            pass
        except OSError:
            self.gone_s = self.gone_s or now
        if now - self.heard_s > DEADLINE_S and self.parking_s is None:
            self.control.hold()

    def obey(self, command: dict[str, Any]) -> None:
        """One command of the driver; nothing moves in a fault."""
        kind = command.get('do')
        self.motion = command.get('motion', self.motion)
        if kind == 'close':
            self.close(command['park'])
        elif kind == 'engage' and not self.fault and not self.control.engaged:
            self.control.engage()
        elif self.fault or not self.control.engaged or self.parking_s is not None:
            pass
        elif kind == 'servo':
            x = np.array(command['pose'])
            gripper = command['gripper']
            self.control.servo(Pose(x[:3], x[3:]), np.nan if gripper is None else gripper)
        elif kind == 'joints':
            self.control.move_joints(np.array(command['q']), command['speed'])
        elif kind == 'grip':
            self.control.grip(command['width'], command['speed'], command['force'])
        elif kind in ('hold', 'engage'):
            self.control.hold()

    def close(self, park: bool) -> None:
        """Holds, then goes home when it may; `over` says when that has ended."""
        self.control.hold()
        self.parking_s = time.monotonic()
        if park and self.control.engaged and not self.fault:
            self.control.move_joints(
                np.array(self.config.home_q_rad), self.config.max_joint_speed_rad_s
            )

    def over(self, now: float) -> bool:
        """The motors may be released."""
        if self.gone_s is not None and now - self.gone_s > ORPHAN_S:
            return True
        if self.parking_s is None:
            return False
        return not self.control.moving or now - self.parking_s > PARK_S

    def release(self, state: ArmState) -> None:
        """Damps the motors for good."""
        faulthandler.cancel_dump_traceback_later()
        self.control.damp()
        self.say(Report(state, self.fault, released=True))
        self.control.release()

    def say(self, report: Report) -> None:
        """Tells the driver; a driver that does not listen misses it."""
        try:
            self.link.send(report.pack(), socket.MSG_DONTWAIT)
        except OSError:
            return


def main() -> None:
    """Entry point: serves the socket whose descriptor is the argument; the first datagram is
    the configuration.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # realtime where the user may; round robin, as the SDK may spin
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    link = socket.socket(fileno=int(sys.argv[1]))
    first = json.loads(link.recv(65536))
    config = TypeAdapter(ArmConfig).validate_python(first['config'])
    try:
        if not isinstance(config, Arx):
            raise UserError(f'{config.kind} is no ARX arm')
        # One process commands the motors: the one before may still be damping them.
        folder = Path(os.environ.get('USER_CAN_FOLDER', tempfile.gettempdir()))
        lock = (folder / f'user-{os.getuid()}-{config.interface}.lock').open('w')
        fcntl.flock(lock, fcntl.LOCK_EX)
        code = Host(link, config, first['engage']).run()
    except UserError as error:
        link.send(Report(None, str(error)).pack())
        code = 2
    sys.stdout.flush()
    os._exit(code)  # the SDK's destructors would keep a lost arm's process for seconds


if __name__ == '__main__':
    main()
