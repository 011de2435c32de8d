# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""`user doctor`: one line for each thing that a run depends on, with what mends it.

Every probe is a small function; what goes wrong in one becomes a line. Nothing is changed but dead
shared memory, which is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
import json
import os
from pathlib import Path
import subprocess
import sys

from user_core import check, machine, run_folder, shared_memory
from user_core.config import RunConfig, load
from user_core.errors import UserError
from user_core.finding import Finding, findings
from user_core.plan import NodeSpec, plan

DISTRIBUTION, MIDDLEWARE = 'jazzy', 'rmw_fastrtps_cpp'

_GPU = """
import json, torch
there = torch.cuda.is_available()
name = torch.cuda.get_device_name() if there else ''
print(json.dumps([there, name, torch.__version__, torch.version.cuda or '']))
"""


def examine(
    config: RunConfig | None = None, machine_name: str | None = None, run: str | None = None
) -> Iterator[Finding]:
    """All findings, as they come.

    Args:
        config: the page that shall run here; None: what concerns no page.
        machine_name: the machine of the page that this one is; None: any.
        run: a run's name or folder; None: the latest, if it lives.
    """
    live = _living(run)
    page = config or (live[0] if live else None)
    shipped = page or load('peg_rlpd')
    nodes = plan(shipped, machine_name)
    several = page is None or len(page.machines) > 1
    here = [c for c in shipped.cells.values() if machine_name in (None, c.machine)]
    franka = any(cell.arm.kind == 'franka' for cell in here)
    wanted: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ('ROS 2', ros),
        ('middleware', middleware),
        ('interpreters', partial(interpreters, nodes)),
        ('GPU', partial(gpu, page, nodes)),
        ('memory', machine.memory),
        ('shared memory', machine.shared),
        ('disk', partial(disk, page)),
        ('real-time limits', partial(machine.limits, franka=franka)),
        ('kernel', partial(machine.kernel, franka=franka)),
        ('CPU governor', machine.governor),
        ('USB devices', machine.usb),
        ('clock', partial(machine.clock, several)),
        ('socket buffers', partial(machine.buffers, several=several)),
        ('discovery', machine.interfaces),
    ]
    if page is not None:
        wanted.append(('memory of the run', partial(rows, page, nodes)))
    if live:
        wanted.append(('run', partial(present, *live)))
    else:
        wanted.append(('ROS domain', partial(domain, page, machine_name)))
    for what, probe in wanted:
        yield from findings(what, probe)


def ros() -> Iterator[Finding]:
    """Which ROS 2 this is, and from where."""
    try:
        import rclpy
    except Exception as error:
        yield Finding('bad', 'ROS 2', f'rclpy cannot be imported: {error}', 'make setup')
        return
    distribution = os.environ.get('ROS_DISTRO') or f'{DISTRIBUTION}, as wheels'
    text = f'{distribution}, {Path(rclpy.__file__).parent}'
    if distribution.startswith(DISTRIBUTION):
        yield Finding('ok', 'ROS 2', text)
    else:
        mend = f'source /opt/ros/{DISTRIBUTION}/setup.bash in a new shell, then make setup'
        yield Finding('bad', 'ROS 2', f'{text}: USER is built for {DISTRIBUTION}', mend)


def middleware() -> Iterator[Finding]:
    """Which middleware carries the messages."""
    from rclpy.utilities import get_rmw_implementation_identifier

    name = get_rmw_implementation_identifier()
    if name == MIDDLEWARE:
        yield Finding('ok', 'middleware', name)
    else:
        mend = f'export RMW_IMPLEMENTATION={MIDDLEWARE}'
        yield Finding('warn', 'middleware', f'{name}: tested is {MIDDLEWARE}', mend)


def interpreters(nodes: list[NodeSpec]) -> Iterator[Finding]:
    """Every interpreter that nodes are started with, and the libraries it has."""
    for line in check.imports(nodes, cuda=False):
        where, _, versions = line.partition(': ')
        yield Finding('ok', where, versions)


def gpu(page: RunConfig | None, nodes: list[NodeSpec]) -> Iterator[Finding]:
    """What the learner and the policy can compute on."""
    learning = [node for node in nodes if node.package == 'user_learning']
    if not learning:
        yield Finding('ok', 'GPU', 'not asked for: learner and policy are elsewhere')
        return
    if page is not None:
        check.gpu(page, learning)
    command = [str(check.interpreter(learning[0])), '-c', _GPU]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    there, name, torch, cuda = json.loads(done.stdout.splitlines()[-1])
    if there:
        yield Finding('ok', 'GPU', f'{name}, torch {torch}')
    elif Path('/proc/driver/nvidia/version').exists():
        why = f'torch {torch} is built for CUDA {cuda}' if cuda else f'torch {torch} knows no CUDA'
        mend = 'install a CUDA build of torch that fits the driver (nvidia-smi names its CUDA)'
        yield Finding('warn', 'GPU', f'there is one, but {why}', mend)
    else:
        yield Finding('ok', 'GPU', f'none; torch {torch} computes on the CPU')


def disk(page: RunConfig | None) -> Iterator[Finding]:
    """File system and room of the place where runs are kept."""
    runs = Path(page.runs if page else 'runs').absolute()
    text = check.disk(page) if page else _free(runs)
    with suppress(ModuleNotFoundError):  # a robot's computer has no store
        from user_learning.filesystem import kind_of, refuse_network

        refuse_network(runs)
        text = f'{kind_of(runs) or "unknown file system"}, {text}'
    yield Finding('ok', 'disk', text)


def rows(page: RunConfig, nodes: list[NodeSpec]) -> Iterator[Finding]:
    """What the page's learner will take."""
    yield Finding('ok', 'memory of the run', check.memory(page, nodes).removeprefix('memory: '))


def _free(place: Path) -> str:
    free = os.statvfs(next(p for p in (place, *place.parents) if p.exists()))
    return f'{free.f_bavail * free.f_frsize / 1e9:.1f} GB free in {place}'


def domain(page: RunConfig | None, machine_name: str | None) -> Iterator[Finding]:
    """Whether the domain can be joined and the page's cells are not alive on it."""
    if page is None:
        page = load('peg_rlpd', ['cells={doctor: {}}'])
    yield Finding('ok', 'ROS domain', check.domain(page, machine_name).partition(': ')[0][11:])


def present(config: RunConfig, run: str) -> Iterator[Finding]:
    """The nodes and clocks of the run that lives."""
    from user_core import presence  # ROS is slow to import

    seen = presence.look(config, run)
    yield from presence.nodes(config, run, seen)
    yield from presence.clocks(config, seen)


def _living(run: str | None) -> tuple[RunConfig, str] | None:
    """The run to look at, if it lives: it says so, or, where its run node is elsewhere, one of its
    nodes here does.
    """
    try:
        folder = run_folder.find(run)
    except UserError:
        if run is not None:
            raise
        return None
    try:
        alive = run_folder.status(folder)[1] < run_folder.STALE_S
    except UserError:
        alive = shared_memory.alive(folder.name)
    return (load(folder), folder.name) if alive else None


def report(found: Iterable[Finding]) -> int:
    """Prints each finding when it comes; 1 when one is bad, else 0."""
    bad = 0
    for finding in found:
        print(finding.text, flush=True, file=sys.stdout)
        bad += finding.how == 'bad'
    return int(bad > 0)
