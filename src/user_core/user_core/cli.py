# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The `user` command: run, plan, check, eval, status, doctor, ready, teach.

Settings are `key=value`; besides the page's own keys, `run=NAME` names the run folder,
`resume=latest|NAME|FOLDER` goes on with one, `machine=NAME` starts only that machine's part,
`only=arm` only the arms and their devices, `arm=KIND` chooses every cell's arm, `with=FILE` puts a
fragment over the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
import os
from pathlib import Path
import sys
from typing import Any

from user_core import check, check_arm, reopen, run_folder, run_lock, shared_memory, status
from user_core.config import RunConfig, config_hash, load
from user_core.errors import UserError
from user_core.plan import SERVANT, part_of, plan, plan_json
from user_core.runner import Process, Supervisor, find_executable, may_have, processes

CURVES = 'tensorboard'
"""Folder of TensorBoard's event files in a run folder."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 2 with one sentence after a UserError."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return int(options.do(options) or 0)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='user', description=(__doc__ or '').split('\n\n')[0])
    verbs = parser.add_subparsers(required=True, metavar='VERB')

    def verb(name: str, do: Callable[[Any], int | None], text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=f'{text}.')
        added.set_defaults(do=do)
        return added

    page = 'name of a shipped configuration, or path of a YAML file'
    for name, do, text in (
        ('run', _run, 'Start a run and supervise it until it ends'),
        ('plan', _plan, 'Print the plan as JSON: every node that a run starts'),
        ('check', _check, 'Look whether a run can start here'),
    ):
        added = verb(name, do, text)
        added.add_argument('config', help=page)
        added.add_argument('settings', nargs='*', metavar='key=value')
        if name == 'plan':
            added.add_argument(
                '--create', action='store_true', help='create the run folder (for launch files)'
            )
    added = verb('eval', _eval, 'Judge the chosen weights of a run in fresh episodes')
    added.add_argument('run', help='run folder, its name, or latest')
    added.add_argument('settings', nargs='*', metavar='key=value', help='e.g. episodes=20')
    added = verb('status', _status, 'Say what a run is doing')
    latest = 'run folder or its name; the latest if left out'
    added.add_argument('run', nargs='?', help=latest)
    added.add_argument('--live', action='store_true', help='again each second, until Ctrl-C')
    added = verb('doctor', _doctor, 'Look at this machine: one line a thing, with what mends it')
    added.add_argument(
        'settings', nargs='*', metavar='[config] key=value',
        help='the page that shall run here, its settings, machine=NAME, run=NAME',
    )  # fmt: skip
    added = verb('ready', _ready, 'Say that the scene is ready for the next episode')
    added.add_argument('cell', nargs='?', help='its name; every cell that asks if left out')
    added.add_argument('--run', help=latest)
    added = verb('teach', _teach, 'Guide the arm and record a task into a fragment of a page')
    added.add_argument('task', choices=['peg'])
    added.add_argument(
        'settings', nargs='*', metavar='[config] key=value',
        help='page (peg_rlpd if left out), then its settings, out=FILE, overwrite=yes, ...',
    )  # fmt: skip
    return parser


def _take(settings: Sequence[str], *own: str) -> tuple[list[str], dict[str, str]]:
    """Splits the command's own settings from the page's; an empty value counts as not given."""
    pairs = [(text.partition('=')[0], text) for text in settings]
    mine = {key: text.partition('=')[2] for key, text in pairs if key in own}
    return [t for key, t in pairs if key not in own], {k: v for k, v in mine.items() if v}


def _page(words: list[str]) -> tuple[str, list[str]]:
    """The page, where the first word names one, else ''; and the settings."""
    named = bool(words) and '=' not in words[0]
    return (words[0], words[1:]) if named else ('', words)


def _run(options: argparse.Namespace) -> int:
    settings, own = _take(options.settings, 'run', 'machine', 'only', 'resume')
    if 'resume' not in own:
        return _start(load(options.config, settings), own)
    known = reopen.reopen(options.config, settings, own['resume'], own.get('machine'))
    if said := reopen.reached(known.config, known.folder):
        print(said)
        return 0
    return _start(known.config, own, known)


def _eval(options: argparse.Namespace) -> int:
    folder = run_folder.find(options.run)
    settings, own = _take(options.settings, 'run', 'machine', 'episodes')
    if 'episodes' in own:
        settings.append(f'evaluation.fresh_episodes={own["episodes"]}')
    config = load(folder / 'config.json', [*settings, f'evaluate={folder}'])
    if own.get('machine') in (None, config.replay.machine):
        run_folder.chosen(folder, config)
    return _start(config, own)


def _start(config: RunConfig, own: dict[str, str], known: reopen.Reopened | None = None) -> int:
    machine = own.get('machine')
    nodes = plan(config, machine)
    if 'only' in own:
        nodes = part_of(nodes, own['only'].split(','))
    stay_on_this_machine(config)
    run = _name(config, own, known)
    for node in nodes:
        find_executable(node.package, node.executable)
    lock = run_lock.claim_when_left(known.folder, _tell) if known else None
    check.gpu(config, nodes)
    check.disk(config)
    check.memory(config, nodes)
    check.port(config)
    if known is None:
        check.domain(config, machine)
        folder = run_folder.create(config, run)
        lock = run_lock.claim(folder / run_lock.SUPERVISOR)
    else:
        reopen.domain(config, machine, _tell)
        folder = known.folder
        run_folder.reopen(config, folder)
        for line in known.kept:
            _tell(line)
    if removed := shared_memory.clean().text:
        _tell(f'shared memory: {removed}')
    parts = processes(nodes, config.to_json(), run, folder)
    if config.tensorboard_port is not None and any(part.leads for part in parts):
        parts.insert(0, _curves(config.tensorboard_port, folder))
    _tell(f'run folder: {folder}')
    return Supervisor(parts, folder / 'logs', lock=lock).run()


def _name(config: RunConfig, own: dict[str, str], known: reopen.Reopened | None) -> str:
    """The run's name: of a new one it is free, of one that goes on it stays."""
    machine = own.get('machine')
    if known is not None:
        if own.get('run', known.folder.name) != known.folder.name:
            raise UserError(
                f'run={own["run"]} and resume={own["resume"]} name two runs',
                'a run that goes on keeps its folder',
                'Leave one of them out',
            )
        return known.folder.name
    if machine and len(config.machines) > 1 and 'run' not in own:
        raise UserError(
            f'The part of machine {machine} needs the name of the run',
            'the machines of one run know each other by it',
            'Give every machine the same run=NAME',
        )
    run = run_folder.name_of(config, own.get('run'))
    run_folder.refuse_existing(config, run)
    return run


def _tell(line: str) -> None:
    print(line, flush=True)


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def stay_on_this_machine(config: RunConfig) -> None:
    """A run of one machine keeps off the network, unless the environment says otherwise."""
    if len(config.machines) == 1:
        os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')


def _curves(port: int, folder: Path) -> Process:
    command = [sys.executable, '-m', 'tensorboard.main', '--logdir', str(folder / CURVES)]
    command += ['--port', str(port), '--host', '127.0.0.1', '--load_fast', 'false']
    return Process('curves', command, respawn=True, required=False, stage=SERVANT)


def _plan(options: argparse.Namespace) -> None:
    settings, own = _take(options.settings, 'run', 'machine', 'resume')
    machine, known = own.get('machine'), None
    if 'resume' in own:
        known = reopen.reopen(options.config, settings, own['resume'], machine)
    config = known.config if known else load(options.config, settings)
    if options.create or known:
        run = _name(config, own, known)
    else:
        run = run_folder.name_of(config, own.get('run'))
    folder = known.folder if known else Path(config.runs).absolute() / run
    text = plan_json(config, run, folder, machine)
    if options.create and known is None:
        run_folder.create(config, run)
    elif options.create:
        if said := reopen.reached(config, folder):
            raise UserError(said)
        os.close(run_lock.claim_when_left(folder, _warn))
        run_folder.reopen(config, folder)
    if options.create:
        shared_memory.clean()
    for line in known.kept if known else ():
        _warn(line)
    print(text)


def _check(options: argparse.Namespace) -> int:
    settings, own = _take(options.settings, 'run', 'machine', 'move')
    config = load(options.config, settings)
    machine = own.get('machine')
    nodes = plan(config, machine)
    stay_on_this_machine(config)
    print(f'configuration {config.name}: valid, hash {config_hash(config)}')
    for node in nodes:
        print(f'{node.path} on {node.machine}: {find_executable(node.package, node.executable)}')
    for line in check.imports(nodes, check.asks_for_gpu(config)):
        print(line)
    if not all(may_have(node.nice) for node in nodes):
        print('priorities: not allowed to this user, so a busy machine may delay the arm')
    print(f'GPU: {"found" if check.asks_for_gpu(config) else "not asked for"}')
    print(check.disk(config))
    print(check.memory(config, nodes))
    print(check.port(config))
    print(check.domain(config, machine))
    wrong = 0
    arms = check_arm.arms(config, machine, move=own.get('move') == 'yes')
    for good, text in chain(arms, check_arm.cameras(config, machine)):
        wrong += not good
        print(text, flush=True, file=sys.stdout if good else sys.stderr)
    if wrong:
        return 2
    print('all is well')
    return 0


def _status(options: argparse.Namespace) -> None:
    folder = run_folder.find(options.run)
    if options.live:
        with suppress(KeyboardInterrupt):  # the way to end it
            status.watch(folder, sys.stdout)
    else:
        print(status.show(folder))


def _doctor(options: argparse.Namespace) -> int:
    from user_core import doctor  # ROS is slow to import

    settings, own = _take(options.settings, 'machine', 'run')
    page, rest = _page(settings)
    config = load(page or 'peg_rlpd', rest) if page or rest else None
    if config is not None:
        stay_on_this_machine(config)
    return doctor.report(doctor.examine(config, own.get('machine'), own.get('run')))


def _ready(options: argparse.Namespace) -> None:
    from user_core.ready import tell  # ROS is slow to import

    config = load(run_folder.find(options.run))
    stay_on_this_machine(config)
    print(tell(config, options.cell))


def _teach(options: argparse.Namespace) -> None:
    page, rest = _page(options.settings)
    program = find_executable('user_robot', 'teach')
    os.execv(program, [str(program), options.task, page or 'peg_rlpd', *rest])


if __name__ == '__main__':
    sys.exit(main())
