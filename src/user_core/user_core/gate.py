# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a run does next, from its tally alone: train, judge a version, or be done."""

from __future__ import annotations

import math

import numpy as np

from user_core.config import Evaluation
from user_core.outcome import Attempt
from user_core.tally import Tally


def opens(run: Tally, env_steps: int, rule: Evaluation) -> bool | None:
    """Whether to judge a version now (True), the budget of `env_steps` is used (False), or
    neither.
    """
    judged = run.attempts[-1:]
    since = run.env_steps - judged[0].at_env_steps if judged else math.inf
    good = sum(e.success for e in run.recent) >= rule.gate_successes
    if run.env_steps >= env_steps:
        return since > 0 and good
    due = since > 0 and since >= rule.min_steps_between
    return True if due and good and _fast_enough(run, rule) else None


def _fast_enough(run: Tally, rule: Evaluation) -> bool:
    """Whether the window's successes are as short as `gate_steps_share` asks for."""
    new, shown = ([e.length for e in part if e.success] for part in (run.recent, run.demos))
    share = rule.gate_steps_share
    return share is None or not shown or bool(np.mean(new) <= share * np.mean(shown))


def passed(attempt: Attempt, rule: Evaluation) -> bool:
    """Whether it is a streak that lets the fresh starts follow."""
    return attempt.kind == 'streak' and attempt.streak >= rule.consecutive


def solved(run: Tally, rule: Evaluation) -> bool:
    """Whether the newest version that was judged has mastered its streak and fresh starts."""
    judged = [a for a in run.attempts if a.kind in ('streak', 'fresh')][-2:]
    if [a.kind for a in judged] != ['streak', 'fresh'] or not passed(judged[0], rule):
        return False
    n = len(judged[1].episodes)
    return n >= rule.fresh_episodes and judged[1].successes / max(n, 1) >= rule.fresh_success_rate


def on_trial(run: Tally, rule: Evaluation) -> Attempt | None:
    """The evaluation in which a run was cut: it is under way, or its fresh starts are due."""
    if run.open is not None:
        return run.open if run.open.kind in ('streak', 'fresh') else None
    last = run.attempts[-1:]
    return last[0] if last and passed(last[0], rule) else None


def baselines(run: Tally) -> dict[str, Attempt]:
    """The baselines that were judged since the newest fresh starts, by kind."""
    since: dict[str, Attempt] = {}
    for attempt in run.attempts:
        since = {} if attempt.kind == 'fresh' else since | {attempt.kind: attempt}
    return since
