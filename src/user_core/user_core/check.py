# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Looks whether a run can start here: interpreters, libraries, GPU, disk, ports, domain."""

from __future__ import annotations

from collections.abc import Iterator
import json
import os
from pathlib import Path
import shutil
import socket
import subprocess
import time

from user_core.config import RunConfig
from user_core.errors import UserError
from user_core.footprint import GB, Footprint, available_memory
from user_core.plan import NodeSpec
from user_core.runner import find_executable

MODULES = {
    'user_core': ('rclpy', 'user_msgs.msg', 'matplotlib', 'tensorboard'),
    'user_robot': ('rclpy', 'user_msgs.msg', 'scipy'),
    'user_sim': ('rclpy', 'user_msgs.msg', 'mujoco'),
    'user_learning': ('rclpy', 'user_msgs.msg', 'torch', 'safetensors', 'tensorboard'),
}
"""What the nodes of a package import besides our own packages."""

DISCOVERY_S = 3.0
"""Time in which a live node on this machine answers discovery: 0.1 s, or 2 s on a busy one."""

LAST_DOMAIN = 232
"""Above it DDS has no ports."""

_PROBE = """
import importlib, json, sys
found = {}
for name in sys.argv[2:]:
    try:
        found[name] = [True, str(getattr(importlib.import_module(name), '__version__', ''))]
    except Exception as error:
        found[name] = [False, f'{type(error).__name__}: {error}']
if sys.argv[1] == 'cuda' and found.get('torch', [False])[0]:
    torch = sys.modules['torch']
    found['cuda'] = [torch.cuda.is_available(), torch.version.cuda or 'a build without CUDA']
print(json.dumps(found))
"""


def interpreter(node: NodeSpec) -> Path:
    """The Python that the node's script names in its first line."""
    script = find_executable(node.package, node.executable)
    with script.open('rb') as file:
        first = file.readline().decode(errors='replace').strip()
    return Path(first.removeprefix('#!').split()[-1])


def imports(nodes: list[NodeSpec], cuda: bool) -> Iterator[str]:
    """One line for each interpreter that the nodes use, with the versions it has.

    Raises:
        UserError: an interpreter lacks a library, or a GPU that the page asks for.
    """
    wanted: dict[Path, set[str]] = {}
    for node in nodes:
        wanted.setdefault(interpreter(node), set()).update(MODULES[node.package])
    for python, modules in wanted.items():
        yield f'interpreter {python}: {probe(python, sorted(modules), cuda)}'


def probe(python: Path, modules: list[str], cuda: bool) -> str:
    """Versions of the modules in an interpreter.

    Raises:
        UserError: it does not start, lacks one, or sees no GPU although `cuda` asks for one.
    """
    command = [str(python), '-c', _PROBE, 'cuda' if cuda else '', *modules]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise UserError(f'{python} does not run', str(error), 'Run `make setup`') from error
    for module in modules:
        good, text = found[module]
        if not good:
            raise UserError(f'{python} cannot import {module}', text, 'Run `make setup`')
    if cuda and not found.get('cuda', [True])[0]:
        raise UserError(
            'The page asks for a GPU and there is none that torch can use',
            f'torch {found["torch"][1]} has {found["cuda"][1]}',
            'Install a CUDA build of torch and the driver, or set learner.device=cpu '
            'policy.device=cpu',
        )
    return ', '.join(f'{m} {found[m][1]}'.strip() for m in modules)


def asks_for_gpu(config: RunConfig) -> bool:
    """Whether any part of the page computes on CUDA."""
    return 'cuda' in (config.learner.device, config.policy.device)


def gpu(config: RunConfig, nodes: list[NodeSpec]) -> None:
    """Refuses a page that asks for a GPU that is not there.

    Raises:
        UserError: with the one line that helps.
    """
    learning = [node for node in nodes if node.package == 'user_learning']
    if asks_for_gpu(config) and learning:
        probe(interpreter(learning[0]), ['torch'], cuda=True)


def disk(config: RunConfig) -> str:
    """Free and needed space where the run folders are.

    Raises:
        UserError: there is less than the budget may fill.
    """
    place = Path(config.runs).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    need = Footprint.of(config).disk_bytes
    text = f'{free / 1e9:.1f} GB free in {place}, the run takes at most about {need / 1e9:.1f} GB'
    if free < need:
        raise UserError('The disk is too full', text, 'Make room, or set runs=FOLDER elsewhere')
    return text


def memory(config: RunConfig, nodes: list[NodeSpec]) -> str:
    """What the learner takes, when it is one of these nodes.

    Raises:
        UserError: this machine has less.
    """
    if all(node.executable != 'learner' for node in nodes):
        return 'memory: the learner is elsewhere'
    footprint = Footprint.of(config)
    footprint.refuse_memory()
    return f'memory: {footprint.memory_text}, {available_memory() / GB:.1f} GB are free'


def port(config: RunConfig) -> str:
    """Whether the curves can be served.

    Raises:
        UserError: somebody listens there already.
    """
    number = config.tensorboard_port
    if number is None:
        return 'curves are not served (tensorboard_port)'
    with socket.socket() as probe_socket:
        probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe_socket.bind(('127.0.0.1', number))
        except OSError as error:
            raise UserError(
                f'Port {number} is in use',
                'another program listens there',
                f'Set tensorboard_port={number + 1}, or null to serve no curves',
            ) from error
    return f'port {number} is free'


def domain(config: RunConfig, machine: str | None = None) -> str:
    """Whether the cells' names are free on the ROS domain; takes DISCOVERY_S.

    Raises:
        UserError: a cell of the same name is alive, or the domain cannot be joined.
    """
    from user_core.guest import Guest  # ROS is slow to import

    here = {n for n, cell in config.cells.items() if machine in (None, cell.machine)}
    number = os.environ.get('ROS_DOMAIN_ID') or '0'
    if not (number.isdecimal() and int(number) <= LAST_DOMAIN):  # the middleware would just exit
        raise UserError(
            f'ROS_DOMAIN_ID is {number}', f'domains are 0 ... {LAST_DOMAIN}', 'Set one of them'
        )
    try:
        guest = Guest(f'check_{os.getpid()}')
    except Exception as error:
        raise UserError(f'ROS domain {number} cannot be joined', str(error)) from error
    with guest:
        until = time.monotonic() + DISCOVERY_S
        while time.monotonic() < until:
            time.sleep(0.1)
            for name, namespace in guest.node.get_node_names_and_namespaces():
                if namespace.strip('/') in here and name in ('arm', 'episode'):
                    raise UserError(
                        f'A cell named {namespace.strip("/")} is alive on ROS domain {number}',
                        'two cells of one name would command the same arm',
                        'End the other run, name the cell differently, or set ROS_DOMAIN_ID',
                    )
    return f'ROS domain {number}: no cell named {", ".join(sorted(here))} is alive'
