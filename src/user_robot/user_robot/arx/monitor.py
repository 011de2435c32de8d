# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Listens to the motors' answers on the CAN bus, beside the SDK, which hides what is wrong.

The SDK takes the last known angles for measurements when motors fall silent, and drops their
error codes. Knows Damiao motors; the EC motors of an X5 answer otherwise and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
import socket
import struct
import time

_FRAME = struct.Struct('=IB3x8s')
_REPLY_ID, _REPLY_MASK = 0, 0x7FF
SILENT_S = 0.3
"""A motor that has not answered for so long is lost; it is asked 500 times a second."""
DISABLED, ENABLED = 0, 1
ERRORS = {
    0x8: 'its voltage is too high',
    0x9: 'its voltage is too low',
    0xA: 'it drew too much current',
    0xB: 'its driver is too hot',
    0xC: 'its coil is too hot',
    0xD: 'it missed commands',
    0xE: 'it is overloaded',
}


class Monitor:
    """The motors with these ids on a CAN interface. Not thread-safe; never blocks.

    Raises:
        OSError: there is no such interface, or it is down.
    """

    def __init__(self, interface: str, motor_ids: Sequence[int]) -> None:
        self._socket = socket.socket(socket.PF_CAN, socket.SOCK_RAW, socket.CAN_RAW)
        self._socket.bind((interface,))
        self._socket.setsockopt(
            socket.SOL_CAN_RAW,
            socket.CAN_RAW_FILTER,
            struct.pack('=II', _REPLY_ID, _REPLY_MASK),
        )
        self._socket.setblocking(False)
        self.interface = interface
        self._heard_s = dict.fromkeys(motor_ids, time.monotonic())
        self._enabled = dict.fromkeys(motor_ids, False)
        self._errors = dict.fromkeys(motor_ids, '')
        self._gone = ''

    def faults(self) -> tuple[str, bool]:
        """Reads what came; returns what is wrong, '' for nothing, and whether no motor answers."""
        now = time.monotonic()
        try:
            while packet := self._socket.recv(_FRAME.size):
                can_id, _, data = _FRAME.unpack(packet)
                if can_id & _REPLY_MASK == _REPLY_ID:  # others came before the filter did
                    self._take(data, now)
            self._gone = f'the CAN interface {self.interface} is gone'
        except BlockingIOError:
            pass
        except OSError as error:
            self._gone = f'the CAN interface {self.interface} fails: {error.strerror}'
        if self._gone:
            return self._gone, True
        silent = [i for i, heard in self._heard_s.items() if now - heard > SILENT_S]
        if len(silent) == len(self._heard_s):
            return f'no motor answers on {self.interface}: is the arm powered?', True
        if silent:
            return f'{_motors(silent)} no longer on {self.interface}', False
        return next((e for e in self._errors.values() if e), ''), False

    def _take(self, data: bytes, now: float) -> None:
        motor, code = data[0] & 15, data[0] >> 4
        if motor not in self._heard_s:
            return
        self._heard_s[motor] = now
        if code in ERRORS:
            self._errors[motor] = f'motor {motor} gave up: {ERRORS[code]}'
        elif code == DISABLED and self._enabled[motor]:
            self._errors[motor] = f'motor {motor} is disabled'
        elif code == ENABLED:
            self._enabled[motor] = True


def _motors(ids: list[int]) -> str:
    names = ', '.join(map(str, ids))
    return f'motor {names} answers' if len(ids) == 1 else f'motors {names} answer'
