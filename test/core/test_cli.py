# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a person types wrong is answered by a sentence and exit code 2, never by a traceback."""

from collections.abc import Iterator
import json
import os
from pathlib import Path
import socket
import subprocess
import sys
import time

import pytest
import rclpy

from user_core import check, check_arm, cli, run_folder
from user_core.config import load
from user_core.errors import UserError
from user_core.plan import plan

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def user(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a person starts it."""
    return subprocess.run(
        [sys.executable, '-m', 'user_core.cli', *arguments],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def refused(capsys, *arguments: str) -> str:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert 'Traceback' not in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    return captured.err


def test_check_says_all_is_well_and_each_node_s_interpreter_imports_what_it_needs():
    done = user('check', 'peg_rlpd')
    assert done.returncode == 0, done.stderr
    assert 'all is well' in done.stdout
    assert f'interpreter {sys.prefix}' in done.stdout
    for library in ('torch', 'rclpy', 'mujoco'):
        assert f'{library}' in done.stdout


def test_check_names_file_path_and_nearest_key(tmp_path, capsys):
    file = tmp_path / 'mine.yaml'
    file.write_text('name: mine\nlearner: {warmup_update: 3}\n')
    said = refused(capsys, 'check', str(file))
    assert str(file) in said
    assert 'learner.warmup_update,' in said
    assert 'learner.warmup_updates?' in said


@pytest.mark.parametrize('verb', ['run', 'plan', 'check'])
def test_no_verb_takes_a_page_that_is_not_there(verb, capsys):
    assert 'no configuration peg_rlpq' in refused(capsys, verb, 'peg_rlpq')


def test_a_bad_setting_is_refused_before_anything_is_made(tmp_path, capsys):
    runs = tmp_path / 'runs'
    assert 'seed' in refused(capsys, 'run', 'peg_rlpd', f'runs={runs}', 'seed=-3')
    assert not runs.exists()


def test_the_plan_is_json_and_makes_no_folder(tmp_path, capsys):
    runs = tmp_path / 'runs'
    assert cli.main(['plan', 'peg_rlpd', f'runs={runs}', 'run=mine', 'arm=sim']) == 0
    nodes = json.loads(capsys.readouterr().out)
    assert [n['name'] for n in nodes] == [n.name for n in plan(load('peg_rlpd'))]
    assert nodes[0]['parameters']['run_folder'] == str(runs / 'mine')
    assert not runs.exists()


def test_a_run_folder_is_never_used_twice_and_latest_points_to_the_newest(tmp_path):
    config = load('peg_rlpd', [f'runs={tmp_path}'])
    first = run_folder.create(config, 'one')
    assert load(first) == config
    second = run_folder.create(config, 'two')
    assert (tmp_path / 'latest').resolve() == second
    assert run_folder.find(None, str(tmp_path)) == second
    assert run_folder.find('one', str(tmp_path)) == first
    with pytest.raises(UserError, match='run one exists already'):
        run_folder.create(config, 'one')


@pytest.mark.parametrize('name', ['../evil', 'a b', '', '-x', 'a/b'])
def test_a_name_that_is_no_folder_is_refused(name):
    with pytest.raises(UserError, match='is no name for a run'):
        run_folder.name_of(load('peg_rlpd'), name)


def test_runs_of_different_kinds_are_named_differently():
    plain = run_folder.name_of(load('peg_rlpd'))
    judged = run_folder.name_of(load('peg_rlpd', ['evaluate=/x']))
    assert plain.startswith('peg_rlpd-2')
    assert judged.startswith('peg_rlpd-eval-2')


@pytest.mark.parametrize('verb', ['eval', 'status'])
def test_a_missing_run_is_a_plain_sentence(tmp_path, monkeypatch, capsys, verb):
    monkeypatch.chdir(tmp_path)
    assert 'There is no run nowhere' in refused(capsys, verb, 'nowhere')


def test_status_is_fresh_stale_or_missing_and_says_which(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert 'There is no run in runs' in refused(capsys, 'status')
    config = load(ROOT / 'config/peg_rlpd.yaml', [f'runs={tmp_path}/runs'])
    folder = run_folder.create(config, 'mine')
    assert 'no status yet' in refused(capsys, 'status')
    file = folder / 'status.json'
    file.write_text(json.dumps({'phase': 'TRAINING', 'env_steps': 7}))
    assert cli.main(['status']) == 0
    out = capsys.readouterr().out
    assert 'mine: said 0 s ago' in out
    assert 'env_steps: 7' in out
    long_ago = time.time() - 100
    os.utime(file, (long_ago, long_ago))
    assert cli.main(['status', 'mine']) == 0
    assert 'stale, last said 100 s ago' in capsys.readouterr().out
    nodes = {'/arm0/arm': {'state': 'HOLD', 'reason': 'stopped by hand', 'age_s': 0.1}}
    file.write_text(json.dumps({'phase': 'END', 'nodes': nodes}))
    assert cli.main(['status']) == 0
    out = capsys.readouterr().out
    assert 'mine: ended' in out
    assert '/arm0/arm: HOLD stopped by hand' in out
    file.write_text('{"phase"')
    assert 'cannot be read' in refused(capsys, 'status', 'mine')


def test_a_port_in_use_is_refused_with_another_one(capsys):
    with socket.socket() as holder:
        holder.bind(('127.0.0.1', 0))
        holder.listen()
        port = holder.getsockname()[1]
        said = refused(capsys, 'run', 'peg_rlpd', f'tensorboard_port={port}')
    assert f'Port {port} is in use' in said
    assert f'tensorboard_port={port + 1}' in said
    assert check.port(load('peg_rlpd', [f'tensorboard_port={port}'])) == f'port {port} is free'


@pytest.fixture
def cell_alive() -> Iterator[None]:
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node('episode', namespace='arm0', context=context)
    yield
    node.destroy_node()
    rclpy.shutdown(context=context)


@pytest.mark.usefixtures('cell_alive')
def test_a_cell_whose_name_is_alive_is_refused_and_another_name_is_not(
    tmp_path, capsys, ros_domain
):
    said = refused(capsys, 'run', 'peg_rlpd', f'runs={tmp_path}/runs')
    assert f'A cell named arm0 is alive on ROS domain {ros_domain}' in said
    assert not (tmp_path / 'runs').exists()
    other = tmp_path / 'other.yaml'
    other.write_text('name: other\ncells: {arm7: {}}\n')
    assert 'no cell named arm7 is alive' in check.domain(load(other))


@pytest.mark.parametrize('number', ['300', '-1', 'none'])
def test_a_ros_domain_that_does_not_exist_is_refused(monkeypatch, number):
    monkeypatch.setenv('ROS_DOMAIN_ID', number)
    with pytest.raises(UserError, match=f'ROS_DOMAIN_ID is {number}'):
        check.domain(load('peg_rlpd'))


@pytest.mark.parametrize(('verb', 'part'), [('check', 'learner'), ('run', 'policy')])
def test_a_gpu_that_is_not_there_is_refused_with_the_line_that_helps(
    monkeypatch, capsys, tmp_path, verb, part
):
    torch = pytest.importorskip('torch')
    if torch.cuda.is_available():
        monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    said = refused(capsys, verb, 'peg_rlpd', f'runs={tmp_path}/runs', f'{part}.device=cuda')
    assert 'asks for a GPU' in said
    assert f'{part}.device=cpu' in said
    assert not (tmp_path / 'runs').exists()


def test_a_library_that_is_missing_is_named():
    with pytest.raises(UserError, match='cannot import no_such_library'):
        check.probe(Path(sys.executable), ['json', 'no_such_library'], cuda=False)


def test_a_full_disk_is_refused_before_the_run(monkeypatch):
    usage = type('Usage', (), {'free': 10**6})
    monkeypatch.setattr('shutil.disk_usage', lambda _: usage)
    with pytest.raises(UserError, match='disk is too full'):
        check.disk(load('peg_rlpd'))


def test_a_run_of_one_machine_keeps_off_the_network_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv('ROS_AUTOMATIC_DISCOVERY_RANGE')
    cli.stay_on_this_machine(load('peg_rlpd', ['machines={local: {}, far: {}}']))
    assert 'ROS_AUTOMATIC_DISCOVERY_RANGE' not in os.environ
    cli.stay_on_this_machine(load('peg_rlpd'))
    assert os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] == 'LOCALHOST'
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'SUBNET')
    cli.stay_on_this_machine(load('peg_rlpd'))
    assert os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] == 'SUBNET'


# ---------------------------------------------------------------------- fragments, people, arms


def fragment(folder: Path, text: str) -> str:
    file = folder / 'lab.yaml'
    file.write_text(text)
    return f'with={file}'


def test_a_fragment_lies_over_the_page_and_under_the_settings(tmp_path):
    lab = fragment(
        tmp_path,
        'cells: {arm0: {safety: {box_min_m: [-0.1, -0.1, -0.2]}}}\n'
        'task: {start_height_m: 0.15, start_xy_m: 0.02}\n',
    )
    plain = load('peg_rlpd')
    config = load('peg_rlpd', ['task.start_xy_m=0.03', lab])
    assert config.cells['arm0'].safety.box_min_m == (-0.1, -0.1, -0.2)
    assert config.cells['arm0'].safety.box_max_m == plain.cells['arm0'].safety.box_max_m
    assert (config.task.start_height_m, config.task.start_xy_m) == (0.15, 0.03)
    assert config.task.scale_m == plain.task.scale_m
    assert load('peg_rlpd', ['with=']) == plain


def test_what_a_fragment_says_of_a_franka_waits_until_one_is_chosen(tmp_path, capsys):
    lab = fragment(tmp_path, 'cells: {arm0: {arm: {load_kg: 0.3}}}')
    assert load('peg_rlpd', [lab, 'arm=franka']).cells['arm0'].arm.load_kg == 0.3
    said = refused(capsys, 'plan', 'peg_rlpd', lab)
    assert f'{tmp_path}/lab.yaml: cells.arm0.arm.load_kg belongs to kind' in said


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('task: {start_hight_m: 0.1}', 'did you mean task.start_height_m'),
        ('task: {frame: {position_m: [a, 0, 0]}}', 'task.frame.position_m.0 is a'),
        ('cells: {arm0: {safety: {box_min_m: [1, 1, 1]}}}', 'below box_max_m'),
        ('task: 3', 'task'),
        ('task: {a: 1}\ntask: {b: 1}', 'line 2'),
        ('- 1', 'no configuration'),
    ],
)
def test_a_mistake_in_a_fragment_names_the_fragment(tmp_path, capsys, text, words):
    said = refused(capsys, 'plan', 'peg_rlpd', fragment(tmp_path, text))
    assert f'{tmp_path}/lab.yaml' in said
    assert words in said


def test_a_fragment_that_is_not_there_is_named(capsys):
    assert 'no fragment nowhere.yaml' in refused(capsys, 'plan', 'peg_rlpd', 'with=nowhere.yaml')


def test_a_run_whose_cells_ask_nobody_needs_no_ready(tmp_path, capsys):
    folder = run_folder.create(load('peg_rlpd', [f'runs={tmp_path}']), 'mine')
    assert 'cells.arm0.ready=ask' in refused(capsys, 'ready', '--run', str(folder))
    assert 'no cell arm9' in refused(capsys, 'ready', 'arm9', '--run', str(folder))


def test_a_check_of_the_arm_that_dies_is_told(tmp_path, monkeypatch, capsys):
    program = tmp_path / 'arm_check'
    program.write_text('#!/bin/sh\necho driver chatter\nexit 7\n')
    program.chmod(0o755)
    monkeypatch.setattr(check_arm, 'find_executable', lambda package, name: program)
    lines = list(check_arm.arms(load('peg_rlpd'), None, move=False))
    assert lines == [(False, 'arm0: the check of its arm failed with exit code 7.')]


def test_a_check_shows_every_verdict_and_fails_with_the_bad_ones(tmp_path, monkeypatch, capsys):
    program = tmp_path / 'arm_check'
    program.write_text(
        '#!/bin/sh\necho \'{"good": true, "text": "fine"}\'\n'
        'echo \'{"good": false, "text": "It is off. Switch it on."}\'\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(check_arm, 'find_executable', lambda package, name: program)
    assert cli.main(['check', 'peg_rlpd']) == 2
    said = capsys.readouterr()
    assert 'arm0: fine' in said.out
    assert said.err == 'arm0: It is off. Switch it on.\n'
    assert 'all is well' not in said.out


def test_teach_takes_a_page_or_none_and_refuses_what_cannot_be_taught(tmp_path):
    out = f'out={tmp_path}/lab.yaml'
    done = user('teach', 'peg', out, 'reach=9')
    assert (done.returncode, 'Reach is below 2 m' in done.stderr) == (2, True)
    done = user('teach', 'peg', 'arx_reach', out)
    assert done.returncode == 2
    assert done.stderr.strip().lower() == (
        'arx_reach holds a task of kind reach. peg can be taught.'
    )
