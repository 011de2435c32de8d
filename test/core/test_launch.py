# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The launch file runs in an interpreter without our libraries and starts what the plan lists."""

import importlib.util
import json
import os
from pathlib import Path
import subprocess
import sys

import pytest

from user_core.config import load
from user_core.plan import plan

ROOT = Path(__file__).parents[2]
FILE = ROOT / 'launch' / 'peg_rlpd.launch.py'
VIEW = ROOT / 'launch' / 'view.launch.py'

# What the launch files use of launch and launch_ros, as plain records. `-S -E` leaves the
# interpreter with the standard library alone, and the blocker proves that it needs no more.
STUBS = """
import importlib.util, json, sys, types

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('pydantic', 'yaml', 'numpy', 'user_core', 'rclpy'):
            raise ImportError(name + ' is not in this interpreter')
sys.meta_path.insert(0, Blocker())

def module(name, **content):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(content)

class Record:
    def __init__(self, *args, **kwargs):
        self.args, self.kwargs = args, kwargs

class LaunchConfiguration(Record):
    def perform(self, context):
        return context[self.args[0]]

names = ('DeclareLaunchArgument', 'OpaqueFunction', 'Shutdown', 'Node', 'Value')
kinds = {name: type(name, (Record,), {}) for name in names}
module('launch', LaunchDescription=type('LaunchDescription', (Record,), {}))
module('launch.actions', **{k: kinds[k] for k in names[:3]})
module('launch.substitutions', LaunchConfiguration=LaunchConfiguration)
module('launch_ros')
module('launch_ros.actions', Node=kinds['Node'])
module('launch_ros.parameter_descriptions', ParameterValue=kinds['Value'])

spec = importlib.util.spec_from_file_location('launched', sys.argv[1])
launched = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launched)
*arguments, function = launched.generate_launch_description().args[0]
context = {a.args[0]: a.kwargs['default_value'] for a in arguments}
context.update(dict(pair.split(':=', 1) for pair in sys.argv[2:]))
nodes = function.kwargs['function'](context)

def plain(value):
    if callable(value):  # what follows a node's exit code 3, and its kill by a signal
        return [plain(value(Record(), None)) for Record.returncode in (3, -9)]
    if isinstance(value, kinds['Value']):
        assert value.kwargs['value_type'] is str
        return value.args[0]
    if isinstance(value, Record):
        return type(value).__name__
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value

print(json.dumps([plain(n.kwargs) for n in nodes]))
"""


def launched(tmp_path: Path, *arguments: str, file: Path = FILE) -> list[dict]:
    """What the launch file would start, read in a bare interpreter."""
    prefix = tmp_path / 'prefix'
    for name, module in (
        ('user_core/user', 'user_core.cli'),
        ('user_robot/view', 'user_robot.view_node'),
    ):
        script = prefix / 'lib' / name
        script.parent.mkdir(parents=True)
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        script.chmod(0o755)
    bare = {'PATH': os.environ['PATH'], 'AMENT_PREFIX_PATH': str(prefix)}
    if 'LD_LIBRARY_PATH' in os.environ:
        bare['LD_LIBRARY_PATH'] = os.environ['LD_LIBRARY_PATH']
    done = subprocess.run(
        [sys._base_executable, '-S', '-E', '-c', STUBS, str(file), *arguments],
        env=bare, cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_launch_file_starts_the_nodes_of_the_plan_without_our_libraries(tmp_path):
    found = launched(
        tmp_path, 'run:=by_launch', f'set:=runs={tmp_path}/runs seed=7 budget.env_steps=2000'
    )
    config = load(
        ROOT / 'config/peg_rlpd.yaml',
        ['seed=7', 'budget.env_steps=2000', f'runs={tmp_path}/runs'],
    )
    wanted = plan(config)
    assert len(found) == len(wanted) == 7
    for node, spec in zip(found, wanted, strict=True):
        for key in ('package', 'executable', 'name', 'namespace'):
            assert node[key] == getattr(spec, key)
        assert node['respawn']
        assert node['additional_env'] == dict(spec.env)
        assert node['prefix'] == (f'nice -n {spec.nice}' if spec.nice else None)
        assert float(node['sigterm_timeout']) >= 5 + spec.end_s
        values = {k: v for given in node['parameters'] for k, v in given.items()}
        assert values == {
            'config': config.to_json(),
            'run': 'by_launch',
            'run_folder': f'{tmp_path}/runs/by_launch',
        }
    assert found[-1]['name'] == 'run'
    assert found[-1]['on_exit'] == [['Shutdown'], []]  # killed, it is started again
    assert not any(node['on_exit'] for node in found[:-1])
    assert (tmp_path / 'runs' / 'by_launch' / 'config.json').exists()


def test_the_arm_argument_and_a_machine_reach_the_plan(tmp_path):
    page = tmp_path / 'two.yaml'
    page.write_text(
        'name: two\nmachines: {robot: {}, desk: {}}\ncells: {left: {machine: robot}}\n'
        'policy: {machine: desk}\nreplay: {machine: desk}\nlearner: {machine: desk}\n'
    )
    found = launched(
        tmp_path, f'config:={page}', f'set:=runs={tmp_path}/runs', 'machine:=robot', 'arm:=sim',
        'run:=both',
    )  # fmt: skip
    assert {(n['namespace'], n['name']) for n in found} == {
        ('/left', 'arm'),
        ('/left', 'episode'),
        ('/left', 'expert'),
    }


@pytest.mark.needs_ros
def test_the_view_shows_any_cell_with_its_robot_and_frames_of_its_name(tmp_path):
    pytest.importorskip('user_msgs.action')
    state, view, rviz = launched(tmp_path, 'cell:=left', 'arm:=franka_sim', file=VIEW)
    assert state['namespace'] == view['namespace'] == 'left'
    assert (view['package'], view['executable']) == ('user_robot', 'view')
    (model,) = state['parameters']
    assert model['frame_prefix'] == 'left/'
    assert 'name="joint7"' in model['robot_description']
    page = Path(rviz['arguments'][1])
    text = page.read_text()
    page.unlink()
    assert '/left/markers' in text
    assert 'arm0/' not in text


@pytest.mark.parametrize('file', [FILE, VIEW])
def test_a_launch_file_is_thin(file):
    assert len(file.read_text().splitlines()) <= 40


@pytest.mark.needs_launch
@pytest.mark.skipif(
    importlib.util.find_spec('launch_ros') is None, reason='launch_ros comes with ROS 2 itself'
)
def test_real_launch_loads_the_file(tmp_path):
    from launch import LaunchContext

    spec = importlib.util.spec_from_file_location('launched', FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    *arguments, function = module.generate_launch_description().entities
    context = LaunchContext()
    for argument in arguments:
        argument.execute(context)
    context.launch_configurations['set'] = f'runs={tmp_path}/runs'
    nodes = function.execute(context)
    wanted = plan(load(ROOT / 'config/peg_rlpd.yaml'))
    assert [n.node_package for n in nodes] == [spec.package for spec in wanted]
