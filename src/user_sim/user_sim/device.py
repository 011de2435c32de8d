# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a simulated device of a plan knows: its parameters, read without ROS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import yaml

from user_core.config import Cell, RunConfig, from_json
from user_core.errors import UserError


@dataclass(frozen=True)
class Place:
    """The part of a plan that a device is."""

    config: RunConfig
    cell_name: str
    run: str
    folder: Path

    @property
    def cell(self) -> Cell:
        """Its cell."""
        return self.config.cells[self.cell_name]


def placed(arguments: Sequence[str]) -> Place:
    """Reads `--params-file FILE` and `-r __ns:=/CELL`, as every node of a plan is given them.

    Raises:
        UserError: they are not there, or name no cell.
    """
    values: dict[str, str] = {}
    name = ''
    for flag, value in pairwise(arguments):
        if flag == '--params-file':
            for node in yaml.safe_load(Path(value).read_text()).values():
                values |= node['ros__parameters']
        elif flag in ('-r', '--remap') and value.startswith('__ns:='):
            name = value.removeprefix('__ns:=').strip('/')
    missing = {'config', 'run', 'run_folder'} - set(values)
    if missing:
        raise UserError(
            f'a simulated device has no parameter {min(missing)}',
            'it is a part of a plan',
            'start it with `user run`, or by hand with its own options alone',
        )
    config = from_json(values['config'], 'parameter config')
    if name not in config.cells:
        raise UserError(
            f'there is no cell {name or "/"}', f'the page lists {", ".join(config.cells)}'
        )
    return Place(config, name, values['run'], Path(values['run_folder']))
