# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The ground: set-up, its stamps and refusals, and starts from a plain shell."""

import base64
import fcntl
import hashlib
from importlib.metadata import PackageNotFoundError, distribution, version
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys

import pytest

ROOT = Path(__file__).parents[2]
SETUP = ROOT / 'tools' / 'setup.sh'
STAMPS = ROOT / '.venv' / 'stamps'
PLAIN = {'PATH': '/usr/local/bin:/usr/bin:/bin', 'HOME': os.environ.get('HOME', '/')}
PINS = {
    file.name: [line for line in file.read_text().split('\n') if line and not line.startswith('#')]
    for file in sorted(ROOT.glob('requirements*.txt'))
}
built = pytest.mark.skipif(
    not (STAMPS / 'test-tools').exists(), reason='this interpreter is not the one of make test'
)
sys.path.insert(0, str(ROOT / 'tools'))
from forget_half_installed import forget_half_installed  # noqa: E402


def set_up(root=ROOT, **env):
    """Runs set-up as `make test` does."""
    return subprocess.run(
        [root / 'tools' / 'setup.sh', 'test'],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path):
    """A checkout in which nothing has been set up."""
    shutil.copytree(ROOT / 'tools', tmp_path / 'tools')
    for name in PINS:
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@built
def test_a_second_set_up_does_nothing():
    set_up()  # takes in what was edited since make test began
    stamps = {file: file.stat().st_mtime_ns for file in STAMPS.iterdir()}
    again = set_up()
    assert (again.returncode, again.stdout) == (0, ''), again.stderr
    assert {file: file.stat().st_mtime_ns for file in STAMPS.iterdir()} == stamps


@built
def test_only_one_set_up_works_in_a_checkout_at_a_time():
    with (ROOT / '.setup.lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen([SETUP, 'test'], stdout=subprocess.PIPE, text=True)
        assert second.stdout is not None
        assert 'waiting for it' in second.stdout.readline()
        assert second.poll() is None
    second.communicate(timeout=100)
    assert second.returncode == 0


def test_another_ros_distribution_is_refused_in_a_sentence(checkout):
    refused = set_up(checkout, ROS_DISTRO='humble')
    assert refused.returncode == 2
    assert "the sourced ROS 2 is 'humble', USER is built for jazzy." in refused.stderr


def test_an_interpreter_that_does_not_fit_is_named(checkout):
    refused = set_up(checkout, ROS_DISTRO='', PYTHON='/bin/false')
    assert refused.returncode == 2
    assert "'/bin/false' is no Python 3.11 to 3.13 with venv." in refused.stderr
    assert not (checkout / '.venv').exists()


def test_a_missing_tool_is_named_with_its_apt_line(checkout):
    tools = checkout / 'bin'
    tools.mkdir()
    for name in (
        'bash',
        'cat',
        'cut',
        'dirname',
        'flock',
        'gcc',
        'git',
        'grep',
        'make',
        'sha256sum',
    ):
        (tools / name).symlink_to(shutil.which(name) or '/bin/true')
    (tools / 'id').write_text('#!/bin/sh\necho 1000\n')
    (tools / 'id').chmod(0o755)
    python = str(Path(sys.base_prefix, 'bin', f'python3.{sys.version_info.minor}'))
    refused = set_up(checkout, ROS_DISTRO='', PYTHON=python, PATH=str(tools))
    assert refused.returncode == 2
    assert 'the system lacks: g++ cmake' in refused.stderr
    assert 'Install it by: sudo apt-get install -y g++ cmake\n' in refused.stderr


def install(site, name, text, installer=True):
    """What pip leaves of a package of one file."""
    (site / f'{name}.py').write_text(text)
    info = site / f'{name}-1.dist-info'
    info.mkdir()
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')
    record = f'{name}.py,sha256={digest},{len(text)}\n{name}-1.dist-info/RECORD,,\n'
    (info / 'RECORD').write_text(record)
    if installer:
        (info / 'INSTALLER').write_text('pip\n')


def test_what_a_killed_pip_left_is_installed_again(tmp_path):
    names = ('whole', 'missing', 'cut', 'late', 'mended')
    for name in names:
        install(tmp_path, name, 'x = 1\n', installer=name != 'late')
        os.utime(tmp_path / f'{name}-1.dist-info', (100, 100 if name == 'mended' else 200))
    (tmp_path / 'missing.py').unlink()
    (tmp_path / 'cut.py').write_text('x =')
    (tmp_path / 'mended.py').write_text('x = 2  # after its installation\n')
    assert forget_half_installed(tmp_path, since=150) == ['cut-1', 'late-1', 'missing-1']
    left = sorted(info.name for info in tmp_path.glob('*.dist-info'))
    assert left == ['mended-1.dist-info', 'whole-1.dist-info']


def test_locks_pin_every_package_exactly_and_alike():
    pins = {}
    for name, lines in PINS.items():
        assert len(lines) == len(set(lines)), name
        for line in lines:
            found = re.fullmatch(r'([a-z0-9-]+)==([0-9][0-9a-z.]*)', line)
            assert found, f'{name}: {line}'
            assert pins.setdefault(found[1], found[2]) == found[2], f'{name}: {line}'


@built
@pytest.mark.skipif('ROS_DISTRO' in os.environ, reason='ROS 2 brings packages of its own')
def test_the_environment_is_what_the_locks_say():
    wrong = []
    for line in {line for lines in PINS.values() for line in lines}:
        name, pinned = line.split('==')
        try:
            there = version(name).partition('+')[0]
        except PackageNotFoundError:
            there = 'missing'
        if there != pinned:
            wrong.append(f'{line}: {there}')
    assert wrong == []


@built
@pytest.mark.needs_ros
def test_messages_of_our_own_travel_from_a_plain_shell(ros_domain):
    script = """
import time
import rclpy
from user_msgs.msg import Transition
rclpy.init()
node, got = rclpy.create_node('n'), []
node.create_subscription(Transition, 't', got.append, 1)
publisher = node.create_publisher(Transition, 't', 1)
end = time.monotonic() + 30
while not got and time.monotonic() < end:
    publisher.publish(Transition(seq=7, state=[1.0, 2.0]))
    rclpy.spin_once(node, timeout_sec=0.1)
print(got[0].seq, list(got[0].state))
"""
    kept = os.environ if 'ROS_DISTRO' in os.environ else PLAIN
    discovery = {key: os.environ[key] for key in os.environ if key.startswith('ROS_')}
    said = subprocess.run(
        [ROOT / '.venv' / 'bin' / 'python', '-c', script],
        env={**kept, **discovery},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.stdout == '7 [1.0, 2.0]\n', said.stderr


@built
@pytest.mark.needs_ros
def test_every_console_script_runs_the_environments_interpreter():
    scripts = sorted((ROOT / 'install').glob('user_*/lib/user_*/*'))
    names = {script.name for script in scripts}
    assert names >= {'user', 'run', 'arm', 'episode', 'expert', 'policy', 'replay', 'learner'}
    for script in [*scripts, ROOT / '.venv' / 'bin' / 'user']:
        assert script.read_text().startswith(f'#!{ROOT}/.venv/bin/python\n'), script


@built
@pytest.mark.needs_ros
@pytest.mark.skipif('ROS_DISTRO' in os.environ, reason='a sourced ROS 2 is not a plain shell')
@pytest.mark.parametrize('name', ['policy', 'learner'])
def test_a_node_that_is_started_from_a_plain_shell_finds_torch(name):
    """As `ros2 run` does it: the file itself. Without a plan it gets as far as asking for one."""
    node = ROOT / 'install' / 'user_learning' / 'lib' / 'user_learning' / name
    discovery = {key: os.environ[key] for key in os.environ if key.startswith('ROS_')}
    said = subprocess.run(
        [node],
        env={**PLAIN, **discovery},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    text = said.stdout + said.stderr
    assert said.returncode == 2, text
    assert 'has no parameter config' in text
    assert (
        'import torch'
        in (ROOT / 'src/user_learning/user_learning' / f'{name}_node.py').read_text()
    )


def test_make_run_starts_the_shipped_page_with_what_was_asked_for():
    said = subprocess.run(
        ['make', '--dry-run', '--no-print-directory', 'run', 'ARGS=seed=3 budget.env_steps=2000'],
        env={k: v for k, v in os.environ.items() if not k.startswith('MAKE')},
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert said.stdout.splitlines() == [
        'tools/setup.sh',
        '.venv/bin/user run peg_rlpd seed=3 budget.env_steps=2000',
    ]


@built
@pytest.mark.needs_ros
@pytest.mark.parametrize('package', ['user_core', 'user_robot', 'user_sim', 'user_learning'])
def test_every_console_script_can_be_loaded(package):
    for script in distribution(package).entry_points:
        assert callable(script.load())
