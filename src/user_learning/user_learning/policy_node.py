# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The policy's node: an observation in, an action out; what waits at the same time is answered
together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
import threading
import time

import numpy as np
import torch
from user_msgs.msg import Action, Metrics, Observation, Weights
from user_msgs.srv import FetchWeights

from user_core import topics
from user_core.config import weights_hash
from user_core.errors import UserError
from user_core.messages import floats, image, numbers, stamp
from user_core.node import Shell, run_node
from user_learning.loader import Loader
from user_learning.policy import Answer, Policy, Question, Silence
from user_learning.spec import spec_of
from user_learning.weights import BadWeightsError, Version

RANGE = 256 << 10
FETCH_WITHIN_S = 5.0


class PolicyNode:
    """Thin shell of `Policy` and its `Loader`.

    An observation that cannot be answered yet is kept, one a cell, and answered as soon as weights
    come. With several cells, observations that have arrived when the node gets to work are
    answered in one pass; with one, at once.
    """

    def __init__(self, shell: Shell) -> None:
        self.shell, config = shell, shell.config
        torch.set_num_threads(1)
        if config.policy.device == 'cuda' and not torch.cuda.is_available():
            raise UserError(
                'policy.device is cuda', 'PyTorch sees no GPU here', 'set policy.device=cpu'
            )
        self.policy = Policy(
            spec_of(config), config.policy.hidden, config.seed, config.policy.device
        )
        self.fetcher = shell.create_client(
            topics.interface('fetch_weights'), topics.name('fetch_weights')
        )
        self.loader = Loader(
            self.policy, weights_hash(config), self.fetch, lambda: shell.call_soon(self.retry)
        )
        self.state, self.reason = 'WAIT_WEIGHTS', 'no weights have been published yet'
        self.waiting: dict[str, Observation] = {}
        self.arrived: dict[str, Observation] = {}
        self.took_s: deque[float] = deque(maxlen=200)
        self.answers = self.passes = self.refused = 0
        self.learner_heard = time.monotonic()
        self.actions = {cell: shell.create_pub('action', cell) for cell in config.cells}
        for cell in config.cells:
            shell.create_sub('observation', self.on_observation, cell)
        shell.create_sub('weights', self.on_weights)
        if config.learner.max_stale_s is not None and not config.evaluate:
            shell.create_sub('metrics', self.on_metrics)
        shell.create_timer(1.0, self.tell)
        self.tell()

    def on_observation(self, msg: Observation) -> None:
        """Answers now, or as soon as the executor has handed over what else has arrived."""
        if msg.mode == Observation.MODE_DEMO or msg.id.run != self.shell.run:
            return
        self.waiting.pop(msg.id.cell, None)
        self.arrived[msg.id.cell] = msg
        if len(self.actions) == 1:
            self.answer()
        elif len(self.arrived) == 1:
            self.shell.call_soon(self.answer)

    def answer(self) -> None:
        """Answers what has arrived, or says nothing and remembers the question."""
        begun = time.perf_counter()
        msgs, self.arrived = list(self.arrived.values()), {}
        questions: list[Question] = []
        asked: list[Observation] = []
        for msg in msgs:
            try:
                silence = self.stale(msg)
                question = None if silence else question_of(msg, self.policy.spec.views)
            except ValueError as error:
                silence = Silence('REFUSED', str(error))
            if silence:
                self.keep_silent(msg, silence)
            elif question:
                asked.append(msg)
                questions.append(question)
        self.passes += bool(asked)
        for msg, answer in zip(asked, self.policy.act(questions), strict=True):
            if isinstance(answer, Answer):
                self.actions[msg.id.cell].publish(self.action(msg, answer))
                self.took_s.append(time.perf_counter() - begun)
                self.answers += 1
                self.state, self.reason = 'READY', ''
            else:
                self.keep_silent(msg, answer)

    def action(self, msg: Observation, answer: Answer) -> Action:
        """The answer as a message: a chunk of one row."""
        return Action(
            id=msg.id,
            stamp=stamp(time.time_ns()),
            source=Action.SOURCE_POLICY,
            policy=answer.policy,
            policy_version=answer.version,
            horizon=1,
            dimension=len(answer.action),
            chunk=floats(answer.action),
        )

    def keep_silent(self, msg: Observation, silence: Silence) -> None:
        """No answer: the state says why; a missing version is asked for."""
        if silence.state == 'REFUSED':
            self.refused += 1
            self.shell.get_logger().error(
                f'observation {msg.id.step} of {msg.id.cell} was refused: {silence.reason}',
                throttle_duration_sec=1.0,
            )
        else:
            self.waiting[msg.id.cell] = msg
        if silence.wanted:
            self.loader.ask(*silence.wanted)
        if (silence.state, silence.reason) != (self.state, self.reason):
            self.state, self.reason = silence.state, silence.reason
            self.tell()

    def stale(self, msg: Observation) -> Silence | None:
        """Whether the newest weights are too old to act in training (learner.max_policy_lag,
        max_stale_s).
        """
        rule = self.shell.config.learner
        if msg.policy_version or self.shell.config.evaluate:
            return None
        lag = self.loader.announced.get(msg.policy, 0) - self.policy.newest(msg.policy)
        if rule.max_policy_lag is not None and lag > rule.max_policy_lag:
            return Silence('STALE', f'{msg.policy} is {lag} versions behind; {self.loader.reason}')
        quiet = time.monotonic() - self.learner_heard
        if rule.max_stale_s is not None and quiet > rule.max_stale_s:
            return Silence('STALE', f'the learner has not been heard for {quiet:.1f} s')
        return None

    def on_weights(self, msg: Weights) -> None:
        """A new version, loaded in the loader's thread."""
        if msg.run == self.shell.run:
            self.learner_heard = time.monotonic()
            version = Version(
                msg.policy,
                msg.version,
                msg.path,
                msg.size,
                msg.sha256,
                config_hash=msg.config_hash,
            )
            self.loader.announce(version, msg.host)

    def on_metrics(self, msg: Metrics) -> None:
        """The learner lives."""
        if msg.node == '/learning/learner':
            self.learner_heard = time.monotonic()

    def retry(self) -> None:
        """Weights came: answers what is still unanswered."""
        self.arrived = self.waiting | self.arrived
        self.waiting = {}
        self.answer()
        self.tell()

    def fetch(self, policy: str, version: int) -> tuple[bytes, str]:
        """The bytes of a version from the learner, range by range. Runs in the loader's thread."""
        data, size, sha256 = bytearray(), 1, ''
        while len(data) < size:
            request = FetchWeights.Request(
                policy=policy, version=version, offset=len(data), length=RANGE
            )
            done = threading.Event()
            future = self.fetcher.call_async(request)
            future.add_done_callback(lambda _, done=done: done.set())
            if not done.wait(FETCH_WITHIN_S):
                self.fetcher.remove_pending_request(future)
                raise BadWeightsError('the learner does not answer')
            response = future.result()
            if response.error or not response.data:
                raise BadWeightsError(response.error or 'the learner sent nothing')
            data += bytes(response.data)
            size, sha256 = response.size, response.sha256
        return bytes(data), sha256

    def tell(self) -> None:
        """State and counters once a second, and at once when the state changes."""
        if self.state == 'WAIT_WEIGHTS' and self.policy.newest('actor'):
            self.state, self.reason = 'READY', ''
        took = np.array(self.took_s) if self.took_s else np.zeros(1)
        self.shell.metrics(
            self.state,
            self.reason or self.loader.reason,
            version=float(self.policy.newest('actor')),
            answers=float(self.answers),
            passes=float(self.passes),
            refused=float(self.refused),
            work_p50_s=float(np.median(took)),
            work_p99_s=float(np.quantile(took, 0.99)),
        )

    def close(self) -> None:
        """Ends the loader."""
        self.loader.close()


def question_of(msg: Observation, cameras: Collection[str]) -> Question:
    """The observation as a policy that sees by these cameras reads it.

    Raises ValueError: a picture is not what it says.
    """
    return Question(
        msg.policy,
        msg.policy_version,
        msg.mode,
        numbers(msg.state),
        msg.id.episode,
        msg.id.step,
        {p.name: image(p) for p in msg.images if p.name in cameras},
    )


def main() -> None:
    """Entry point."""
    run_node(PolicyNode, 'policy')


if __name__ == '__main__':
    main()
