# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The learner's node: the training loop in a thread of its own, services and numbers in the
executor's.
"""

from __future__ import annotations

from functools import partial
import threading
import time

from rclpy.publisher import Publisher as RosPublisher
from std_srvs.srv import Trigger
import torch
from user_msgs.srv import FetchWeights

from user_core import topics
from user_core.config import weights_hash
from user_core.curves import Curves
from user_core.errors import UserError
from user_core.footprint import Footprint
from user_core.messages import octets
from user_core.node import Shell, run_node
from user_learning.learner import Learner
from user_learning.row_message import weights_msg
from user_learning.spec import spec_of
from user_learning.weights import Publisher, Version, shared_folder

MAX_RANGE = 256 << 10
"""Largest byte range of one answer: a message stays far below what DDS fragments badly."""


class LearnerNode:
    """Thin shell of `Learner`."""

    def __init__(self, shell: Shell) -> None:
        self.shell, config = shell, shell.config
        torch.set_num_threads(config.learner.threads)
        if config.learner.device == 'cuda' and not torch.cuda.is_available():
            raise UserError(
                'learner.device is cuda', 'PyTorch sees no GPU here', 'set learner.device=cpu'
            )
        spec = spec_of(config)
        shell.get_logger().info(Footprint.of(config, spec.input_n).text)
        self.announcers: dict[str, RosPublisher] = {}
        self.curves = Curves(shell.folder / 'tensorboard' / 'learner')
        self.publisher = Publisher(
            shared_folder(shell.run, shell.folder),
            shell.folder / 'learner' / 'versions.json',
            weights_hash(config),
            archive=shell.folder / 'checkpoints',
        )
        self.learner = Learner(
            config,
            spec,
            shell.folder,
            self.publisher,
            lambda version: shell.call_soon(partial(self.announce, version)),
            self.curves.point,
        )
        if self.learner.lost:
            shell.get_logger().warning(self.learner.lost)
        self.last = ''
        self.told, self.told_at = self.learner.numbers, time.monotonic()
        name, kind = topics.name('snapshot'), topics.interface('snapshot')
        shell.create_service(kind, name, self.on_snapshot)
        shell.create_service(
            topics.interface('fetch_weights'), topics.of_run('fetch_weights', shell.run),
            self.on_fetch, qos_profile=topics.FETCH_WEIGHTS,
        )  # fmt: skip
        shell.create_timer(0.5, self.tell)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.train, name='learner', daemon=True)
        self.thread.start()

    def train(self) -> None:
        """The learner's thread; a fault in it ends the node."""
        try:
            self.learner.run(self.stop)
        except BaseException as error:
            self.shell.call_soon(partial(_raise, error))

    def announce(self, version: Version) -> None:
        """One latched publisher a policy, so that a late node gets the newest of each."""
        if version.policy not in self.announcers:
            self.announcers[version.policy] = self.shell.create_pub('weights')
        self.announcers[version.policy].publish(weights_msg(self.shell.run, version))

    def on_snapshot(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Checkpoint now; answers when it is on disk."""
        if self.learner.state == 'RESTORING':
            response.message = f'the learner is being restored: {self.learner.reason}'
            return response
        path = self.learner.snapshot(timeout_s=10.0)
        response.success = path is not None
        response.message = str(path or self.learner.reason or 'the learner is busy')
        return response

    def on_fetch(
        self, request: FetchWeights.Request, response: FetchWeights.Response
    ) -> FetchWeights.Response:
        """A byte range of a version, for policies on other machines."""
        try:
            version, data = self.publisher.part(
                request.policy, request.version, request.offset, min(request.length, MAX_RANGE)
            )
        except UserError as error:
            response.error = str(error)
            return response
        response.version, response.size = version.version, version.size
        response.sha256, response.data = version.sha256, octets(data)
        return response

    def tell(self) -> None:
        """The learner's newest numbers; a change of state is logged once."""
        learner = self.learner
        if learner.state != self.last and learner.state != 'IDLE':
            self.last = learner.state
            self.shell.get_logger().info(f'{learner.state}: {learner.reason}'.rstrip(': '))
        if learner.numbers is not self.told:  # replaced by the training thread: it gets on
            self.told, self.told_at = learner.numbers, time.monotonic()
        quiet_s = time.monotonic() - self.told_at
        self.shell.metrics(learner.state, learner.reason, **self.told, quiet_s=quiet_s)

    def close(self) -> None:
        """Saves, then takes the exchange folder away: chosen versions live in the run's
        checkpoints.
        """
        self.stop.set()
        self.thread.join(timeout=6.0)
        self.curves.close()
        self.publisher.close()


def _raise(error: BaseException) -> None:
    raise error


def main() -> None:
    """Entry point."""
    run_node(LearnerNode, 'learner')


if __name__ == '__main__':
    main()
