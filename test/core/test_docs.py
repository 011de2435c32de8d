# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What the pages for people say can be typed, can be typed; what can be chosen, exists."""

from importlib import import_module
from pathlib import Path
import re
from typing import Annotated, get_args, get_origin

import pytest
import yaml

from user_core import cli, page
from user_core import config as schema
from user_core.config import RunConfig, load
from user_core.errors import UserError
from user_core.plan import plan

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / 'README.md', ROOT / 'Makefile', *sorted((ROOT / 'docs').glob('*.md'))]
COMMAND = re.compile(r'\buser (run|plan|check|doctor|eval|status|ready|teach)((?: +[^\s`#|]+)*)')
OWN = (
    'run', 'resume', 'machine', 'episodes', 'only', 'move', 'with', 'out', 'overwrite', 'reach',
    'force',
)  # fmt: skip
"""Words of the commands' own, which are no keys of a page."""
SET = re.compile(r'set:="([^"]+)"')
NO_KIND = 'arm=any'
"""What is shown on purpose as a name that does not exist, so that the good ones are listed."""
KEY = re.compile(r'`([a-z_]+(?:\.[a-z_]+)+)`')
BLOCK = re.compile(r'```ya?ml\n(.*?)```', re.DOTALL)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def settings_of(words: list[str]) -> list[str]:
    """The page's own settings among a command's words."""
    given = [w for w in words if '=' in w and '$' not in w and '…' not in w and w != NO_KIND]
    return cli._take(given, *OWN)[0]


def commands() -> list[tuple[str, str, list[str]]]:
    """(where, page, settings) of every command in the pages for people."""
    found = []
    for path in PAGES:
        for verb, rest in COMMAND.findall(path.read_text()):
            words = rest.split()
            name = words[0] if verb in ('run', 'plan', 'check', 'doctor') and words else 'peg_rlpd'
            found.append((f'{path.name}: user {verb}{rest}', name, settings_of(words)))
        found += [
            (f'{path.name}: set:="{text}"', 'peg_rlpd', settings_of(text.split()))
            for text in SET.findall(path.read_text())
            if 'key=value' not in text
        ]
    return found


COMMANDS = commands()


def test_the_pages_for_people_show_commands():
    assert len(COMMANDS) >= 6
    assert sum(bool(settings) for _, _, settings in COMMANDS) >= 3


@pytest.mark.parametrize(('where', 'name', 'settings'), COMMANDS, ids=[c[0] for c in COMMANDS])
def test_a_command_that_is_shown_is_accepted(where, name, settings):
    assert load(name, settings).name


def test_a_name_that_does_not_exist_lists_the_good_ones():
    with pytest.raises(UserError, match=f'can be {kinds(schema.Arm)[0]}'):
        load('peg_rlpd', [NO_KIND])


def test_every_key_that_is_named_in_the_pages_for_people_exists():
    known = set(page.keys(RunConfig))
    parts = {key.partition('.')[0] for key in known}
    cell = {key.removeprefix('cells.*.') for key in known}
    wrong, right = [], 0
    for path in PAGES:
        for key in KEY.findall(path.read_text()):
            if key.partition('.')[0] in parts and not key.endswith(('.py', '.yaml', '.md')):
                right += key in known
                if key not in known and key not in cell:
                    wrong.append(f'{path.name}: {key}')
    assert wrong == []
    assert right >= 2


def test_every_yaml_block_of_the_pages_for_people_is_valid():
    for path in PAGES:
        for text in BLOCK.findall(path.read_text()):
            page.validate(RunConfig, {'name': 'shown', **yaml.safe_load(text)}, str(path))


def kinds(part: type) -> list[str]:
    """The kinds of a part of a page."""
    union = get_args(part)[0] if get_origin(part) is Annotated else part
    return [
        k
        for m in (get_args(union) or (union,))
        for k in get_args(m.model_fields['kind'].annotation)
    ]


def test_every_kind_of_arm_and_task_that_a_page_can_choose_is_there_and_no_other():
    from user_robot.arm import ARMS
    from user_robot.task import make_task

    assert sorted(kinds(schema.Arm)) == sorted(ARMS)
    for kind in kinds(schema.Arm):
        assert load('peg_rlpd', [f'arm={kind}']).cells['arm0'].arm.kind == kind
        module, _, name = ARMS[kind].partition(':')
        assert callable(getattr(import_module(module), name))
    for page_name in ('peg_rlpd', 'arx_reach'):
        assert make_task(load(page_name).task).spec.names
    assert sorted(kinds(schema.Task)) == ['peg', 'reach']


def test_every_kind_of_demonstrator_policy_and_algorithm_can_be_chosen():
    for kind in kinds(schema.Teleop):
        config = load('peg_rlpd', [f'cells.arm0.teleop={{kind: {kind}}}'])
        assert any(node.executable == 'expert' for node in plan(config))
    for part in ('policy', 'algorithm'):
        for kind in kinds(getattr(schema, part.capitalize())):
            assert (
                getattr(load('peg_rlpd_vision', [f'{part}={{kind: {kind}}}']), part).kind == kind
            )
