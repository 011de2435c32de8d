# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The training loop: read new rows, update as the budget allows, publish, save, tell.

Everything happens in `turn`, in one thread. Other threads read `numbers` (replaced whole) and call
`snapshot`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import copy
import math
from pathlib import Path
import threading
import time

import torch
from torch import Tensor

from user_core.config import RunConfig, config_hash, weights_hash
from user_core.errors import UserError
from user_learning import checkpoint
from user_learning.clone import train_clone
from user_learning.experience import Experience
from user_learning.hindsight import RowEncoder, lesson_of, teach
from user_learning.networks import Spec
from user_learning.rlpd import Batch, Rlpd, make_actor
from user_learning.rows import Rows
from user_learning.weights import Publisher, Version

TURN_UPDATES = 8
"""Updates between two looks at new rows, the clock and the stop."""

IDLE_S = 0.01
"""Wait of a learner that owes no update."""


class Learner:
    """One run's learner.

    `announce` is called with every published version, `curve` with (name, value, environment
    steps) about twice a second; both from the learner's thread.
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
        self.announce, self.curve = announce, curve
        self.device = config.learner.device
        self.experience = Experience(config, spec, folder / 'store')
        self.checkpoints = folder / 'checkpoints'
        self.rlpd = Rlpd(config.algorithm, spec, config.policy.hidden, config.seed, self.device)
        self.lessons = self.taught_rows = self._owed_lessons = 0
        self.clone: dict[str, Tensor] | None = None
        self.state, self.reason = 'WAIT_DEMOS', ''
        self._save_asked, self._save_done = threading.Event(), threading.Event()
        self._saved: Path | None = None
        self.numbers: dict[str, float] = {}
        self._sums: dict[str, tuple[float, int]] = {}
        self._published_updates = -1
        now = time.monotonic()
        self._published_at = self._saved_at = self._told_at = now
        self._told_updates = 0
        self._stop = threading.Event()
        self._restore()

    @property
    def rows(self) -> Rows:
        """The window."""
        return self.experience.rows

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
        if self.state == 'HALTED':
            return 1.0
        try:
            wait = self._turn()
            if self._save_asked.is_set():
                self._save_asked.clear()
                self._save()
                self._save_done.set()
        except UserError as error:
            self.state, self.reason, wait = 'HALTED', str(error), 1.0
        self._tell()
        return wait

    def _turn(self) -> float:
        learner, rlpd = self.config.learner, self.rlpd
        self.experience.read()
        if self.rows.demo_episodes < self.config.budget.demos:
            self.state = 'WAIT_DEMOS'
            self.reason = f'{self.rows.demo_episodes} of {self.config.budget.demos} demonstrations'
            return 5 * IDLE_S
        if self.spec.taught and self.experience.encoder is None:
            self.state, self.reason = 'WARMUP', 'the encoders learn where demonstrations ended'
            self._teach()
            return 0.0
        every = learner.hindsight_every
        due = every is not None and self.rows.train_rows >= self.taught_rows + every
        if self.spec.taught and due:
            self.reason = 'the encoders learn where successes ended'
            self._teach()
            return 0.0
        if self.clone is None and learner.clone_updates and self.config.budget.demos:
            self.state, self.reason = 'WARMUP', 'cloning the demonstrations'
            self._tell(now=True)
            self._clone()
        owed = self.allowed() - rlpd.updates
        if owed <= 0:
            if rlpd.updates >= learner.warmup_updates:
                self.state, self.reason = 'IDLE', 'the update budget is used until new rows come'
                self._publish(first=self._published_updates < 0)
                self._save_if_due()
            return IDLE_S
        warm = rlpd.updates >= learner.warmup_updates
        self.state, self.reason = (
            ('TRAINING', self._alarm()) if warm else ('WARMUP', 'updates on demonstrations alone')
        )
        until = TURN_UPDATES if warm else min(TURN_UPDATES, learner.warmup_updates - rlpd.updates)
        turn = range(rlpd.updates + 1, rlpd.updates + 1 + int(min(owed, until)))
        for batch in self.experience.sample.batches(turn, demos_only=not warm):
            self._gather(rlpd.update(batch.to(self.device), self.rows.train_rows, not warm))
        if rlpd.updates >= learner.warmup_updates:
            first = self._published_updates < 0
            self._publish(first)
            if first:
                self._save()
            self._save_if_due()
        return 0.0

    def _alarm(self) -> str:
        """What a person should look at although training goes on."""
        if self.rlpd.alpha >= 0.999 * self.config.algorithm.alpha_max:
            return (
                'the temperature is at algorithm.alpha_max: the target entropy may be out of reach'
            )
        if self.rows.last_refused:
            return f'{self.rows.refused} rows were left out; {self.rows.last_refused}'
        return ''

    def allowed(self) -> float:
        """Updates that the rows so far pay for: the learner neither starves nor over-trains in a
        pause.

        allowed = warmup_updates + utd * train_rows, of which only the warm-up before `start_rows`
        rows.
        """
        learner, utd = self.config.learner, self.config.algorithm.utd
        if self.rows.train_rows < max(learner.start_rows, 1):
            return learner.warmup_updates
        return (
            math.inf
            if utd is None
            else learner.warmup_updates + math.floor(utd * self.rows.train_rows)
        )

    # ------------------------------------------------------------------ its parts

    def _go_on(self) -> bool:
        """Asked before each step of teaching, encoding and cloning, which take long; tells."""
        self.lessons += 1
        self._tell()
        return not self._stop.is_set()

    def _teach(self) -> None:
        """Lets successes teach the encoders, then encodes every row."""
        rlpd, learner, experience = self.rlpd, self.config.learner, self.experience
        place, train_rows = experience.tail.place, self.rows.train_rows
        # In lockstep nobody shall act meanwhile: the weights grow old, and no new row is read.
        self._owed_lessons = learner.max_backlog_updates + 1
        self._tell(now=True)
        again = experience.encoder is not None
        pupil = copy.deepcopy(rlpd.actor)
        teach(
            pupil,
            lesson_of(experience.stored(self._go_on), self.spec, learner.hindsight_rows),
            learner.hindsight_updates,
            rlpd.shift,
            self.config.seed + train_rows,
            again=again,
            go_on=self._go_on,
        )
        if self._stop.is_set():
            return
        if again:
            self._save()  # a stop may not wait until every row is encoded
        rlpd.actor.adopt_sight(pupil)
        rlpd.average.adopt_sight(pupil)
        self.taught_rows = train_rows
        experience.begin(RowEncoder(rlpd.actor, self.spec, self.device))
        experience.read_again(place, train_rows, self._go_on)
        self._owed_lessons = 0

    def _clone(self) -> None:
        """Trains the baseline on every demonstration, once; without pictures two seconds or so."""
        updates, algorithm = self.config.learner.clone_updates, self.config.algorithm
        generator = torch.Generator().manual_seed(self.config.seed)
        actor = make_actor(self.spec, self.config.policy.hidden, generator).to(self.device)
        if self.spec.taught:
            actor.adopt_sight(self.rlpd.actor)

        def batches() -> Iterator[Batch]:
            for batch in self.experience.sample.batches(range(updates), demos_only=True):
                if not self._go_on():
                    return
                yield batch.to(self.device)

        train_clone(actor, batches(), algorithm.lr, updates, self.rlpd.shift)
        if self._stop.is_set():
            return
        self.clone = {k: v.cpu() for k, v in actor.state_dict().items()}
        self.announce(self.publisher.publish('clone', self.clone, updates, 0))

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
            version = self.publisher.publish('actor', tensors, rlpd.updates, self.rows.train_rows)
        except OSError as error:
            self.reason = f'weights could not be written: {error.strerror}'
            return
        self._published_updates, self._published_at = rlpd.updates, now
        self.announce(version)

    def _save_if_due(self) -> None:
        if time.monotonic() - self._saved_at >= self.config.learner.checkpoint_every_s:
            self._save()

    def _save(self) -> None:
        tensors = {k: v.cpu() for k, v in self.rlpd.state_dict().items()}
        if self.clone is not None:
            tensors |= {f'clone.{k}': v for k, v in self.clone.items()}
        progress: dict[str, int | float | str] = {
            'updates': self.rlpd.updates,
            'train_rows': self.rows.train_rows,
            'taught': self.experience.encoder is not None,
            'taught_rows': self.taught_rows,
            'segment': self.experience.tail.segment,
            'offset': self.experience.tail.offset,
            'version': self.publisher.version,
            'config_hash': config_hash(self.config),
            'weights_hash': weights_hash(self.config),
        }
        self._saved_at = time.monotonic()
        try:
            self._saved = checkpoint.save(self.checkpoints, tensors, progress)
        except OSError as error:
            self._saved = None
            self.reason = f'no checkpoint could be written: {error.strerror}'

    def _restore(self) -> None:
        """Goes on from the newest checkpoint and the whole store; counters continue, versions only
        grow.
        """
        loaded = checkpoint.load(self.checkpoints, config_hash(self.config))
        if loaded is None:
            self.experience.read()
            return
        tensors, progress = loaded
        clone = {
            k.removeprefix('clone.'): tensors.pop(k)
            for k in list(tensors)
            if k.startswith('clone.')
        }
        self.rlpd.load_state_dict(tensors)
        if progress['taught']:
            self.experience.begin(RowEncoder(self.rlpd.actor, self.spec, self.device))
            self.taught_rows = int(progress['taught_rows'])
        place = progress['segment'], progress['offset']
        self.experience.read_again(place, progress['train_rows'])
        self._told_updates = self.rlpd.updates
        if clone:
            self.clone = clone
            self.announce(
                self.publisher.publish('clone', clone, self.config.learner.clone_updates, 0)
            )
        if self.rlpd.updates >= self.config.learner.warmup_updates:
            self._publish(first=True)

    # ------------------------------------------------------------------ telling

    def _gather(self, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            total, n = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, n + 1)

    def _tell(self, now: bool = False) -> None:
        """Twice a second: `numbers` for people and the run, and curves of what was trained."""
        time_s = time.monotonic()
        since = time_s - self._told_at
        if since < 0.5 and not now:
            return
        rlpd, rows = self.rlpd, self.rows
        allowed = self.allowed()
        trained = max(rlpd.updates - self.config.learner.warmup_updates, 0)
        means = {name: total / n for name, (total, n) in self._sums.items()}
        kept = {
            k: v
            for k, v in self.numbers.items()
            if k in ('q', 'critic_loss', 'actor_loss', 'entropy', 'alpha')
        }
        newest = self.publisher.newest.get('actor')
        self.numbers = {
            'alpha': self.rlpd.alpha,
            **kept,
            **means,
            'updates': float(rlpd.updates),
            'lessons': float(self.lessons),
            'bad_updates': float(rlpd.bad_updates),
            'env_steps': float(rows.train_rows),
            'demos': float(rows.demo_episodes),
            'demos_rows': float(rows.demos.added),
            'online_rows': float(len(rows.online)),
            'refused_rows': float(rows.refused),
            'utd': trained / rows.train_rows if rows.train_rows else 0.0,
            'backlog': self._owed_lessons
            + (max(allowed - rlpd.updates, 0.0) if math.isfinite(allowed) else 0.0),
            'version': float(newest.version if newest else 0),
            'policy_lag': float(
                newest.version - rows.newest_version if newest and rows.newest_version else 0
            ),
            'updates_per_s': (rlpd.updates - self._told_updates) / since if since > 0 else 0.0,
        }
        self._told_at, self._told_updates, self._sums = time_s, rlpd.updates, {}
        if means:
            for name, key in CURVES.items():
                if key in self.numbers:
                    self.curve(name, self.numbers[key], rows.train_rows)


CURVES = {
    'losses/critic': 'critic_loss',
    'losses/actor': 'actor_loss',
    'q/mean': 'q',
    'policy/entropy': 'entropy',
    'policy/alpha': 'alpha',
    'learner/utd': 'utd',
    'learner/updates_per_s': 'updates_per_s',
    'learner/backlog': 'backlog',
    'learner/policy_lag': 'policy_lag',
    'learner/version': 'version',
    'buffer/online': 'online_rows',
    'buffer/demos': 'demos_rows',
}
"""TensorBoard names of the learner (docs/tensorboard.md) and the numbers behind them."""
