# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The Franka hand: its own connection, its own thread, its own pace."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
import ctypes
import math
import threading
import time

import franky

from user_core.arm_config import Franka
from user_core.errors import UserError
from user_robot.franka.version import require_hand

READ_S = 0.05
"""The hand is read at this period."""
CHANGE_M = 0.001
"""A streamed width this close to the one before asks for nothing."""
CLOSED_M = 0.001
"""A streamed width below this closes the hand with force."""
RECONNECT_S = 3.0
"""A wish to connect again counts for this long: a loss shows only after a second of silence."""
_TOLERANCE_M = 0.08

Wish = Callable[[franky.Gripper], franky.BoolFuture]


class FrankaHand:
    """Moves and reads the hand. No call blocks; one motion at a time, then the newest wish.

    A motion that fails (an object in the way of the fingers) is no fault: the width tells it. The
    hand has to be homed once in Desk after power-on, or it refuses to open.

    Args:
        config: of the arm.

    Attributes:
        width_m: distance of the fingers.
        grasped: the hand holds something.
        fault: one sentence when the hand does not answer.
    """

    def __init__(self, config: Franka) -> None:
        self._config = config
        self.width_m, self.grasped, self.fault = 0.0, False, ''
        self._streamed_m = math.nan
        self._wish: Wish | None = None
        self._running: franky.BoolFuture | None = None
        self._gripper: franky.Gripper | None = None
        self._reconnect_until_s = 0.0
        self._wake, self._closing = threading.Event(), threading.Event()
        try:
            self._connect()
        except (franky.Exception, RuntimeError) as error:
            raise UserError(
                f'the hand of the robot at {config.address} cannot be read',
                f'{error}'.removeprefix('libfranka: '),
                'see Desk, or set cells.<cell>.arm.gripper: false',
            ) from error
        self._thread = threading.Thread(target=self._work, name='franka hand', daemon=True)
        self._thread.start()

    def stream(self, width_m: float) -> None:
        """A width wished at every step (NaN: none): moves when it changed; closes with the
        configured force when it is 0.
        """
        if math.isnan(width_m) or abs(width_m - self._streamed_m) <= CHANGE_M:
            return
        self._streamed_m = width_m
        closed = width_m <= CLOSED_M
        self._ask(
            width_m,
            self._config.gripper_speed_m_s,
            self._config.gripper_force_n if closed else 0.0,
        )

    def grip(self, width_m: float, speed_m_s: float, force_n: float) -> None:
        """Begins a motion: a grasp when force_n > 0, which ends at any object on the way."""
        self._streamed_m = math.nan
        self._ask(width_m, speed_m_s, force_n)

    def recover(self) -> None:
        """Connects again, once, when the connection is lost or turns out to be."""
        self._reconnect_until_s = time.monotonic() + RECONNECT_S
        self._wake.set()

    def begin_close(self) -> None:
        """No more wishes; the running motion ends by itself."""
        self._wish = None
        self._closing.set()
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Waits for the thread that long."""
        self.begin_close()
        self._thread.join(seconds)

    def hold(self) -> None:
        """Begins nothing more; what runs ends by itself. A streamed width counts anew."""
        self._wish, self._streamed_m = None, math.nan

    def _ask(self, width_m: float, speed_m_s: float, force_n: float) -> None:
        width, speed = max(width_m, 0.0), max(speed_m_s, 0.001)
        if force_n > 0:
            self._wish = lambda g: g.grasp_async(width, speed, force_n, width, _TOLERANCE_M)
        else:
            self._wish = lambda g: g.move_async(width, speed)
        self._wake.set()

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                if self._gripper is None:
                    self._restore()
                else:
                    self._step(self._gripper)
            except (franky.Exception, RuntimeError):
                self._lose()
            self._wake.wait(READ_S)
            self._wake.clear()
        self._leave()

    def _connect(self) -> None:
        require_hand(self._config.address)
        self._gripper = franky.Gripper(self._config.address)
        self._read(self._gripper)

    def _step(self, gripper: franky.Gripper) -> None:
        running, self._running = self._running, None
        if running is not None and not running.wait(0.0):
            self._running = running
        elif running is not None:
            with suppress(franky.CommandException):  # the fingers met something, or are not homed
                running.get()
        wish = self._wish
        if wish is not None and self._running is None:
            self._wish = None
            self._running = wish(gripper)
        self._read(gripper)

    def _read(self, gripper: franky.Gripper) -> None:
        state = gripper.state
        self.width_m = float(state.width)
        self.grasped = bool(state.is_grasped) and self.width_m > CLOSED_M

    def _lose(self) -> None:
        self.fault = f'the hand of the robot at {self._config.address} does not answer'
        self._abandon()

    def _restore(self) -> None:
        if time.monotonic() < self._reconnect_until_s:
            self._reconnect_until_s = 0.0
            self._wish = None
            with suppress(UserError):  # the fault stays
                self._connect()
                self.fault = ''

    def _leave(self) -> None:
        """A future that outlives the interpreter ends the process with a segmentation fault."""
        deadline = time.monotonic() + 3.0
        while self._running is not None and time.monotonic() < deadline:
            if self._running.wait(0.05):
                self._running = None
        self._abandon()

    def _abandon(self) -> None:
        """Never destroys what still waits for an answer that will not come."""
        if self._running is not None:
            for kept in (self._running, self._gripper):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
            self._running = None
        self._gripper = None
