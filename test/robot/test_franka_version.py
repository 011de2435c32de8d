# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A robot that the installed franky cannot control is named once, with the wheel to take."""

from __future__ import annotations

import struct

from boxes import answering, reply
import pytest

from user_core.errors import UserError
from user_robot.franka import version as franka_version
from user_robot.franka.version import ask, installed_library, judge, require, server_of


@pytest.mark.parametrize(
    ('version', 'server'),
    [('0.21.2', 10), ('0.17.0', 9), ('0.14.2', 8), ('0.13.3', 7), ('0.12.1', 6), ('0.9.2', 5)],
)
def test_each_wheel_of_franky_speaks_to_one_server_version(version: str, server: int) -> None:
    assert server_of(version) == server


def test_the_installed_wheel_tells_its_libfranka() -> None:
    assert server_of(installed_library()) == 10
    assert installed_library().count('.') == 2


def test_a_panda_is_refused_once_with_the_wheel_to_take() -> None:
    with answering('127.77.1.1', reply(1, 5)) as requests:
        with pytest.raises(UserError) as caught:
            require('127.77.1.1')
        assert len(requests) == 1
    text = str(caught.value)
    assert 'server version 5 (Panda' in text
    assert f'{franka_version.WHEELS}/5/' in text
    assert '\n' not in text
    version, _ = struct.unpack('<HH', requests[0][12:])
    assert version == 10


def test_a_robot_newer_than_every_wheel_asks_for_an_update() -> None:
    text = judge(11, '0.21.2', False).text
    assert '-U franky-control' in text
    assert 'by-robot-server-version' not in text


def test_a_robot_that_fits_is_accepted() -> None:
    with answering('127.77.1.2', reply(0, 10)):
        verdict = ask('127.77.1.2')
    assert verdict.works
    assert verdict.server == 10


def test_a_closed_port_speaks_of_fci() -> None:
    with pytest.raises(UserError, match='FCI'):
        require('127.77.1.3')


def test_a_server_that_never_answers_is_given_up() -> None:
    with (
        answering('127.77.1.4', None) as requests,
        pytest.raises(UserError, match='does not answer'),
    ):
        ask('127.77.1.4', timeout_s=0.2)
    assert len(requests) == 1


def test_another_server_on_the_port_is_no_franka() -> None:
    with (
        answering('127.77.1.5', b'HTTP/1.1 400 Bad Request\r\n'),
        pytest.raises(UserError, match='no Franka'),
    ):
        require('127.77.1.5')


def test_a_name_without_a_host_is_named() -> None:
    with pytest.raises(UserError, match='no host named'):
        require('no-such-robot.invalid')
