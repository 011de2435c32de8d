# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the arm may move: one small machine per arm, driven by edges."""

from __future__ import annotations

from enum import IntEnum


class Mode(IntEnum):
    """RobotState.mode."""

    DISARMED = 0
    READY = 1
    ACTIVE = 2
    HOLD = 3
    FAULT = 4


class Latch:
    """The arm's permission to move and the reason when there is none.

        DISARMED --arm--> READY --command--> ACTIVE --deadline--> HOLD --command--> ACTIVE
        any --fault--> FAULT --recover--> READY
        any --stop--> DISARMED --clear_stop--> READY

    `faults` and `recoveries` count the edges, `in_a_row` the recoveries by resets since a reset
    that needed none. HOLD ends by itself with the next valid command. FAULT (a force above the
    limit, a driver's error) ends by `recover`, or by a reset motion where the fault says so. A
    stop stays until somebody clears it, whatever else happens. Not thread safe: the arm node
    guards it with the arm's own lock.
    """

    def __init__(self) -> None:
        self.mode = Mode.DISARMED
        self.reason = 'the arm is not connected'
        self.stopped = ''
        self.reset_recovers = False
        self.faults = self.recoveries = 0
        self.in_a_row = 0
        self.pressed = False

    def arm(self) -> None:
        """The driver is connected and holds its position."""
        if not self.stopped:
            self._enter(Mode.READY)

    def allows(self) -> bool:
        """True when a command may move the arm."""
        return self.mode in (Mode.READY, Mode.ACTIVE, Mode.HOLD)

    def command(self) -> bool:
        """A valid command came; True when it may be applied."""
        if not self.allows():
            return False
        self._enter(Mode.ACTIVE)
        return True

    def deadline(self, age_s: float) -> None:
        """No command came for too long."""
        if self.mode is Mode.ACTIVE:
            self._enter(Mode.HOLD, f'no command for {age_s:.2f} s')

    def rest(self) -> None:
        """Commands ended on purpose: the reset is done, or the episode is over."""
        if self.allows():
            self._enter(Mode.READY)

    def fault(self, reason: str, reset_recovers: bool = False) -> None:
        """Motion is not safe; `reset_recovers`: a reset motion, which backs out first, ends it."""
        if not self.stopped:
            self.faults += self.mode is not Mode.FAULT
            self._enter(Mode.FAULT, reason)
            self.reset_recovers = reset_recovers

    def stop(self, reason: str) -> None:
        """Latches: nothing moves the arm until `clear_stop`."""
        self.stopped = reason
        self._enter(Mode.DISARMED, reason)

    def emergency(self, pressed: bool) -> bool:
        """The emergency stop's level; True on the edge that stops the arm."""
        edge, self.pressed = pressed and not self.pressed, pressed
        if edge:
            self.stop('the emergency stop was pressed: call clear_stop to go on')
        return edge

    def clear_stop(self) -> tuple[bool, str]:
        """Ends a stop; (done, sentence for people)."""
        if self.pressed:
            return False, 'the emergency stop is still pressed'
        if not self.stopped:
            return True, 'the arm was not stopped'
        self.stopped = ''
        self._enter(Mode.READY)
        return True, 'the stop is cleared, the arm is ready'

    def recover(self) -> tuple[bool, str]:
        """Leaves a fault; (done, sentence for people)."""
        if self.stopped:
            return False, f'the arm is stopped ({self.stopped}): call clear_stop first'
        if self.mode is Mode.DISARMED:
            return False, self.reason
        was, self.reset_recovers = self.reason, False
        self.recoveries += self.mode is Mode.FAULT
        self._enter(Mode.READY)
        return True, f'recovered from: {was}' if was else 'there was no fault'

    def _enter(self, mode: Mode, reason: str = '') -> None:
        self.mode, self.reason = mode, reason
