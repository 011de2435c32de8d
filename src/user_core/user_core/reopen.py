# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Goes on with a run that has ended or was killed: finds it, decides what it is now, waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
import time

from user_core import check, gate, resume, run_folder
from user_core.config import RunConfig, load
from user_core.errors import UserError
from user_core.journal import NAME, Journal
from user_core.run_lock import LEAVE_S
from user_core.tally import Tally


@dataclass(frozen=True)
class Reopened:
    """A run that goes on.

    Attributes:
        folder: its folder on this machine.
        config: its own configuration with what the line changes.
        kept: a line for each thing that the page says otherwise and nobody asked for.
    """

    folder: Path
    config: RunConfig
    kept: list[str]


def reopen(source: str, settings: Sequence[str], resumed: str, machine: str | None) -> Reopened:
    """The run `resumed` (latest, a name or a folder) under the line's page and settings.

    Raises:
        UserError: there is no such run, it is of another page, or the line changes what may not
            change.
    """
    try:
        page = load(source, settings)
    except UserError:  # a setting for a part that the run has and the page does not
        page = load(source)
    latest = resumed == 'latest'
    folder = run_folder.find(None if latest else resumed, page.runs)
    before = load(folder / 'config.json')
    if page.name != before.name:
        raise UserError(
            f'{folder} is a run of {before.name}, not of {page.name}',
            'a run goes on under its own page',
            f'Use `user run {before.name} resume={folder.name}`',
        )
    config = load(folder / 'config.json', settings)
    resume.refuse_changes(before, config)
    if machine and latest and len(config.machines) > 1:
        raise UserError(
            f'The part of machine {machine} needs the name of the run',
            'what is latest may differ between machines',
            f'Give every machine the same name, e.g. resume={folder.name}',
        )
    config = config.model_copy(update={'runs': str(folder.parent)})
    return Reopened(folder, config, resume.kept(config, page))


def reached(config: RunConfig, folder: Path) -> str:
    """What to say of a run that has nothing left to do, or ''.

    Raises:
        UserError: it used its budget; or its journal is damaged.
    """
    tally = Tally(config.evaluation.gate_window, Journal(folder / NAME).events)
    if tally.over is None:
        return ''
    if config.evaluate:
        return f'{folder.name} has judged already: see report.json' if tally.best else ''
    rule = config.evaluation
    if gate.solved(tally, rule):
        return (
            f'{config.name}: {folder.name} has reached its goal already:'
            f' {rule.consecutive}/{rule.consecutive} consecutive autonomous successes'
        )
    if not tally.over['why'] and tally.env_steps >= config.budget.env_steps:
        raise UserError(
            f'The run {folder.name} has used its budget of {config.budget.env_steps} training'
            ' steps',
            'it ended in order, without its goal',
            f'Give it more on this line, e.g. budget.env_steps={2 * config.budget.env_steps}',
        )
    return ''


def domain(config: RunConfig, machine: str | None, say: Callable[[str], None]) -> None:
    """Waits until no cell of the killed run is alive on the ROS domain.

    Raises:
        UserError: one still is, after a while.
    """
    deadline, told = time.monotonic() + LEAVE_S, False
    while True:
        try:
            check.domain(config, machine)
            return
        except UserError:
            if time.monotonic() > deadline:
                raise
            if not told:
                told = True
                say('waits for the cells of the killed run to leave the ROS domain')
            time.sleep(0.5)
