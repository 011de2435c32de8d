# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The Franka hand's own server, on port 1338."""

from __future__ import annotations

from contextlib import suppress
import socket

from franky_sim.franka_gripper_protocol import GripperCommandStatus
from franky_sim.franka_gripper_server import FrankaGripperServer
from franky_sim.franka_server import BaseCommand, FrankaServer


class Hand(FrankaGripperServer):
    """Answers the command that `stop` or a new one cuts off, which franky-sim leaves open."""

    _pending_command_id: int | None
    _pending_tcp_socket: socket.socket | None

    def _start_motion(self, *arguments: object) -> None:
        self._abort()
        super()._start_motion(*arguments)

    def stop(self, command_id: int, tcp_socket: socket.socket) -> None:
        """Ends the running motion."""
        self._abort()
        super().stop(command_id, tcp_socket)

    def _abort(self) -> None:
        if self._pending_command_id is not None and self._pending_tcp_socket is not None:
            BaseCommand.send_response(
                self._pending_tcp_socket,
                self._pending_command_type,
                self._pending_command_id,
                GripperCommandStatus.kAborted,
                command_type_struct='H',
                status_type_struct='H',
            )
            self._pending_command_id = None


def refuse_others(server: FrankaServer) -> None:
    """Hangs up on whoever waits while a living client is served."""
    client, listener = server._tcp_socket, server._FrankaServer__server_socket
    if client is None:
        return
    try:
        client.recv(1, socket.MSG_PEEK)  # a dead client's place is for the next one
    except BlockingIOError:
        with suppress(OSError):
            listener.accept()[0].close()
    except OSError:
        pass
