# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The run's live line, for people: something in it moves before the first success."""

from __future__ import annotations

import numpy as np

from user_core.run import Run

LEARNER = (
    ('Q', 'q', '.3f'),
    ('alpha', 'alpha', '.4f'),
    ('utd', 'utd', '.2f'),
    ('version', 'version', '.0f'),
    ('learner', 'state', ''),
)
"""The learner's numbers in the line: word, name, format."""


def line(run: Run) -> str:
    """Phase, seconds, counts with what they count; first of all why it waits, if it does."""
    parts = [f'{run.phase} {run.elapsed():.0f} s ']
    if run.waits:
        parts.append(f'waits: {run.waits};')
    judging = run.open if run.phase == 'EVALUATION' else None
    if judging is None:
        return ' '.join([*parts, *_training(run)])
    good, done = judging.successes, len(judging.episodes)
    parts.append(f'{judging.kind} {good}/{run.wanted} ok')
    return ' '.join(parts) + (f', {done - good} failed' if done > good else '')


def _training(run: Run) -> list[str]:
    learner, new, budget = run.learner(), run.recent, run.config.budget
    texts = []
    if run.good_demos < budget.demos or run.phase != 'TRAINING':
        texts.append(f'has {run.good_demos} of {budget.demos} demonstrations,')
    texts.append(f'{run.env_steps} of {budget.env_steps} training steps')
    if new:
        texts += [
            f'success {sum(e.success for e in new)}/{len(new)}',
            f'closest {1e3 * np.median([e.distance for e in new]):.1f} mm',
            f'force {np.median([e.peak_force for e in new]):.0f} N',
        ]
    if learner.get('state') == 'WARMUP':
        texts += [f'{key} {learner.get(key, 0):.0f}' for key in ('lessons', 'updates')]
    known = ((name, learner[key], form) for name, key, form in LEARNER if key in learner)
    return texts + [f'{name} {value:{form}}' for name, value, form in known]
