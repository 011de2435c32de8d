# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Answers observations with one version of one policy's weights.

A loading thread hands complete, verified versions over; `act` takes the newest at the start of an
answer, so that every action comes from exactly one version. Observations of several cells that ask
for the same network pass through it together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
import threading

import numpy as np
import torch
from torch import Tensor

from user_core.outcome import Mode
from user_learning.networks import AVERAGE, Actor, Spec

CACHE_N = 4
"""Versions that stay loaded beside the newest of each policy, least recently asked ones go
first.
"""


@dataclass(frozen=True)
class Question:
    """One observation: raw state [state_n], uint8 pictures [height, width, 3] by camera.

    `version` 0 asks for the newest one of the policy.
    """

    policy: str
    version: int
    mode: int
    state: np.ndarray
    episode: int
    step: int
    pictures: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The action for one observation, [action_n] float32 in [-1, 1]."""

    action: np.ndarray
    policy: str
    version: int


@dataclass(frozen=True)
class Silence:
    """No answer: `state` is one word, `reason` says why; `wanted` names a version that should be
    loaded, 0 the newest.
    """

    state: str
    reason: str
    wanted: tuple[str, int] | None = None


@dataclass(frozen=True)
class Pair:
    """The actor that explores and the one that is evaluated; the same one unless the weights hold
    an average.
    """

    train: Actor
    evaluate: Actor


class Policy:
    """Holds loaded versions. `offer` may be called from any thread, `act` from one."""

    def __init__(self, spec: Spec, hidden: Sequence[int], seed: int, device: str = 'cpu') -> None:
        self.spec, self.hidden, self.seed, self.device = spec, tuple(hidden), seed, device
        self._newest: dict[str, tuple[int, Pair]] = {}
        self._cache: OrderedDict[tuple[str, int], Pair] = OrderedDict()
        self._lock = threading.Lock()

    def newest(self, policy: str) -> int:
        """Newest loaded version, 0 when there is none."""
        return self._newest.get(policy, (0, None))[0]

    def has(self, policy: str, version: int) -> bool:
        """Whether a version can answer now."""
        return self.newest(policy) == version or (policy, version) in self._cache

    def offer(
        self, policy: str, version: int, tensors: Mapping[str, Tensor], asked: bool = False
    ) -> None:
        """Takes a loaded version in: as the newest if it is, and into the cache when it was asked
        for.

        Raises ValueError when the tensors do not fit the task's network.
        """
        average = {k.removeprefix(AVERAGE): v for k, v in tensors.items() if k.startswith(AVERAGE)}
        own = {k: v for k, v in tensors.items() if not k.startswith(AVERAGE)}
        newest = self._build(own)
        pair = Pair(newest, self._build(own | average) if average else newest)
        with self._lock:
            if version > self.newest(policy):
                self._newest[policy] = (version, pair)
            if asked:
                self._keep(policy, version, pair)

    def _build(self, tensors: Mapping[str, Tensor]) -> Actor:
        actor = Actor(self.spec, self.hidden).requires_grad_(False)
        try:
            actor.load_state_dict(dict(tensors))
        except RuntimeError as error:
            raise ValueError(str(error).splitlines()[-1].strip()) from error
        return actor.to(self.device).eval()

    def act(self, questions: Sequence[Question]) -> list[Answer | Silence]:
        """Answers observations, those for the same network in one pass of it.

        Training and MODE_EVAL_SAMPLED draw noise that depends on seed, episode and step alone;
        MODE_EVAL takes tanh(mu). Both evaluations use the averaged actor if the weights hold one.
        """
        answers: dict[int, Answer | Silence] = {}
        together: dict[int, tuple[Actor, int, list[int]]] = {}
        for place, question in enumerate(questions):
            found = self._find(question)
            if isinstance(found, Silence):
                answers[place] = found
            else:
                actor, version = found
                together.setdefault(id(actor), (actor, version, []))[2].append(place)
        for actor, version, places in together.values():
            actions = self._actions(actor, [questions[place] for place in places])
            for place, action in zip(places, actions, strict=True):
                policy = questions[place].policy
                answers[place] = (
                    Answer(action, policy, version)
                    if np.isfinite(action).all()
                    else Silence(
                        'REFUSED', f'{policy} version {version} gave an action that is not finite'
                    )
                )
        return [answers[place] for place in range(len(questions))]

    def _find(self, question: Question) -> tuple[Actor, int] | Silence:
        """The network that answers and its version, or why there is none."""
        policy, version = question.policy, question.version
        if question.mode == Mode.DEMO:
            return Silence('DEMO', 'a demonstrator answers')
        if why := self._wrong(question):
            return Silence('REFUSED', why)
        with self._lock:
            newest, pair = self._newest.get(policy, (0, None))
            if version and version != newest:
                newest, pair = version, self._cache.get((policy, version))
            if version and pair is not None:
                self._keep(policy, version, pair)
        if pair is not None:
            return pair.train if question.mode == Mode.TRAIN else pair.evaluate, newest
        if version:
            why = f'{policy} version {version} is not loaded yet'
            return Silence('LOADING', why, (policy, version))
        why = f'no weights of {policy} have been published yet'
        return Silence('WAIT_WEIGHTS', why, (policy, 0))

    def _wrong(self, question: Question) -> str:
        """What makes an observation none of this task's, if anything."""
        state, pictures = question.state, question.pictures
        if state.shape != (self.spec.state_n,):
            return f'the state has {state.size} values, the task has {self.spec.state_n}'
        if not np.isfinite(state).all():
            bad = np.flatnonzero(~np.isfinite(state)).tolist()
            return f'the state holds values that are not finite, at {bad}'
        for camera, (height, width) in self.spec.views.items():
            if camera not in pictures:
                return f'the picture of camera {camera} is missing'
            shape = pictures[camera].shape
            if shape != (height, width, 3):
                return f'the picture of camera {camera} is {shape}, not {(height, width, 3)}'
        return ''

    def _actions(self, actor: Actor, questions: Sequence[Question]) -> np.ndarray:
        """Actions [questions, action_n] of one network."""
        device, n = self.device, self.spec.action_n
        noise = np.zeros((len(questions), n), np.float32)
        for row, q in zip(noise, questions, strict=True):
            if q.mode != Mode.EVAL:
                rng = np.random.default_rng((self.seed, q.episode, q.step))
                row[:] = rng.standard_normal(n, np.float32)
        state = torch.from_numpy(np.stack([q.state for q in questions])).to(device)
        pictures = {
            camera: torch.from_numpy(np.stack([q.pictures[camera] for q in questions])).to(device)
            for camera in self.spec.views
        }
        with torch.inference_mode():
            mean, log_std = actor(state, pictures)
            u = mean + log_std.exp() * torch.from_numpy(noise).to(device)
            return torch.tanh(u).cpu().numpy()

    def _keep(self, policy: str, version: int, pair: Pair) -> None:
        """A version that was asked for by number stays loaded when a newer one arrives. The caller
        holds the lock.
        """
        self._cache[policy, version] = pair
        self._cache.move_to_end((policy, version))
        while len(self._cache) > CACHE_N:
            self._cache.popitem(last=False)
