# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: created once, never reused, found again by name or as the latest.

Holds config.json (resolved), logs/, params/, and what the nodes write: journal.jsonl, status.json,
report.json, store/, checkpoints/, curves.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
import re
import time
from typing import Any

from user_core.config import RunConfig, weights_hash
from user_core.errors import UserError
from user_core.outcome import Announced

STALE_S = 5.0
"""The run writes its status each second; an older one is called stale."""


def name_of(config: RunConfig, chosen: str | None = None) -> str:
    """The chosen name of a run, or its configuration's name with the time.

    Raises:
        UserError: the chosen name cannot be a folder's and a message's.
    """
    if chosen is None:
        kind = f'{config.name}-eval' if config.evaluate else config.name
        return f'{kind}-{time.strftime("%Y%m%d-%H%M%S")}'
    if not re.fullmatch(r'[A-Za-z0-9][A-Za-z0-9_.-]{0,79}', chosen):
        raise UserError(f'{chosen!r} is no name for a run', 'letters, digits, _ . - are allowed')
    return chosen


def refuse_existing(config: RunConfig, run: str) -> None:
    """Raises UserError: the run's folder is there already."""
    folder = Path(config.runs).absolute() / run
    if folder.exists():
        raise UserError(
            f'The run {run} exists already in {folder.parent}',
            'a run folder is never used twice',
            f'Choose another name with run=NAME, or go on with it: resume={run}',
        )


def create(config: RunConfig, run: str) -> Path:
    """A new folder with config.json; `latest` beside it points to the newest run that trains.

    Raises:
        UserError: it exists, or cannot be written.
    """
    folder = Path(config.runs).absolute() / run
    try:
        folder.mkdir(parents=True)
        _write(folder, config)
    except FileExistsError as error:
        refuse_existing(config, run)
        raise UserError(f'The run folder {folder} cannot be written', str(error)) from error
    except OSError as error:
        raise UserError(f'The run folder {folder} cannot be written', str(error)) from error
    return folder


def reopen(config: RunConfig, folder: Path) -> None:
    """Gives a run that goes on its configuration; the one before is kept as config-<n>.json.

    Raises:
        UserError: it cannot be written.
    """
    try:
        known = folder / 'config.json'
        if json.loads(known.read_text()) != config.model_dump(mode='json'):
            n = 1 + len(list(folder.glob('config-*.json')))
            (folder / f'config-{n}.json').write_bytes(known.read_bytes())
        _write(folder, config)
    except (OSError, ValueError) as error:
        raise UserError(f'The run folder {folder} cannot be written', str(error)) from error


def _write(folder: Path, config: RunConfig) -> None:
    part = folder / 'config.json.part'
    with part.open('w') as file:
        file.write(json.dumps(config.model_dump(mode='json'), indent=1) + '\n')
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / 'config.json')
    if config.evaluate is None:
        latest, new = folder.parent / 'latest', folder.parent / f'.latest-{folder.name}'
        new.unlink(missing_ok=True)
        new.symlink_to(folder.name)
        new.replace(latest)


def find(run: str | None, runs: str = 'runs') -> Path:
    """The folder of a run given by path or name, or the latest.

    Raises:
        UserError: there is none.
    """
    places = [Path(runs) / 'latest'] if run is None else [Path(run), Path(runs) / run]
    for place in places:
        if (place / 'config.json').is_file():
            return place.resolve()
    if run is None:
        raise UserError(f'There is no run in {runs}', '', 'Start one with `user run peg_rlpd`')
    known = [
        p.parent.name
        for p in sorted(Path(runs).glob('*/config.json'))
        if not p.parent.is_symlink()
    ]
    raise UserError(
        f'There is no run {run}',
        f'{runs} holds {", ".join(known[-5:])}' if known else f'{runs} holds none',
        'Give a name from there, or the path of a run folder',
    )


def status(folder: Path) -> tuple[dict[str, Any], float]:
    """What the run last said of itself, and its age in seconds (files' clock).

    Raises:
        UserError: it has not said anything, or not legibly.
    """
    path = folder / 'status.json'
    try:
        return json.loads(path.read_text()), time.time() - path.stat().st_mtime
    except FileNotFoundError as error:
        raise UserError(
            f'The run {folder.name} has no status yet',
            'it has not begun, or ended before it began',
            f'See {folder / "logs"}',
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(f'{path} cannot be read', str(error)) from error


def chosen(folder: Path, config: RunConfig) -> Announced:
    """The weights that a finished run chose, from its own file, checked to be those it judged.

    Raises:
        UserError: the run chose none, the file is missing or another one, or its weights were
            trained for another task, network or rate than `config` has.
    """
    try:
        numbers = json.loads((folder / 'report.json').read_text())
        version, sha256 = numbers['chosen_version'], numbers['chosen_sha256']
    except FileNotFoundError:
        version = None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f'{folder / "report.json"} cannot be read', str(error)) from error
    path = folder.resolve() / 'checkpoints' / f'actor-{version}.safetensors'
    if version is None or not path.exists():
        raise UserError(
            f'{folder} holds no chosen checkpoint',
            f'there is no {path.name}' if version else 'the run never passed an evaluation',
            'choose another run',
        )
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise UserError(
            f'{path} is not the checkpoint that the report names',
            'its content hash differs',
            'restore the file',
        )
    # safetensors: 8 bytes with the header's length, then the header as JSON.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], 'little')])
    trained_as = header.get('__metadata__', {}).get('config_hash')
    if trained_as != weights_hash(config):
        raise UserError(
            f'{path} does not fit this configuration',
            'it was trained for another task, network or control rate',
            'leave out the settings that change them',
        )
    return Announced('actor', version, sha256, path)
