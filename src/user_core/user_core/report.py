# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""report.json of a run: every number that it is judged by."""

from collections.abc import Sequence
import json
from math import isfinite, sqrt
from typing import Any

import numpy as np

from user_core.outcome import Attempt, Boundary, Episode
from user_core.run import Run


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


def success_rate(episodes: Sequence[Episode]) -> float | None:
    """Share of successful episodes, None when there are none."""
    return _share(sum(e.success for e in episodes), len(episodes))


def steps_per_success(episodes: Sequence[Episode]) -> float | None:
    """Mean length of the successful episodes in control steps, None when there are none."""
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
        'steps_per_success': steps_per_success(attempt.episodes),
        'force_p50_n': quantile(forces, 0.5),
        'force_p95_n': quantile(forces, 0.95),
        'force_max_n': quantile(forces, 1.0),
        'aborts': _aborts(attempt.episodes),
    }


def report(run: Run) -> dict:
    """Everything the run is judged by; a number that does not exist is null, never a guess."""
    config, learner = run.config, run.learner()
    last = {attempt.kind: attempt.episodes for attempt in run.attempts}
    clone, sampled = last.get('clone', ()), last.get('clone_sampled', ())
    fresh = run.best
    episodes = fresh.episodes if fresh else ()
    forces = [e.peak_force for e in episodes]
    moved = run.trained or list(episodes)
    periods = np.concatenate([e.period_s[1:] for e in moved]) if moved else np.zeros(0)
    errors = np.abs(periods - 1 / control_hz(run)) if config.pace == 'realtime' else np.zeros(0)
    steps = sum(e.length for e in moved)
    eval_steps = sum(e.length for a in run.attempts for e in a.episodes)
    train_s = run.seconds.get('TRAINING', 0.0)
    updates = learner.get('updates')
    return {
        'name': config.name,
        'run': run.folder.name,
        'seed': config.seed,
        'pace': config.pace,
        'reason': run.reason,
        'consecutive_successes': max(
            (a.streak for a in run.attempts if a.kind == 'streak'), default=0
        ),
        'consecutive_wanted': config.evaluation.consecutive,
        'chosen_version': fresh.version if fresh else None,
        'chosen_sha256': fresh.sha256 if fresh else None,
        'fresh_episodes': len(episodes),
        'fresh_success_rate': success_rate(episodes),
        'fresh_success_wilson_95': wilson(fresh.successes, len(episodes)) if fresh else None,
        'steps_per_success': steps_per_success(episodes),
        'bc_success_rate': success_rate(clone),
        'bc_steps_per_success': steps_per_success(clone),
        'bc_sampled_success_rate': success_rate(sampled),
        'bc_sampled_steps_per_success': steps_per_success(sampled),
        'demos': run.good_demos,
        'demo_attempts': len(run.demos) + max(run.unlisted, 0),
        'demo_success_rate': success_rate(run.demos),
        'demo_steps_per_success': steps_per_success(run.demos),
        'force_p50_n': quantile(forces, 0.5),
        'force_p95_n': quantile(forces, 0.95),
        'force_max_n': quantile(forces, 1.0),
        'abort_rate': _share(_aborts(episodes), len(episodes)),
        'train_env_steps': run.env_steps,
        'train_episodes': len(run.trained),
        'robot_minutes': sum(e.duration_s for e in run.trained) / 60,
        'train_wall_s': train_s,
        'phase_wall_s': run.seconds,
        'env_steps_per_s': _share(run.env_steps, train_s) if run.env_steps else None,
        'eval_env_steps_per_s': _share(eval_steps, run.seconds.get('EVALUATION', 0.0)),
        'updates': updates,
        'updates_per_s': None if updates is None else _share(updates, train_s),
        'utd': learner.get('utd'),
        'policy_lag_p50': quantile([e.policy_lag for e in run.trained], 0.5),
        'policy_lag_p99': quantile([e.policy_lag for e in run.trained], 0.99),
        'period_p50_ms': _ms(periods, 0.5),
        'period_p99_ms': _ms(periods, 0.99),
        'period_error_p99_ms': _ms(errors, 0.99),  # lockstep keeps no rate: null
        'late_steps': sum(e.late_steps for e in moved),
        'late_step_rate': _share(sum(e.late_steps for e in moved), steps),
        'interventions': sum(e.interventions for e in run.trained),
        **arms(run),
        'attempts': [describe(a) for a in run.attempts],
    }


def arms(run: Run) -> dict:
    """The worst of the arm nodes' numbers, as each counted since it started; null: not told."""
    told = run.arms()

    def worst(key: str) -> float | None:
        return max((t[key] for t in told if key in t), default=None)

    def sum_of(key: str) -> int | None:
        return sum(int(t[key]) for t in told if key in t) if told else None

    return {
        'arm_period_p99_ms': worst('period_p99_ms'),
        'command_latency_p50_ms': worst('command_latency_p50_ms'),
        'command_latency_p99_ms': worst('command_latency_p99_ms'),
        'state_age_p99_ms': worst('state_age_p99_ms'),
        'arm_late_slices': sum_of('late_slices'),
        'faults': sum_of('faults'),
        'recoveries': sum_of('recoveries'),
    }


def control_hz(run: Run) -> float:
    """Control steps a robot second."""
    return next(iter(run.config.cells.values())).control_hz


def _ms(seconds: np.ndarray, q: float) -> float | None:
    return float(1e3 * np.quantile(seconds, q)) if seconds.size else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _aborts(episodes: Sequence[Episode]) -> int:
    return sum(e.boundary is Boundary.ABORT for e in episodes)


def _finite(value: Any) -> Any:
    """The value with null in place of what JSON has no number for: NaN and the infinities."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def of(run: Run) -> dict:
    """What report.json holds of the run."""
    return dict(_finite(report(run)))


def write(run: Run, numbers: dict) -> None:
    """Writes report.json (whole or not at all) into the run folder."""
    part = run.folder / 'report.json.part'
    part.write_text(json.dumps(numbers, indent=1, allow_nan=False) + '\n')
    part.replace(run.folder / 'report.json')
