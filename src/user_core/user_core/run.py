# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The run: demonstrations, training, evaluation, end. Reads top to bottom in `Run.__call__`.

It sits above the data's path: it asks cells for episodes and reads what the learner says of
itself. What it knows is the sum of its journal, so it goes on from there after any kill: each
phase looks first at what is done already. No rclpy here; `run_node` gives it cells, the learner's
numbers and the announced weights.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
import itertools
import math
from pathlib import Path
import time

import numpy as np

from user_core import frozen, gate
from user_core.config import RunConfig
from user_core.errors import UserError
from user_core.journal import line_of
from user_core.outcome import Announced, Attempt, Episode, Goal, Mode
from user_core.tally import Recorded, StoppedError, Stored

PATIENCE_S = 90.0
"""A run ends when a cell, the learner or weights have not come for this long."""


def _nothing_hinders() -> str:
    return ''


class Run(Recorded):
    """One run from the first demonstration to the report, however often it is cut.

    Attributes:
        cells: a blocking call for each cell, made from a thread of its own.
        learner: gives the learner's newest numbers by name, and its `state` and `reason`.
        arms: gives the newest numbers of every arm node.
        announced: gives the newest weights of a policy, or None.
        curve: takes a name, a value and the step it belongs to.
        say: takes a line for people.
        stored: gives what the store holds once all rows are in it, None before that.
        hindered: why no episode may begin now although the run is well, or ''.
        reason: how the newest episode ended.
        wanted: episodes of the evaluation that is under way.
        awaited_s: steady time at which somebody last said that he is to be waited for.
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
        stored: Callable[[], Stored | None] | None = None,
        hindered: Callable[[], str] = _nothing_hinders,
    ) -> None:
        super().__init__(folder, config.evaluation.gate_window)
        self.config, self.folder, self.say = config, folder, say
        self.cells, self.learner, self.arms = cells, learner, arms
        self.announced, self.curve = announced, curve
        self.stored, self.hindered = stored, hindered
        self.reason = ''
        self.wanted = 0
        self.progress = (-1.0, self.started)
        self.awaited_s = self.started
        self._streams = {stream: self.seeds(stream, self._unused(stream)) for stream in (0, 1)}

    # ---------------------------------------------------------------- the story

    def __call__(self) -> bool:
        """Runs every phase; True when the goal was reached.

        Raises:
            UserError: the run cannot go on.
            StoppedError: `stop` was set.
        """
        rule = self.config.evaluation
        self.record('start', name=self.config.name)
        if self.config.evaluate:
            if self.best is None:
                self.evaluate('fresh', self.weights('actor'), rule.fresh_episodes)
            return True
        if self.starts > 1:
            self.settle()
        self.demonstrate()
        while not gate.solved(self, rule):
            if not (gate.on_trial(self, rule) or self.train()):
                return False
            self.prove()
        self.compare()
        return True

    def settle(self) -> None:
        """Takes over what the store holds: an episode that ended in a kill has no line.

        A demonstration that was stored counts, one that a power failure took is collected again;
        of training steps the larger number counts.
        """
        self.phase, patience = 'RESTORING', time.monotonic()
        while self.stored is not None and (stored := self.stored()) is None:
            self._check()
            self.waits = self.learner().get('reason') or 'rows of the last time are handed in'
            patience = max(patience, self.awaited_s, self._backlog_moved())
            if time.monotonic() - patience > PATIENCE_S:
                raise UserError(
                    f'the cells and the learner did not settle within {PATIENCE_S:.0f} s',
                    self.learner().get('reason') or 'rows wait in a cell, or nobody answers',
                    'see the logs in the run folder',
                )
            self.stop.wait(0.1)
        if self.stored is not None and stored is not None:
            self.record('count', demos=stored.demos, env_steps=stored.env_steps)
        self.waits = ''
        self.say(
            f'goes on with {self.good_demos} demonstrations, {self.env_steps} training steps and'
            f' {len(self.attempts)} evaluations'
        )

    def demonstrate(self) -> None:
        """Collects successful demonstrations; failures are kept in the store but are none."""
        budget = self.config.budget
        if self.good_demos >= budget.demos:
            return
        for _ in self.episodes('DEMONSTRATIONS', Mode.DEMO, '', 0, self._streams[0]):
            good, tried = self.good_demos, len(self.demos) + max(self.unlisted, 0)
            self.curve('demos/success_rate', good / tried, tried)
            if good >= budget.demos:
                return
            if tried >= budget.max_demo_attempts:
                raise UserError(
                    f'only {good} of {budget.demos} demonstrations succeeded in {tried} attempts',
                    'the demonstrator fails too often in this scene',
                    'raise budget.max_demo_attempts, lower budget.demos, '
                    'or look at the demonstrator',
                )

    def train(self) -> bool:
        """Trains until the gate to an evaluation opens (True) or the budget is used (False)."""
        limit, rule = self.config.budget.env_steps, self.config.evaluation
        if (opens := gate.opens(self, limit, rule)) is not None:
            return opens
        for episode in self.episodes('TRAINING', Mode.TRAIN, 'actor', 0, self._streams[1]):
            self._curves(episode)
            if (opens := gate.opens(self, limit, rule)) is not None:
                return opens
        return False

    def prove(self) -> None:
        """Judges one frozen version by a streak, then by fresh starts."""
        rule = self.config.evaluation
        known = self._frozen(gate.on_trial(self, rule))
        weights = known or self.weights('actor')
        if not (known and any(gate.passed(a, rule) for a in self.attempts[-1:])):
            streak = self.evaluate('streak', weights, rule.consecutive, until_failure=True)
            if not gate.passed(streak, rule):
                return
        self.evaluate('fresh', weights, rule.fresh_episodes)

    def compare(self) -> None:
        """Judges behaviour cloning of the same demonstrations on the same fresh starts."""
        n, done = self.config.evaluation.clone_episodes, gate.baselines(self)
        for kind, mode in (('clone', Mode.EVAL), ('clone_sampled', Mode.EVAL_SAMPLED)):
            if n and kind not in done:
                cut = self.open if self.open and self.open.policy == 'clone' else done.get('clone')
                weights = self._frozen(cut) or self.weights('clone')
                done[kind] = self.evaluate(kind, weights, n, mode=mode)

    def evaluate(
        self,
        kind: str,
        weights: Announced,
        episodes_n: int,
        until_failure: bool = False,
        mode: Mode = Mode.EVAL,
    ) -> Attempt:
        """Runs episodes of one frozen version; `until_failure` ends at the first one. One that was
        cut goes on with the episodes it has.
        """
        judged = kind, weights.policy, weights.version
        cut = self.open
        if cut is None or (cut.kind, cut.policy, cut.version) != judged:
            self.when_there_is_room(lambda: frozen.keep(self.folder, weights))
            self.record(
                'begin', kind=kind, policy=weights.policy, version=weights.version,
                sha256=weights.sha256, at_env_steps=self.env_steps,
            )  # fmt: skip
        self.wanted = episodes_n

        def complete() -> bool:
            done = self.open.episodes if self.open else ()
            failed = until_failure and bool(done) and not done[-1].success
            return failed or len(done) >= episodes_n

        if not complete():
            for _ in self.episodes('EVALUATION', mode, weights.policy, weights.version,
                                   self._starts(kind)):  # fmt: skip
                if complete():
                    break
        self.record('end')
        attempt = self.attempts[-1]
        done = len(attempt.episodes)
        self.curve(f'eval/{kind}_success_rate', attempt.successes / max(done, 1), self.env_steps)
        self.say(
            f'evaluation ({kind}) of {weights.policy} version {weights.version}: '
            f'{attempt.successes}/{done} succeeded, longest streak {attempt.streak}'
        )
        return attempt

    # ---------------------------------------------------------------- the means

    def episodes(
        self, phase: str, mode: Mode, policy: str, version: int, seeds: Iterator[int]
    ) -> Iterator[Episode]:
        """Keeps every cell busy and yields each episode when its line is in the journal; a void
        one is repeated with its seed.

        A cell gets its next episode only after the caller has seen the last one, so a caller that
        breaks leaves no cell moving: what runs then is waited for, and counted where it is stored
        to learn from.
        """
        self.phase, patience = phase, time.monotonic()
        self.pass_time()
        slowest_hz = min(cell.control_hz for cell in self.config.cells.values())
        episode_s = max(60.0, self.config.task.max_steps / slowest_hz)
        running: dict[Future[Episode], str] = {}
        idle, again = list(self.cells), list[int]()
        try:
            with ThreadPoolExecutor(len(self.cells)) as pool:
                while True:
                    self._check()
                    self.waits = self._why_not(mode)
                    if not self.waits:
                        for cell in idle:
                            seed = again.pop() if again else next(seeds)
                            goal = Goal(mode, policy, version, seed)
                            running[pool.submit(self.cells[cell], goal)] = cell
                        idle = []
                    if not running:
                        self.stop.wait(0.02)
                    done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                    for future in done:
                        episode = future.result()
                        idle.append(running.pop(future))
                        self.reason = episode.reason
                        if not episode.void:
                            self.record('episode', **line_of(episode))
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
                            self.waits or self.reason or 'the cells or the learner do not answer',
                            'see the logs in the run folder, then start again',
                        )
        finally:
            self.waits = ''
            for episode in (future.result() for future in running):
                if mode in (Mode.DEMO, Mode.TRAIN) and not episode.void:
                    with suppress(StoppedError):
                        self.record('episode', **line_of(episode))
            self.pass_time()

    def seeds(self, stream: int, first: int = 0) -> Iterator[int]:
        """Start seeds; no two streams share one.

        Streams: 0 demonstrations, 1 training, 2 streaks, 3 fresh starts, 4 a later `user eval`.
        """
        return itertools.count((self.config.seed << 32) | (stream << 28) | first)

    def _unused(self, stream: int) -> int:
        """The first number of a stream that no cell was given: a kill leaves one a cell untold."""
        done = self.trained if stream else self.demos
        used = [(e.goal.seed & (1 << 28) - 1) + 1 for e in done]
        return max(used, default=0) + self.starts * len(self.cells)

    def _starts(self, kind: str) -> Iterator[int]:
        """Starts of the open evaluation that it has no episode of: no version is judged on starts
        that an earlier one failed on.

        A baseline gets the starts of the chosen version, so that the two can be compared.
        """
        chosen = self.best.episodes if self.best else ()
        if self.config.evaluate:
            starts = self.seeds(4)
        elif kind in ('streak', 'fresh'):
            starts = self.seeds(2 if kind == 'streak' else 3, 1000 * (self.begun - 1))
        elif chosen:
            starts = itertools.count(min(e.goal.seed for e in chosen))
        else:
            starts = self.seeds(3)
        done = {e.goal.seed for e in self.open.episodes} if self.open else set()
        return (seed for seed in starts if seed not in done)

    def weights(self, policy: str) -> Announced:
        """The newest announced weights of a policy; waits for the first ones."""
        patience = time.monotonic()
        while (found := self.announced(policy)) is None:
            self._check()
            patience = max(patience, self.awaited_s)
            if time.monotonic() - patience > PATIENCE_S:
                raise UserError(
                    f'no weights of policy {policy} were announced within {PATIENCE_S:.0f} s',
                    self.learner().get('reason') or 'the learner does not publish',
                    'see the learner log in the run folder',
                )
            self.stop.wait(0.05)
        return found

    def _frozen(self, cut: Attempt | None) -> Announced | None:
        """The version of an evaluation that was cut, as it was judged so far."""
        known = frozen.find(self.folder, cut) if cut else None
        if cut and not known:
            self.say(f'{cut.policy} version {cut.version} is gone: the newest one is judged anew')
        return known

    def _check(self) -> None:
        """Ends the run when asked, out of wall time, or when the learner gave up."""
        if self.stop.is_set():
            raise StoppedError
        limit = self.config.budget.wall_s
        if limit and self.elapsed() > limit:
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

    def _why_not(self, mode: Mode) -> str:
        """Why no episode may begin now, or ''."""
        if hindered := self.hindered():
            return hindered
        if mode is not Mode.TRAIN or self._learner_keeps_up():
            return ''
        learner = self.learner()
        return learner.get('reason') or (
            'the learner has updates to make' if learner else 'the learner has not been heard yet'
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

    def _curves(self, episode: Episode) -> None:
        recent = self.recent
        for name, value in (
            ('success_rate', sum(e.success for e in recent) / len(recent)),
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
