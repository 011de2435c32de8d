# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Does the installed franky speak the language of this Franka? One handshake, one verdict.

libfranka and the robot's server must have the same protocol version; a franky wheel holds one
libfranka. Table: libfranka's docs/compatibility_matrix.rst. Index of wheels: franky's
installation guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
import re
import socket
import struct

from user_core.errors import UserError

PORT, HAND_PORT = 1337, 1338
"""TCP ports of the robot's control interface and of its hand's."""
SERVERS = {
    10: ('0.18.0', 'FR3, system 5.9.0 or newer'),
    9: ('0.15.0', 'FR3, system 5.7.2 to 5.8'),
    8: ('0.14.1', 'FR3, system 5.7.0 to 5.7.1'),
    7: ('0.13.3', 'FR3, system 5.5.0 to 5.6'),
    6: ('0.10.0', 'FR3, system 5.2.0 to 5.4'),
    5: ('0.9.1', 'Panda, system 4.2.1 or newer'),
    4: ('0.8.0', 'Panda, system 4.0.0 to 4.2.0'),
    3: ('0.7.1', 'Panda, system 3'),
}
"""Robot server version: (first libfranka that speaks it, robots that have it)."""
WHEELS = 'https://timschneider42.github.io/franky/whl/by-robot-server-version'
_HEADER, _HAND_HEADER, _HAND_VERSION = struct.Struct('<III'), struct.Struct('<HII'), 3
_ANSWER = struct.Struct('<HH')
_ACCEPTED, _INCOMPATIBLE = 0, 1


@dataclass(frozen=True)
class Verdict:
    """What a robot's server and the installed library are to each other.

    Attributes:
        server: the robot's server version.
        library: version of libfranka in the installed franky; '' when unknown.
        works: the robot accepts this library.
        text: the verdict in plain words, with the wheel to take when it does not work.
    """

    server: int
    library: str
    works: bool
    text: str


def installed_library() -> str:
    """Version of libfranka inside the installed franky wheel; '' when it cannot be told."""
    try:
        names = [str(f) for f in metadata.files('franky-control') or []]
        names.append(metadata.version('franky-control'))
    except metadata.PackageNotFoundError:
        return ''
    for name in names:
        if found := re.search(r'libfranka(?:[-\w]*\.so)?\.(\d+\.\d+\.\d+)', name):
            return found[1]
    return ''


def server_of(library: str) -> int:
    """The server version that a libfranka speaks to; the newest when the library is unknown."""
    if not library:
        return max(SERVERS)
    return max(
        (server for server, (first, _) in SERVERS.items() if _parts(first) <= _parts(library)),
        default=min(SERVERS),
    )


def judge(server: int, library: str, works: bool) -> Verdict:
    """The verdict on a server version, a library and whether the robot accepted it."""
    robot = SERVERS.get(server, ('', 'unknown to this table'))[1]
    franky = f'the installed franky holds libfranka {library or "of unknown version"}'
    has = f'the robot has server version {server} ({robot}) and {franky}'
    if works:
        return Verdict(server, library, True, f'{has}: they fit')
    if server in SERVERS:
        way = f'install the wheel for this robot: {wheel(server)}'
    elif server > max(SERVERS):
        way = 'the robot is newer: update franky with `pip install -U franky-control`'
    else:
        way = 'no franky speaks to this robot: update the robot to system 3 or newer'
    spoken = server_of(library)
    return Verdict(
        server,
        library,
        False,
        f'{has}, which speaks to server version {spoken} ({SERVERS[spoken][1]}); {way}',
    )


def wheel(server: int) -> str:
    """The command that installs the franky for a robot server version."""
    return f'`pip install --force-reinstall franky-control --extra-index-url {WHEELS}/{server}/`'


def ask(address: str, timeout_s: float = 2.0) -> Verdict:
    """Connects as libfranka would, hears the server's version, and hangs up.

    One attempt of at most `timeout_s` for each answer; UserError when no Franka answers there.
    """
    library = installed_library()
    try:
        server, works = _handshake((address, PORT), _HEADER, server_of(library), timeout_s)
    except ConnectionRefusedError as error:
        raise UserError(
            f'the robot at {address} refuses the connection',
            'its control interface (FCI) is not active, or the address is another machine',
            'activate FCI in Desk, or correct cells.<cell>.arm.address',
        ) from error
    except socket.gaierror as error:
        raise UserError(
            f'there is no host named {address}',
            'the name cannot be resolved',
            "give the robot's IP address in cells.<cell>.arm.address",
        ) from error
    except (OSError, struct.error) as error:
        raise UserError(
            f'the robot at {address} does not answer',
            f'{error}; it is off, its cable is out, or another program controls it',
            'check power, cable and cells.<cell>.arm.address, and end other programs',
        ) from error
    return judge(server, library, works)


def require(address: str, timeout_s: float = 2.0) -> None:
    """UserError unless a Franka answers at the address and the installed franky fits it."""
    verdict = ask(address, timeout_s)
    if not verdict.works:
        raise UserError(f'this franky cannot control the robot at {address}: {verdict.text}')


def require_hand(address: str, timeout_s: float = 2.0) -> None:
    """UserError unless a Franka hand answers; libfranka would wait for a busy one for ever."""
    try:
        works = _handshake((address, HAND_PORT), _HAND_HEADER, _HAND_VERSION, timeout_s)[1]
        why = '' if works else 'its server has another version than libfranka'
    except (OSError, struct.error) as error:
        why = f'{error}; no hand is active, or another program holds it'
    if why:
        raise UserError(
            f'the hand of the robot at {address} does not answer',
            why,
            'activate the hand in Desk, or set cells.<cell>.arm.gripper: false',
        )


def _handshake(
    place: tuple[str, int], header: struct.Struct, version: int, timeout_s: float
) -> tuple[int, bool]:
    """What the Connect of libfranka brings: (server version, accepted)."""
    with (
        socket.create_connection(place, timeout_s) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        udp.bind(('', 0))
        body = struct.pack('<HH', version, udp.getsockname()[1])
        tcp.sendall(header.pack(0, 1, header.size + len(body)) + body)
        command, _, size = header.unpack(_receive(tcp, header.size))
        if command != 0 or not header.size + _ANSWER.size <= size <= 4096:
            raise OSError('what answers there is no Franka')
        status, server = _ANSWER.unpack(_receive(tcp, _ANSWER.size))
    if status not in (_ACCEPTED, _INCOMPATIBLE):
        raise OSError('what answers there is no Franka')
    return server, status == _ACCEPTED


def _receive(tcp: socket.socket, size: int) -> bytes:
    data = b''
    while len(data) < size:
        chunk = tcp.recv(size - len(data))
        if not chunk:
            raise OSError('it closed the connection')
        data += chunk
    return data


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split('.'))
