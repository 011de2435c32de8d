# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Scripted demonstrators, as slow and hesitant as a person.

They know what a policy knows: the 19 observed values, and, where the goal moves, what eyes see.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from user_core import config as schema
from user_core.errors import UserError

FORCE = slice(1, 4)
POSITION = slice(7, 10)
ROTATION = slice(10, 13)

_RIM_Z_M = -0.028  # task frame, z down: the tip touches the block's top here


class Expert:
    """What all have in common: pauses, a trembling hand, a tool held as the task's frame is.

    Actions are in [-1, 1] of `scale_m` and `scale_rad`, relative to the observed pose.
    """

    def __init__(self, seed: int, scale_m: float = 0.01, scale_rad: float = 0.1) -> None:
        self._rng = np.random.default_rng(seed)
        self._scale_m, self._scale_rad = scale_m, scale_rad
        self.reset()

    def reset(self) -> None:
        """Begin an episode: a new temper."""
        self._speed = self._rng.uniform(0.35, 0.6)
        self._pause_n = 0

    def __call__(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        """Answer one observation (19,) with one action (6,)."""
        rng = self._rng
        if self._pause_n == 0 and rng.random() < 0.035:
            self._pause_n = int(rng.integers(3, 9))
        if self._pause_n > 0:
            self._pause_n -= 1
            return np.asarray(rng.normal(0.0, 0.03, 6), np.float32)
        force, position = state[FORCE].astype(float), state[POSITION].astype(float)
        rotation = state[ROTATION].astype(float)
        action = np.zeros(6)
        action[3:] = -0.6 * rotation / self._scale_rad
        action[:3] = self._move(force, position, rotation)
        limit = np.array([self._speed] * 6)
        action = np.clip(action, -limit, limit)
        action += rng.normal(0.0, 0.12, 6) * (1, 1, 0.6, 0.5, 0.5, 0.5)
        return np.clip(action, -1.0, 1.0).astype(np.float32)

    def see(self, goal: NDArray[np.float64]) -> None:
        """Looks where the goal is: (3,) in the task's frame; without a look it is the origin."""

    def _move(self, force: np.ndarray, position: np.ndarray, rotation: np.ndarray) -> np.ndarray:
        """The translation it has in mind (3,), before its limits."""
        raise NotImplementedError


class PegExpert(Expert):
    """Hover, align, lower until it touches, feel for the hole in a growing spiral, push in."""

    _hole = np.zeros(2)

    def see(self, goal: NDArray[np.float64]) -> None:
        """Aims there, as exactly as a person does: about a millimetre off."""
        self._hole = goal[:2]

    def reset(self) -> None:
        """Begin an episode: a new aim, a new temper."""
        super().reset()
        rng = self._rng
        self._off = rng.normal(0.0, 0.0008, 2)
        self._angle, self._turns = rng.uniform(0, 2 * np.pi), 0.0
        self._way = rng.choice((-1.0, 1.0))
        self._pause_n, self._lift_n = int(rng.integers(3, 8)), 0
        self._stage = 'approach'
        self._search_n = 0

    def _move(self, force: np.ndarray, position: np.ndarray, rotation: np.ndarray) -> np.ndarray:
        move: np.ndarray = getattr(self, f'_{self._stage}')(force, position, rotation)
        return move

    @property
    def _aim(self) -> NDArray[np.float64]:
        return self._hole + self._off

    def _approach(
        self, force: np.ndarray, position: np.ndarray, rotation: np.ndarray
    ) -> np.ndarray:
        off = np.r_[self._aim, _RIM_Z_M - 0.008] - position
        aside = float(np.hypot(*off[:2]))
        off[2] = min(off[2], max(0.0, off[2] - 1.5 * aside))
        if aside < 0.002 and abs(off[2]) < 0.003 and abs(rotation[2]) < 0.05:
            self._stage = 'lower'
            self._pause_n = int(self._rng.integers(3, 10))
        return np.asarray(0.7 * off / self._scale_m)

    def _lower(self, force: np.ndarray, position: np.ndarray, rotation: np.ndarray) -> np.ndarray:
        step = np.r_[0.4 * (self._aim - position[:2]) / self._scale_m, 0.22]
        if force[2] > 4.0 or position[2] > _RIM_Z_M + 0.003:
            self._stage = 'feel'
        return step

    def _feel(self, force: np.ndarray, position: np.ndarray, rotation: np.ndarray) -> np.ndarray:
        """Press lightly and follow a spiral until the peg drops."""
        if position[2] > _RIM_Z_M + 0.003:
            self._stage = 'push'
            return np.zeros(3)
        self._search_n += 1
        self._turns += 1 / 22
        radius = 0.0007 * self._turns + 0.0006
        self._angle += self._way * min(0.9, 0.0009 / radius)
        if self._turns > 3.2:
            self._turns = 0.0
        goal = self._aim + radius * np.array([np.cos(self._angle), np.sin(self._angle)])
        pull = (goal - position[:2]) / self._scale_m
        pull *= 1 + 0.12 / max(float(np.hypot(*pull)), 0.05)  # over the friction
        return np.r_[pull, 0.06 * (7.0 - force[2])]

    def _push(self, force: np.ndarray, position: np.ndarray, rotation: np.ndarray) -> np.ndarray:
        """Go down; give way to side forces; back out a little when it jams."""
        if position[2] < _RIM_Z_M + 0.001:
            self._stage = 'feel'
        if self._lift_n > 0:
            self._lift_n -= 1
            return np.array([0.0, 0.0, -0.2])
        if force[2] > 14.0 and self._rng.random() < 0.3:
            self._lift_n = 2
        return np.r_[-0.02 * force[:2], 0.3]


class ReachExpert(Expert):
    """Come near in an arc, look again, creep onto the goal."""

    def reset(self) -> None:
        """Begin an episode: a new aim, a new detour, a new temper."""
        super().reset()
        rng = self._rng
        self._aim = rng.normal(0.0, 0.002, 3)
        self._detour = rng.normal(0.0, 0.01, 3)
        self._pause_n = int(rng.integers(0, 3))
        self._near = False

    def _move(self, force: np.ndarray, position: np.ndarray, rotation: np.ndarray) -> np.ndarray:
        off = self._aim - position
        far = float(np.linalg.norm(off))
        if not self._near and far < 0.03:
            self._near = True
            self._pause_n = int(self._rng.integers(1, 4))
        if self._near:
            return np.asarray(np.clip(0.5 * off / self._scale_m, -0.3, 0.3))
        return np.asarray(0.7 * (off + min(1.0, far / 0.1) * self._detour) / self._scale_m)


EXPERTS: dict[str, type[Expert]] = {'peg': PegExpert, 'reach': ReachExpert}
"""The demonstrator of each `task.kind`."""


def make_expert(task: schema.Task, seed: int) -> Expert:
    """The demonstrator of the task.

    Raises:
        UserError: nobody wrote one.
    """
    if task.kind not in EXPERTS:
        raise UserError(
            f'there is no scripted demonstrator for task kind {task.kind!r}',
            f'there is one for: {", ".join(sorted(EXPERTS))}',
            'choose another one as cells.<cell>.teleop.kind',
        )
    return EXPERTS[task.kind](seed, task.scale_m, task.scale_rad)
