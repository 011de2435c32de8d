# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a run is doing, for people: a panel made of its status.json, once or live. No ROS here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import math
import os
from pathlib import Path
import time
from typing import Any, NamedTuple, TextIO

from user_core import run_folder
from user_core.config import RunConfig, load
from user_core.errors import UserError
from user_core.plan import DEVICES, plan
from user_core.states import Level, level

SILENT_S = 5.0
"""Nodes speak once or twice a second; one that has not for this long is named."""
EVERY_S = 1.0

Node = Mapping[str, Any]


class Field(NamedTuple):
    """A number of the panel: its line and name there, whose it is (a node's last name, or `run`
    for what the run alone knows), its name there, and how it is shown. Of several nodes the
    largest counts, or their sum.
    """

    line: str
    name: str
    of: str
    key: str
    scale: float = 1.0
    sums: bool = False


FIELDS = (
    Field('training', 'success %', 'vitals', 'success', 100.0),
    Field('training', 'of the last', 'vitals', 'episodes'),
    Field('training', 'interventions %', 'vitals', 'interventions', 100.0),
    Field('rates', 'steps/s', 'vitals', 'steps_per_s'),
    Field('rates', 'updates/s', 'learner', 'updates_per_s'),
    Field('rates', 'period ms p50', 'vitals', 'period_p50_s', 1e3),
    Field('rates', 'p99', 'vitals', 'period_p99_s', 1e3),
    Field('rates', 'late %', 'vitals', 'late_steps', 100.0),
    Field('policy', 'version', 'policy', 'version'),
    Field('policy', 'lag p50', 'policy', 'lag_p50'),
    Field('policy', 'p99', 'policy', 'lag_p99'),
    Field('policy', 'weights age s', 'policy', 'weights_age_s'),
    Field('policy', 'answer ms p99', 'policy', 'work_p99_s', 1e3),
    Field('learner', 'utd', 'learner', 'utd'),
    Field('learner', 'backlog', 'learner', 'backlog'),
    Field('learner', 'alpha', 'learner', 'alpha'),
    Field('learner', 'Q', 'learner', 'q'),
    Field('learner', 'critic loss', 'learner', 'critic_loss'),
    Field('learner', 'actor loss', 'learner', 'actor_loss'),
    Field('learner', 'bad updates', 'learner', 'bad_updates'),
    Field('buffer', 'rows', 'replay', 'rows'),
    Field('buffer', 'unacknowledged', 'episode', 'rows_unacknowledged', sums=True),
    Field('buffer', 'MB', 'replay', 'bytes', 1e-6),
    Field('buffer', 'online', 'learner', 'online_rows'),
    Field('buffer', 'demonstrations', 'learner', 'demos_rows'),
)
"""The numbers of the panel, in its order; docs/status.md says what is normal."""

NUMBERS = {
    'learner': ('version', 'updates', 'env_steps', 'demos'),
    'policy': ('version', 'answers', 'refused', 'work_p50_s', 'work_p99_s'),
    'replay': ('rows', 'lost', 'bad', 'duplicates'),
    'episode': (
        'rows', 'rows_unacknowledged', 'rows_resent', 'rows_damaged', 'late_actions',
        'stray_actions',
    ),
    'arm': ('steps', 'behind_s', 'clock_s', 'hold_max_s'),
    'camera': ('age_s', 'fps', 'frames', 'dropped', 'resets'),
    'cameras': ('age_s', 'fps', 'frames', 'latency_p99_ms'),
}  # fmt: skip
"""A node's numbers in its own line; of other nodes it shows the first five."""


def show(folder: Path) -> str:
    """The panel of the run in a folder.

    Raises:
        UserError: it has not said anything, or not legibly.
    """
    said, age_s = run_folder.status(folder)
    return '\n'.join(panel(folder.name, said, age_s, _expected(folder)))


def watch(folder: Path, out: TextIO, every_s: float = EVERY_S) -> None:
    """The panel again and again, until the run has ended or Ctrl-C; in place on a terminal, one
    block after the other elsewhere.
    """
    screen = out.isatty()
    ended = False
    while not ended:
        try:
            said, age_s = run_folder.status(folder)
            lines = list(panel(folder.name, said, age_s, _expected(folder)))
            ended = said.get('phase') == 'END'
        except UserError as error:  # it begins, or its folder was moved: it may come
            lines = [str(error)]
        if screen:
            columns, rows = os.get_terminal_size(out.fileno())
            lines = [line[: (columns or 200) - 1] for line in lines[: (rows or 200) - 1]]
            out.write('\x1b[2J\x1b[H')
        out.write('\n'.join(lines) + '\n' + '\n' * (not screen))
        out.flush()
        if not ended:
            time.sleep(every_s)


def panel(name: str, said: Mapping[str, Any], age_s: float, expected: list[str]) -> Iterator[str]:
    """Its lines. `age_s` is the status's own age, `expected` the nodes that should speak."""
    nodes: dict[str, Node] = dict(sorted(said.get('nodes', {}).items()))
    over = said.get('phase') == 'END'
    yield f'{name}: {_of_itself(over, age_s)}'
    if said.get('live'):
        yield f'  {said["live"]}'
    else:
        yield from (f'  {k}: {said[k]}' for k in ('phase', 'env_steps', 'demos') if k in said)
    if said.get('reason') and said['reason'] not in said.get('live', ''):
        yield f'  reason: {said["reason"]}'
    if not over:
        yield from (f'  {text}' for text in silent(said, age_s, expected))
        yield from (f'  {text}' for text in held(nodes))
    if not nodes:
        return
    found, lines = fields(said), dict.fromkeys(f.line for f in FIELDS)
    for line in lines:
        shown = (f'{f.name} {_short(found.get(f"{line} {f.name}"))}' for f in FIELDS
                 if f.line == line)  # fmt: skip
        yield f'  {line:9}{"   ".join(shown)}{_sound(nodes) if line == "learner" else ""}'
    for cell, ages in camera_ages(nodes).items():
        shown = (f'{name} {_short(value)} s' for name, value in ages.items())
        yield f'  {"cameras":9}{cell}   {"   ".join(shown)}'
    width = max(map(len, nodes)) + 1
    for node, numbers in nodes.items():
        yield f'  {_age(numbers)}  {node + ":":{width}} {_says(node, numbers)}'


def fields(said: Mapping[str, Any]) -> dict[str, float]:
    """Every number of FIELDS that is known, as 'line name'."""
    found = {}
    for field in FIELDS:
        if field.of == 'vitals':
            values = [said.get('vitals', {}).get(field.key)]
        else:
            owners = [v for k, v in said.get('nodes', {}).items() if _last(k) == field.of]
            values = [node.get(field.key) for node in owners]
        known = [float(v) for v in values if v is not None]
        if known:
            value = sum(known) if field.sums else max(known)
            found[f'{field.line} {field.name}'] = field.scale * value
    return found


def camera_ages(nodes: Mapping[str, Node]) -> dict[str, dict[str, float]]:
    """Cells with cameras: how old what each shows is, as its episode sees it, s."""
    ages = {
        path.rpartition('/')[0]: {
            key.removesuffix('_age_s'): float(value)
            for key, value in node.items()
            if key.endswith('_age_s')
        }
        for path, node in nodes.items()
        if _last(path) == 'episode'
    }
    return {cell: of_cell for cell, of_cell in ages.items() if of_cell}


def silent(said: Mapping[str, Any], age_s: float, expected: list[str]) -> list[str]:
    """A line for each node that should speak and does not."""
    nodes = said.get('nodes', {})
    texts = [f'{path} was not heard yet' for path in expected if path not in nodes]
    for path, node in nodes.items():
        if node.get('silent_s', 0.0) > SILENT_S:
            texts.append(f'{path} silent for {node["silent_s"] + age_s:.0f} s')
    return texts


def held(nodes: Mapping[str, Node]) -> list[str]:
    """A line for each node that waits, holds or is in trouble, the worst first."""
    words = {Level.ERROR: 'trouble', Level.WARN: 'waits'}
    found = [(level(n.get('state', '')), path, n) for path, n in nodes.items()]
    bad = sorted((f for f in found if f[0] in words), key=lambda f: -f[0])
    return [
        f'{words[how]}: {path} {n.get("state")} {n.get("reason") or ""}'.rstrip()
        for how, path, n in bad
    ]


def _expected(folder: Path) -> list[str]:
    """Paths of the nodes that the run's page asks for; none when it cannot be read."""
    try:
        return speaking(load(folder))
    except UserError:
        return []


def speaking(config: RunConfig) -> list[str]:
    """Paths of a run's nodes: all of its plan but the simulated devices, which are no nodes."""
    return [n.path for n in plan(config) if n.executable not in DEVICES.values()]


def _of_itself(over: bool, age_s: float) -> str:
    if over:
        return 'ended'
    if age_s < run_folder.STALE_S:
        return f'said {age_s:.0f} s ago'
    return f'stale, last said {age_s:.0f} s ago: it was killed or hangs'


def _sound(nodes: Mapping[str, Node]) -> str:
    """Whether the learner's numbers are numbers."""
    bad = [
        key
        for path, node in nodes.items()
        if _last(path) == 'learner'
        for key, value in node.items()
        if isinstance(value, float) and not math.isfinite(value)
    ]
    return f'   NOT FINITE: {", ".join(bad)}' if bad else '   all finite'


def _age(node: Node) -> str:
    """How long the run had not heard of the node when it wrote its status."""
    return f'{node["silent_s"]:5.1f} s ago' if 'silent_s' in node else f'{"":11}'


def _says(path: str, node: Node) -> str:
    """A node's state, why, and the numbers that people look at first."""
    text = f'{node.get("state", "?")} {node.get("reason") or ""}'.rstrip()
    own = {k: v for k, v in node.items() if k not in ('state', 'reason', 'silent_s')}
    keys = NUMBERS.get(_last(path), tuple(own)[:5])
    return '  '.join([text, *(f'{key} {_short(own[key])}' for key in keys if key in own)])


def _last(path: str) -> str:
    return path.rpartition('/')[2]


def _short(value: float | None) -> str:
    if value is None:
        return '-'
    if not math.isfinite(value):
        return str(value)
    return f'{value:.0f}' if abs(value) >= 100 or float(value).is_integer() else f'{value:.3g}'
