# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Networks against independent libraries and closed forms."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import torch
from torch import nn
import torch.nn.functional as F  # noqa: N812

from user_learning.networks import Actor, CriticEnsemble, Normalizer, Spec, squashed


@settings(max_examples=100, deadline=None)
@given(st.floats(-4, 4), st.floats(-4, 1), st.floats(-3, 3))
def test_the_log_probability_of_a_squashed_action_is_that_of_torch_distributions(
    mean, log_std, noise
) -> None:
    mu, ls, eps = (torch.full((1, 2), v, dtype=torch.float64) for v in (mean, log_std, noise))
    action, log_prob = squashed(mu, ls, eps)
    base = torch.distributions.Normal(mu, ls.exp())
    oracle = torch.distributions.TransformedDistribution(
        base, [torch.distributions.TanhTransform(cache_size=1)]
    )
    oracle._inv_cache = None
    u = mu + ls.exp() * eps
    expected = (
        base.log_prob(u) - torch.distributions.TanhTransform().log_abs_det_jacobian(u, u.tanh())
    ).sum(-1)
    assert torch.allclose(action, u.tanh())
    assert torch.allclose(log_prob, expected, atol=1e-9)


def test_the_log_probability_stays_finite_where_tanh_is_flat() -> None:
    _, log_prob = squashed(torch.tensor([[40.0]]), torch.tensor([[0.0]]), torch.zeros(1, 1))
    assert torch.isfinite(log_prob).all()
    assert log_prob.item() == pytest.approx(-0.9189385 - 2 * (np.log(2) - 40.0), rel=1e-5)


def test_the_task_s_constants_normalise_a_state_and_squash_only_where_asked(spec: Spec) -> None:
    out = Normalizer(spec)(torch.tensor([2.0, 2.0, 20.0]))
    assert out.tolist() == pytest.approx([2.0, 2.0, np.tanh(2.0)])


def test_some_values_enter_a_second_time_at_a_finer_scale(spec: Spec) -> None:
    fine = dataclasses.replace(
        spec,
        fine_index=np.array([0, 2]),
        fine_mean=np.array([2.0, 0.0], np.float32),
        fine_scale=np.array([0.1, 1.0], np.float32),
    )
    out = Normalizer(fine)(torch.tensor([[2.05, 2.0, 20.0]]))
    expected = [2.05, 2.0, np.tanh(2.0), np.tanh(0.5), np.tanh(20.0)]
    assert out[0].tolist() == pytest.approx(expected, abs=1e-5)
    assert Actor(fine, (8,))(torch.zeros(4, 3))[0].shape == (4, 2)
    assert CriticEnsemble(fine, (8,), 2)(
        Normalizer(fine)(torch.zeros(4, 3)), torch.zeros(4, 2)
    ).shape == (2, 4)


def test_the_task_s_constants_ride_in_the_weights(spec: Spec) -> None:
    other = Spec(spec.mean + 1, spec.scale * 2, ~spec.squash, spec.action_n)
    actor = Actor(other, (8,))
    actor.load_state_dict(Actor(spec, (8,)).state_dict())
    assert actor.normalizer.mean.tolist() == spec.mean.tolist()
    assert actor.normalizer.squash.tolist() == spec.squash.tolist()


def test_a_batched_ensemble_equals_its_members_one_by_one(spec: Spec) -> None:
    critics = CriticEnsemble(spec, (16, 8), 3, torch.Generator().manual_seed(1))
    x, a = torch.randn(7, 3), torch.rand(7, 2)
    together = critics(x, a)
    for member in range(3):
        h = torch.cat([x, a], -1)
        for k, (w, b) in enumerate(zip(critics.weights, critics.biases, strict=True)):
            if k:
                h = F.relu(nn.LayerNorm(h.shape[-1], elementwise_affine=False)(h))
            h = F.linear(h, w[member].T, b[member, 0])
        assert torch.allclose(together[member], h[:, 0], atol=1e-6)


def test_members_of_an_ensemble_start_different(spec: Spec) -> None:
    critics = CriticEnsemble(spec, (16,), 2, torch.Generator().manual_seed(1))
    a, b = critics(torch.randn(4, 3), torch.rand(4, 2))
    assert not torch.allclose(a, b)


def test_a_new_actor_hardly_prefers_any_action(spec: Spec) -> None:
    actor = Actor(spec, (64, 64), torch.Generator().manual_seed(0))
    mean, _ = actor(torch.randn(100, 3))
    assert mean.abs().max() < 0.1
