# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What `user doctor` asks this machine's kernel: memory, network, clock, real time, USB.

Every probe reads below a root folder, `/` by default, and yields Findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import ctypes
import os
from pathlib import Path
import resource
import shutil

from user_core import shared_memory
from user_core.finding import Finding, How

ROOT = Path('/')
BUFFER_BYTES = 4 << 20
"""Sixteen messages of 256 KiB, the most that is under way on one topic."""
FRAGMENTS = {'ipfrag_time': 3, 'ipfrag_high_thresh': 128 << 20}
"""ROS 2's advice for lossy links (docs.ros.org, DDS tuning): a lost fragment blocks the buffer for
a short time only, and the buffer is large.
"""
ENOUGH_SHARED_BYTES = 256 << 20
ENOUGH_MEMORY_BYTES = 2 << 30
RTPRIO, MEMLOCK_BYTES = 80, 1 << 30
REALSENSE, SPACEMOUSE = '8086', ('256f', '046d')
SUPER_SPEED = 5000
"""Mbit/s of a USB 3 port."""
_UP, _LOOPBACK, _MULTICAST = 0x1, 0x8, 0x1000  # man 7 netdevice
_CAP_SYS_NICE = 23
_UNSYNCHRONISED = 0x40  # STA_UNSYNC, man 2 adjtimex


def memory(root: Path = ROOT) -> Iterator[Finding]:
    """Memory that is free without swapping."""
    for line in (root / 'proc/meminfo').read_text().splitlines():
        if line.startswith('MemAvailable:'):
            free = int(line.split()[1]) * 1024
            good = free >= ENOUGH_MEMORY_BYTES
            mend = '' if good else 'end other programs, or lower replay.window_rows'
            yield Finding('ok' if good else 'warn', 'memory', f'{free / 2**30:.1f} GB free', mend)


def shared(root: Path = ROOT) -> Iterator[Finding]:
    """Shared memory: its room, and what killed processes left, which is removed."""
    folder = root / 'dev/shm'
    if not folder.is_dir():
        mend = 'sudo mount -t tmpfs tmpfs /dev/shm'
        yield Finding('bad', 'shared memory', 'there is no /dev/shm', mend)
        return
    dead = shared_memory.clean(folder)
    usage = shutil.disk_usage(folder)
    text = f'{usage.total / 1e9:.1f} GB, {usage.free / 1e9:.1f} GB free'
    text += f'; {dead.text or "0 dead segments"}'
    small = usage.free < ENOUGH_SHARED_BYTES
    mend = 'sudo mount -o remount,size=2G /dev/shm (a container: --ipc=host or --shm-size=2g)'
    if dead.foreign:
        yield Finding('warn', 'shared memory', text, 'sudo env "PATH=$PATH" user doctor')
    else:
        yield Finding('warn' if small else 'ok', 'shared memory', text, mend if small else '')


def buffers(root: Path = ROOT, several: bool = True) -> Iterator[Finding]:
    """Sizes of UDP buffers. Fast DDS leaves them at the default, so that counts, not the limit. On
    one machine messages go through shared memory.
    """
    core = root / 'proc/sys/net/core'
    sizes = {name: int((core / name).read_text()) for name in ('rmem_default', 'wmem_default')}
    text = ', '.join(f'{name} {size // 1024} KiB' for name, size in sizes.items())
    good = min(sizes.values()) >= BUFFER_BYTES
    keys = ('rmem_default', 'rmem_max', 'wmem_default', 'wmem_max')
    mend = 'between machines: sudo sysctl -w ' + ' '.join(
        f'net.core.{key}={BUFFER_BYTES}' for key in keys
    )
    if not several:
        yield Finding('ok', 'socket buffers', f'{text}; one machine needs no more')
        return
    yield Finding('ok' if good else 'warn', 'socket buffers', text, '' if good else mend)
    ip = root / 'proc/sys/net/ipv4'
    values = {name: int((ip / name).read_text()) for name in FRAGMENTS}
    good = values['ipfrag_time'] <= FRAGMENTS['ipfrag_time'] and (
        values['ipfrag_high_thresh'] >= FRAGMENTS['ipfrag_high_thresh']
    )
    text = ', '.join(f'{name} {value}' for name, value in values.items())
    mend = 'over Wi-Fi: sudo sysctl -w ' + ' '.join(
        f'net.ipv4.{name}={value}' for name, value in FRAGMENTS.items()
    )
    yield Finding('ok' if good else 'warn', 'IP fragments', text, '' if good else mend)


def interfaces(root: Path = ROOT) -> Iterator[Finding]:
    """Whether discovery by multicast has an interface to go out by."""
    server = os.environ.get('ROS_DISCOVERY_SERVER')
    if server:
        yield Finding('ok', 'discovery', f'by the server {server}; USER looks as a super client')
        return
    found: list[str] = []
    mute: list[str] = []
    for place in sorted((root / 'sys/class/net').iterdir()):
        flags = int((place / 'flags').read_text(), 16)
        if flags & _UP and not flags & _LOOPBACK:
            (found if flags & _MULTICAST else mute).append(place.name)
    scope = os.environ.get('ROS_AUTOMATIC_DISCOVERY_RANGE') or 'SUBNET'
    text = f'range {scope}, multicast on {", ".join(found) or "no interface"}'
    if mute:
        text += f', not on {", ".join(mute)}'
    if found or scope in ('LOCALHOST', 'OFF'):
        yield Finding('ok', 'discovery', text)
    else:
        mend = 'sudo ip link set dev eth0 multicast on, or set ROS_DISCOVERY_SERVER'
        yield Finding('warn', 'discovery', f'{text}: other machines are not found', mend)


class _Timex(ctypes.Structure):
    """struct timex (man 2 adjtimex), as far as it is read here."""

    _fields_ = (
        ('modes', ctypes.c_uint), ('offset', ctypes.c_long), ('freq', ctypes.c_long),
        ('maxerror', ctypes.c_long), ('esterror', ctypes.c_long), ('status', ctypes.c_int),
        ('rest', ctypes.c_byte * 256),
    )  # fmt: skip


def kernel_clock() -> tuple[bool, float]:
    """Whether something keeps the system's clock, and the kernel's bound of its error, s."""
    timex = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        raise OSError(ctypes.get_errno(), 'adjtimex')
    return not timex.status & _UNSYNCHRONISED, timex.maxerror / 1e6


def clock(
    several: bool = True, kept: Callable[[], tuple[bool, float]] = kernel_clock
) -> Iterator[Finding]:
    """Whether the clock is kept: stamps of several machines are compared."""
    good, error_s = kept()
    if good:
        yield Finding('ok', 'clock', f'kept, off by {1e3 * error_s:.0f} ms at most')
    elif not several:
        yield Finding('ok', 'clock', 'nothing keeps it; one machine needs nothing')
    else:
        mend = 'with several machines: sudo apt-get install -y chrony'
        yield Finding('warn', 'clock', 'nothing keeps it (NTP, PTP)', mend)


def limits(root: Path = ROOT, franka: bool = False) -> Iterator[Finding]:
    """What this user may ask of the scheduler, and whether memory may be locked."""
    status = (root / 'proc/self/status').read_text()
    may_all = any(
        line.startswith('CapEff:') and int(line.split()[1], 16) >> _CAP_SYS_NICE & 1
        for line in status.splitlines()
    )
    wanted = {'rtprio': RTPRIO, 'nice': 35, 'memlock': MEMLOCK_BYTES}
    texts, lacks = [], []
    for name, enough in wanted.items():
        limit = resource.getrlimit(getattr(resource, f'RLIMIT_{name.upper()}'))[1]
        endless = limit == resource.RLIM_INFINITY
        if not (endless or limit >= enough or may_all):
            lacks.append(name)
        shown = 20 - limit if name == 'nice' else limit
        texts.append(f'{name} {"unlimited" if endless else shown}')
    text = ', '.join(texts) + ('; CAP_SYS_NICE stands above them' if may_all else '')
    mend = 'docs/robot_computer.md, "Limits", then log in again'
    how: How = 'ok' if not lacks else 'bad' if franka and 'rtprio' in lacks else 'warn'
    yield Finding(how, 'real-time limits', text, mend if lacks else '')


def kernel(root: Path = ROOT, franka: bool = False) -> Iterator[Finding]:
    """Whether the kernel is a real-time one."""
    real = root / 'sys/kernel/realtime'
    version = (root / 'proc/sys/kernel/version').read_text()
    good = (real.exists() and real.read_text().strip() == '1') or 'PREEMPT_RT' in version
    release = (root / 'proc/sys/kernel/osrelease').read_text().strip()
    if good:
        yield Finding('ok', 'kernel', f'{release}, real time')
    elif franka:
        mend = 'sudo pro enable realtime-kernel (Ubuntu), see docs/robot_computer.md'
        yield Finding('warn', 'kernel', f'{release}, not real time', mend)
    else:
        yield Finding('ok', 'kernel', f'{release}, not real time: a Franka would want that')


def governor(root: Path = ROOT) -> Iterator[Finding]:
    """Whether the processor sleeps between two control periods."""
    places = (root / 'sys/devices/system/cpu').glob('cpu[0-9]*/cpufreq/scaling_governor')
    modes = sorted({place.read_text().strip() for place in places})
    if not modes:
        yield Finding('ok', 'CPU governor', 'the system has none')
    elif modes == ['performance']:
        yield Finding('ok', 'CPU governor', 'performance')
    else:
        mend = "sudo sh -c 'echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/"
        mend += "scaling_governor'"
        yield Finding('warn', 'CPU governor', ', '.join(modes), mend)


def usb(root: Path = ROOT) -> Iterator[Finding]:
    """Cameras and SpaceMice that are plugged in: the port's speed, and whether we may use them."""
    seen = False
    devices = root / 'sys/bus/usb/devices'
    for place in sorted(devices.iterdir()) if devices.is_dir() else ():
        vendor, product = _line(place / 'idVendor'), _line(place / 'product')
        if vendor == REALSENSE and 'realsense' in product.lower():
            seen = True
            yield _realsense(root, place, product)
    for place in sorted((root / 'sys/class/hidraw').glob('hidraw*')):
        told = _line(place / 'device/uevent', 'HID_ID').split(':')
        name = _line(place / 'device/uevent', 'HID_NAME')
        if len(told) == 3 and told[1][-4:].lower() in SPACEMOUSE and 'space' in name.lower():
            seen = True
            yield _spacemouse(root / 'dev' / place.name, name)
    if not seen:
        yield Finding('ok', 'USB devices', 'no RealSense and no SpaceMouse is plugged in')


def _realsense(root: Path, place: Path, product: str) -> Finding:
    speed = int(float(_line(place / 'speed') or 0))
    bus, number = int(_line(place / 'busnum') or 0), int(_line(place / 'devnum') or 0)
    node = root / f'dev/bus/usb/{bus:03}/{number:03}'
    text = f'{product} {_line(place / "serial")}'.strip() + f' at {speed} Mbit/s'
    if not os.access(node, os.R_OK | os.W_OK):
        mend = 'the udev rules of docs/robot_computer.md, then unplug it and plug it in'
        return Finding('bad', 'RealSense', f'{text}, {node} may not be opened', mend)
    if speed < SUPER_SPEED:
        return Finding('warn', 'RealSense', text, 'plug it into a USB 3 port, with a USB 3 cable')
    return Finding('ok', 'RealSense', text)


def _spacemouse(node: Path, name: str) -> Finding:
    if os.access(node, os.R_OK | os.W_OK):
        return Finding('ok', 'SpaceMouse', f'{name}, {node}')
    mend = 'the udev rules of docs/robot_computer.md, then unplug it and plug it in'
    return Finding('bad', 'SpaceMouse', f'{name}, {node} may not be opened', mend)


def _line(path: Path, key: str = '') -> str:
    """A file's first line, or what stands behind `key=` in it; '' where there is none."""
    try:
        text = path.read_text(errors='replace')
    except OSError:
        return ''
    lines = [line.strip() for line in text.splitlines()]
    if not key:
        return lines[0] if lines else ''
    return next((line.partition('=')[2] for line in lines if line.startswith(f'{key}=')), '')
