# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Policies that see: alone or together, raw or JPEG, and never by the wrong picture."""

from __future__ import annotations

from dataclasses import replace
import re

import numpy as np
import pytest
from squares import VIEWS, sighted, squares
import torch

from user_core.outcome import Mode
from user_learning.networks import Actor
from user_learning.policy import Answer, Policy, Question, Silence

KINDS = {
    'small': {},
    'resnet10': {'encoder': 'resnet10', 'pool': 'embedding'},
    'hindsight': {'teacher': 'hindsight', 'pool': 'keypoints', 'features': None},
}


def made(**fields: object) -> Policy:
    spec = sighted(**fields)
    policy = Policy(spec, (16,), seed=3)
    actors = [Actor(spec, (16,), torch.Generator().manual_seed(k), -1.0) for k in range(3)]
    for actor in actors:
        torch.nn.init.orthogonal_(actor.net[-1].weight)
    policy.offer('clone', 1, actors[0].state_dict())
    average = {f'average.{k}': v for k, v in actors[1].state_dict().items()}
    policy.offer('actor', 2, actors[2].state_dict() | average)
    return policy


def question(k: int, policy: str = 'actor', mode: Mode = Mode.TRAIN) -> Question:
    rng = np.random.default_rng(k)
    pictures = squares(rng.uniform(-1, 1, (1, 2)), seed=k)
    state = rng.normal(size=3).astype(np.float32)
    return Question(policy, 0, mode, state, k, 0, {c: p[0].numpy() for c, p in pictures.items()})


@pytest.mark.parametrize('kind', KINDS)
def test_an_answer_is_the_same_alone_and_in_company(kind: str) -> None:
    policy = made(**KINDS[kind])
    questions = [
        *(question(k) for k in range(5)),
        *(question(k, mode=Mode.EVAL) for k in range(5, 8)),
        question(8, 'clone', Mode.EVAL),
        question(9, 'nobody'),
    ]
    together = policy.act(questions)
    for asked, answer in zip(questions[:-1], together[:-1], strict=True):
        (alone,) = policy.act([asked])
        assert isinstance(answer, Answer)
        assert isinstance(alone, Answer)
        assert (alone.policy, alone.version) == (answer.policy, answer.version)
        # Float32 sums of thirty layers in another order differ by some last digits.
        assert np.abs(alone.action - answer.action).max() < (1e-5 if kind == 'resnet10' else 1e-6)
    assert isinstance(together[-1], Silence)
    actions = {tuple(a.action) for a in together[:-1]}
    assert len(actions) == 9


def test_a_policy_looks_at_each_of_its_cameras() -> None:
    policy = made()
    asked = question(1, mode=Mode.EVAL)
    (seeing,) = policy.act([asked])
    for camera in VIEWS:
        dark = {**asked.pictures, camera: np.zeros_like(asked.pictures[camera])}
        (blind,) = policy.act([replace(asked, pictures=dark)])
        assert np.abs(seeing.action - blind.action).max() > 1e-4


@pytest.mark.parametrize(
    ('pictures', 'word'),
    [
        ({}, 'camera side is missing'),
        ({'side': np.zeros((32, 40, 3), np.uint8)}, 'camera wrist is missing'),
        (
            {'side': np.zeros((40, 32, 3), np.uint8), 'wrist': np.zeros((32, 32, 3), np.uint8)},
            r'camera side is \(40, 32, 3\), not \(32, 40, 3\)',
        ),
    ],
)
def test_an_observation_without_the_task_s_pictures_is_refused_by_name(pictures, word) -> None:
    policy = made()
    wrong = replace(question(1), pictures=pictures)
    silence, answer = policy.act([wrong, question(2)])
    assert isinstance(silence, Silence)
    assert silence.state == 'REFUSED'
    assert re.search(word, silence.reason)
    assert isinstance(answer, Answer)
