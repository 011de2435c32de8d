# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The plan: which nodes a configuration starts, where, and how. `user run` and launch render it.

The list's order is the order of starting. Ending goes by stages, so that the run stops asking
first, then episodes close, then all who served them, then arms, when nobody commands them any
more, at last the simulated devices that arms let go of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
import json
from pathlib import Path

from user_core.config import Cell, RunConfig
from user_core.errors import UserError

# Numeric libraries would otherwise take every core from the arm.
_ONE_THREAD = {'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1', 'MKL_NUM_THREADS': '1'}

# glibc returns every half megabyte to the kernel and faults it in again at each update; huge pages
# make an update with pictures 3 to 7 % shorter.
_KEEP_MEMORY = {
    'THP_MEM_ALLOC_ENABLE': '1',
    'MALLOC_MMAP_THRESHOLD_': '1000000000',
    'MALLOC_TRIM_THRESHOLD_': '1000000000',
    'MALLOC_TOP_PAD_': '67108864',
}

DEVICE, ARM, SERVANT, EPISODE, RUN = range(5)
"""Stages of ending; the highest one comes first."""
ARM_END_S = 15.0
"""An arm holds, parks and lets go within this."""
DEVICES = {'franka_sim': 'franka_server', 'arx_sim': 'arx_bus'}
"""The simulated device that an arm's driver talks to, by the arm's kind: a process without ROS."""


@dataclass(frozen=True)
class NodeSpec:
    """One process.

    Attributes:
        package: ROS package that holds the executable.
        executable: its name there.
        name: node's name in the graph.
        namespace: absolute, `/` for none.
        machine: key of the configuration's machines.
        respawn: start it again when it dies (never after exit code 2: a UserError stays one).
        nice: added to the scheduling priority; negative is more urgent.
        env: added to the environment.
        required: the run ends when it is gone for good.
        end_s: time it gets to end in its own order, also after a second Ctrl-C.
        stage: who ends with whom: DEVICE, ARM, SERVANT, EPISODE or RUN.
    """

    package: str
    executable: str
    name: str
    namespace: str
    machine: str
    respawn: bool = True
    nice: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    required: bool = True
    end_s: float = 0.0
    stage: int = SERVANT

    @property
    def path(self) -> str:
        """Absolute name of the node in the graph."""
        return f'{self.namespace.rstrip("/")}/{self.name}'


def plan(config: RunConfig, machine: str | None = None) -> list[NodeSpec]:
    """The processes of a run, or of one machine of it.

    Raises:
        UserError: no such machine, or one without a node.
    """
    if machine is not None and machine not in config.machines:
        raise UserError(
            f'There is no machine {machine}', f'the page lists {", ".join(config.machines)}'
        )
    trains = config.evaluate is None
    cells = config.cells.items()
    nodes = [
        _cell('user_sim', DEVICES[cell.arm.kind], name, cell, DEVICE, nice=-15)
        for name, cell in cells
        if cell.arm.kind in DEVICES
    ]
    nodes += [
        _cell('user_robot', 'arm', name, cell, ARM, nice=-10, end_s=ARM_END_S)
        for name, cell in cells
    ]
    nodes += [node for name, cell in cells for node in _cameras(name, cell)]
    nodes.append(_learning('replay', config.replay.machine))
    if trains:
        nodes.append(
            _learning(
                'learner',
                config.learner.machine,
                # In lockstep nobody waits for a clock, so the learner need not stand back.
                nice=10 if config.pace == 'realtime' else 0,
                env=_KEEP_MEMORY | {key: str(config.learner.threads) for key in _ONE_THREAD},
            )
        )
    nodes.append(_learning('policy', config.policy.machine, nice=-5))
    nodes += [
        _cell('user_sim', 'expert', name, cell)
        for name, cell in cells
        if trains and cell.teleop is not None and cell.teleop.kind == 'script'
    ]
    nodes += [
        _cell('user_robot', 'episode', name, cell, EPISODE, nice=-10) for name, cell in cells
    ]
    run = NodeSpec(
        'user_core', 'run', 'run', '/', config.replay.machine, False, env=_ONE_THREAD, stage=RUN
    )
    here = [node for node in (*nodes, run) if machine in (None, node.machine)]
    if not here:
        raise UserError(f'The page places nothing on machine {machine}')
    return here


def machine_of(config: RunConfig, path: str) -> str:
    """The machine that a node of the graph belongs to; '' for a node that no plan has."""
    return next((node.machine for node in plan(config) if node.path == path), '')


def part_of(nodes: list[NodeSpec], executables: Sequence[str]) -> list[NodeSpec]:
    """Those of the executables; an arm brings its simulated device.

    Raises:
        UserError: there is none of one.
    """
    there = {node.executable for node in nodes}
    for name in executables:
        if name not in there:
            raise UserError(f'The plan has no {name}', f'it has {", ".join(sorted(there))}')
    wanted = {*executables, *(DEVICES.values() if 'arm' in executables else ())}
    return [node for node in nodes if node.executable in wanted]


def _cameras(name: str, cell: Cell) -> list[NodeSpec]:
    """A process for each device, one for all that are drawn."""
    drawn = [c for c in cell.cameras.values() if c.kind == 'sim']
    nodes = [_cell('user_sim', 'cameras', name, cell, nice=-5)] if drawn else []
    return nodes + [
        NodeSpec(
            'user_robot', 'camera', 'camera', f'/{name}/{camera}', section.machine or cell.machine,
            nice=-5, env=_ONE_THREAD,
        )
        for camera, section in cell.cameras.items()
        if section.kind != 'sim'
    ]  # fmt: skip


def _cell(
    package: str,
    executable: str,
    name: str,
    cell: Cell,
    stage: int = SERVANT,
    nice: int = 0,
    end_s: float = 0.0,
) -> NodeSpec:
    return NodeSpec(
        package, executable, executable, f'/{name}', cell.machine, nice=nice, env=_ONE_THREAD,
        end_s=end_s, stage=stage,
    )  # fmt: skip


def _learning(
    name: str, machine: str, nice: int = 0, env: Mapping[str, str] = _ONE_THREAD
) -> NodeSpec:
    return NodeSpec('user_learning', name, name, '/learning', machine, nice=nice, env=env)


def plan_json(config: RunConfig, run: str, folder: Path, machine: str | None = None) -> str:
    """The plan as a launch file needs it: a JSON list of nodes with their parameters."""
    parameters = {'config': config.to_json(), 'run': run, 'run_folder': str(folder)}
    return json.dumps(
        [{**asdict(node), 'parameters': parameters} for node in plan(config, machine)], indent=1
    )
