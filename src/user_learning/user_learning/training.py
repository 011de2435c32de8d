# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""All that the next updates depend on: networks, window, what encoders were taught.

It goes into a checkpoint and comes back, after which the same rows lead to the same updates bit
for bit.
"""

from __future__ import annotations

from collections.abc import Callable
import copy
from pathlib import Path

from torch import Tensor

from user_core.config import RunConfig, resume_hash
from user_learning import checkpoint, tables
from user_learning.checkpoint import Checkpoint
from user_learning.clone import clone_of
from user_learning.experience import Experience
from user_learning.hindsight import RowEncoder, lesson_of, teach
from user_learning.networks import Spec
from user_learning.rlpd import Rlpd

Tell = Callable[[], object]
"""Called before each step of what takes long; what it raises ends it."""


class Training:
    """One run's networks and the rows that they learn from. Not thread-safe.

    Networks come back as it is built (`saved` is then where from), rows by `restore`. `clone` are
    the weights of the baseline, `taught_rows` the training rows when encoders were taught last.
    """

    def __init__(self, config: RunConfig, spec: Spec, folder: Path) -> None:
        self.config, self.spec, self.folder = config, spec, folder / 'checkpoints'
        self.device = config.learner.device
        self.experience = Experience(config, spec, folder / 'store')
        self.rlpd = Rlpd(config.algorithm, spec, config.policy.hidden, config.seed, self.device)
        self.clone: dict[str, Tensor] | None = None
        self.taught_rows = 0
        self.saved = checkpoint.load(self.folder, resume_hash(config))
        if self.saved is not None:
            self._adopt(self.saved)

    @property
    def env_steps(self) -> int:
        """Training steps that the store has held; before `restore` those of the checkpoint."""
        return self.saved.progress['train_rows'] if self.saved else self.experience.rows.train_rows

    @property
    def demos(self) -> int:
        """Demonstrations that the store holds; before `restore` those of the checkpoint."""
        return self.saved.progress['demos'] if self.saved else self.experience.rows.demo_episodes

    # ------------------------------------------------------------------ to a checkpoint and back

    def save(self) -> Path:
        """Writes a checkpoint. Raises OSError."""
        tensors = {k: v.cpu() for k, v in self.rlpd.state_dict().items()}
        if self.clone is not None:
            tensors |= {f'clone.{k}': v for k, v in self.clone.items()}
        tail, rows = self.experience.tail, self.experience.rows
        kept, cells = tables.packed(rows)
        tensors |= {f'rows.{k}': v for k, v in kept.items()}
        self.experience.sync()
        progress = {
            'updates': self.rlpd.updates,
            'train_rows': rows.train_rows,
            'demos': rows.demo_episodes,
            'newest_version': rows.newest_version,
            'taught': self.experience.encoder is not None,
            'taught_rows': self.taught_rows,
            'cells': cells,
            'segment': tail.segment,
            'offset': tail.offset,
            'resume_hash': resume_hash(self.config),
        }
        return checkpoint.save(self.folder, tensors, progress)

    def _adopt(self, saved: Checkpoint) -> None:
        """Raises UserError: the networks are others, or the store is not the checkpoint's."""
        self.experience.refuse_lost(saved.place)
        self.rlpd.load_state_dict(saved.tensors)
        self.clone = saved.part('clone') or None
        self.taught_rows = int(saved.progress['taught_rows'])

    def restore(self, tell: Tell) -> None:
        """Brings the window back as it was when the checkpoint was written, then reads what came
        since. Raises UserError: its pictures are gone.
        """
        assert self.saved is not None
        saved = self.saved
        if saved.progress['taught']:
            self.experience.begin(RowEncoder(self.rlpd.actor, self.spec, self.device))
        self.experience.restore(
            saved.place, saved.progress, saved.part('rows'), saved.progress['cells']
        )
        self.experience.read(tell=tell)
        self.saved = None

    # ------------------------------------------------------------------ what is taught

    def teach(self, tell: Tell) -> None:
        """Lets successes teach the encoders, then encodes every row."""
        rlpd, learner, experience = self.rlpd, self.config.learner, self.experience
        rows = experience.held(experience.rows, experience.tail.place, tell)
        train_rows = experience.rows.train_rows
        pupil = copy.deepcopy(rlpd.actor)
        teach(
            pupil,
            lesson_of(rows, self.spec, learner.hindsight_rows),
            learner.hindsight_updates,
            rlpd.shift,
            self.config.seed + train_rows,
            again=experience.encoder is not None,
            tell=tell,
        )
        rlpd.actor.adopt_sight(pupil)
        rlpd.average.adopt_sight(pupil)
        self.taught_rows = train_rows
        experience.encode_again(RowEncoder(rlpd.actor, self.spec, self.device), tell)

    def imitate(self, tell: Tell) -> dict[str, Tensor]:
        """Trains the baseline on every demonstration, once."""
        self.clone = clone_of(self.config, self.rlpd, self.experience.sample, tell)
        return self.clone
