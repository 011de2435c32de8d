# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A page is strict: what is wrong with it is said by file, path and nearest key."""

from contextlib import suppress
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
import pytest
import yaml

from user_core import page
from user_core.config import Cell, RunConfig, config_hash, from_json, load, weights_hash
from user_core.errors import UserError

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / 'config').glob('*.yaml'))
KEYS = sorted(set(page.keys(RunConfig)))


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def refusal(*settings: str, source: str | Path = 'peg_rlpd') -> str:
    with pytest.raises(UserError) as caught:
        load(source, settings)
    return str(caught.value)


@pytest.mark.parametrize('path', SHIPPED, ids=lambda p: p.stem)
def test_every_shipped_page_is_valid_and_named_as_its_file(path):
    assert load(path).name == path.stem


@pytest.mark.parametrize('path', SHIPPED, ids=lambda p: p.stem)
def test_no_shipped_page_repeats_a_default(path):
    """A default lives in the schema alone; a `kind` may be written, it says what is meant."""

    def settings(content, where=''):
        for key, value in content.items():
            if isinstance(value, dict):
                yield from settings(value, f'{where}{key}.')
            elif key != 'kind':
                yield f'{where}{key}', value

    content = page.read(path)
    whole = load(path)
    for key, _ in settings(content):
        if key.startswith('machines.') or key == 'name':
            continue
        without = page.read(path)
        *parents, last = key.split('.')
        place = without
        for parent in parents:
            place = place[parent]
        del place[last]
        with suppress(UserError):  # it has no default
            assert page.validate(RunConfig, without, str(path)) != whole, f'{key} is the default'


def test_every_field_says_what_it_is():
    def missing(model, where):
        for name, field in model.model_fields.items():
            inner = list(page._models(field.annotation))
            if not inner and name != 'kind' and not field.description:
                yield f'{where}{name}'
            for _, part in inner:
                yield from missing(part, f'{where}{name}.')

    obvious = {'cells.task.frame.position_m', 'task.frame.position_m'}
    assert set(missing(RunConfig, '')) <= obvious


def test_a_misspelt_key_names_file_path_and_nearest_key(tmp_path):
    file = tmp_path / 'mine.yaml'
    file.write_text('name: mine\ncells:\n  arm0:\n    safety: {dedline_s: 0.1}\n')
    said = refusal(source=file)
    assert str(file) in said
    assert 'cells.arm0.safety.dedline_s' in said
    assert 'did you mean cells.arm0.safety.deadline_s?' in said


@given(key=st.sampled_from(KEYS), where=st.integers(0, 200))
def test_any_key_misspelt_by_a_letter_is_refused_with_the_right_one(key, where):
    *parents, last = key.replace('*', 'arm0' if key.startswith('cells') else 'local').split('.')
    at = where % len(last)
    wrong = last[:at] + 'x' + last[at + 1 :]
    siblings = page._children(RunConfig, parents)
    if wrong == last or wrong in siblings or len(last) < 4:
        return
    content: dict = {'name': 'n', 'cells': {'arm0': {}}, 'machines': {'local': {}}}
    place = content
    for parent in parents:
        place = place.setdefault(parent, {})
    place[wrong] = 1
    with pytest.raises(UserError) as caught:
        page.validate(RunConfig, content, 'page.yaml')
    assert f'page.yaml: unknown key {".".join([*parents, wrong])}, did you mean ' in str(
        caught.value
    )


def test_a_key_in_the_wrong_place_is_shown_the_right_one():
    assert 'unknown key gamma, did you mean algorithm.gamma?' in refusal('gamma=0.9')


def test_a_setting_from_the_command_line_is_blamed_on_it():
    said = refusal('seed=-1')
    assert said.startswith('Command line (seed=-1): seed is -1, but must be')


@pytest.mark.parametrize(
    ('setting', 'good'),
    [
        ('arm=fr33', 'sim'),
        ('cells.arm0.teleop.kind=spacemice', 'script'),
        ('task.kind=pge', 'peg'),
        ('policy.kind=mpl', 'mlp'),
        ('algorithm.kind=sac', 'rlpd'),
        ('pace=fast', 'lockstep or realtime'),
    ],
)
def test_a_bad_kind_lists_the_good_ones(setting, good):
    said = refusal(setting)
    assert setting.partition('=')[2] in said
    assert f'can be {good}' in said


@pytest.mark.parametrize('value', ['.inf', '-.inf', '.nan'])
def test_no_number_of_a_page_is_infinite(value):
    for key in ('task.scale_m', 'cells.arm0.safety.max_step_m', 'algorithm.target_max'):
        assert 'finite' in refusal(f'{key}={value}')
    assert 'finite' in refusal(f'cells.arm0.safety.box_max_m=[{value}, 0.1, 0.1]')


def test_limits_that_contradict_each_other_are_refused():
    assert 'below box_max_m' in refusal('cells.arm0.safety.box_min_m=[0.2, 0, 0]')
    assert 'gate_window' in refusal('evaluation.gate_successes=21')
    assert 'does not list' in refusal('policy.machine=gpu')
    assert 'reads the store' in refusal('machines={local: {}, gpu: {}}', 'learner.machine=gpu')
    assert 'length 1' in refusal(
        'task.frame={position_m: [0, 0, 0], quaternion_xyzw: [0, 0, 0, 2]}'
    )


def test_a_name_that_ros_would_refuse_is_refused_first():
    assert 'lower-case' in refusal('cells.Arm-0={}')


def test_a_key_given_twice_is_refused_with_its_line(tmp_path):
    file = tmp_path / 'twice.yaml'
    file.write_text('name: twice\nseed: 1\nseed: 2\n')
    said = refusal(source=file)
    assert 'seed is given twice' in said
    assert 'line 3' in said


@pytest.mark.parametrize('text', ['', '- 1\n- 2\n', 'name: [', 'a: b: c', '\t- x', '\0'])
def test_what_is_no_page_is_refused_in_a_sentence(tmp_path, text):
    file = tmp_path / 'bad.yaml'
    file.write_text(text)
    assert str(file) in refusal(source=file)


def test_an_unknown_page_lists_the_shipped_ones():
    said = refusal(source='peg_rlp')
    assert 'no configuration peg_rlp' in said
    assert 'Did you mean peg_rlpd?' in said


@pytest.mark.parametrize('setting', ['seed', '=1', 'seed.a.b=1', 'seed=[1'])
def test_a_setting_that_is_none_is_refused(setting):
    assert setting in refusal(setting) or 'seed' in refusal(setting)


def test_settings_are_typed_as_yaml_and_the_last_one_wins():
    config = load(
        'peg_rlpd', ['seed=3', 'seed=4', 'algorithm.utd=null', 'pace=realtime', 'arm=sim']
    )
    assert (config.seed, config.algorithm.utd, config.pace) == (4, None, 'realtime')
    assert load('peg_rlpd', ['algorithm.lr=1e-4']).algorithm.lr == 1e-4


def test_shipped_pages_are_found_in_the_installed_share(tmp_path, monkeypatch):
    share = tmp_path / 'share' / 'user_bringup' / 'config'
    share.mkdir(parents=True)
    (share / 'elsewhere.yaml').write_text('name: elsewhere\n')
    monkeypatch.setenv('AMENT_PREFIX_PATH', str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert load('elsewhere').name == 'elsewhere'


def test_the_resolved_page_reads_back_as_itself(tmp_path):
    config = load('peg_rlpd', ['seed=5'])
    assert from_json(config.to_json()) == config
    (tmp_path / 'config.json').write_text(config.to_json())
    assert load(tmp_path) == config


def test_a_configuration_cannot_be_changed():
    config = load('peg_rlpd')
    with pytest.raises(ValidationError):
        config.seed = 1


def test_the_hash_follows_what_nodes_must_agree_on():
    base = load('peg_rlpd')
    assert (
        config_hash(base)
        == config_hash(load('peg_rlpd'))
        != config_hash(load('peg_rlpd', ['task.scale_m=0.02']))
    )
    assert config_hash(base) == config_hash(load('peg_rlpd', ['runs=/elsewhere']))
    assert len(config_hash(base)) == 16


def test_weights_fit_another_run_exactly_when_their_meaning_is_the_same():
    base = weights_hash(load('peg_rlpd'))
    assert base == weights_hash(load('peg_rlpd', ['seed=9', 'algorithm.utd=1', 'evaluate=/x']))
    for setting in ('task.scale_m=0.02', 'policy.hidden=[64]', 'cells.arm0.control_hz=20'):
        assert base != weights_hash(load('peg_rlpd', [setting]))


def test_defaults_alone_are_a_valid_run():
    config = page.validate(RunConfig, {'name': 'bare'}, 'here')
    assert config.cells == {'arm0': Cell()}
    assert yaml.safe_load(config.to_json())['name'] == 'bare'


def test_another_arm_keeps_what_both_kinds_have_and_no_more():
    config = load('peg_rlpd', ['arm=franka'])
    arm = config.cells['arm0'].arm
    assert (arm.kind, arm.stiffness_n_m, arm.clip_m) == ('franka', 2000, 0.005)
    assert config.pace == 'realtime'
    assert load('peg_rlpd', ['arm=franka', 'arm=sim']).cells['arm0'].arm.kind == 'sim'
    assert 'belongs to kind sim and franka_sim, here the kind is franka' in refusal(
        'arm=franka', 'cells.arm0.arm.peg_edge_m=0.001'
    )
    assert 'did you mean cells.arm0.arm.address?' in refusal(
        'cells.arm0.arm.adress=x', 'arm=franka'
    )


def test_an_arm_that_cannot_wait_needs_realtime(tmp_path):
    assert 'pace lockstep needs an arm that can wait' in refusal('arm=franka', 'pace=lockstep')
    resolved = tmp_path / 'config.json'
    resolved.write_text(load('peg_rlpd').to_json())
    assert load(resolved, ['arm=franka_sim']).pace == 'realtime'
