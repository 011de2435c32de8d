# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a finished run chose is judged again as it was, or not at all."""

import hashlib
import json
from pathlib import Path
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save

from user_core import cli, run_folder, run_node
from user_core.config import load, weights_hash
from user_core.errors import UserError

ROOT = Path(__file__).parents[2]
VERSION = 7


@pytest.fixture
def finished(tmp_path):
    """A run that chose a version; its files are there, its network is not."""
    config = load(ROOT / 'config' / 'peg_rlpd.yaml', [f'runs={tmp_path}/runs'])
    folder = run_folder.create(config, 'learned')
    data = save({'x': np.zeros(3)}, {'config_hash': weights_hash(config)})
    (folder / 'checkpoints').mkdir()
    (folder / 'checkpoints' / f'actor-{VERSION}.safetensors').write_bytes(data)
    report = {'chosen_version': VERSION, 'chosen_sha256': hashlib.sha256(data).hexdigest()}
    (folder / 'report.json').write_text(json.dumps(report))
    return folder


def test_the_chosen_version_is_found_with_its_hash(finished):
    chosen = run_folder.chosen(finished, load(finished, ['seed=5', f'evaluate={finished}']))
    assert (chosen.policy, chosen.version) == ('actor', VERSION)
    assert chosen.sha256 == hashlib.sha256(chosen.path.read_bytes()).hexdigest()


def missing(folder):
    (folder / 'checkpoints' / f'actor-{VERSION}.safetensors').unlink()


def altered(folder):
    path = folder / 'checkpoints' / f'actor-{VERSION}.safetensors'
    path.write_bytes(path.read_bytes()[:-1] + b'\x01')


def never_judged(folder):
    (folder / 'report.json').write_text(json.dumps({'chosen_version': None}))


def unjudged(folder):
    (folder / 'report.json').write_text(
        json.dumps({'chosen_version': None, 'chosen_sha256': None})
    )


def unfinished(folder):
    (folder / 'report.json').unlink()


def torn(folder):
    (folder / 'report.json').write_text('{"chosen_ver')


@pytest.mark.parametrize(
    ('harm', 'settings', 'word'),
    [
        (missing, [], f'there is no actor-{VERSION}.safetensors'),
        (altered, [], 'content hash differs'),
        (unjudged, [], 'never passed an evaluation'),
        (unfinished, [], 'never passed an evaluation'),
        (torn, [], 'cannot be read'),
        (never_judged, [], 'cannot be read'),
        (lambda _: None, ['task.scale_m=0.02'], 'does not fit this configuration'),
        (lambda _: None, ['policy.hidden=[64]'], 'does not fit this configuration'),
    ],
    ids=['missing', 'altered', 'unjudged', 'unfinished', 'torn', 'no hash', 'scale', 'network'],
)
def test_a_checkpoint_that_is_not_the_judged_one_is_a_refusal_and_never_a_number(
    finished, harm, settings, word, tmp_path, capsys
):
    harm(finished)
    before = sorted(path.name for path in finished.parent.iterdir())
    assert cli.main(['eval', str(finished), 'run=again', *settings]) == 2
    said = capsys.readouterr()
    assert word.lower() in said.err.lower()
    assert said.out == ''
    assert len(said.err.strip().splitlines()) == 1
    assert sorted(path.name for path in finished.parent.iterdir()) == before
    with pytest.raises(UserError):
        run_folder.chosen(finished, load(finished, settings))


def test_the_node_of_the_run_looks_itself_whoever_started_it(finished, tmp_path):
    altered(finished)
    config = load(finished, [f'evaluate={finished}'])
    values = {'config': config.to_json(), 'run': 'again', 'run_folder': str(tmp_path / 'again')}
    file = tmp_path / 'params.yaml'
    file.write_text(json.dumps({'/**': {'ros__parameters': values}}))
    (tmp_path / 'again').mkdir()
    command = [sys.executable, '-m', 'user_core.run_node', '--ros-args', '--params-file', file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert 'content hash differs' in (done.stdout + done.stderr).lower()
    assert 'Traceback' not in done.stdout + done.stderr
    assert not (tmp_path / 'again' / 'report.json').exists()


def test_an_evaluation_that_failed_ends_with_its_reason_and_without_a_rate(finished):
    shell = SimpleNamespace(config=load(finished, [f'evaluate={finished}']))
    nothing = {'fresh_success_rate': None, 'fresh_success_wilson_95': None, 'fresh_episodes': 0}
    nothing['chosen_sha256'] = None
    said = run_node.RunShell.headline(shell, False, 'The policy does not answer.', nothing)
    assert said == 'peg_rlpd: not judged: The policy does not answer.'
