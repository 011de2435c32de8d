# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""`user doctor`: each thing becomes a line with what mends it, and nothing makes it crash."""

import os
from pathlib import Path
import resource
import subprocess
import sys

import pytest

from user_core import doctor, machine
from user_core.config import load
from user_core.errors import UserError
from user_core.finding import Finding, findings

USER = str(Path(sys.executable).with_name('user'))


@pytest.fixture
def root(tmp_path) -> Path:
    """A machine made of files: all is well."""
    put(tmp_path, 'proc/meminfo', 'MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n')
    for key in ('rmem_default', 'wmem_default'):
        put(tmp_path, f'proc/sys/net/core/{key}', '4194304\n')
    put(tmp_path, 'proc/sys/net/ipv4/ipfrag_time', '3\n')
    put(tmp_path, 'proc/sys/net/ipv4/ipfrag_high_thresh', '134217728\n')
    put(tmp_path, 'proc/sys/kernel/version', '#1 SMP PREEMPT_RT\n')
    put(tmp_path, 'proc/sys/kernel/osrelease', '6.8.1-1015-realtime\n')
    put(tmp_path, 'proc/self/status', 'Name:\tuser\nCapEff:\t0000000000000000\n')
    for n in range(2):
        put(tmp_path, f'sys/devices/system/cpu/cpu{n}/cpufreq/scaling_governor', 'performance\n')
    put(tmp_path, 'sys/class/net/lo/flags', '0x9\n')
    put(tmp_path, 'sys/class/net/enp1s0/flags', '0x1003\n')
    camera = 'sys/bus/usb/devices/2-1'
    for name, text in (
        ('idVendor', '8086'), ('product', 'Intel(R) RealSense(TM) Depth Camera 405'),
        ('serial', '017322071690'), ('speed', '5000'), ('busnum', '2'), ('devnum', '7'),
    ):  # fmt: skip
        put(tmp_path, f'{camera}/{name}', f'{text}\n')
    put(tmp_path, 'dev/bus/usb/002/007', '')
    put(
        tmp_path, 'sys/class/hidraw/hidraw3/device/uevent',
        'DRIVER=hid-generic\nHID_ID=0003:0000256F:0000C635\nHID_NAME=3Dconnexion SpaceMouse\n',
    )  # fmt: skip
    put(tmp_path, 'dev/hidraw3', '')
    (tmp_path / 'dev/shm').mkdir()
    return tmp_path


def put(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def only(found) -> Finding:
    (finding,) = list(found)
    return finding


def test_a_machine_on_which_all_is_well_gets_ok_everywhere(root, monkeypatch):
    monkeypatch.delenv('ROS_DISCOVERY_SERVER', raising=False)
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'SUBNET')
    probes = (
        machine.memory, machine.shared, machine.buffers, machine.interfaces, machine.kernel,
        machine.governor, machine.usb,
    )  # fmt: skip
    found = [finding for probe in probes for finding in probe(root)]
    assert {finding.how for finding in found} == {'ok'}, [f.text for f in found]
    assert all(finding.mend == '' for finding in found)
    text = '\n'.join(finding.text for finding in found)
    assert '16.0 GB free' in text
    assert 'range SUBNET, multicast on enp1s0' in text
    assert 'RealSense(TM) Depth Camera 405 017322071690 at 5000 Mbit/s' in text
    assert 'SpaceMouse: 3Dconnexion SpaceMouse' in text


@pytest.mark.parametrize(
    ('name', 'text', 'probe', 'how', 'words'),
    [
        ('proc/meminfo', 'MemAvailable: 1048576 kB\n', machine.memory, 'warn', '1.0 GB free'),
        ('proc/sys/net/core/rmem_default', '212992\n', machine.buffers, 'warn',
         'net.core.rmem_default=4194304'),
        ('proc/sys/net/ipv4/ipfrag_time', '30\n', machine.buffers, 'warn',
         'net.ipv4.ipfrag_time=3'),
        ('sys/class/net/enp1s0/flags', '0x3\n', machine.interfaces, 'warn', 'multicast on'),
        ('sys/class/net/enp1s0/flags', '0x1002\n', machine.interfaces, 'warn', 'no interface'),
        ('sys/devices/system/cpu/cpu1/cpufreq/scaling_governor', 'powersave\n', machine.governor,
         'warn', 'echo performance'),
        ('sys/bus/usb/devices/2-1/speed', '480\n', machine.usb, 'warn', 'USB 3 port'),
        ('sys/bus/usb/devices/2-1/devnum', '9\n', machine.usb, 'bad', 'udev rules'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_mends_it(
    root, monkeypatch, name, text, probe, how, words
):
    monkeypatch.delenv('ROS_DISCOVERY_SERVER', raising=False)
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'SUBNET')
    put(root, name, text)
    wrong = [finding for finding in probe(root) if finding.how != 'ok']
    assert [finding.how for finding in wrong] == [how]
    assert wrong[0].mend
    assert words in wrong[0].text


def test_a_spacemouse_that_may_not_be_opened_names_the_rules(root):
    (root / 'dev/hidraw3').unlink()
    mouse = next(f for f in machine.usb(root) if f.what == 'SpaceMouse')
    assert (mouse.how, 'udev rules' in mouse.mend) == ('bad', True)


def test_only_a_franka_wants_a_real_time_kernel_and_priority(root, monkeypatch):
    put(root, 'proc/sys/kernel/version', '#1 SMP PREEMPT_DYNAMIC\n')
    assert only(machine.kernel(root)).how == 'ok'
    assert only(machine.kernel(root, franka=True)).how == 'warn'
    put(root, 'sys/kernel/realtime', '1\n')
    assert only(machine.kernel(root, franka=True)).how == 'ok'
    monkeypatch.setattr(resource, 'getrlimit', lambda what: (0, 0))
    assert only(machine.limits(root)).how == 'warn'
    assert only(machine.limits(root, franka=True)).how == 'bad'
    put(root, 'proc/self/status', 'CapEff:\t0000000000800000\n')  # CAP_SYS_NICE
    assert only(machine.limits(root, franka=True)).how == 'ok'
    put(root, 'proc/self/status', 'CapEff:\t0000000000000000\n')
    monkeypatch.setattr(resource, 'getrlimit', lambda what: (-1, resource.RLIM_INFINITY))
    assert only(machine.limits(root, franka=True)).how == 'ok'


def test_one_machine_needs_neither_buffers_nor_a_kept_clock(root):
    put(root, 'proc/sys/net/core/rmem_default', '212992\n')
    assert only(machine.buffers(root, several=False)).how == 'ok'
    assert only(machine.clock(several=False, kept=lambda: (False, 16.0))).how == 'ok'
    far = only(machine.clock(kept=lambda: (False, 16.0)))
    assert (far.how, 'chrony' in far.mend) == ('warn', True)
    assert '12 ms at most' in only(machine.clock(kept=lambda: (True, 0.012))).value
    kept, error_s = machine.kernel_clock()
    assert isinstance(kept, bool)
    assert 0 <= error_s < 1e6


def test_dead_shared_memory_is_counted_and_removed_and_none_at_all_is_bad(root):
    put(root, 'dev/shm/fastrtps_0123456789abcdef', 'x' * 1000)
    put(root, 'dev/shm/fastrtps_0123456789abcdef_el', '')
    assert 'removed 1 dead segments of Fast DDS' in only(machine.shared(root)).value
    assert list((root / 'dev/shm').iterdir()) == []
    assert '0 dead segments' in only(machine.shared(root)).value
    (root / 'dev/shm').rmdir()
    assert only(machine.shared(root)).how == 'bad'


def test_a_discovery_server_needs_no_multicast(root, monkeypatch):
    put(root, 'sys/class/net/enp1s0/flags', '0x3\n')
    monkeypatch.setenv('ROS_DISCOVERY_SERVER', '192.168.1.5:11811')
    assert only(machine.interfaces(root)).how == 'ok'


def test_a_probe_that_breaks_is_a_line_and_the_next_ones_still_come(tmp_path):
    def refuses():
        yield Finding('ok', 'first', 'half')
        raise UserError('The disk is too full', '1 GB is free', 'Make room')

    found = [*findings('memory', lambda: machine.memory(tmp_path)), *findings('disk', refuses)]
    assert [f.how for f in found] == ['warn', 'ok', 'bad']
    assert 'memory: could not be looked at: FileNotFoundError' in found[0].text
    assert found[2].text == 'bad  disk: The disk is too full. 1 GB is free. Make room.'


def test_a_system_of_which_nothing_can_be_read_gets_a_line_a_thing(tmp_path, monkeypatch, capsys):
    def nowhere(*_: object, **__: object) -> None:
        raise RuntimeError('out of order')

    for name in ('memory', 'shared', 'buffers', 'interfaces', 'clock', 'limits', 'usb'):
        monkeypatch.setattr(machine, name, nowhere)
    monkeypatch.setattr(doctor, 'interpreters', nowhere)
    monkeypatch.chdir(tmp_path)
    code = doctor.report(doctor.examine())
    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert sum('could not be looked at: RuntimeError: out of order' in line for line in lines) == 8
    assert lines[-1].startswith('ok   ROS domain: ')


def test_doctor_says_a_line_a_thing_and_0_when_nothing_is_bad(tmp_path):
    done = subprocess.run(
        [USER, 'doctor'], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    lines = done.stdout.splitlines()
    assert all(line.startswith(('ok   ', 'warn ', 'bad  ')) for line in lines), done.stdout
    assert done.stderr == ''
    whats = [line[5:].partition(':')[0] for line in lines]
    for what in (
        'ROS 2', 'middleware', 'GPU', 'memory', 'shared memory', 'disk', 'real-time limits',
        'kernel', 'CPU governor', 'clock', 'socket buffers', 'discovery', 'ROS domain',
    ):  # fmt: skip
        assert what in whats, done.stdout
    assert any(line.startswith('ok   interpreter ') and 'torch' in line for line in lines)
    assert all('mend: ' in line for line in lines if line.startswith('warn'))
    assert done.returncode == int(any(line.startswith('bad') for line in lines))


def test_a_page_that_cannot_run_here_is_bad_with_the_line_that_helps(tmp_path, monkeypatch):
    torch = pytest.importorskip('torch')
    if torch.cuda.is_available():
        monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    command = [USER, 'doctor', 'peg_rlpd', 'learner.device=cuda', f'runs={tmp_path}']
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 1, done.stdout
    bad = [line for line in done.stdout.splitlines() if line.startswith('bad')]
    assert len(bad) == 1, done.stdout
    assert 'learner.device=cpu' in bad[0]
    assert 'socket buffers: ' in done.stdout
    done = subprocess.run(
        [USER, 'doctor', 'peg_rlpd', 'machine=nowhere'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert 'no machine nowhere' in done.stderr


def test_a_full_disk_and_a_domain_that_does_not_exist_are_bad(tmp_path, monkeypatch):
    usage = type('Usage', (), {'free': 10**6})
    monkeypatch.setattr('shutil.disk_usage', lambda _: usage)
    page = load('peg_rlpd', [f'runs={tmp_path}'])
    assert only(findings('disk', lambda: doctor.disk(page))).how == 'bad'
    monkeypatch.setenv('ROS_DOMAIN_ID', '300')
    found = only(findings('ROS domain', lambda: doctor.domain(None, None)))
    assert (found.how, '232' in found.value) == ('bad', True)
    assert os.environ['ROS_DOMAIN_ID'] == '300'
