# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""`user eval` over real DDS: the chosen version, its mean action, the same every time."""

import json
from pathlib import Path

import numpy as np
import pytest
from running import Running
import torch

from user_core import run_folder
from user_core.config import load, weights_hash
from user_core.outcome import Boundary, Mode
from user_learning.networks import Actor
from user_learning.row import Row
from user_learning.spec import spec_of
from user_learning.tail import Tail
from user_learning.weights import Publisher

pytestmark = [pytest.mark.needs_ros, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
STEPS, EPISODES = 12, 3


@pytest.fixture
def learned(tmp_path):
    """A finished run that chose a network of wide spread, and that network."""
    page = ROOT / 'config' / 'peg_rlpd.yaml'
    config = load(page, [f'runs={tmp_path}', f'task.max_steps={STEPS}', 'seed=3'])
    folder = run_folder.create(config, 'learned')
    actor = Actor(spec_of(config), config.policy.hidden, torch.Generator().manual_seed(1), 1.0)
    publisher = Publisher(folder / 'checkpoints', folder / 'versions.json', weights_hash(config))
    version = publisher.publish('actor', actor.state_dict(), 0, 0)
    report = {'chosen_version': version.version, 'chosen_sha256': version.sha256}
    (folder / 'report.json').write_text(json.dumps(report))
    return folder, actor, version


def judged(runs, folder):
    """The report and the rows of one evaluation."""
    runs.mkdir()
    run = Running(runs, f'episodes={EPISODES}', verb='eval', config=str(folder))
    try:
        report = run.end(280)
    finally:
        run.close()
    assert run.process.returncode == 0, run.log.read_text()[-3000:]
    return report, [r for r in Tail(run.folder / 'store').rows() if isinstance(r, Row)]


def test_two_evaluations_take_the_same_mean_actions_and_a_timeout_ends_each_episode(
    learned, tmp_path
):
    folder, actor, version = learned
    one, rows = judged(tmp_path / 'one', folder)
    other, again = judged(tmp_path / 'other', folder)
    for report in (one, other):
        assert report['chosen_sha256'] == version.sha256
        assert [a['kind'] for a in report['attempts']] == ['fresh']
        assert report['fresh_episodes'] == report['attempts'][0]['n'] == EPISODES
    assert one['fresh_success_rate'] == other['fresh_success_rate']
    assert one['force_p95_n'] == other['force_p95_n']

    assert [(r.step, r.closing) for r in rows] == EPISODES * [
        *((step, False) for step in range(STEPS)),
        (STEPS, True),
    ]
    assert {r.mode for r in rows} == {Mode.EVAL}
    assert {r.boundary for r in rows if r.closing} == {Boundary.TIMEOUT}
    acts, acts_again = ([r for r in some if not r.closing] for some in (rows, again))
    assert len(acts) == len(acts_again) == EPISODES * STEPS
    for a, b in zip(acts, acts_again, strict=True):
        assert a.policy_version == b.policy_version == version.version
        assert a.state.tobytes() == b.state.tobytes()
        assert a.policy_action.tobytes() == b.policy_action.tobytes()
    with torch.no_grad():
        mean, _ = actor(torch.from_numpy(np.stack([r.state for r in acts])))
    np.testing.assert_allclose(
        np.stack([r.policy_action for r in acts]), torch.tanh(mean).numpy(), atol=1e-5
    )
