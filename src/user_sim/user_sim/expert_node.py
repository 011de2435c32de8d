# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The scripted expert's shell: answers demonstrations' observations, as a policy the others."""

from __future__ import annotations

import time

import numpy as np
from user_msgs.msg import Action, Observation

from user_core.messages import floats, numbers, stamp
from user_core.node import Shell, run_node
from user_sim.expert import make_expert


class ExpertNode:
    """Acts in one cell's demonstrations; an observation sent again gets the same answer again."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.expert = make_expert(shell.config.task, shell.config.seed)
        self.action = Action(source=Action.SOURCE_SCRIPT, horizon=1, dimension=6)
        self.answered = (0, 0)
        self.answers = 0
        self.refused = 0
        self.pub = shell.create_pub('action')
        shell.create_sub('observation', self.on_observation)
        shell.create_timer(1.0, self.on_heartbeat)

    def on_observation(self, observation: Observation) -> None:
        """One observation, one action."""
        identity = observation.id
        if observation.mode != Observation.MODE_DEMO or identity.run != self.shell.run:
            return
        if (identity.episode, identity.step) != self.answered:
            state = numbers(observation.state)
            if not np.isfinite(state).all():
                self.refused += 1
                return
            if identity.step == 0:
                self.expert.reset()
            self.action.chunk = floats(self.expert(state))
            self.answered = (identity.episode, identity.step)
            self.answers += 1
        self.action.id, self.action.stamp = identity, stamp(time.time_ns())
        self.pub.publish(self.action)

    def on_heartbeat(self) -> None:
        """What the expert did so far."""
        self.shell.metrics('READY', answers=self.answers, refused=self.refused)


def main() -> None:
    """Entry point."""
    run_node(ExpertNode, 'expert')


if __name__ == '__main__':
    main()
