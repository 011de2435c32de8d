# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Answers observations with one version of one policy's weights.

A loading thread hands complete, verified versions over; `act` takes the newest at the start of an
answer, so that every action comes from exactly one version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
class Answer:
    """The action for one observation, [action_n] float32 in [-1, 1]."""

    action: np.ndarray
    policy: str
    version: int


@dataclass(frozen=True)
class Silence:
    """No answer: `state` is one word, `reason` says why; `wanted` names a version that should be
    loaded.
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
        newest = self._build({k: v for k, v in tensors.items() if not k.startswith(AVERAGE)})
        pair = Pair(newest, self._build(average) if average else newest)
        with self._lock:
            if version > self.newest(policy):
                self._newest[policy] = (version, pair)
            if asked:
                self._cache[policy, version] = pair
                while len(self._cache) > CACHE_N:
                    self._cache.popitem(last=False)

    def _build(self, tensors: Mapping[str, Tensor]) -> Actor:
        actor = Actor(self.spec, self.hidden).requires_grad_(False)
        try:
            actor.load_state_dict(dict(tensors))
        except RuntimeError as error:
            raise ValueError(str(error).splitlines()[-1].strip()) from error
        return actor.to(self.device).eval()

    def act(
        self, policy: str, version: int, mode: int, state: np.ndarray, episode: int, step: int
    ) -> Answer | Silence:
        """Answers one observation; `version` 0 asks for the newest.

        Training and MODE_EVAL_SAMPLED draw noise that depends on seed, episode and step alone;
        MODE_EVAL takes tanh(mu). Both evaluations use the averaged actor if the weights hold one.
        """
        if mode == Mode.DEMO:
            return Silence('DEMO', 'a demonstrator answers')
        if state.shape != (self.spec.state_n,):
            return Silence(
                'REFUSED', f'the state has {state.size} values, the task has {self.spec.state_n}'
            )
        if not np.isfinite(state).all():
            bad = np.flatnonzero(~np.isfinite(state)).tolist()
            return Silence('REFUSED', f'the state holds values that are not finite, at {bad}')
        with self._lock:
            newest, pair = self._newest.get(policy, (0, None))
            if version and version != newest:
                newest, pair = version, self._cache.get((policy, version))
                if pair is not None:
                    self._cache.move_to_end((policy, version))
        if pair is None:
            if version:
                return Silence(
                    'LOADING', f'{policy} version {version} is not loaded yet', (policy, version)
                )
            return Silence('WAIT_WEIGHTS', f'no weights of {policy} have been published yet')
        if version:
            self._pin(policy, version, pair)
        actor = pair.train if mode == Mode.TRAIN else pair.evaluate
        with torch.inference_mode():
            mean, log_std = actor(torch.from_numpy(state).to(self.device))
            u = mean
            if mode != Mode.EVAL:
                rng = np.random.default_rng((self.seed, episode, step))
                noise = rng.standard_normal(self.spec.action_n, np.float32)
                u = mean + log_std.exp() * torch.from_numpy(noise).to(self.device)
            action = torch.tanh(u).cpu().numpy()
        if not np.isfinite(action).all():
            return Silence(
                'REFUSED', f'{policy} version {newest} gave an action that is not finite'
            )
        return Answer(action, policy, newest)

    def _pin(self, policy: str, version: int, pair: Pair) -> None:
        """A version that was asked for by number stays loaded when a newer one arrives."""
        with self._lock:
            self._cache[policy, version] = pair
            self._cache.move_to_end((policy, version))
            while len(self._cache) > CACHE_N:
                self._cache.popitem(last=False)
