# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The `user` command: run, plan, check, eval, status, ready, teach.

Settings are `key=value`; besides the page's own keys, `run=NAME` names the run folder,
`machine=NAME` starts only that machine's part, `only=arm` only the arms and their devices,
`arm=KIND` chooses every cell's arm, `with=FILE` puts a fragment over the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import chain
import os
from pathlib import Path
import sys
from typing import Any

from user_core import check, check_arm, run_folder
from user_core.config import RunConfig, config_hash, load
from user_core.errors import UserError
from user_core.plan import part_of, plan, plan_json
from user_core.runner import Process, Supervisor, find_executable, may_have, processes

CURVES = 'tensorboard'
"""Folder of TensorBoard's event files in a run folder."""
NUMBERS = {
    'learner': ('version', 'updates', 'utd', 'backlog', 'q', 'alpha'),
    'policy': ('version', 'answers', 'refused', 'work_p50_s', 'work_p99_s'),
    'replay': ('rows', 'lost', 'bad', 'duplicates'),
    'episode': (
        'rows',
        'rows_unacknowledged',
        'rows_resent',
        'rows_damaged',
        'late_actions',
        'stray_actions',
    ),
    'arm': ('steps', 'behind_s', 'clock_s'),
    'camera': ('age_s', 'fps', 'frames', 'dropped', 'resets'),
}
"""A node's numbers that `user status` shows; of other nodes it shows the first five."""


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


def _run(options: argparse.Namespace) -> int:
    settings, own = _take(options.settings, 'run', 'machine', 'only')
    return _start(load(options.config, settings), own)


def _eval(options: argparse.Namespace) -> int:
    folder = run_folder.find(options.run)
    settings, own = _take(options.settings, 'run', 'machine', 'episodes')
    if 'episodes' in own:
        settings.append(f'evaluation.fresh_episodes={own["episodes"]}')
    config = load(folder / 'config.json', [*settings, f'evaluate={folder}'])
    if own.get('machine') in (None, config.replay.machine):
        run_folder.chosen(folder, config)
    return _start(config, own)


def _start(config: RunConfig, own: dict[str, str]) -> int:
    machine = own.get('machine')
    nodes = plan(config, machine)
    if 'only' in own:
        nodes = part_of(nodes, own['only'].split(','))
    stay_on_this_machine(config)
    if machine and len(config.machines) > 1 and 'run' not in own:
        raise UserError(
            f'The part of machine {machine} needs the name of the run',
            'the machines of one run know each other by it',
            'Give every machine the same run=NAME',
        )
    run = run_folder.name_of(config, own.get('run'))
    for node in nodes:
        find_executable(node.package, node.executable)
    check.gpu(config, nodes)
    check.disk(config)
    check.memory(config, nodes)
    check.port(config)
    check.domain(config, machine)
    folder = run_folder.create(config, run)
    parts = processes(nodes, config.to_json(), run, folder)
    if config.tensorboard_port is not None and any(part.leads for part in parts):
        parts.insert(0, _curves(config.tensorboard_port, folder))
    print(f'run folder: {folder}', flush=True)
    return Supervisor(parts, folder / 'logs').run()


def stay_on_this_machine(config: RunConfig) -> None:
    """A run of one machine keeps off the network, unless the environment says otherwise."""
    if len(config.machines) == 1:
        os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')


def _curves(port: int, folder: Path) -> Process:
    command = [sys.executable, '-m', 'tensorboard.main', '--logdir', str(folder / CURVES)]
    command += ['--port', str(port), '--host', '127.0.0.1', '--load_fast', 'false']
    return Process('curves', command, respawn=True, required=False)


def _plan(options: argparse.Namespace) -> None:
    settings, own = _take(options.settings, 'run', 'machine')
    config = load(options.config, settings)
    run = run_folder.name_of(config, own.get('run'))
    folder = Path(config.runs).absolute() / run
    text = plan_json(config, run, folder, own.get('machine'))
    if options.create:
        run_folder.create(config, run)
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
    said, age_s = run_folder.status(folder)
    if said.get('phase') == 'END':
        state = 'ended'
    elif age_s < run_folder.STALE_S:
        state = f'said {age_s:.0f} s ago'
    else:
        state = f'stale, last said {age_s:.0f} s ago: it was killed or hangs'
    print(f'{folder.name}: {state}')
    nodes = dict(sorted(said.get('nodes', {}).items()))
    if said.get('live'):
        print(f'  {said["live"]}')
    else:
        for key in ('phase', 'env_steps', 'demos'):
            if key in said:
                print(f'  {key}: {said[key]}')
    if said.get('reason'):
        print(f'  reason: {said["reason"]}')
    width = max((len(name) for name in nodes), default=0) + 1
    for name, node in nodes.items():
        print(f'  {_age(node)}  {name + ":":{width}} {_says(name, node)}')


def _ready(options: argparse.Namespace) -> None:
    from user_core.ready import tell  # ROS is slow to import

    config = load(run_folder.find(options.run))
    stay_on_this_machine(config)
    print(tell(config, options.cell))


def _teach(options: argparse.Namespace) -> None:
    settings = options.settings
    named = bool(settings) and '=' not in settings[0]
    page, rest = (settings[0], settings[1:]) if named else ('peg_rlpd', settings)
    program = find_executable('user_robot', 'teach')
    os.execv(program, [str(program), options.task, page, *rest])


def _age(node: dict[str, Any]) -> str:
    """How long the run had not heard of the node when it wrote its status."""
    return f'{node["age_s"]:5.1f} s ago' if 'age_s' in node else f'{"":11}'


def _says(name: str, node: dict[str, Any]) -> str:
    """A node's state, why, and the numbers that people look at first."""
    text = f'{node.get("state", "?")} {node.get("reason") or ""}'.rstrip()
    own = {k: v for k, v in node.items() if k not in ('state', 'reason', 'age_s')}
    keys = NUMBERS.get(name.rpartition('/')[2], tuple(own)[:5])
    return '  '.join([text, *(f'{key} {_short(own[key])}' for key in keys if key in own)])


def _short(value: float) -> str:
    plain = abs(value) >= 100 or float(value).is_integer()
    return f'{value:.0f}' if plain else f'{value:.3g}'


if __name__ == '__main__':
    sys.exit(main())
