# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The learner's budget, phases, publishing and return from the dead."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from user_core.config import RunConfig
from user_core.errors import UserError
from user_core.outcome import Boundary, Mode
from user_learning import checkpoint
from user_learning.gauges import CURVES
from user_learning.learner import Learner
from user_learning.networks import Actor, Spec
from user_learning.policy import Answer, Policy, Question
from user_learning.row import Row
from user_learning.store import Store
from user_learning.weights import Publisher, Version, read

Small = Callable[..., RunConfig]
Build = Callable[..., list[Row]]


class Bench:
    """A learner over a real store and publisher, turned by hand."""

    def __init__(self, tmp_path: Path, spec: Spec, episode: Build) -> None:
        self.folder, self.spec, self.episode = tmp_path, spec, episode
        self.store = Store(tmp_path / 'store')
        self.announced: list[Version] = []
        self.curves: dict[str, list[float]] = {}
        self.seq = 0
        self.number = 0

    def learner(self, config: RunConfig) -> Learner:
        publisher = Publisher(self.folder / 'shm', self.folder / 'versions.json', 'abcd')
        return Learner(
            config,
            self.spec,
            self.folder,
            publisher,
            self.announced.append,
            lambda name, value, step: self.curves.setdefault(name, []).append(value),
        )

    def add(self, episodes: int, steps: int = 5, **fields: object) -> None:
        for _ in range(episodes):
            self.number += 1
            rows = self.episode(self.number, steps, seq=self.seq, **fields)
            self.seq += len(rows)
            self.store.write(rows)

    def versions(self, policy: str) -> list[int]:
        return [v.version for v in self.announced if v.policy == policy]


def settle(learner: Learner, turns: int = 500) -> None:
    """Turns until the learner waits."""
    for _ in range(turns):
        if learner.turn() > 0:
            return
    raise AssertionError(f'still {learner.state} after {turns} turns')


def snapshot(learner: Learner) -> Path | None:
    """Asks from another thread, as the service does, while this one turns."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(learner.snapshot, 10.0)
        while not asked.done():
            learner.turn()
        return asked.result()


@pytest.fixture
def bench(tmp_path: Path, spec: Spec, episode: Build):
    bench = Bench(tmp_path, spec, episode)
    yield bench
    bench.store.close()


def test_nothing_is_published_before_the_demonstrations_are_there(
    bench: Bench, small: Small
) -> None:
    learner = bench.learner(small())
    bench.add(1, mode=Mode.DEMO)
    bench.add(1, mode=Mode.DEMO, boundary=Boundary.TIMEOUT)
    settle(learner)
    assert learner.state == 'WAIT_DEMOS'
    assert learner.reason == 'has 1 of 2 demonstrations (budget.demos)'
    assert bench.announced == []
    assert learner.rlpd.updates == 0


def test_the_warm_up_comes_before_version_one_and_the_clone_before_it(
    bench: Bench, small: Small
) -> None:
    learner = bench.learner(small())
    bench.add(2, mode=Mode.DEMO)
    settle(learner)
    assert learner.state == 'IDLE'
    assert [(v.policy, v.updates) for v in bench.announced] == [('clone', 30), ('actor', 20)]
    assert learner.rlpd.updates == 20


def test_updates_stop_at_the_budget_and_go_on_with_new_rows(bench: Bench, small: Small) -> None:
    learner = bench.learner(small())
    bench.add(2, mode=Mode.DEMO)
    bench.add(4)
    settle(learner)
    assert learner.rlpd.updates == 20 + 2 * 20
    for _ in range(50):
        assert learner.turn() > 0
    assert learner.rlpd.updates == 60
    assert learner.state == 'IDLE'
    bench.add(1)
    settle(learner)
    assert learner.rlpd.updates == 70


def test_before_start_rows_only_the_warm_up_is_paid_for(bench: Bench, small: Small) -> None:
    learner = bench.learner(small())
    bench.add(2, mode=Mode.DEMO)
    bench.add(1)
    settle(learner)
    assert learner.rlpd.updates == 20
    assert learner.reason == 'has 5 of 10 training steps (learner.start_rows)'


def test_evaluation_rows_pay_for_nothing(bench: Bench, small: Small) -> None:
    learner = bench.learner(small())
    bench.add(2, mode=Mode.DEMO)
    bench.add(10, mode=Mode.EVAL)
    bench.add(10, mode=Mode.EVAL_SAMPLED)
    settle(learner)
    assert learner.rlpd.updates == 20


def test_without_a_utd_the_learner_runs_free(bench: Bench, small: Small) -> None:
    learner = bench.learner(small(algorithm={'utd': None}))
    bench.add(2, mode=Mode.DEMO)
    bench.add(4)
    for _ in range(60):
        assert learner.turn() == 0
    assert learner.rlpd.updates > 300
    assert learner.numbers.get('backlog', 0.0) == 0.0


def test_rows_that_kill_gradients_are_published_by_nobody_and_end_the_training(
    bench: Bench, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = bench.learner(small(algorithm={'max_bad_updates': 5}))
    bench.add(2, mode=Mode.DEMO)
    settle(learner)
    before = bench.versions('actor')
    bench.add(4)
    learner.experience.read()
    learner.rows.online.returns.fill(np.nan)
    for _ in range(5):
        learner.turn()
    assert learner.state == 'HALTED'
    assert 'not finite' in learner.reason
    assert bench.versions('actor') == before
    weights = learner.rlpd.actor.state_dict()
    assert all(bool(t.isfinite().all()) for t in weights.values())
    assert learner.turn() > 0


def test_nothing_is_published_while_a_gradient_that_is_no_number_is_pending(
    bench: Bench, small: Small
) -> None:
    learner = bench.learner(small(algorithm={'max_bad_updates': 1000}))
    bench.add(2, mode=Mode.DEMO)
    settle(learner)
    before = bench.versions('actor')
    bench.add(4)
    learner.experience.read()
    good = learner.rows.online.returns.copy()
    learner.rows.online.returns.fill(np.nan)
    for _ in range(3):
        assert learner.turn() == 0
    assert learner.rlpd.bad_updates == 24
    assert bench.versions('actor') == before
    learner.rows.online.returns[:] = good
    settle(learner)
    assert learner.rlpd.bad_updates == 24
    assert len(bench.versions('actor')) > len(before)


def test_what_is_published_is_the_actor_and_a_policy_acts_with_it(
    bench: Bench, small: Small
) -> None:
    learner = bench.learner(small())
    bench.add(2, mode=Mode.DEMO)
    bench.add(4)
    settle(learner)
    version = bench.announced[-1]
    tensors = read(version.path.read_bytes(), version.sha256, 'actor', version.version, 'abcd')
    policy = Policy(bench.spec, (16,), 0)
    policy.offer('actor', version.version, tensors)
    state = np.array([1, 2, 0.5], np.float32)
    answer = policy.act([Question('actor', 0, Mode.EVAL, state, 1, 0)])[0]
    assert isinstance(answer, Answer)
    with torch.no_grad():
        mean, _ = learner.rlpd.actor(torch.from_numpy(state))
    assert answer.action.tolist() == pytest.approx(torch.tanh(mean).tolist(), abs=1e-6)


def test_versions_grow_and_each_names_its_updates(bench: Bench, small: Small) -> None:
    learner = bench.learner(small())
    bench.add(2, mode=Mode.DEMO)
    bench.add(6)
    settle(learner)
    actors = [v for v in bench.announced if v.policy == 'actor']
    assert len(actors) > 3
    assert [v.version for v in actors] == sorted({v.version for v in actors})
    assert [v.updates for v in actors] == sorted({v.updates for v in actors})


def test_a_learner_that_comes_back_continues_its_counters_and_versions(
    bench: Bench, small: Small
) -> None:
    config = small()
    first = bench.learner(config)
    bench.add(2, mode=Mode.DEMO)
    bench.add(4)
    settle(first)
    saved = snapshot(first)
    assert saved is not None
    assert saved.exists()
    newest = max(v.version for v in bench.announced)
    bench.add(1)
    second = bench.learner(config)
    assert second.state == 'RESTORING'
    assert second.rlpd.updates == first.rlpd.updates
    assert min(v.version for v in bench.announced[-2:]) > newest
    assert {v.policy for v in bench.announced[-2:]} == {'clone', 'actor'}
    settle(second)
    assert second.rows.train_rows == 25
    assert second.rlpd.updates == 20 + 2 * 25


def test_a_learner_that_comes_back_makes_the_same_updates_bit_for_bit(
    bench: Bench, small: Small
) -> None:
    config = small()
    first = bench.learner(config)
    bench.add(2, mode=Mode.DEMO)
    bench.add(4)
    settle(first)
    snapshot(first)
    bench.add(2)
    second = bench.learner(config)
    settle(first)
    settle(second)
    assert first.rlpd.updates == second.rlpd.updates == 80
    state = second.rlpd.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in first.rlpd.state_dict().items())


def test_the_warm_up_ends_with_a_checkpoint(bench: Bench, small: Small, tmp_path: Path) -> None:
    learner = bench.learner(small())
    bench.add(2, mode=Mode.DEMO)
    settle(learner)
    assert len(checkpoint.found(tmp_path / 'checkpoints')) == 1


def test_rlpd_without_demonstrations_is_refused(bench: Bench, small: Small) -> None:
    with pytest.raises(UserError, match='demonstrations'):
        bench.learner(small(budget={'demos': 0}))


def test_sac_without_demonstrations_trains_when_asked_by_name(bench: Bench, small: Small) -> None:
    learner = bench.learner(
        small(budget={'demos': 0}, algorithm={'demo_fraction': 0.0}, learner={'warmup_updates': 0})
    )
    settle(learner)
    assert bench.versions('actor') == [1]
    bench.add(4)
    settle(learner)
    assert learner.rlpd.updates == 40


def test_the_learner_tells_what_the_run_and_the_curves_need(bench: Bench, small: Small) -> None:
    learner = bench.learner(small())
    bench.add(2, mode=Mode.DEMO)
    bench.add(4, version=1)
    settle(learner)
    learner._tell(now=True)
    wanted = {
        'updates',
        'env_steps',
        'demos_rows',
        'utd',
        'q',
        'alpha',
        'critic_loss',
        'actor_loss',
        'entropy',
        'version',
        'backlog',
        'policy_lag',
    }
    assert wanted <= set(learner.numbers)
    assert all(np.isfinite(v) for v in learner.numbers.values())
    assert learner.numbers['utd'] == pytest.approx(2.0)
    assert learner.numbers['env_steps'] == 20
    assert learner.numbers['policy_lag'] == bench.versions('actor')[-1] - 1 > 0
    assert set(CURVES) <= set(bench.curves)


def test_a_temperature_at_its_bound_is_said(bench: Bench, small: Small) -> None:
    algorithm = {'target_entropy': 1000.0, 'alpha': 0.1, 'alpha_max': 0.11, 'lr': 0.05}
    learner = bench.learner(small(algorithm=algorithm))
    bench.add(2, mode=Mode.DEMO)
    settle(learner)
    bench.add(4)
    learner.turn()
    assert learner.state == 'TRAINING'
    assert 'alpha_max' in learner.reason


def test_every_curve_is_in_the_table_of_the_docs() -> None:
    table = (Path(__file__).parents[2] / 'docs' / 'tensorboard.md').read_text()
    assert [name for name in CURVES if f'`{name}`' not in table] == []


def test_the_clone_imitates_the_demonstrations(bench: Bench, small: Small) -> None:
    learner = bench.learner(small(learner={'clone_updates': 1500}, policy={'hidden': (32, 32)}))
    bench.add(2, steps=8, mode=Mode.DEMO)
    settle(learner)
    assert learner.training.clone is not None
    actor = Actor(bench.spec, (32, 32))
    actor.load_state_dict(learner.training.clone)
    mean, _ = actor(torch.tensor([[1.0, s, 0.5] for s in range(8)]))
    wanted = torch.tensor([[0.1 * s, -0.5] for s in range(8)])
    assert (torch.tanh(mean) - wanted).abs().max() < 0.1
