# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The page of the robot's computer: its unit, its container and its versions are what they say."""

from configparser import RawConfigParser
import os
from pathlib import Path
import re
import shutil
import subprocess

import pytest

from user_core.doctor import DISTRIBUTION, MIDDLEWARE
from user_robot.franka.version import SERVERS

ROOT = Path(__file__).parents[2]
UNIT, CONTAINER = ROOT / 'docs/user-robot.service', ROOT / 'docs/robot.Containerfile'
PAGE = (ROOT / 'docs/robot_computer.md').read_text()


class Once(RawConfigParser):
    """Sections of a unit; its keys are in capitals and small letters."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture
def unit() -> Once:
    parsed = Once(delimiters=('=',), comment_prefixes=('#',), strict=True)
    parsed.read(UNIT)
    return parsed


def test_the_unit_ends_a_run_by_one_sigint_and_gives_the_arm_its_time(unit):
    service = unit['Service']
    assert (service['KillSignal'], service['KillMode']) == ('SIGINT', 'mixed')
    from user_core.plan import ARM_END_S
    from user_core.runner import CUT_OFF_S

    assert float(service['TimeoutStopSec']) > CUT_OFF_S + ARM_END_S
    assert service['Restart'] == 'on-failure'
    assert service['RestartPreventExitStatus'] == '2', 'a wrong page stays wrong'
    assert service['SuccessExitStatus'].split() == ['3', '130']
    assert 'WatchdogSec' not in service, 'nobody would pat it'
    assert unit['Install']['WantedBy'] == 'multi-user.target'


@pytest.mark.skipif(shutil.which('systemd-analyze') is None, reason='there is no systemd-analyze')
def test_systemd_understands_every_line_of_the_unit(tmp_path):
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace('/opt/user', str(ROOT)))
    command = ['systemd-analyze', 'verify', '--man=no', str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, ours) == (0, [])


def test_the_unit_s_line_begins_a_run_and_goes_on_with_one_that_is_there(unit, tmp_path):
    shell, _, script = unit['Service']['ExecStart'].partition(" -c '")
    script = script.removesuffix("'").replace('$$', '$')
    (tmp_path / '.venv/bin').mkdir(parents=True)
    user = tmp_path / '.venv/bin/user'
    user.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    user.chmod(0o755)
    settings = {'PAGE': '/etc/my lab.yaml', 'RUN': 'monday', 'SETTINGS': 'seed=1 pace=realtime'}

    def said() -> list[str]:
        done = subprocess.run(
            [shell, '-c', script], cwd=tmp_path, env=os.environ | settings, check=True,
            capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.splitlines()

    rest = ['seed=1', 'pace=realtime']
    assert said() == ['run', '/etc/my lab.yaml', 'machine=robot', 'run=monday', *rest]
    (tmp_path / 'runs/monday').mkdir(parents=True)
    assert said() == ['run', '/etc/my lab.yaml', 'machine=robot', 'resume=monday', *rest]


def test_the_container_is_ros_and_set_up_as_the_readme_says():
    lines = [line for line in CONTAINER.read_text().splitlines() if line[:1].isupper()]
    assert lines[0] == f'FROM ros:{DISTRIBUTION}-ros-base'
    assert f'RUN . /opt/ros/{DISTRIBUTION}/setup.sh && make setup' in lines
    assert 'setup:' in (ROOT / 'Makefile').read_text()
    wanted = re.findall(r'missing\+=\(([^)]+)\)', (ROOT / 'tools/setup.sh').read_text())
    packages = {word for words in wanted for word in words.split() if word != '"$tool"'}
    text = CONTAINER.read_text()
    assert packages | {'gcc', 'make', 'libusb-1.0-0', 'libegl1'} <= set(text.split())
    for flag in ('--network=host', '--ipc=host', '--ulimit rtprio=99', '--device=/dev/bus/usb'):
        assert flag in PAGE


def test_the_table_of_versions_is_that_of_the_locks():
    pins = dict(
        line.split('==')
        for name in ('requirements.txt', 'requirements-ros.txt')
        for line in (ROOT / name).read_text().splitlines()
        if '==' in line and not line.startswith('#')
    )
    for name in (
        'franky-control', 'arx5-interface', 'pyrealsense2', 'franky-sim', 'mujoco', 'torch',
        'numpy',
    ):  # fmt: skip
        assert f'{name} {pins[name]}' in PAGE, name
    assert MIDDLEWARE in PAGE
    for server, (_, robots) in SERVERS.items():
        versions = re.findall(r'\d+(?:\.\d+)+', robots)
        assert str(server) in PAGE
        assert all(version in PAGE for version in versions), robots
