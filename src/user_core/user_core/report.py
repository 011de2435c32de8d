# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""report.json and success.png of a run: every number that the run is judged by, and the picture of it."""

from collections.abc import Sequence
import json
from math import sqrt
from pathlib import Path

import numpy as np

from user_core.run import Attempt, Episode, Run


def wilson(successes: int, n: int, z: float = 1.96) -> tuple[float, float] | None:
    """95 % interval of a success rate (Wilson 1927); None for no trials."""
    if n == 0:
        return None
    # centre = (p + z^2/2n) / (1 + z^2/n);  half = z sqrt(p(1-p)/n + z^2/4n^2) / (1 + z^2/n)
    p, d = successes / n, 1 + z * z / n
    centre, half = (p + z * z / (2 * n)) / d, z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / d
    return (max(0.0, centre - half), min(1.0, centre + half))


def quantile(values: Sequence[float], q: float) -> float | None:
    """Quantile in [0, 1] of the values, None when there are none."""
    return float(np.quantile(values, q)) if len(values) else None


def _rate(episodes: Sequence[Episode]) -> float | None:
    return sum(e.success for e in episodes) / len(episodes) if episodes else None


def _steps(episodes: Sequence[Episode]) -> float | None:
    lengths = [e.length for e in episodes if e.success]
    return float(np.mean(lengths)) if lengths else None


def describe(attempt: Attempt) -> dict:
    """One attempt as the report lists it."""
    n = len(attempt.episodes)
    forces = [e.peak_force for e in attempt.episodes]
    return {
        'kind': attempt.kind,
        'policy': attempt.policy,
        'version': attempt.version,
        'sha256': attempt.sha256,
        'at_env_steps': attempt.at_env_steps,
        'n': n,
        'successes': attempt.successes,
        'longest_streak': attempt.streak,
        'success_rate_wilson_95': wilson(attempt.successes, n),
        'steps_per_success': _steps(attempt.episodes),
        'force_p50_n': quantile(forces, 0.5),
        'force_p95_n': quantile(forces, 0.95),
        'force_max_n': quantile(forces, 1.0),
        'aborts': sum(e.boundary == 4 for e in attempt.episodes),
    }


def report(run: Run) -> dict:
    """Everything the run is judged by; a number that does not exist is null, never a guess."""
    config, learner = run.config, run.learner()
    of = {kind: [a for a in run.attempts if a.kind == kind] for kind in ('streak', 'fresh', 'clone', 'clone_sampled')}
    fresh = run.best
    episodes = fresh.episodes if fresh else ()
    forces = [e.peak_force for e in episodes]
    clone = of['clone'][-1].episodes if of['clone'] else ()
    sampled = of['clone_sampled'][-1].episodes if of['clone_sampled'] else ()
    moved = run.trained or list(episodes)
    periods = np.concatenate([e.period_s[1:] for e in moved]) if moved else np.zeros(0)
    steps = sum(e.length for e in moved)
    train_s = run.seconds.get('TRAINING', 0.0)
    learned, cloned = _steps(episodes), _steps(clone)
    return {
        'name': config.name,
        'run': run.folder.name,
        'seed': config.seed,
        'pace': config.pace,
        'reason': run.reason,
        'consecutive_successes': max((a.streak for a in of['streak']), default=0),
        'consecutive_wanted': config.evaluation.consecutive,
        'chosen_version': fresh.version if fresh else None,
        'chosen_sha256': fresh.sha256 if fresh else None,
        'fresh_episodes': len(episodes),
        'fresh_success_rate': _rate(episodes),
        'fresh_success_wilson_95': wilson(fresh.successes, len(episodes)) if fresh else None,
        'steps_per_success': learned,
        'bc_success_rate': _rate(clone),
        'bc_steps_per_success': cloned,
        'bc_sampled_success_rate': _rate(sampled),
        'bc_sampled_steps_per_success': _steps(sampled),
        'demos': sum(e.success for e in run.demos),
        'demo_attempts': len(run.demos),
        'demo_success_rate': _rate(run.demos),
        'demo_steps_per_success': _steps(run.demos),
        'force_p50_n': quantile(forces, 0.5),
        'force_p95_n': quantile(forces, 0.95),
        'force_max_n': quantile(forces, 1.0),
        'abort_rate': sum(e.boundary == 4 for e in episodes) / len(episodes) if episodes else None,
        'train_env_steps': run.env_steps,
        'train_episodes': len(run.trained),
        'robot_minutes': sum(e.duration_s for e in run.trained) / 60,
        'train_wall_s': train_s,
        'phase_wall_s': run.seconds,
        'env_steps_per_s': run.env_steps / train_s if train_s and run.env_steps else None,
        'eval_env_steps_per_s': _eval_rate(run),
        'updates': learner.get('updates'),
        'updates_per_s': learner['updates'] / train_s if train_s and 'updates' in learner else None,
        'utd': learner.get('utd'),
        'policy_lag_p50': quantile(run.lags, 0.5),
        'policy_lag_p99': quantile(run.lags, 0.99),
        'period_p50_ms': _ms(periods, 0.5),
        'period_p99_ms': _ms(periods, 0.99),
        'period_error_p99_ms': _ms(np.abs(periods - 1 / _hz(run)), 0.99),
        'late_steps': sum(e.late_steps for e in moved),
        'late_step_rate': sum(e.late_steps for e in moved) / steps if steps else None,
        'interventions': sum(e.interventions for e in run.trained),
        'attempts': [describe(a) for a in run.attempts],
    }


def _hz(run: Run) -> float:
    return next(iter(run.config.cells.values())).control_hz


def _ms(seconds: np.ndarray, q: float) -> float | None:
    return float(1e3 * np.quantile(seconds, q)) if seconds.size else None


def _eval_rate(run: Run) -> float | None:
    steps = sum(e.length for a in run.attempts for e in a.episodes)
    seconds = run.seconds.get('EVALUATION', 0.0)
    return steps / seconds if seconds else None


def write(run: Run) -> dict:
    """Writes report.json (whole or not at all) and success.png into the run folder."""
    numbers = report(run)
    part = run.folder / 'report.json.part'
    part.write_text(json.dumps(numbers, indent=1) + '\n')
    part.replace(run.folder / 'report.json')
    picture(run, numbers, run.folder / 'success.png')
    return numbers


def picture(run: Run, numbers: dict, path: Path) -> None:
    """Learning curve, evaluations and forces beside the demonstrations and behaviour cloning."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    figure, (curve, rate, time, force) = plt.subplots(1, 4, figsize=(17, 4.2), width_ratios=(2.4, 1, 1, 1.3))
    lengths = np.cumsum([e.length for e in run.trained])
    window = run.config.evaluation.gate_window
    good = np.array([e.success for e in run.trained], float)
    smooth = [good[max(0, i - window + 1) : i + 1].mean() for i in range(len(good))]
    curve.plot(lengths, smooth, label=f'training, mean of {window} episodes')
    for attempt in run.attempts:
        if attempt.kind in ('streak', 'fresh') and attempt.episodes:
            share = attempt.successes / len(attempt.episodes)
            wanted = run.config.evaluation.consecutive
            curve.plot(attempt.at_env_steps, share if attempt.kind == 'fresh' else attempt.streak / wanted,
                       's' if attempt.kind == 'fresh' else 'v', color='C2' if attempt.kind == 'fresh' else 'C1')
    curve.plot([], [], 'v', color='C1', label=f'streak / {run.config.evaluation.consecutive}, deterministic')
    curve.plot([], [], 's', color='C2', label=f'{run.config.evaluation.fresh_episodes} fresh starts, deterministic')
    curve.set(xlabel='training steps (10 per robot second)', ylabel='success', ylim=(-0.03, 1.05),
              title=f'{run.config.name}, seed {run.config.seed}')
    curve.legend(loc='center left', fontsize=8)
    groups = {'demonstrations': run.demos}
    names = {'clone': 'cloning', 'clone_sampled': 'cloning + noise', 'fresh': 'learned'}
    for kind, label in names.items():
        found = [run.best] if kind == 'fresh' and run.best else [a for a in run.attempts if a.kind == kind]
        if found:
            groups[label] = list(found[-1].episodes)
    for i, (label, episodes) in enumerate(groups.items()):
        p, interval = _rate(episodes), wilson(sum(e.success for e in episodes), len(episodes))
        if p is None or interval is None:
            continue
        rate.bar(i, p, color=f'C{i}', yerr=[[max(0, p - interval[0])], [max(0, interval[1] - p)]], capsize=3)
        time.bar(i, _steps(episodes) or 0.0, color=f'C{i}')
        force.plot(np.sort([e.peak_force for e in episodes]), np.linspace(0, 1, len(episodes)), color=f'C{i}', label=label)
    for axis, title in ((rate, 'success (95 % Wilson)'), (time, 'steps per insertion')):
        axis.set_xticks(range(len(groups)), list(groups), rotation=35, ha='right', fontsize=8)
        axis.set_title(title)
    force.axvline(30, color='0.7', ls=':')
    force.axvline(60, color='0.7', ls='--')
    force.set(xlabel='peak contact force of an episode, N', ylabel='share of episodes', xlim=(0, 120), title='gentleness')
    if any(groups.values()):
        force.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
