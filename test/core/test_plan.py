# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The plan holds every node of the data's path, where the page puts it."""

import json
from pathlib import Path

import pytest

from user_core import page
from user_core.config import RunConfig, from_json, load
from user_core.errors import UserError
from user_core.plan import part_of, plan, plan_json

TWO = {
    'name': 'two',
    'machines': {'nuc': {}, 'box': {}},
    'cells': {'left': {'machine': 'nuc'}, 'right': {'machine': 'box', 'teleop': None}},
    'policy': {'machine': 'nuc'},
    'replay': {'machine': 'box'},
    'learner': {'machine': 'box'},
}


def configured(**changes) -> RunConfig:
    return page.validate(RunConfig, {**TWO, **changes}, 'here')


def names(*args, **changes) -> list[str]:
    return [node.path for node in plan(configured(**changes), *args)]


def test_every_cell_has_its_nodes_below_its_name_and_learning_is_there_once():
    assert names() == [
        '/left/arm',
        '/right/arm',
        '/learning/replay',
        '/learning/learner',
        '/learning/policy',
        '/left/expert',
        '/left/episode',
        '/right/episode',
        '/run',
    ]


def test_the_machines_share_the_plan_without_rest():
    nuc, box = names('nuc'), names('box')
    assert nuc == ['/left/arm', '/learning/policy', '/left/expert', '/left/episode']
    assert sorted(nuc + box) == sorted(names())


def test_an_unknown_machine_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r'no machine gpu\. The page lists nuc, box'):
        plan(configured(), 'gpu')


def test_the_run_starts_last_and_an_arm_ends_last():
    """Ending goes through the list backwards."""
    order = names()
    assert order[-1] == '/run'
    assert order[:2] == ['/left/arm', '/right/arm']
    assert order.index('/left/episode') > order.index('/learning/replay')


def test_an_evaluation_neither_trains_nor_demonstrates():
    order = names(evaluate='/some/run')
    assert '/learning/learner' not in order
    assert '/left/expert' not in order
    assert {'/learning/policy', '/learning/replay', '/run'} <= set(order)


def test_everything_that_may_die_comes_back_and_the_run_does_not():
    assert [node.path for node in plan(configured()) if not node.respawn] == ['/run']


def test_the_learner_stands_back_from_the_arm_in_real_time():
    nice = {node.name: node.nice for node in plan(configured(pace='realtime'))}
    assert nice['arm'] < 0
    assert nice['episode'] < 0
    assert nice['learner'] > nice['policy'] > nice['arm']
    for node in plan(configured()):
        assert node.env['OMP_NUM_THREADS'] == '1'


def test_the_plan_as_json_holds_all_that_launch_needs():
    config = configured()
    nodes = json.loads(plan_json(config, 'r1', Path('/runs/r1')))
    assert len(nodes) == len(plan(config))
    for node, spec in zip(nodes, plan(config), strict=True):
        assert (node['package'], node['executable']) == (spec.package, spec.executable)
        assert (node['name'], node['namespace']) == (spec.name, spec.namespace)
        assert from_json(node['parameters']['config']) == config
        assert node['parameters']['run'] == 'r1'
        assert node['parameters']['run_folder'] == '/runs/r1'


def test_every_executable_of_the_plan_is_declared_by_its_package():
    root = Path(__file__).parents[2] / 'src'
    for node in plan(configured()):
        declared = (root / node.package / 'setup.py').read_text()
        assert f"'{node.executable} = {node.package}." in declared


def test_the_arms_alone_come_with_their_devices():
    nodes = part_of(plan(load('peg_rlpd', ['arm=franka_sim'])), ['arm'])
    assert [node.executable for node in nodes] == ['franka_server', 'arm']
    assert [n.executable for n in part_of(plan(load('peg_rlpd')), ['arm'])] == ['arm']
    with pytest.raises(UserError, match='The plan has no leg'):
        part_of(nodes, ['leg'])
