# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Answers of a policy: from one version, at once, or not at all."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
import torch

from user_core.outcome import Mode
from user_learning.networks import Actor, Spec
from user_learning.policy import Answer, Policy, Question, Silence

STATE = np.array([0.3, 1.2, -4.0], np.float32)


def tensors(spec: Spec, fill: float | None = None, seed: int = 0) -> dict[str, torch.Tensor]:
    actor = Actor(spec, (8,), torch.Generator().manual_seed(seed))
    if fill is not None:
        with torch.no_grad():
            actor.net[-1].weight.zero_()
            actor.net[-1].bias[:2] = fill
            actor.net[-1].bias[2:] = -1.0
    return actor.state_dict()


def ask(policy: Policy, *question: object) -> Answer | Silence:
    return policy.act([Question(*question)])[0]


@pytest.fixture
def policy(spec: Spec) -> Policy:
    return Policy(spec, (8,), seed=3)


def test_before_the_first_weights_a_policy_is_silent_and_says_why(policy: Policy) -> None:
    answer = ask(policy, 'actor', 0, Mode.TRAIN, STATE, 1, 0)
    assert isinstance(answer, Silence)
    assert answer.state == 'WAIT_WEIGHTS'
    assert answer.wanted == ('actor', 0)  # whichever is the newest


def test_a_policy_never_answers_for_a_demonstrator(policy: Policy, spec: Spec) -> None:
    policy.offer('actor', 1, tensors(spec))
    assert isinstance(ask(policy, 'actor', 0, Mode.DEMO, STATE, 1, 0), Silence)


def test_an_evaluation_s_action_is_the_mean_s_and_repeats(policy: Policy, spec: Spec) -> None:
    policy.offer('actor', 1, tensors(spec, fill=0.7))
    answers = [ask(policy, 'actor', 0, Mode.EVAL, STATE, e, 0) for e in (1, 1, 2)]
    for answer in answers:
        assert isinstance(answer, Answer)
        assert answer.action.tolist() == pytest.approx([np.tanh(0.7)] * 2)
        assert answer.action.dtype == np.float32


@pytest.mark.parametrize('mode', [Mode.TRAIN, Mode.EVAL_SAMPLED])
def test_sampled_actions_repeat_for_the_same_seed_episode_and_step_only(
    spec: Spec, mode: Mode
) -> None:
    a, b, c = Policy(spec, (8,), 3), Policy(spec, (8,), 3), Policy(spec, (8,), 4)
    for p in (a, b, c):
        p.offer('actor', 1, tensors(spec, fill=0.0))
    here = ask(a, 'actor', 0, mode, STATE, 5, 2).action
    assert np.array_equal(here, ask(b, 'actor', 0, mode, STATE, 5, 2).action)
    for other in (
        ask(a, 'actor', 0, mode, STATE, 5, 3),
        ask(a, 'actor', 0, mode, STATE, 6, 2),
        ask(c, 'actor', 0, mode, STATE, 5, 2),
    ):
        assert not np.array_equal(here, other.action)


def test_sampled_actions_have_the_spread_of_the_network(policy: Policy, spec: Spec) -> None:
    policy.offer('actor', 1, tensors(spec, fill=0.2))
    drawn = np.array(
        [np.arctanh(ask(policy, 'actor', 0, Mode.TRAIN, STATE, 1, k).action) for k in range(2000)]
    )
    assert drawn.mean() == pytest.approx(0.2, abs=0.03)
    assert drawn.std() == pytest.approx(np.exp(-1.0), rel=0.06)


@pytest.mark.parametrize(
    ('state', 'word'),
    [
        (np.array([0, np.nan, 0], np.float32), r'not finite, at \[1\]'),
        (np.zeros(5, np.float32), '5 values'),
    ],
)
def test_an_observation_that_is_no_observation_is_refused_by_name(
    policy: Policy, spec: Spec, state, word
) -> None:
    policy.offer('actor', 1, tensors(spec))
    answer = ask(policy, 'actor', 0, Mode.TRAIN, state, 1, 0)
    assert isinstance(answer, Silence)
    assert answer.state == 'REFUSED'
    import re

    assert re.search(word, answer.reason)


def test_weights_that_are_no_numbers_move_no_arm(policy: Policy, spec: Spec) -> None:
    policy.offer('actor', 1, tensors(spec, fill=float('nan')))
    answer = ask(policy, 'actor', 0, Mode.EVAL, STATE, 1, 0)
    assert isinstance(answer, Silence)
    assert answer.state == 'REFUSED'


def test_weights_of_another_network_are_refused(policy: Policy, spec: Spec) -> None:
    with pytest.raises(ValueError, match='size mismatch'):
        policy.offer('actor', 1, Actor(spec, (9,)).state_dict())
    assert policy.newest('actor') == 0


def test_an_older_version_that_arrives_late_is_not_swapped_in(policy: Policy, spec: Spec) -> None:
    policy.offer('actor', 5, tensors(spec, fill=0.5))
    policy.offer('actor', 4, tensors(spec, fill=0.4))
    assert ask(policy, 'actor', 0, Mode.EVAL, STATE, 1, 0).version == 5


def test_a_frozen_version_stays_while_newer_ones_stream_in(policy: Policy, spec: Spec) -> None:
    policy.offer('actor', 1, tensors(spec, fill=0.1))
    assert ask(policy, 'actor', 1, Mode.EVAL, STATE, 1, 0).version == 1
    for k in range(2, 100):
        policy.offer('actor', k, tensors(spec, fill=0.9))
    frozen = ask(policy, 'actor', 1, Mode.EVAL, STATE, 1, 0)
    assert frozen.version == 1
    assert frozen.action.tolist() == pytest.approx([np.tanh(0.1)] * 2)
    assert ask(policy, 'actor', 0, Mode.EVAL, STATE, 1, 0).version == 99


def test_a_version_that_is_not_loaded_is_asked_for_and_never_replaced_by_another(
    policy: Policy, spec: Spec
) -> None:
    policy.offer('actor', 9, tensors(spec))
    answer = ask(policy, 'actor', 7, Mode.EVAL, STATE, 1, 0)
    assert isinstance(answer, Silence)
    assert answer.wanted == ('actor', 7)
    policy.offer('actor', 7, tensors(spec), asked=True)
    assert ask(policy, 'actor', 7, Mode.EVAL, STATE, 1, 0).version == 7


def test_memory_stays_flat_over_many_versions(policy: Policy, spec: Spec) -> None:
    for k in range(1, 200):
        policy.offer('actor', k, tensors(spec))
        ask(policy, 'actor', k, Mode.EVAL, STATE, 1, 0)
    assert len(policy._cache) <= 4


def test_evaluation_acts_with_the_average_and_training_with_the_newest_actor(
    policy: Policy, spec: Spec
) -> None:
    average = {f'average.{k}': v for k, v in tensors(spec, fill=0.5).items()}
    explorer = tensors(spec, fill=-3.0)
    policy.offer('actor', 1, explorer | average)
    assert ask(policy, 'actor', 0, Mode.EVAL, STATE, 1, 0).action.tolist() == pytest.approx(
        [np.tanh(0.5)] * 2
    )
    assert (ask(policy, 'actor', 0, Mode.EVAL_SAMPLED, STATE, 1, 0).action > -0.95).all()
    assert (ask(policy, 'actor', 0, Mode.TRAIN, STATE, 1, 0).action < -0.95).all()


def test_policies_by_name_are_kept_apart(policy: Policy, spec: Spec) -> None:
    policy.offer('actor', 1, tensors(spec, fill=0.1))
    policy.offer('clone', 2, tensors(spec, fill=0.2))
    assert ask(policy, 'clone', 0, Mode.EVAL, STATE, 1, 0).action.tolist() == pytest.approx(
        [np.tanh(0.2)] * 2
    )
    assert ask(policy, 'actor', 0, Mode.EVAL, STATE, 1, 0).action.tolist() == pytest.approx(
        [np.tanh(0.1)] * 2
    )


def test_every_action_comes_from_exactly_the_version_it_names(policy: Policy, spec: Spec) -> None:
    """A loader swaps versions as fast as it can while actions are computed, until actions of 100
    versions were seen; version k answers tanh((k % 1000) / 1000).
    """
    stop, offered = threading.Event(), [1]
    ready = [tensors(spec, fill=k / 1000) for k in range(1000)]
    policy.offer('actor', 1, ready[1])

    def load() -> None:
        while not stop.is_set():
            policy.offer('actor', offered[0] + 1, ready[(offered[0] + 1) % 1000])
            offered[0] += 1

    thread = threading.Thread(target=load)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    seen = []
    try:
        thread.start()
        while len(set(seen)) < 100:
            answer = ask(policy, 'actor', 0, Mode.EVAL, STATE, 1, 0)
            assert answer.action.tolist() == pytest.approx(
                [np.tanh(answer.version % 1000 / 1000)] * 2, abs=1e-6
            )
            seen.append(answer.version)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert seen == sorted(seen)
    assert ask(policy, 'actor', 0, Mode.EVAL, STATE, 1, 0).version == offered[0]
