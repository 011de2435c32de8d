# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The driver of an ARX arm. The SDK lives in a process of its own, which may hang or die."""

from __future__ import annotations

from dataclasses import replace
import os
import threading
import time
from typing import Any

import numpy as np

from user_core.arm_config import Arx
from user_core.errors import UserError
from user_core.geometry import Array, Pose
from user_robot.arm import BY_HAND, ArmState, Site
from user_robot.arx.can import can_folder, interface
from user_robot.arx.process import Process
from user_robot.arx.report import Report

SILENT_S = 0.15
"""No sample for so long is a fault."""
LOST_S = 1.0
"""A process that was silent for so long is replaced; the new one damps the motors."""
CLOSE_S = 8.0
SINK_S = 2.5
"""A process that has damped the motors may end by itself for so long; the SDK takes 2 to 4 s."""
BEAT_S = 0.02
"""The process is told at most so often that the driver lives; it holds after 0.2 s without."""


class ArxArm:
    """An ARX arm, real or emulated.

    Pose: the SDK's eef frame in the arm's base. Wrench: what the measured joint torques say beyond
    gravity, low-passed; friction of the joints is in it, and forces that hardly turn a joint are
    not. When this process dies (kill -9) the other one holds, damps the motors after 1 s and
    ends. When the other one dies the motors keep their last command, which is to stay, until a
    new process, started at once, damps them; `recover` makes it hold again.

    Args:
        config: of the arm.
        period_s: the control period; the arm's own cycle is 5 ms.

    Raises:
        UserError: no CAN interface, no motor answers, or the SDK gave up.
    """

    slice_s = 0.005

    def __init__(self, config: Arx, period_s: float, site: Site = BY_HAND) -> None:
        del period_s
        self.config = config
        self._environment = _environment(config, site)
        self._fault, self._peak, self._motion = '', 0.0, 0
        self._last: Report | None = None
        self._heard_s = self._told_s = 0.0
        self._recovering = self._closing = False
        self._lock = threading.Lock()
        self._host = Process(config, engage=True, environment=self._environment)
        first = self._host.first()
        if first.state is None:
            self._host.kill()
            raise UserError(first.fault)
        self._take(first)
        self._thread = threading.Thread(target=self._listen, name='arx', daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ the protocol

    def reset(self, pose: Pose, seed: int) -> None:
        """A real arm is not put anywhere."""

    def state(self) -> ArmState:
        """The newest sample; tells the process that the driver lives."""
        now = time.monotonic()
        if now - self._told_s > BEAT_S:
            self._tell()
        with self._lock:
            assert self._last is not None
            assert self._last.state is not None
            state, peak = self._last.state, self._peak
            self._peak = state.peak_force_n
            fault = self._fault
            moving = (state.moving or self._last.motion < self._motion) and not fault
        return replace(state, peak_force_n=peak, fault=fault, moving=moving)

    def servo(self, target: Pose, gripper_m: float) -> None:
        """Sets the target pose; a target out of reach is approached."""
        if not self._fault and target.isfinite():
            pose = [*target.position, *target.quaternion]
            gripper = float(gripper_m) if np.isfinite(gripper_m) else None
            self._tell(do='servo', pose=pose, gripper=gripper)

    def advance(self, seconds: float) -> None:
        """Time passes by itself."""

    def hold(self) -> None:
        """Makes the present posture the target."""
        self._tell(do='hold')

    def recover(self) -> None:
        """One attempt: a sound process holds again, another one is replaced."""
        self._recovering = True

    def move_joints(self, q: Array, speed_rad_s: float) -> None:
        """Begins a joint motion; joints beyond their limits go to the limit.

        Raises:
            UserError: a wrong number of joints, or numbers that are not finite.
        """
        goal = np.asarray(q, float)
        with self._lock:
            assert self._last is not None
            assert self._last.state is not None
            n = self._last.state.q.size
            if goal.shape != (n,) or not np.isfinite(goal).all() or not speed_rad_s > 0:
                raise UserError(
                    'the joint motion is not possible',
                    f'an ARX {self.config.model} has {n} joints and needs a speed above 0',
                )
            if not self._fault:
                self._motion += 1
                self._tell(
                    do='joints', motion=self._motion, q=goal.tolist(), speed=float(speed_rad_s)
                )

    def grip(self, width_m: float, speed_m_s: float, force_n: float) -> None:
        """Begins a motion of the gripper; a grasp stops at `force_n`."""
        self._tell(do='grip', width=float(width_m), speed=float(speed_m_s), force=float(force_n))

    def close(self, healthy: bool = True) -> None:
        """Holds, goes home from health when the configuration says so, damps the motors; within
        8 s.
        """
        self._closing = True
        end = time.monotonic() + CLOSE_S
        self._tell(do='close', park=self.config.park and healthy and not self._fault)
        self._thread.join(CLOSE_S)
        self._host.end(min(end, time.monotonic() + SINK_S))

    # ------------------------------------------------------------------ the process

    def _tell(self, **command: Any) -> None:
        self._told_s = time.monotonic()
        self._host.tell(command)

    def _take(self, report: Report) -> None:
        assert report.state is not None
        with self._lock:
            stamp = report.state.stamp_s
            if self._last is not None and self._last.state is not None:
                stamp = max(stamp, self._last.state.stamp_s)
            self._last = replace(report, state=replace(report.state, stamp_s=stamp))
            self._peak = max(self._peak, report.state.peak_force_n)
            self._fault = self._fault or report.fault
        self._heard_s = time.monotonic()

    def _listen(self) -> None:
        """The driver's thread: takes samples, watches the process, replaces it."""
        sound, spare = True, True
        while True:
            report = self._host.report(0.05)
            silent_s = time.monotonic() - self._heard_s
            if report is not None and report.state is not None:
                self._take(report)
                if report.released and self._closing:
                    return
            elif self._closing and (self._host.ended() or silent_s > LOST_S):
                return
            elif silent_s > SILENT_S and sound:
                self._fault = self._fault or self._host.why(f'is silent for {silent_s:.2f} s')
            if sound and (self._host.ended() or silent_s > LOST_S):
                self._fault = self._fault or self._host.why('has ended')
                sound = spare and self._replace(engage=False) == ''
                spare = False
            if self._recovering and not self._closing:
                self._recovering = False
                sound = spare = self._recover(sound)

    def _recover(self, sound: bool) -> bool:
        assert self._last is not None
        if sound and not self._last.fault and time.monotonic() - self._heard_s < SILENT_S:
            self._host.tell({'do': 'engage'})
            self._fault = ''
        else:
            self._fault = self._replace(engage=True)
        return not self._fault

    def _replace(self, engage: bool) -> str:
        """A new process; why there is none."""
        self._host.kill()
        try:
            self._host = Process(self.config, engage, self._environment)
            first = self._host.first()
        except (OSError, UserError) as error:
            first = Report(None, str(error))
        if first.state is None:
            return first.fault
        self._motion = 0
        self._take(first)
        return ''


def sdk_model(model: str) -> str:
    """The SDK's name of a model."""
    return {'X7Left': 'X7_left', 'X7Right': 'X7_right'}.get(model, model)


def _environment(config: Arx, site: Site) -> dict[str, str]:
    """The process's environment, when the interface is there."""
    threads = {'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'}
    if config.kind == 'arx_sim':  # type: ignore[attr-defined]  # every registered arm has one
        folder = can_folder(site.folder, site.cell)
        if not (folder / config.interface).exists():
            raise UserError(
                f'there is no emulated CAN bus {folder / config.interface}',
                'the process that emulates it does not run',
                'start it: python -m user_sim.arx.bus',
            )
        shim = {'USER_CAN_FOLDER': str(folder), 'LD_PRELOAD': str(folder / 'canshim.so')}
        return os.environ | threads | shim
    interface(config.interface)
    return os.environ | threads
