# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""RLPD with pictures: who teaches the encoders, and by how much."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file
from squares import VIEWS, batch, sighted, squares
import torch

from user_core.config import Rlpd as RlpdConfig
from user_core.outcome import Mode
from user_learning.networks import Spec
from user_learning.policy import Answer, Policy, Question
from user_learning.rlpd import Batch, Rlpd


def make(spec: Spec | None = None, seed: int = 0, **fields: object) -> Rlpd:
    fields = {'critic_hidden': (16,), 'target_min': None, 'target_max': None, **fields}
    return Rlpd(RlpdConfig.model_validate(fields), spec or sighted(), (16,), seed)


def weights(rlpd: Rlpd) -> list[torch.Tensor]:
    return [p.clone() for p in rlpd.encoder_parameters]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_the_critics_loss_teaches_the_encoders_and_the_actor_s_does_not() -> None:
    lazy, eager = (make(actor_every=n, target_entropy=5.0) for n in (1000, 1))
    start = weights(lazy)
    for rlpd in (lazy, eager):
        rlpd.update(batch())
    assert not any(torch.equal(a, b) for a, b in zip(start, weights(lazy), strict=True))
    assert same(weights(lazy), weights(eager))
    assert not same(lazy.actor_parameters, eager.actor_parameters)


def test_an_encoder_s_step_is_adam_s_on_the_gradient_of_the_critics_loss() -> None:
    """Convolutions' gradients have a layout of their own; a fused Adam that misreads it would pass
    unseen.
    """
    rlpd = make(shift_px=0, actor_every=1000)
    twin = make(shift_px=0)
    rows = batch()
    x = twin.actor.see(rows.state, rows.pictures)
    next_x = twin.actor.see(rows.next_state, rows.next_pictures)
    noise = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
    loss, _ = twin.critic_loss(x, rows.action, twin.targets(rows, next_x, noise, None))
    loss.backward()
    torch.optim.Adam(twin.encoder_parameters, twin.config.lr, fused=False, foreach=False).step()
    rlpd.update(rows)
    for ours, expected in zip(rlpd.encoder_parameters, twin.encoder_parameters, strict=True):
        assert torch.allclose(ours, expected, atol=1e-6)


def constant_target(rlpd: Rlpd, *values: float) -> None:
    """Makes target critic i answer values[i] everywhere."""
    with torch.no_grad():
        for p in rlpd.target_parameters:
            p.zero_()
        for k, value in enumerate(values):
            rlpd.target.biases[-1][k] = value


def test_a_target_is_the_minimum_over_the_drawn_subset_and_has_no_gradient() -> None:
    rlpd = make(ensemble=10, subset=2)
    constant_target(rlpd, *[float(k) for k in range(10)])
    rows = replace(batch(4), reward=torch.zeros(4), discount=torch.full((4,), 0.5))
    next_x = rlpd.actor.see(rows.next_state, rows.next_pictures)
    y = rlpd.targets(rows, next_x, torch.zeros(4, 2), torch.tensor([7, 4]))
    assert y.tolist() == pytest.approx([2.0] * 4)
    assert next_x.requires_grad
    assert not y.requires_grad


def test_targets_come_from_the_next_pictures_through_the_same_encoders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rlpd, seen = make(shift_px=0), []
    targets = rlpd.targets
    monkeypatch.setattr(rlpd, 'targets', lambda b, x, *r: (seen.append(x), targets(b, x, *r))[1])
    rows = batch()
    expected = rlpd.actor.see(rows.next_state, rows.next_pictures)
    rlpd.update(rows)
    assert torch.allclose(seen[0], expected, atol=1e-6)
    assert not torch.allclose(seen[0][:, 5:], rlpd.actor.see(rows.state, rows.pictures)[:, 5:])


def test_target_critics_follow_by_exactly_tau() -> None:
    rlpd = make(tau=0.005)
    before = [p.clone() for p in rlpd.target_parameters]
    rlpd.update(batch())
    for old, new, online in zip(
        before, rlpd.target_parameters, rlpd.critic_parameters, strict=True
    ):
        assert torch.allclose(new, old + 0.005 * (online - old), atol=1e-7)


def test_pictures_are_shifted_anew_at_each_update_and_never_in_place() -> None:
    rlpd, rows = make(shift_px=3), batch()
    before = copy.deepcopy(rows)
    first = {c: p.clone() for c, p in rlpd.shift(rows.pictures).items()}
    assert not torch.equal(first['wrist'], rlpd.shift(rows.pictures)['wrist'])
    rlpd.update(rows)
    for camera in VIEWS:
        assert torch.equal(rows.pictures[camera], before.pictures[camera])
        assert torch.equal(rows.next_pictures[camera], before.next_pictures[camera])


def test_a_gradient_that_is_no_number_leaves_the_encoders_alone() -> None:
    rlpd = make()
    before = weights(rlpd)
    rlpd.update(batch(reward=torch.full((16,), float('nan'))))
    assert same(before, weights(rlpd))
    assert rlpd.bad_updates == 1


@pytest.mark.parametrize('encoder', ['small', 'resnet10'])
def test_a_restored_learner_goes_on_bit_for_bit(encoder: str) -> None:
    spec = sighted(encoder=encoder, pool='embedding')
    fields = {'actor_average': 0.1, 'actor_every': 1}
    a, b = make(spec, seed=5, **fields), make(spec, seed=99, **fields)
    a.update(batch(4, seed=1))
    # as a file gives them: flat, in the order of their indices
    b.load_state_dict({k: v.clone().contiguous() for k, v in a.state_dict().items()})
    for rlpd in (a, b):
        rlpd.update(batch(4, seed=2))
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


def test_published_weights_are_all_that_a_policy_needs() -> None:
    spec = sighted()
    rlpd = make(spec, actor_average=0.5, actor_every=1)
    for k in range(3):
        rlpd.update(batch(seed=k))
    policy = Policy(spec, (16,), 0)
    policy.offer('actor', 1, {k: v.contiguous().clone() for k, v in rlpd.published().items()})
    rows = batch(1)
    pictures = {c: p[0].numpy() for c, p in rows.pictures.items()}
    ask = Question('actor', 0, Mode.EVAL, rows.state[0].numpy(), 1, 0, pictures)
    (answer,) = policy.act([ask])
    assert isinstance(answer, Answer)
    with torch.no_grad():
        average, newest = (a(rows.state, rows.pictures)[0] for a in (rlpd.average, rlpd.actor))
    assert answer.action.tolist() == pytest.approx(torch.tanh(average)[0].tolist(), abs=1e-6)
    assert not torch.allclose(average, newest, atol=1e-5)


def test_a_frozen_pretrained_trunk_stays_and_is_published_once(tmp_path: Path) -> None:
    path = tmp_path / 'trunk.safetensors'
    trunk = dict(make(sighted(encoder='resnet10')).actor.encoders.members[0].trunk.state_dict())
    save_file({k: v.contiguous() for k, v in trunk.items()}, path)
    spec = sighted(encoder='resnet10', pool='embedding', frozen=True, weights=str(path))
    rlpd = make(spec, seed=4, actor_every=1, actor_average=0.1)
    rlpd.update(batch(4))
    for member in rlpd.actor.encoders.members:
        assert all(torch.equal(v, trunk[k]) for k, v in member.trunk.state_dict().items())
    average = [k for k in rlpd.published() if k.startswith('average.')]
    assert any('.out.' in k for k in average)
    assert not any('.trunk.' in k for k in average)


def test_a_learner_learns_to_act_by_a_picture() -> None:
    """One-step task: reward 1 - |a - place of the square|^2. Who does not look, or learns by a
    wrong gradient, loses as much as the places vary.
    """
    views = {'wrist': (32, 32)}
    spec = sighted(views, channels=(8, 16), pool='keypoints', features=None)
    rlpd = make(
        spec, actor_every=1, target_entropy=-6.0, alpha=0.01, shift_px=0, log_std_start=-1.0,
        target_min=None, lr=3e-3,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    places = rng.uniform(-0.8, 0.8, (512, 2)).astype(np.float32)
    pictures, zeros = squares(places, views), torch.zeros(64, 3)
    for _ in range(400):
        chosen = rng.integers(0, 512, 64)
        some = {'wrist': pictures['wrist'][chosen]}
        action = torch.from_numpy(rng.uniform(-1, 1, (64, 2)).astype(np.float32))
        reward = 1.0 - (action - torch.from_numpy(places[chosen])).square().sum(-1)
        rlpd.update(Batch(zeros, action, reward, torch.zeros(64), zeros, 0, some, some))
    fresh = rng.uniform(-0.8, 0.8, (128, 2)).astype(np.float32)
    with torch.no_grad():
        mean, _ = rlpd.actor(torch.zeros(128, 3), squares(fresh, views, seed=9))
    error = (torch.tanh(mean) - torch.from_numpy(fresh)).square().mean().item()
    assert error < 0.5 * float(fresh.var())
