# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The scripted expert's shell: answers demonstrations' observations, as a policy the others."""

from __future__ import annotations

import time

import numpy as np
from user_msgs.msg import Action, Observation

from user_core.geometry import Pose, relative
from user_core.messages import floats, numbers, stamp
from user_core.node import Shell, run_node
from user_robot.task import make_task
from user_sim.expert import make_expert
from user_sim.snapshot import Reader, place

BLIND = 'BLIND', 'it has to see where the hole is, and there is no scene of the simulated arm'


class ExpertNode:
    """Acts in one cell's demonstrations; an observation sent again gets the same answer again."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        config = shell.config
        self.task = make_task(config.task)
        self.expert = make_expert(config.task, config.seed)
        sees = config.cells[shell.cell].expert_sees
        self.eyes = Reader(place(shell.run, shell.cell)) if sees else None
        self.action = Action(source=Action.SOURCE_SCRIPT, horizon=1, dimension=6)
        self.answered = (0, 0)
        self.answers = 0
        self.refused = 0
        self.blind = False
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
            if self.eyes and not self.look(self.eyes):
                return
            self.action.chunk = floats(self.expert(state))
            self.answered = (identity.episode, identity.step)
            self.answers += 1
        self.action.id, self.action.stamp = identity, stamp(time.time_ns())
        self.pub.publish(self.action)

    def look(self, eyes: Reader) -> bool:
        """Sees where the hole is; nobody acts without having seen it."""
        scene = eyes.read()
        if scene is not None:
            hole = Pose(scene.block[:3], scene.block[[4, 5, 6, 3]])
            self.expert.see(relative(self.task.frame, hole)[0])
        self.blind = scene is None
        return not self.blind

    def on_heartbeat(self) -> None:
        """What the expert did so far."""
        state, reason = BLIND if self.blind else ('READY', '')
        self.shell.metrics(state, reason, answers=self.answers, refused=self.refused)


def main() -> None:
    """Entry point."""
    run_node(ExpertNode, 'expert')


if __name__ == '__main__':
    main()
