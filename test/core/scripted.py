# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A run over scripted cells: everything of it is real but the cells and the learner's numbers."""

import hashlib
from pathlib import Path

from user_core.config import load
from user_core.outcome import Announced, Boundary, Episode, Goal
from user_core.run import Run

LEARNER = {
    'state': 'TRAINING',
    'backlog': 0.0,
    'updates': 10.0,
    'q': 0.1,
    'utd': 1.0,
    'alpha': 0.02,
}


class ScriptedCell:
    """A cell whose success is a rule of the goal and its count; remembers what it was asked."""

    def __init__(self, rule=lambda goal, n: True, length: int = 20) -> None:
        self.rule, self.length, self.goals = rule, length, []

    def __call__(self, goal: Goal) -> Episode:
        self.goals.append(goal)
        verdict = self.rule(goal, len(self.goals))
        if isinstance(verdict, Episode):
            return verdict
        end = Boundary.SUCCESS if verdict else Boundary.TIMEOUT
        return Episode(
            goal,
            'arm0',
            end,
            length=self.length,
            episode_return=float(verdict),
            peak_force=10.0,
            first_version=1,
            last_version=1,
            duration_s=0.1 * self.length,
        )


def make(tmp_path: Path, *cells, learner=None, overrides=(), stored=None, curve=None) -> Run:
    weights = tmp_path / 'weights'
    weights.mkdir(exist_ok=True)
    announced = {}
    for policy in ('actor', 'clone'):
        file = weights / f'{policy}.safetensors'
        file.write_bytes(policy.encode())
        sha256 = hashlib.sha256(policy.encode()).hexdigest()
        announced[policy] = Announced(policy, 3, sha256, file)
    config = load(
        'peg_rlpd',
        [
            'budget.demos=3',
            'budget.max_demo_attempts=6',
            'budget.env_steps=2000',
            'evaluation.consecutive=10',
            'evaluation.fresh_episodes=20',
            'evaluation.clone_episodes=5',
            'evaluation.min_steps_between=100',
            'evaluation.gate_steps_share=null',
            *overrides,
        ],
    )
    named = {f'arm{i}': cell for i, cell in enumerate(cells)}
    return Run(
        config,
        tmp_path,
        named,
        learner or (lambda: LEARNER),
        list,
        announced.get,
        curve or (lambda *_: None),
        lambda _: None,
        stored,
    )
