# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The policy's node: an observation in, an action out; what waits at the same time is answered
together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import time

import numpy as np
import torch
from user_msgs.msg import Metrics, Observation, Weights
from user_msgs.srv import FetchWeights

from user_core import topics
from user_core.config import weights_hash
from user_core.errors import UserError
from user_core.node import Shell, run_node
from user_learning.fetcher import Fetched, Part, fetch
from user_learning.freshness import Freshness
from user_learning.inbox import Inbox, Letter
from user_learning.loader import Loader
from user_learning.policy import Policy, Question, Silence
from user_learning.policy_message import action_msg, letter_of, part_of, version_of
from user_learning.spec import spec_of
from user_learning.weights import BadWeightsError

LEARNER = '/learning/learner'


class PolicyNode:
    """Thin shell of `Policy`, its `Inbox`, `Loader` and `Freshness`.

    With several cells, observations that have arrived when the node gets to work are answered in
    one pass; with one, at once. Weights come by the latched announcement, and while there are none
    the learner is asked for its newest, twice a second.
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
        self.inbox = Inbox(self.hold, self.policy.act)
        rule = config.learner
        self.freshness = Freshness(rule.max_policy_lag, rule.max_stale_s)
        self.closing = False
        self.learner = shell.create_client(
            topics.interface('fetch_weights'), topics.of_run('fetch_weights', shell.run),
            qos_profile=topics.FETCH_WEIGHTS,
        )  # fmt: skip
        self.loader = Loader(
            self.policy, weights_hash(config), self.fetch,
            loaded=lambda: shell.call_soon(self.retry),
            failed=lambda: shell.call_soon(self.tell),
        )  # fmt: skip
        self.state, self.reason = 'WAIT_WEIGHTS', 'no weights have been published yet'
        self.took_s: deque[float] = deque(maxlen=200)
        self.answers = self.refused = self.failures = self.promised = 0
        self.actions = {cell: shell.create_pub('action', cell) for cell in config.cells}
        for cell in config.cells:
            shell.create_sub('observation', self.on_observation, cell)
        shell.create_sub('weights', self.on_weights)
        if not config.evaluate:
            shell.create_sub('metrics', self.on_metrics)
            self.loader.ask('actor')
        shell.create_timer(1.0, self.tell)
        self.tell()

    def on_observation(self, msg: Observation) -> None:
        """Answers now, or as soon as the executor has handed over what else has arrived."""
        if msg.mode == Observation.MODE_DEMO or msg.id.run != self.shell.run:
            return
        first = self.inbox.put(letter_of(msg, self.policy.spec.views))
        if len(self.actions) == 1:
            self.answer()
        elif first:
            self.shell.call_soon(self.answer)

    def answer(self) -> None:
        """Answers what has arrived, or says why not."""
        begun = time.perf_counter()
        for letter, answer in self.inbox.answers():
            if isinstance(answer, Silence):
                self.keep_silent(letter, answer)
                continue
            self.actions[letter.cell].publish(action_msg(letter, answer))
            self.took_s.append(time.perf_counter() - begun)
            self.answers += 1
            if isinstance(letter.question, Question) and not letter.question.version:
                self.freshness.answer(self.newest(answer.policy) - answer.version)
            self.state, self.reason = 'READY', ''

    def keep_silent(self, letter: Letter, silence: Silence) -> None:
        """No answer: the state says why; a missing version is asked for."""
        if silence.state == 'REFUSED':
            self.refused += 1
            self.shell.get_logger().error(
                f'observation {letter.id.step} of {letter.cell} was refused: {silence.reason}',
                throttle_duration_sec=1.0,
            )
        if silence.wanted:
            self.loader.ask(*silence.wanted)
        if (silence.state, silence.reason) != (self.state, self.reason):
            self.state, self.reason = silence.state, silence.reason
            self.tell()

    def hold(self, question: Question) -> Silence | None:
        """Weights that are too old do not act in training; a frozen version is never too old."""
        if question.version or self.shell.config.evaluate:
            return None
        policy = question.policy
        why = self.freshness.too_old(policy, self.newest(policy) - self.policy.newest(policy))
        return Silence('STALE', why) if why and self.policy.newest(policy) else None

    def newest(self, policy: str) -> int:
        """The newest version that the learner is known to have."""
        return self.loader.announced.get(policy, 0)

    def on_weights(self, msg: Weights) -> None:
        """A new version, loaded in the loader's thread."""
        if msg.run == self.shell.run:
            self.freshness.hear()
            self.loader.announce(version_of(msg), msg.host)

    def on_metrics(self, msg: Metrics) -> None:
        """The learner lives, its training, too, and it has some version; one of which it spoke
        before and that was not announced since is asked for.
        """
        if msg.node != LEARNER or msg.id.run != self.shell.run:
            return
        said = dict(zip(msg.names, msg.values, strict=True))
        self.freshness.hear(said.get('quiet_s', 0.0))
        if self.promised > self.newest('actor'):
            self.loader.ask('actor')
        self.promised = int(said.get('version', 0))
        if self.state == 'STALE':
            self.retry()

    def retry(self) -> None:
        """Weights came, or the learner: answers what is still unanswered."""
        self.freshness.load(self.policy.newest('actor'))
        self.inbox.again()
        self.answer()
        self.tell()

    def fetch(self, policy: str, version: int, newer_than: int) -> Fetched | None:
        """A version's bytes from the learner. Runs in the loader's thread."""
        return fetch(self.ask, policy, version, newer_than)

    def ask(
        self, policy: str, version: int, offset: int, length: int, then: Callable[[Part], None]
    ) -> Callable[[], None]:
        """Asks the learner for a part; any thread."""
        if self.closing or not self.learner.service_is_ready():
            raise BadWeightsError('the learner is not there')
        future = self.learner.call_async(
            FetchWeights.Request(policy=policy, version=version, offset=offset, length=length)
        )
        future.add_done_callback(lambda f: then(part_of(f.result())))
        return lambda: self.learner.remove_pending_request(future)

    def tell(self) -> None:
        """State and counters once a second, and at once when the state changes."""
        why = self.loader.reason
        if self.state == 'WAIT_WEIGHTS' and self.policy.newest('actor'):
            self.state, self.reason = 'READY', ''
        if self.failures != self.loader.failures:
            self.failures = self.loader.failures
            self.shell.get_logger().warning(why, throttle_duration_sec=1.0)
        took = np.array(self.took_s) if self.took_s else np.zeros(1)
        self.shell.metrics(
            self.state,
            self.reason
            if self.state == 'REFUSED'
            else '; '.join(filter(None, (self.reason, why))),
            version=float(self.policy.newest('actor')),
            answers=float(self.answers),
            passes=float(self.inbox.passes),
            refused=float(self.refused),
            loads_failed=float(self.failures),
            work_p50_s=float(np.median(took)),
            work_p99_s=float(np.quantile(took, 0.99)),
            **self.freshness.numbers(),
        )

    def close(self) -> None:
        """Ends the loader."""
        self.closing = True
        self.loader.close()


def main() -> None:
    """Entry point."""
    run_node(PolicyNode, 'policy')


if __name__ == '__main__':
    main()
