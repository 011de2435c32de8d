# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""One update of RLPD against closed forms and torchrl's losses."""

from __future__ import annotations

from collections.abc import Callable
import copy
import dataclasses
import math

import pytest
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
import torch
from torch import nn
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, ValueEstimators

from user_core.config import Rlpd as RlpdConfig
from user_core.errors import UserError
from user_core.outcome import Boundary
from user_learning.networks import Spec
from user_learning.rlpd import Batch, Rlpd
from user_learning.row import Row
from user_learning.rows import Rows
from user_learning.sampler import Sampler


def make(spec: Spec, seed: int = 0, **fields: object) -> Rlpd:
    fields = {'critic_hidden': (16, 16), 'target_min': None, 'target_max': None, **fields}
    return Rlpd(RlpdConfig.model_validate(fields), spec, (16, 16), seed)


def batch(rows: int = 32, seed: int = 3, **fields: torch.Tensor) -> Batch:
    """Random rows of one step and a discount of 0.96; some are the task's end."""
    g = torch.Generator().manual_seed(seed)
    tensors = {
        'state': torch.randn(rows, 3, generator=g),
        'action': torch.rand(rows, 2, generator=g) * 1.8 - 0.9,
        'reward': torch.rand(rows, generator=g),
        'discount': 0.96 * (torch.rand(rows, generator=g) > 0.3).float(),
        'next_state': torch.randn(rows, 3, generator=g),
    }
    return Batch(**{**tensors, **fields}, demos_n=rows // 2)


pytestmark = pytest.mark.filterwarnings('ignore:No target network updater')

# ---------------------------------------------------------------- an independent library


class Member(nn.Module):
    """One critic of the ensemble as plain layers, for torchrl."""

    def __init__(self, rlpd: Rlpd, member: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for k, (w, b) in enumerate(zip(rlpd.critic.weights, rlpd.critic.biases, strict=True)):
            if k:
                layers += [nn.LayerNorm(w.shape[1], elementwise_affine=False), nn.ReLU()]
            linear = nn.Linear(w.shape[1], w.shape[2])
            linear.weight.data, linear.bias.data = w[member].T.clone(), b[member, 0].clone()
            layers.append(linear)
        self.net = nn.Sequential(*layers)

    def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([observation, action], -1))


def oracle(rlpd: Rlpd) -> SACLoss:
    net = nn.Sequential(
        copy.deepcopy(rlpd.actor.net), NormalParamExtractor(scale_mapping='exp', scale_lb=1e-4)
    )
    actor = ProbabilisticActor(
        TensorDictModule(net, ['observation'], ['loc', 'scale']),
        in_keys=['loc', 'scale'],
        distribution_class=TanhNormal,
        distribution_kwargs={'tanh_loc': False, 'safe_tanh': False},
    )
    critics = [
        ValueOperator(Member(rlpd, k), ['observation', 'action'])
        for k in range(rlpd.config.ensemble)
    ]
    loss = SACLoss(
        actor,
        critics,
        num_qvalue_nets=len(critics),
        loss_function='l2',
        alpha_init=rlpd.config.alpha,
        target_entropy=rlpd.config.target_entropy,
    )
    loss.make_value_estimator(ValueEstimators.TD0, gamma=rlpd.config.gamma)
    return loss


def as_tensordict(rlpd: Rlpd, rows: Batch) -> TensorDict:
    n, normal = len(rows.reward), rlpd.actor.normalizer
    ended = rows.discount[:, None] == 0
    return TensorDict(
        {
            'observation': normal(rows.state),
            'action': rows.action,
            'next': TensorDict(
                {
                    'observation': normal(rows.next_state),
                    'reward': rows.reward[:, None],
                    'done': ended,
                    'terminated': ended,
                },
                [n],
            ),
        },
        [n],
    )


def same_noise(rows: int, seed: int) -> torch.Tensor:
    """What torchrl's rsample draws next; leaves the global generator as it was before the draw."""
    torch.manual_seed(seed)
    noise = torch.normal(torch.zeros(rows, 2), torch.ones(rows, 2))
    torch.manual_seed(seed)
    return noise


@pytest.mark.parametrize('ensemble', [1, 2])
def test_critic_targets_and_loss_equal_torchrl_s(spec: Spec, ensemble: int) -> None:
    rlpd = make(spec, ensemble=ensemble, subset=ensemble, entropy_in_backup=True, alpha=0.3)
    rows = batch()
    loss_module = oracle(rlpd)
    noise = same_noise(32, 11)
    expected, _ = loss_module.qvalue_v2_loss(as_tensordict(rlpd, rows))
    y = rlpd.targets(rows, rlpd.actor.normalizer(rows.next_state), noise, None)
    loss, _ = rlpd.critic_loss(rlpd.actor.normalizer(rows.state), rows.action, y)
    assert loss.item() == pytest.approx(expected.mean().item(), rel=1e-4)


def test_the_actor_s_loss_and_gradient_equal_torchrl_s(spec: Spec) -> None:
    rlpd = make(spec, ensemble=1, subset=1, alpha=0.3)
    rows = batch()
    loss_module = oracle(rlpd)
    noise = same_noise(32, 12)
    expected, _ = loss_module.actor_loss(as_tensordict(rlpd, rows))
    loss, _ = rlpd.actor_loss(rows, rlpd.actor.normalizer(rows.state), noise)
    assert loss.item() == pytest.approx(expected.mean().item(), rel=1e-4)
    ours = torch.autograd.grad(loss, rlpd.actor_parameters)
    theirs = torch.autograd.grad(
        expected.mean(),
        list(loss_module.actor_network_params.values(True, True)),
        allow_unused=True,
    )
    ours_norm = math.sqrt(sum(g.square().sum().item() for g in ours))
    theirs_norm = math.sqrt(sum(g.square().sum().item() for g in theirs if g is not None))
    assert ours_norm == pytest.approx(theirs_norm, rel=1e-3)


def test_the_temperature_s_gradient_has_torchrl_s_sign_and_zero(spec: Spec) -> None:
    rlpd = make(spec, alpha=0.3)
    loss_module = oracle(rlpd)
    for entropy in (-5.0, -3.0, 1.0):
        ours = torch.autograd.grad(rlpd.alpha_loss(torch.tensor(entropy)), rlpd.log_alpha)[0]
        theirs = torch.autograd.grad(
            loss_module.alpha_loss(torch.tensor(-entropy)), loss_module.log_alpha
        )[0]
        assert ours.item() == pytest.approx(0.3 * theirs.item(), abs=1e-6)


# ---------------------------------------------------------------- closed forms


def constant_target(rlpd: Rlpd, *values: float) -> None:
    """Makes target critic i answer values[i] everywhere."""
    with torch.no_grad():
        for w in rlpd.target.weights:
            w.zero_()
        for b in rlpd.target.biases:
            b.zero_()
        for k, value in enumerate(values):
            rlpd.target.biases[-1][k] = value


def test_a_time_out_bootstraps_and_the_task_s_end_does_not(spec: Spec) -> None:
    rlpd = make(spec)
    constant_target(rlpd, 1.0, 1.0)
    rows = batch(2, reward=torch.zeros(2), discount=torch.tensor([0.97, 0.0]))
    y = rlpd.targets(rows, rows.next_state, torch.zeros(2, 2), None)
    assert y.tolist() == pytest.approx([0.97, 0.0])


@pytest.mark.parametrize(
    ('boundary', 'target'),
    [
        (Boundary.SUCCESS, 0.0),
        (Boundary.FAILURE, 0.0),
        (Boundary.TIMEOUT, 0.97),
        (Boundary.ABORT, 0.97),
    ],
)
def test_a_stored_last_step_bootstraps_its_target_unless_the_task_ended(
    spec: Spec, episode: Callable[..., list[Row]], boundary: Boundary, target: float
) -> None:
    """The whole way from row to target, with r = 0, gamma = 0.97 and Q' = 1."""
    rows = Rows(100, 3, 2, gamma=0.97)
    for row in episode(1, 1, boundary=boundary):
        rows.add(dataclasses.replace(row, reward=0.0))
    rlpd = make(spec)
    constant_target(rlpd, 1.0, 1.0)
    drawn = Sampler(rows, 4, 0.0, seed=0)(1)
    y = rlpd.targets(drawn, rlpd.actor.normalizer(drawn.next_state), torch.zeros(4, 2), None)
    assert drawn.next_state[:, 1].tolist() == [1.0] * 4
    assert y.tolist() == pytest.approx([target] * 4)


def test_a_target_is_the_minimum_over_the_drawn_subset_only(spec: Spec) -> None:
    rlpd = make(spec, ensemble=10, subset=2)
    constant_target(rlpd, *[float(k) for k in range(10)])
    rows = batch(4, reward=torch.zeros(4), discount=torch.full((4,), 0.5))
    y = rlpd.targets(rows, rows.next_state, torch.zeros(4, 2), torch.tensor([7, 4]))
    assert y.tolist() == pytest.approx([2.0] * 4)


def test_the_subset_is_drawn_anew_at_each_update(
    spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    rlpd = make(spec, ensemble=10, subset=2)
    seen = []
    targets = rlpd.targets
    monkeypatch.setattr(
        rlpd,
        'targets',
        lambda b, x, n, m: (seen.append(tuple(m.tolist())), targets(b, x, n, m))[1],
    )
    for _ in range(20):
        rlpd.update(batch())
    assert len(set(seen)) > 5
    assert all(len(set(m)) == 2 for m in seen)


def test_the_entropy_bonus_enters_a_target_only_when_asked(spec: Spec) -> None:
    rows = batch(4, reward=torch.zeros(4), discount=torch.ones(4))
    with_bonus = make(spec, entropy_in_backup=True, alpha=0.5)
    without = make(spec, entropy_in_backup=False, alpha=0.5)
    ys = []
    for rlpd in (with_bonus, without):
        constant_target(rlpd, 0.0, 0.0)
        ys.append(rlpd.targets(rows, rows.next_state, torch.zeros(4, 2), None))
    assert ys[1].tolist() == [0.0] * 4
    assert ys[0].abs().min() > 0.01


def test_targets_stay_inside_the_returns_that_are_possible(spec: Spec) -> None:
    rlpd = make(spec, target_min=0.0, target_max=1.0)
    constant_target(rlpd, 5.0, 7.0)
    rows = batch()
    y = rlpd.targets(rows, rows.next_state, torch.zeros(32, 2), None)
    assert y.max() == 1.0
    constant_target(rlpd, -5.0, -7.0)
    y = rlpd.targets(rows, rows.next_state, torch.zeros(32, 2), None)
    assert y.min() == 0.0


def test_targets_carry_no_gradient(spec: Spec) -> None:
    rlpd = make(spec)
    rows = batch()
    assert not rlpd.targets(rows, rows.next_state, torch.zeros(32, 2), None).requires_grad


def test_target_critics_follow_by_exactly_tau(spec: Spec) -> None:
    rlpd = make(spec, tau=0.005)
    before = [p.clone() for p in rlpd.target_parameters]
    rlpd.update(batch())
    for old, new, online in zip(
        before, rlpd.target_parameters, rlpd.critic_parameters, strict=True
    ):
        assert torch.allclose(new, old + 0.005 * (online - old), atol=1e-7)
        assert not torch.equal(new, online)


def test_alpha_falls_while_the_policy_is_more_random_than_wanted_and_rises_while_less(
    spec: Spec,
) -> None:
    for target, falls in ((-100.0, True), (100.0, False)):
        rlpd = make(spec, target_entropy=target, actor_every=1, alpha=0.1)
        for _ in range(5):
            rlpd.update(batch())
        assert (rlpd.alpha < 0.1) is falls


def test_alpha_stays_inside_its_bounds(spec: Spec) -> None:
    rlpd = make(spec, target_entropy=1000.0, actor_every=1, alpha=0.1, alpha_max=0.11, lr=0.05)
    for _ in range(20):
        rlpd.update(batch())
    assert rlpd.alpha == pytest.approx(0.11)


def test_the_actor_moves_every_nth_update_and_critics_at_each(spec: Spec) -> None:
    rlpd = make(spec, actor_every=3)
    moved = []
    for _ in range(6):
        before = rlpd.actor_parameters[0].clone()
        rlpd.update(batch())
        moved.append(not torch.equal(before, rlpd.actor_parameters[0]))
    assert moved == [False, False, True, False, False, True]


def test_an_actor_update_leaves_the_critics_alone(spec: Spec) -> None:
    rlpd = make(spec)
    before = [p.clone() for p in rlpd.critic_parameters]
    rows = batch()
    assert rlpd._update_actor(rows, rlpd.actor.normalizer(rows.state), 0, False, {})
    for old, new in zip(before, rlpd.critic_parameters, strict=True):
        assert torch.equal(old, new)


def test_the_actor_learns_the_action_that_critics_prefer(spec: Spec) -> None:
    rlpd = make(
        spec, actor_every=1, alpha=0.001, target_entropy=-6.0, lr=5e-3, critic_hidden=(64, 64)
    )
    g = torch.Generator().manual_seed(0)
    for k in range(600):
        rows = batch(64, seed=k)
        action = torch.rand(64, 2, generator=g) * 2 - 1
        reward = 1 - (action - torch.tensor([0.5, -0.3])).square().sum(-1)
        rlpd.update(Batch(rows.state, action, reward, torch.zeros(64), rows.next_state))
    mean, _ = rlpd.actor(batch(64).state)
    assert torch.allclose(torch.tanh(mean).mean(0), torch.tensor([0.5, -0.3]), atol=0.2)


def test_cloning_in_the_actor_s_loss_pulls_towards_demonstrations(spec: Spec) -> None:
    rows = batch()
    pulled, free = make(spec, bc_weight=10.0, lr=1e-2), make(spec, lr=1e-2)
    for rlpd in (pulled, free):
        for _ in range(100):
            rlpd.update(rows)
    errors = [
        (torch.tanh(r.actor(rows.state)[0])[:16] - rows.action[:16]).square().mean().item()
        for r in (pulled, free)
    ]
    assert errors[0] < 0.5 * errors[1]


def test_the_cloning_term_falls_linearly_with_training_rows(spec: Spec) -> None:
    rlpd = make(spec, bc_weight=2.0, bc_rows=100)
    assert [rlpd.bc_weight(n) for n in (0, 25, 100, 500)] == [2.0, 1.5, 0.0, 0.0]
    assert make(spec, bc_weight=2.0).bc_weight(10**6) == 2.0


def test_the_cloning_term_is_the_squared_distance_to_demonstrated_actions_only(spec: Spec) -> None:
    rlpd = make(spec)
    rows = batch()
    x = rlpd.actor.normalizer(rows.state)
    noise = torch.zeros(32, 2)
    mean, _ = rlpd.actor.head(x)
    expected = 3.0 * (torch.tanh(mean[:16]) - rows.action[:16]).square().sum(-1).mean()
    with_term, without = (rlpd.actor_loss(rows, x, noise, w)[0].item() for w in (3.0, 0.0))
    assert with_term - without == pytest.approx(expected.item(), rel=1e-4)


def test_the_actor_s_loss_is_scaled_by_the_size_of_q_when_asked(spec: Spec) -> None:
    plain, scaled = make(spec, alpha=1e-4), make(spec, alpha=1e-4, bc_normalized=True)
    for rlpd in (plain, scaled):
        with torch.no_grad():
            for bias in rlpd.critic.biases[-1]:
                bias.fill_(50.0)
    rows = batch()
    args = (rows, plain.actor.normalizer(rows.state), torch.zeros(32, 2))
    assert plain.actor_loss(*args)[0].item() == pytest.approx(-50.0, abs=3.0)
    assert scaled.actor_loss(*args)[0].item() == pytest.approx(-1.0, abs=0.01)


def test_in_an_imitating_warm_up_the_actor_ignores_the_critics_and_alpha_rests(spec: Spec) -> None:
    rlpd = make(spec, warmup_actor='imitate', actor_every=1, lr=1e-2, actor_average=0.001)
    rows = batch()
    for _ in range(200):
        rlpd.update(rows, warm_up=True)
    error = (torch.tanh(rlpd.actor(rows.state)[0])[:16] - rows.action[:16]).square().mean()
    assert error < 0.1
    assert rlpd.alpha == pytest.approx(0.02)
    assert torch.equal(rlpd.average_parameters[0], rlpd.actor_parameters[0])


def test_the_policy_begins_with_the_spread_that_is_asked_for(spec: Spec) -> None:
    _, log_std = make(spec, log_std_start=-1.5).actor(batch().state)
    assert log_std.mean().item() == pytest.approx(-1.5, abs=0.05)


def test_a_published_average_trails_the_actor(spec: Spec) -> None:
    rlpd = make(spec, actor_average=0.1, actor_every=1)
    start = rlpd.average_parameters[0].clone()
    rlpd.update(batch())
    expected = start + 0.1 * (rlpd.actor_parameters[0] - start)
    assert torch.allclose(rlpd.average_parameters[0], expected, atol=1e-7)
    name = next(iter(dict(rlpd.actor.named_parameters())))
    assert torch.equal(rlpd.published()[f'average.{name}'], rlpd.average_parameters[0])
    assert torch.equal(rlpd.published()[name], rlpd.actor_parameters[0])
    assert not [k for k in make(spec).published() if k.startswith('average.')]


# ---------------------------------------------------------------- faults and repetition


def test_a_gradient_that_is_no_number_changes_nothing(spec: Spec) -> None:
    rlpd = make(spec)
    rlpd.update(batch())
    before = {
        k: v.clone() for k, v in rlpd.state_dict().items() if k not in ('generator', 'updates')
    }
    rlpd.update(batch(reward=torch.full((32,), float('nan'))))
    after = rlpd.state_dict()
    assert all(torch.equal(v, after[k]) for k, v in before.items())
    assert rlpd.bad_updates_in_a_row == 1
    rlpd.update(batch())
    assert rlpd.bad_updates_in_a_row == 0
    assert rlpd.bad_updates == 1


def test_bad_gradients_in_a_row_end_the_training_with_a_reason(spec: Spec) -> None:
    rlpd = make(spec, max_bad_updates=3)
    bad = batch(reward=torch.full((32,), float('nan')))
    rlpd.update(bad)
    rlpd.update(bad)
    with pytest.raises(UserError, match='not finite'):
        rlpd.update(bad)


def test_gradients_are_clipped_to_the_norm_that_is_asked_for(
    spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    rlpd = make(spec, max_grad_norm=1e-3)
    adam, norms = rlpd.optimizers['critic'], []
    monkeypatch.setattr(
        adam,
        'step',
        lambda: norms.append(sum(p.grad.square().sum().item() for p in rlpd.critic_parameters)),
    )
    rlpd.update(batch(reward=torch.full((32,), 100.0)))
    assert math.sqrt(norms[0]) == pytest.approx(1e-3, rel=1e-3)


def test_same_seed_and_rows_give_the_same_networks_bit_for_bit(spec: Spec) -> None:
    a, b = make(spec, seed=5), make(spec, seed=5)
    for k in range(10):
        a.update(batch(seed=k))
        b.update(batch(seed=k))
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


def test_a_restored_learner_goes_on_bit_for_bit_with_temperature_and_moments(spec: Spec) -> None:
    a = make(spec, seed=5, ensemble=4, subset=2)
    for k in range(7):
        a.update(batch(seed=k))
    state = {k: v.clone() for k, v in a.state_dict().items()}
    b = make(spec, seed=99, ensemble=4, subset=2)
    b.load_state_dict(state)
    assert b.alpha == a.alpha
    for k in range(7, 17):
        a.update(batch(seed=k))
        b.update(batch(seed=k))
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


def test_a_checkpoint_of_other_networks_is_refused(spec: Spec) -> None:
    with pytest.raises(UserError, match='does not fit'):
        make(spec, critic_hidden=(8, 8)).load_state_dict(make(spec).state_dict())
