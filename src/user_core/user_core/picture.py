# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""success.png of a run: what was learned, how surely, and how gently."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from user_core.outcome import Episode
from user_core.report import control_hz, steps_per_success, success_rate, wilson
from user_core.run import Run

JUDGED = {'streak': ('v', 'C1'), 'fresh': ('s', 'C2')}
"""Marker and colour of the two kinds of evaluation that decide a run."""
COLOURS = {'demonstrations': 'C0', 'cloning': 'C1', 'cloning + noise': 'C2', 'learned': 'C3'}
"""Those who are compared; each keeps its colour when others are missing."""


def draw(run: Run, path: Path) -> None:
    """Learning curve, evaluations and forces beside the demonstrations and behaviour cloning.

    May be called from any thread: the figure is drawn without a window system.
    """
    from matplotlib.figure import Figure  # takes a second, and only the end of a run needs it

    figure = Figure(figsize=(17, 4.2))
    curve, rate, steps, force = figure.subplots(1, 4, width_ratios=(2.4, 1, 1, 1.3))
    _learning(curve, run)
    groups = {label: episodes for label, episodes in _groups(run).items() if episodes}
    for label, episodes in groups.items():
        _success(rate, label, episodes)
        steps.bar(label, steps_per_success(episodes) or 0.0, color=COLOURS[label])
    for axis, title in ((rate, 'success (95 % Wilson)'), (steps, 'steps per insertion')):
        axis.set_xticks(range(len(groups)), list(groups), rotation=35, ha='right', fontsize=8)
        axis.set_title(title)
    _forces(force, groups)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _groups(run: Run) -> dict[str, Sequence[Episode]]:
    """Whose episodes are compared: the teacher, its two clones and the learned policy."""
    last = {attempt.kind: attempt.episodes for attempt in run.attempts}
    return {
        'demonstrations': run.demos,
        'cloning': last.get('clone', ()),
        'cloning + noise': last.get('clone_sampled', ()),
        'learned': run.best.episodes if run.best else (),
    }


def _learning(axis: Any, run: Run) -> None:
    rule = run.config.evaluation
    good = np.array([e.success for e in run.trained], float)
    window = rule.gate_window
    axis.plot(
        np.cumsum([e.length for e in run.trained]),
        [good[max(0, i - window + 1) : i + 1].mean() for i in range(len(good))],
        label=f'training, mean of {window} episodes',
    )
    for attempt in run.attempts:
        if attempt.kind in JUDGED and attempt.episodes:
            share = (
                attempt.streak / rule.consecutive
                if attempt.kind == 'streak'
                else attempt.successes / len(attempt.episodes)
            )
            marker, colour = JUDGED[attempt.kind]
            axis.plot(attempt.at_env_steps, share, marker, color=colour)
    for kind, label in (
        ('streak', f'streak / {rule.consecutive}, deterministic'),
        ('fresh', f'{rule.fresh_episodes} fresh starts, deterministic'),
    ):
        marker, colour = JUDGED[kind]
        axis.plot([], [], marker, color=colour, label=label)
    axis.set(
        xlabel=f'training steps ({control_hz(run):g} per robot second)',
        ylabel='success',
        ylim=(-0.03, 1.05),
        title=f'{run.config.name}, seed {run.config.seed}',
    )
    axis.legend(loc='center left', fontsize=8)


def _success(axis: Any, label: str, episodes: Sequence[Episode]) -> None:
    p, interval = success_rate(episodes), wilson(sum(e.success for e in episodes), len(episodes))
    if p is not None and interval is not None:
        error = [[max(0.0, p - interval[0])], [max(0.0, interval[1] - p)]]
        axis.bar(label, p, color=COLOURS[label], yerr=error, capsize=3)


def _forces(axis: Any, groups: dict[str, Sequence[Episode]]) -> None:
    for label, episodes in groups.items():
        forces = np.sort([e.peak_force for e in episodes])
        axis.plot(forces, np.linspace(0, 1, len(forces)), color=COLOURS[label], label=label)
    axis.axvline(30, color='0.7', ls=':')
    axis.axvline(60, color='0.7', ls='--')
    axis.set(
        xlabel='peak contact force of an episode, N',
        ylabel='share of episodes',
        xlim=(0, 120),
        title='gentleness',
    )
    if groups:
        axis.legend(fontsize=8)
