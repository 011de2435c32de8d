# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A cell without ROS: the real episode, eyes, drive and simulated arm, wired by calls."""

from array import array
from dataclasses import dataclass, field

import numpy as np

from user_core import config as schema
from user_core.outcome import Goal, Mode
from user_robot.arm import make_arm
from user_robot.drive import SLICE_S, Drive
from user_robot.episode import Episode
from user_robot.eyes import Eyes
from user_robot.peg_task import PegTask
from user_robot.row import Answer, Command, Observation, Row, Sample, Source


@dataclass
class Clock:
    """A steady clock that moves when it is told to."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Inbox:
    """Keeps what the episode sends."""

    observations: list[Observation] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def observation(self, observation: Observation) -> None:
        self.observations.append(observation)

    def command(self, command: Command) -> None:
        self.commands.append(command)

    def row(self, row: Row) -> None:
        self.rows.append(row)


def answer(
    episode, chunk, step=None, *, source=Source.POLICY, policy='actor', version=1, number=None
):
    """The policy's answer to the episode's present step."""
    return Answer(
        episode.id if number is None else number,
        episode.step if step is None else step,
        source,
        policy,
        version,
        np.atleast_2d(np.asarray(chunk, np.float32)),
    )


class Cell:
    """One lockstep or realtime cell in this thread; the clock is the test's.

    Its cameras see when they are told to (`see`), in lockstep by themselves unless `dark`.
    """

    def __init__(self, realtime=False, task=None, safety=None, arm=None, cameras=None):
        self.clock, self.sent = Clock(), Inbox()
        self.task = PegTask(task or schema.PegTask())
        self.drive = Drive(
            make_arm(arm or schema.SimArmConfig(), 0.1),
            safety or schema.Safety(),
            self.task,
            0.1,
            self.clock,
        )
        self.realtime, self.dark, self.frames = realtime, set(), 0
        self.eyes = Eyes(cameras or {}, realtime, 0.1, self.clock, self.system_ns)
        self.episode = Episode(
            self.task, self.eyes, realtime, 0.1, self.sent, self.clock, self.system_ns
        )
        self.number = 0

    def system_ns(self) -> int:
        """A system clock that began with the steady one."""
        return round(1e9 * self.clock.now)

    def see(self, name, stamp_ns=None, late_s=0.0, **changes) -> str:
        """A camera's raw picture arrives; every one is another one."""
        if stamp_ns is None:
            stamp_ns = self.system_ns() - round(1e9 * late_s)
        camera, self.frames = self.eyes.cameras[name], self.frames + 1
        height, width = changes.get('height', camera.height), changes.get('width', camera.width)
        data = changes.get('data', array('B', bytes([self.frames % 256]) * (height * width * 3)))
        said = self.eyes.see(name, stamp_ns, changes.get('encoding', 'rgb8'), height, width, data)
        self.episode.on_view()
        return said

    def draw(self, sample) -> None:
        """Lockstep: what the cameras show of a sample."""
        self.eyes.hear(sample)
        if not self.realtime:
            for name in self.eyes.cameras.keys() - self.dark:
                self.see(name, round(1e9 * sample.state.stamp_s))

    def begin(self, seed=0, mode=Mode.TRAIN, policy='actor', version=0) -> None:
        """Resets the arm and begins an episode."""
        sample = self.reset(seed)
        self.draw(sample)
        self.episode.begin(Goal(mode, policy, version, seed), self.number, sample)

    def reset(self, seed=0) -> Sample:
        """The reset motion of one episode."""
        self.number += 1
        ends = []
        start = self.task.start(seed)
        path = self.task.reset_path(self.drive.sample().state.pose, start)
        self.drive.move(path, 0.25, 1.0, self.number, seed, True, ends.append)
        while not ends:
            self.drive.advance(SLICE_S)
        assert ends == ['']
        return self.drive.sample()

    def recover(self) -> tuple[bool, str]:
        """What `recover` answers; the simulated arm needs no time for it."""
        said = []
        self.drive.recover(lambda *answer: said.append(answer))
        return said[0]

    def act(self, chunk, **changes) -> None:
        """Lockstep: answers the present step, then the arm follows until it is asked again."""
        self.episode.on_answer(answer(self.episode, chunk, **changes))
        self.follow()

    def follow(self) -> None:
        """Passes commands to the arm and samples to the episode until there is none left."""
        while self.sent.commands:
            sample = self.drive.step(self.sent.commands.pop(0))
            self.clock.now += 0.01
            self.episode.on_sample(sample)
            self.draw(sample)
