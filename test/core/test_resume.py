# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a resumed run may change: all that the table lists, and nothing else, each by name."""

import json
from pathlib import Path
import subprocess
import sys
import time

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from user_core import cli, resume, run_folder
from user_core.config import RunConfig, config_hash, load, resume_hash
from user_core.errors import UserError
from user_core.journal import NAME, Journal
from user_core.page import keys

ROOT = Path(__file__).parents[2]
PAGES = [load(ROOT / 'config' / f'{page}.yaml') for page in ('peg_rlpd', 'peg_rlpd_vision')]
PLACES = [(n, key) for n, page in enumerate(PAGES)
          for key, _ in resume.leaves(page.model_dump(mode='json'))]  # fmt: skip


class Dumped:
    """A configuration of which the rule needs the dump alone."""

    def __init__(self, content: dict) -> None:
        self.content = content

    def model_dump(self, mode: str) -> dict:
        return self.content


def changed(n: int, places: set[str]) -> Dumped:
    """The page with other values at these keys."""
    content = PAGES[n].model_dump(mode='json')
    for key in places:
        *parents, last = key.split('.')
        place = content
        for parent in parents:
            place = place[parent]
        place[last] = 'another'
    return Dumped(content)


def some_keys(n: int) -> st.SearchStrategy:
    there = [key for m, key in PLACES if m == n]
    return st.tuples(st.just(n), st.sets(st.sampled_from(there), min_size=1, max_size=4))


@settings(deadline=None)
@given(st.sampled_from([0, 1]).flatmap(some_keys))
def test_any_changed_value_is_allowed_by_the_table_or_refused_by_its_name(drawn):
    n, places = drawn
    asked = changed(n, places)
    # A part of another kind is named by its kind alone.
    named = {k for k in places
             if not any(k.startswith(o.removesuffix('kind')) and k != o
                        for o in places if o.rpartition('.')[2] == 'kind')}  # fmt: skip
    wrong = {k for k in named if not resume.may_change(k)}
    same = resume_hash(PAGES[n]) == resume_hash(asked)
    if not wrong:
        resume.refuse_changes(PAGES[n], asked)
        assert same
        return
    with pytest.raises(UserError) as refused:
        resume.refuse_changes(PAGES[n], asked)
    text = str(refused.value)
    for key in places:
        assert (f'{key}: the run has' in text) is (key in wrong), key
    assert not same


def test_every_line_of_the_table_names_something_that_a_page_can_have():
    known = set(keys(RunConfig))
    assert not set(resume.MAY_CHANGE) - known
    assert all(resume.MAY_CHANGE.values())


@pytest.mark.parametrize('fixed', [
    'name', 'seed', 'pace', 'evaluate', 'task.scale_m', 'policy.hidden', 'algorithm.gamma',
    'algorithm.utd', 'learner.warmup_updates', 'learner.start_rows', 'replay.window_rows',
    'cells.arm0.control_hz', 'cells.arm0.arm.kind', 'cells.arm0.arm.stiffness_n_m', 'cells.arm0',
    'cells.arm0.cameras', 'cells.arm0.cameras.side.width', 'cells.arm0.teleop',
])  # fmt: skip
def test_what_was_learned_under_it_stays(fixed):
    assert not resume.may_change(fixed)


def test_a_cell_more_or_less_is_named_as_one_thing():
    two = load('peg_rlpd', ['cells={arm0: {}, arm1: {}}'])
    one = load('peg_rlpd', ['cells={arm0: {}}'])
    with pytest.raises(UserError, match=r'cells.arm1: the run has none, asked for one\.'):
        resume.refuse_changes(one, two)


def test_the_hash_of_a_run_that_goes_on_ignores_what_may_change_and_the_nodes_hash_does_not():
    page = PAGES[0]
    other = load(page_file(), ['budget.env_steps=5', 'learner.threads=2'])
    assert resume_hash(page) == resume_hash(other)
    assert config_hash(page) != config_hash(other)


def page_file() -> Path:
    return ROOT / 'config' / 'peg_rlpd.yaml'


# ---------------------------------------------------------------------- the command


@pytest.fixture
def killed(tmp_path) -> Path:
    """The folder of a run that was killed in its demonstrations."""
    config = load(page_file(), [f'runs={tmp_path}/runs', 'seed=3', 'budget.demos=4'])
    folder = run_folder.create(config, 'mine')
    Journal(folder / NAME).append({'what': 'start', 'wall_s': 1.0, 'seconds': {}})
    return folder


def refused(capsys, *arguments: str) -> str:
    assert cli.main(list(arguments)) == 2
    said = capsys.readouterr()
    assert len(said.err.strip().splitlines()) == 1
    return said.err


def test_an_existing_run_is_refused_at_once_and_nothing_is_started(killed):
    begun = time.monotonic()
    done = subprocess.run(
        [Path(sys.executable).with_name('user'), 'run', 'peg_rlpd', 'run=mine',
         f'runs={killed.parent}'],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert 'exists already' in done.stderr
    assert 'resume=mine' in done.stderr
    assert time.monotonic() - begun < 5.0
    assert not (killed / 'logs').exists()  # no process of the run has ever been there
    assert not (killed / 'params').exists()


def test_a_line_that_changes_what_was_learned_is_refused_with_every_difference(killed, capsys):
    before = (killed / 'config.json').read_bytes()
    said = refused(
        capsys, 'run', 'peg_rlpd', 'resume=mine', f'runs={killed.parent}', 'seed=4',
        'algorithm.gamma=0.5', 'budget.demos=9', 'arm=franka_sim',
    )  # fmt: skip
    for words in ('seed: the run has 3, asked for 4', 'algorithm.gamma: the run has 0.97',
                  'cells.arm0.arm.kind: the run has sim, asked for franka_sim',
                  'start a new run'):  # fmt: skip
        assert words in said
    assert 'budget.demos' not in said
    assert (killed / 'config.json').read_bytes() == before
    assert not (killed / 'params').exists()


def test_a_run_of_another_page_and_a_run_that_is_not_there_are_refused(killed, capsys):
    runs = f'runs={killed.parent}'
    assert 'is a run of peg_rlpd, not of arx_reach' in refused(
        capsys, 'run', 'arx_reach', 'resume=mine', runs
    )
    assert 'no run nothing' in refused(capsys, 'run', 'peg_rlpd', 'resume=nothing', runs)
    assert 'name two runs' in refused(
        capsys, 'run', 'peg_rlpd', 'resume=latest', 'run=other', runs
    )


def test_the_plan_of_a_resumed_run_is_its_own_configuration_with_what_the_line_changes(
    killed, capsys
):
    line = ['plan', '--create', 'peg_rlpd', f'runs={killed.parent}']
    assert cli.main([*line, 'resume=latest', 'budget.demos=7']) == 0
    said = capsys.readouterr()
    nodes = json.loads(said.out)
    config = json.loads(nodes[0]['parameters']['config'])
    assert (config['seed'], config['budget']['demos']) == (3, 7)
    assert nodes[0]['parameters']['run_folder'] == str(killed)
    assert 'seed: the page now says 0, the run keeps 3' in said.err
    assert json.loads((killed / 'config.json').read_text()) == config
    old = json.loads((killed / 'config-1.json').read_text())
    assert old['budget']['demos'] == 4
    # The same line again changes nothing, so nothing is kept a second time.
    cli.main([*line, 'resume=mine'])
    assert not (killed / 'config-2.json').exists()


def test_a_folder_that_was_moved_is_resumed_where_it_is(killed, tmp_path, capsys):
    moved = killed.rename(tmp_path / 'moved')
    assert cli.main(['plan', 'peg_rlpd', f'resume={moved}']) == 0
    nodes = json.loads(capsys.readouterr().out)
    assert nodes[0]['parameters']['run_folder'] == str(moved)


def test_the_parts_of_several_machines_name_the_run(killed, tmp_path, capsys):
    page = tmp_path / 'two.yaml'
    page.write_text('name: two\nmachines: {robot: {}, desk: {}}\ncells: {left: {machine: robot}}\n'
                    'policy: {machine: desk}\nreplay: {machine: desk}\n'
                    'learner: {machine: desk}\n')  # fmt: skip
    run_folder.create(load(page, [f'runs={tmp_path}/two']), 'both')
    line = ['plan', str(page), 'machine=robot', f'runs={tmp_path}/two']
    assert 'resume=both' in refused(capsys, *line, 'resume=latest')
    assert cli.main([*line, 'resume=both']) == 0


def ended(folder: Path, solved: bool, why: str = '') -> None:
    """A run that ended in order; `solved` with a streak and fresh starts of two episodes."""
    journal = Journal(folder / NAME)
    base = {'wall_s': 1.0, 'seconds': {}}
    goal = {'policy': 'actor', 'version': 3, 'cell': 'arm0', 'boundary': 1, 'period_s': []}
    journal.append({
        'what': 'episode', **base, **goal, 'mode': 0, 'seed': 0, 'length': 12_000
    })  # fmt: skip
    for kind in ('streak', 'fresh') if solved else ():
        version = {'kind': kind, 'policy': 'actor', 'version': 3, 'sha256': '', 'at_env_steps': 0}
        journal.append({'what': 'begin', **base, **version})
        for seed in range(2):
            journal.append({'what': 'episode', **base, **goal, 'mode': 1, 'seed': seed})
        journal.append({'what': 'end', **base})
    journal.append({'what': 'over', **base, 'solved': solved, 'why': why})


def test_a_run_that_has_reached_its_goal_says_so_and_starts_nothing(killed, capsys):
    ended(killed, solved=True)
    line = ['run', 'peg_rlpd', 'resume=mine', f'runs={killed.parent}', 'evaluation.consecutive=2',
            'evaluation.fresh_episodes=2']  # fmt: skip
    assert cli.main(line) == 0
    assert 'has reached its goal already: 2/2' in capsys.readouterr().out
    assert not (killed / 'params').exists()


def test_a_run_that_used_its_budget_says_which_one_to_raise(killed, capsys):
    ended(killed, solved=False)
    said = refused(capsys, 'run', 'peg_rlpd', 'resume=mine', f'runs={killed.parent}')
    assert 'budget.env_steps=24000' in said
    assert not (killed / 'params').exists()
