# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The run: demonstrations, training, evaluation, end. Reads top to bottom in `Run.__call__`.

It sits above the data's path: it asks cells for episodes and reads what the learner says of
itself. No rclpy here; `run_node` gives it cells, the learner's numbers and the announced weights.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
import itertools
import math
from pathlib import Path
import shutil
import threading
import time

import numpy as np

from user_core.config import RunConfig
from user_core.errors import UserError
from user_core.outcome import Announced, Attempt, Episode, Goal, Mode


class StoppedError(Exception):
    """Somebody asked the run to end early."""


PATIENCE_S = 90.0
"""A run ends when a cell, the learner or weights have not come for this long."""


class Run:
    """One run from the first demonstration to the report.

    Attributes:
        cells: a blocking call for each cell, made from a thread of its own.
        learner: gives the learner's newest numbers by name, and its `state` and `reason`.
        arms: gives the newest numbers of every arm node.
        announced: gives the newest weights of a policy, or None.
        curve: takes a name, a value and the step it belongs to.
        say: takes a line for people.
        stop: ends the run early when set, from any thread.
        evaluating: kind, episodes so far and episodes wanted of the newest attempt.
        awaited_s: steady time at which a cell last waited for a person, set from outside.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        cells: dict[str, Callable[[Goal], Episode]],
        learner: Callable[[], dict],
        arms: Callable[[], list[dict]],
        announced: Callable[[str], Announced | None],
        curve: Callable[[str, float, int], None],
        say: Callable[[str], None],
    ) -> None:
        self.config, self.folder, self.say = config, folder, say
        self.cells, self.learner, self.arms = cells, learner, arms
        self.announced, self.curve = announced, curve
        self.stop = threading.Event()
        self.phase = 'START'
        self.reason = ''
        self.started = time.monotonic()
        self.demos: list[Episode] = []
        self.trained: list[Episode] = []
        self.attempts: list[Attempt] = []
        self.env_steps = 0
        self.seconds: dict[str, float] = {}
        self.recent: deque[Episode] = deque(maxlen=config.evaluation.gate_window)
        self.best: Attempt | None = None
        self.evaluating: tuple[str, list[Episode], int] | None = None
        self.progress = (-1.0, time.monotonic())
        self.awaited_s = self.started

    # ---------------------------------------------------------------- the story

    def __call__(self) -> bool:
        """Runs every phase; True when the goal was reached.

        Raises:
            UserError: the run cannot go on.
            StoppedError: `stop` was set.
        """
        if self.config.evaluate:
            self.best = self.evaluate(
                'fresh', self.weights('actor'), self.config.evaluation.fresh_episodes
            )
            return True
        self.demonstrate()
        solved = False
        while not solved and self.train():
            solved = self.prove()
        if solved:
            self.compare()
        return solved

    def demonstrate(self) -> None:
        """Collects successful demonstrations; failures are kept in the store but are none."""
        wanted = self.config.budget.demos
        for episode in self.episodes('DEMONSTRATIONS', Mode.DEMO, '', 0, self.seeds(0)):
            self.demos.append(episode)
            good = sum(e.success for e in self.demos)
            self.curve('demos/success_rate', good / len(self.demos), len(self.demos))
            if good >= wanted:
                return
            if len(self.demos) >= self.config.budget.max_demo_attempts:
                raise UserError(
                    f'only {good} of {wanted} demonstrations succeeded '
                    f'in {len(self.demos)} attempts',
                    'the demonstrator fails too often in this scene',
                    'raise budget.max_demo_attempts, lower budget.demos, '
                    'or look at the demonstrator',
                )

    def train(self) -> bool:
        """Trains until the gate to an evaluation opens (True) or the budget is used (False)."""
        rule, budget = self.config.evaluation, self.config.budget
        evaluated_at = self.attempts[-1].at_env_steps if self.attempts else -rule.min_steps_between
        if self.env_steps >= budget.env_steps:
            return False
        for episode in self.episodes(
            'TRAINING', Mode.TRAIN, 'actor', 0, self.seeds(1, len(self.trained))
        ):
            self.trained.append(episode)
            self.recent.append(episode)
            self.env_steps += episode.length
            self._curves(episode)
            wins = sum(e.success for e in self.recent)
            if self.env_steps >= budget.env_steps:
                return wins >= rule.gate_successes
            due = self.env_steps - evaluated_at >= rule.min_steps_between
            if due and wins >= rule.gate_successes and self._fast_enough():
                return True
        return False

    def prove(self) -> bool:
        """Judges one frozen version by a streak, then by fresh starts; True if both hold."""
        rule = self.config.evaluation
        weights = self.weights('actor')
        streak = self.evaluate('streak', weights, rule.consecutive, until_failure=True)
        if streak.streak < rule.consecutive:
            return False
        fresh = self.evaluate('fresh', weights, rule.fresh_episodes)
        rate = fresh.successes / max(len(fresh.episodes), 1)
        if self.best is None or fresh.successes > self.best.successes:
            self.best = fresh
        return rate >= rule.fresh_success_rate

    def compare(self) -> None:
        """Judges behaviour cloning of the same demonstrations on the same fresh starts."""
        n = self.config.evaluation.clone_episodes
        if n:
            weights = self.weights('clone')
            self.evaluate('clone', weights, n)
            self.evaluate('clone_sampled', weights, n, mode=Mode.EVAL_SAMPLED)

    def evaluate(
        self,
        kind: str,
        weights: Announced,
        episodes_n: int,
        until_failure: bool = False,
        mode: Mode = Mode.EVAL,
    ) -> Attempt:
        """Runs episodes of one frozen version; `until_failure` ends at the first one."""
        self._keep(weights)
        seeds = self._starts(kind)
        done: list[Episode] = []
        self.evaluating = (kind, done, episodes_n)
        if episodes_n:
            for episode in self.episodes(
                'EVALUATION', mode, weights.policy, weights.version, seeds
            ):
                done.append(episode)
                if len(done) == episodes_n or (until_failure and not episode.success):
                    break
        attempt = Attempt(
            kind, weights.policy, weights.version, weights.sha256, self.env_steps, tuple(done)
        )
        self.attempts.append(attempt)
        self.curve(
            f'eval/{kind}_success_rate', attempt.successes / max(len(done), 1), self.env_steps
        )
        self.say(
            f'evaluation ({kind}) of {weights.policy} version {weights.version}: '
            f'{attempt.successes}/{len(done)} succeeded, longest streak {attempt.streak}'
        )
        return attempt

    # ---------------------------------------------------------------- the means

    def episodes(
        self, phase: str, mode: Mode, policy: str, version: int, seeds: Iterator[int]
    ) -> Iterator[Episode]:
        """Keeps every cell busy and yields each episode; a void one is repeated with its seed.

        A cell gets its next episode only after the caller has seen the last one, so a caller that
        breaks leaves no cell moving: what runs then is waited for and dropped.
        """
        self.phase, begun, patience = phase, time.monotonic(), time.monotonic()
        slowest_hz = min(cell.control_hz for cell in self.config.cells.values())
        episode_s = max(60.0, self.config.task.max_steps / slowest_hz)
        with ThreadPoolExecutor(len(self.cells)) as pool:
            running: dict[Future[Episode], str] = {}
            idle, again = list(self.cells), list[int]()
            try:
                while True:
                    self._check()
                    if mode is not Mode.TRAIN or self._learner_keeps_up():
                        for cell in idle:
                            seed = again.pop() if again else next(seeds)
                            goal = Goal(mode, policy, version, seed)
                            running[pool.submit(self.cells[cell], goal)] = cell
                        idle = []
                    if not running:  # the learner owes updates
                        self.stop.wait(0.02)
                    done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                    for future in done:
                        episode = future.result()
                        idle.append(running.pop(future))
                        self.reason = episode.reason
                        if not episode.void:
                            patience = time.monotonic()
                            yield episode
                        else:
                            again.append(episode.goal.seed)
                            self.say(f'{episode.cell}: episode repeated: {episode.reason}')
                            self.stop.wait(0.5)
                    if mode is Mode.TRAIN and not running:
                        patience = max(patience, self._backlog_moved())
                    patience = max(patience, self.awaited_s)
                    if time.monotonic() - patience > PATIENCE_S + episode_s * bool(running):
                        raise UserError(
                            f'no episode could be run for {PATIENCE_S:.0f} s in phase {phase}',
                            self.reason or 'the cells or the learner do not answer',
                            'see the logs in the run folder, then start again',
                        )
            finally:
                self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - begun

    def seeds(self, stream: int, first: int = 0) -> Iterator[int]:
        """Start seeds; no two streams share one.

        Streams: 0 demonstrations, 1 training, 2 streaks, 3 fresh starts, 4 a later `user eval`.
        """
        return itertools.count((self.config.seed << 32) | (stream << 28) | first)

    def _starts(self, kind: str) -> Iterator[int]:
        """Starts of an evaluation: no version is judged on starts that an earlier one failed on.

        A baseline gets the starts of the chosen version, so that the two can be compared.
        """
        if self.config.evaluate:
            return self.seeds(4)
        if kind in ('streak', 'fresh'):
            return self.seeds(2 if kind == 'streak' else 3, 1000 * len(self.attempts))
        chosen = self.best.episodes if self.best else ()
        return itertools.count(chosen[0].goal.seed) if chosen else self.seeds(3)

    def weights(self, policy: str) -> Announced:
        """The newest announced weights of a policy; waits for the first ones."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.announced(policy)) is None:
            self._check()
            if time.monotonic() > deadline:
                raise UserError(
                    f'no weights of policy {policy} were announced within {PATIENCE_S:.0f} s',
                    self.learner().get('reason') or 'the learner does not publish',
                    'see the learner log in the run folder',
                )
            self.stop.wait(0.05)
        return found

    def _keep(self, weights: Announced) -> None:
        """Copies an evaluated version into the run's checkpoints before it is judged."""
        kept = self.folder / 'checkpoints' / f'{weights.policy}-{weights.version}.safetensors'
        if not kept.exists() and weights.path.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            part = kept.with_suffix('.part')
            shutil.copyfile(weights.path, part)
            part.replace(kept)

    def _check(self) -> None:
        """Ends the run when asked, out of wall time, or when the learner gave up."""
        if self.stop.is_set():
            raise StoppedError
        limit = self.config.budget.wall_s
        if limit and time.monotonic() - self.started > limit:
            raise UserError(
                f'the run used its {limit:.0f} s of wall time',
                'budget.wall_s',
                'raise it, or look at the curves',
            )
        learner = self.learner()
        if learner.get('state') == 'HALTED':
            raise UserError(
                'the learner gave up', learner.get('reason', ''), 'see its log and the curves'
            )

    def _learner_keeps_up(self) -> bool:
        """False while training has to wait for the learner: in lockstep, when it owes updates.

        Realtime never waits: the arm keeps its rate and the learner catches up. A learner that was
        started anew has no numbers at first.
        """
        learner = self.learner()
        if learner.get('state') not in ('TRAINING', 'IDLE'):
            return False
        return (
            self.config.pace == 'realtime'
            or learner.get('backlog', math.inf) <= self.config.learner.max_backlog_updates
        )

    def _backlog_moved(self) -> float:
        """Steady time at which the learner last got on: a busy one is waited for."""
        learner = self.learner()
        updates = learner.get('updates', 0.0) + learner.get('lessons', 0.0)
        if updates != self.progress[0]:
            self.progress = (updates, time.monotonic())
        return self.progress[1]

    def _fast_enough(self) -> bool:
        """Whether the window's successes are as short as `gate_steps_share` asks for."""
        share = self.config.evaluation.gate_steps_share
        new, shown = ([e.length for e in part if e.success] for part in (self.recent, self.demos))
        return share is None or not shown or bool(np.mean(new) <= share * np.mean(shown))

    def _curves(self, episode: Episode) -> None:
        wins = sum(e.success for e in self.recent)
        for name, value in (
            ('success_rate', wins / len(self.recent)),
            ('return', episode.episode_return),
            ('length', episode.length),
            ('interventions', episode.interventions),
            ('peak_force_n', episode.peak_force),
            ('distance_m', episode.distance),
            ('policy_lag', episode.policy_lag),
        ):
            self.curve(f'train/{name}', float(value), self.env_steps)
        if episode.period_s.size:
            self.curve('train/cycle_time_s', float(np.median(episode.period_s)), self.env_steps)

    def live(self) -> str:
        """One line for people; something in it moves before the first success."""
        judging = self.evaluating if self.phase == 'EVALUATION' else None
        numbers = self._evaluation(*judging) if judging else self._training()
        return f'{self.phase} {time.monotonic() - self.started:.0f} s  {numbers}'

    @staticmethod
    def _evaluation(kind: str, episodes: list[Episode], wanted: int) -> str:
        good, done = sum(e.success for e in episodes), len(episodes)
        return f'{kind} {good}/{wanted} ok' + (f', {done - good} failed' if done > good else '')

    def _training(self) -> str:
        learner, new = self.learner(), list(self.recent)
        texts = [
            f'demos {sum(e.success for e in self.demos)}/{self.config.budget.demos}',
            f'steps {self.env_steps}/{self.config.budget.env_steps}',
        ]
        if new:
            texts += [
                f'success {sum(e.success for e in new)}/{len(new)}',
                f'closest {1e3 * np.median([e.distance for e in new]):.1f} mm',
                f'force {np.median([e.peak_force for e in new]):.0f} N',
            ]
        if learner.get('state') == 'WARMUP':
            texts += [f'{key} {learner.get(key, 0):.0f}' for key in ('lessons', 'updates')]
        for name, key, form in (
            ('Q', 'q', '.3f'),
            ('alpha', 'alpha', '.4f'),
            ('utd', 'utd', '.2f'),
            ('version', 'version', '.0f'),
            ('learner', 'state', ''),
        ):
            if key in learner:
                texts.append(f'{name} {learner[key]:{form}}')
        return ' '.join(texts)
