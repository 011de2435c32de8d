# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The training loop: read new rows, update as the budget allows, publish, save, tell.

Everything happens in `turn`, in one thread. Other threads read `numbers` (replaced whole) and call
`snapshot`.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from pathlib import Path
import threading
import time

import torch
from torch import Tensor

from user_core.config import RunConfig
from user_core.errors import UserError
from user_learning.gauges import Gauges
from user_learning.networks import Spec
from user_learning.rows import Rows
from user_learning.training import Training
from user_learning.weights import Publisher, Version

TURN_UPDATES = 8
"""Updates between two looks at new rows, the clock and the stop."""

IDLE_S = 0.01
"""Wait of a learner that owes no update."""

SAVING_SHARE = 0.01
"""Share of its time that a learner spends on checkpoints, at most: large ones become rarer."""


class StoppedError(Exception):
    """The learner was stopped within a turn; what it was about is not done."""


class Learner:
    """One run's learner.

    `announce` is called with every published version, `curve` with (name, value, environment
    steps) about twice a second; both from the learner's thread. Networks come back from the newest
    checkpoint, and are published, as it is built; rows in its first turn, while it is RESTORING.
    `lost` says what could not come back.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: Spec,
        folder: Path,
        publisher: Publisher,
        announce: Callable[[Version], None],
        curve: Callable[[str, float, int], None],
    ) -> None:
        if config.algorithm.demo_fraction and not config.budget.demos:
            raise UserError(
                'RLPD has no demonstrations to learn from',
                'budget.demos is 0 and algorithm.demo_fraction is not',
                'ask for demonstrations, or set algorithm.demo_fraction=0',
            )
        self.config, self.spec, self.publisher = config, spec, publisher
        self.announce = announce
        self.training = Training(config, spec, folder)
        self.rlpd, self.experience = self.training.rlpd, self.training.experience
        self.gauges = Gauges(curve)
        self.lessons = self._owed_lessons = 0
        self.state, self.reason, self.lost = 'WAIT_DEMOS', '', ''
        self._save_asked, self._save_done = threading.Event(), threading.Event()
        self._saved: Path | None = None
        self._faults: dict[str, str] = {}
        self._published_updates = -1
        self._published_at = self._save_at = time.monotonic()
        self._stop = threading.Event()
        if self.training.saved is not None:
            self._come_back(self.training.saved.lost)

    @property
    def rows(self) -> Rows:
        """The window."""
        return self.experience.rows

    @property
    def numbers(self) -> dict[str, float]:
        """The newest numbers; replaced whole."""
        return self.gauges.numbers

    # ------------------------------------------------------------------ the loop

    def run(self, stop: threading.Event) -> None:
        """Turns until `stop`; then saves. Call it in a thread of its own."""
        torch.set_flush_denormal(True)  # a property of the calling thread
        self._stop = stop
        while not stop.is_set():
            stop.wait(self.turn())
        if self.state in ('TRAINING', 'IDLE'):
            self._save()

    def snapshot(self, timeout_s: float) -> Path | None:
        """Asks the learner's thread for a checkpoint and waits for it; None when there was none in
        time.
        """
        self._save_done.clear()
        self._save_asked.set()
        return self._saved if self._save_done.wait(timeout_s) else None

    def turn(self) -> float:
        """One turn; returns how long to wait before the next one, in seconds.

        An error that ends the training is a state, HALTED, with its reason: the run reads it and
        ends.
        """
        if self.state in ('HALTED', 'STOPPED'):
            return 1.0
        try:
            wait = self._turn()
            if self._save_asked.is_set():
                self._save_asked.clear()
                self._save()
                self._save_done.set()
        except UserError as error:
            self.state, self.reason, wait = 'HALTED', str(error), 1.0
        except StoppedError:
            self.state, self.reason, wait = 'STOPPED', '', 1.0
        self._tell()
        return wait

    def _turn(self) -> float:
        learner, rlpd, training = self.config.learner, self.rlpd, self.training
        if training.saved is not None:
            self._restore()
        self.experience.read()
        rows, wanted = self.rows, self.config.budget.demos
        if rows.demo_episodes < wanted:
            self.state = 'WAIT_DEMOS'
            self.reason = f'has {rows.demo_episodes} of {wanted} demonstrations (budget.demos)'
            return 5 * IDLE_S
        if self.spec.taught and self.experience.encoder is None:
            self.state, self.reason = 'WARMUP', 'the encoders learn where demonstrations ended'
            self._teach()
            return 0.0
        every = learner.hindsight_every
        due = every is not None and rows.train_rows >= training.taught_rows + every
        if self.spec.taught and due:
            self.reason = 'the encoders learn where successes ended'
            self._teach()
            return 0.0
        if training.clone is None and learner.clone_updates and wanted:
            self.state, self.reason = 'WARMUP', 'cloning the demonstrations'
            self._tell(now=True)
            self._publish_clone(training.imitate(self._go_on))
        owed = self.allowed() - rlpd.updates
        if owed <= 0:
            if rlpd.updates >= learner.warmup_updates:
                self.state, self.reason = 'IDLE', self._look_at() or self._waits_for()
                self._publish(first=self._published_updates < 0)
                self._save_if_due()
            return IDLE_S
        warm = rlpd.updates >= learner.warmup_updates
        self.state, self.reason = (
            ('TRAINING', self._look_at())
            if warm
            else ('WARMUP', 'updates on demonstrations alone')
        )
        until = TURN_UPDATES if warm else min(TURN_UPDATES, learner.warmup_updates - rlpd.updates)
        turn = range(rlpd.updates + 1, rlpd.updates + 1 + int(min(owed, until)))
        for batch in self.experience.sample.batches(turn, demos_only=not warm):
            self.gauges.gather(rlpd.update(batch.to(rlpd.device), rows.train_rows, not warm))
        if rlpd.updates >= learner.warmup_updates:
            first = self._published_updates < 0
            self._publish(first)
            if first:
                self._save()
            self._save_if_due()
        return 0.0

    def _look_at(self) -> str:
        """What a person should look at although training goes on."""
        said = [self.lost, *self._faults.values()]
        if self.rlpd.alpha >= 0.999 * self.config.algorithm.alpha_max:
            said.append(
                'the temperature is at algorithm.alpha_max: the target entropy may be out of reach'
            )
        if self.rows.last_refused:
            said.append(f'{self.rows.refused} rows were left out; {self.rows.last_refused}')
        return '; '.join(filter(None, said))

    def _waits_for(self) -> str:
        rows, start = self.rows.train_rows, self.config.learner.start_rows
        if rows < start:
            return f'has {rows} of {start} training steps (learner.start_rows)'
        return 'the update budget is used until new rows come'

    def allowed(self) -> float:
        """Updates that the rows so far pay for: the learner neither starves nor over-trains in a
        pause.

        allowed = warmup_updates + utd * train_rows, of which only the warm-up before `start_rows`
        rows.
        """
        learner, utd, rows = self.config.learner, self.config.algorithm.utd, self.rows.train_rows
        if rows < max(learner.start_rows, 1):
            return learner.warmup_updates
        return math.inf if utd is None else learner.warmup_updates + math.floor(utd * rows)

    # ------------------------------------------------------------------ its parts

    def _go_on(self) -> None:
        """Called before each step of teaching, encoding and cloning, which take long; tells.

        Raises StoppedError.
        """
        self.lessons += 1
        self._tell()
        if self._stop.is_set():
            raise StoppedError

    def _teach(self) -> None:
        """In lockstep nobody shall act meanwhile: the weights grow old, and no new row is read. A
        stop leaves the checkpoint that was written before.
        """
        self._owed_lessons = self.config.learner.max_backlog_updates + 1
        self._tell(now=True)
        if self.experience.encoder is not None:
            self._save()
        self.training.teach(self._go_on)
        self._owed_lessons = 0

    def _publish_clone(self, weights: dict[str, Tensor]) -> None:
        updates = self.config.learner.clone_updates
        self.announce(self.publisher.publish('clone', weights, updates, 0))

    def _publish(self, first: bool) -> None:
        """Publishes the actor when it changed, is due and no bad update is pending."""
        rlpd, now = self.rlpd, time.monotonic()
        if rlpd.updates == self._published_updates or rlpd.bad_updates_in_a_row:
            return
        if not first and now - self._published_at < self.config.learner.publish_every_s:
            return
        tensors = {k: v.cpu() for k, v in rlpd.published().items()}
        if not all(bool(t.isfinite().all()) for t in tensors.values()):
            raise UserError(
                'the actor holds a weight that is not finite',
                '',
                'restart from an older checkpoint',
            )
        try:
            version = self.publisher.publish(
                'actor', tensors, rlpd.updates, self.training.env_steps
            )
        except OSError as error:
            self._faults['publish'] = f'weights could not be written: {error.strerror}'
            return
        self._faults.pop('publish', None)
        self._published_updates, self._published_at = rlpd.updates, now
        self.announce(version)

    def _save_if_due(self) -> None:
        if time.monotonic() >= self._save_at:
            self._save()

    def _save(self) -> None:
        begun = time.monotonic()
        try:
            self._saved = self.training.save()
            self._faults.pop('save', None)
        except OSError as error:
            self._saved = None
            self._faults['save'] = f'no checkpoint could be written: {error.strerror}'
        now = time.monotonic()
        every = self.config.learner.checkpoint_every_s
        self._save_at = now + max(every, (now - begun) / SAVING_SHARE)

    def _come_back(self, lost: str) -> None:
        """Publishes what a checkpoint brought back; counters continue, versions only grow."""
        self.lost, self.gauges.updates = lost, self.rlpd.updates
        self.state, self.reason = 'RESTORING', lost or 'rows come back from its checkpoint'
        if self.training.clone is not None:
            self._publish_clone(self.training.clone)
        if self.rlpd.updates >= self.config.learner.warmup_updates:
            self._publish(first=True)

    def _restore(self) -> None:
        def tell() -> None:
            self.reason = f'has read {self.experience.tail.records} rows that came since'
            self._go_on()

        self.training.restore(tell)

    def _tell(self, now: bool = False) -> None:
        """Twice a second: `numbers` for people and the run, and curves of what was trained."""
        if not now and not self.gauges.due:
            return
        rlpd, rows, env_steps = self.rlpd, self.rows, self.training.env_steps
        trained = max(rlpd.updates - self.config.learner.warmup_updates, 0)
        owed = self.allowed() - rlpd.updates
        newest = self.publisher.newest.get('actor')
        lag = newest.version - rows.newest_version if newest and rows.newest_version else 0
        counts = {
            'alpha': rlpd.alpha,
            'updates': rlpd.updates,
            'lessons': self.lessons,
            'bad_updates': rlpd.bad_updates,
            'env_steps': env_steps,
            'demos': self.training.demos,
            'demos_rows': rows.demos.added,
            'online_rows': len(rows.online),
            'refused_rows': rows.refused,
            'utd': trained / env_steps if env_steps else 0.0,
            'backlog': self._owed_lessons + (max(owed, 0.0) if math.isfinite(owed) else 0.0),
            'version': newest.version if newest else 0,
            'policy_lag': lag,
        }
        self.gauges.tell({name: float(value) for name, value in counts.items()})
