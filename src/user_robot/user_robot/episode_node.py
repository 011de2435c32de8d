# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The episode's shell: messages in and out, the run_episode action, the spool."""

from __future__ import annotations

from collections import deque
from functools import partial
import time
from typing import Any, cast

import numpy as np
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.clock import Clock, ClockType
from rclpy.serialization import serialize_message
from rclpy.task import Future
from user_msgs.action import RunEpisode
from user_msgs.msg import Ack, Action, Metrics, RobotState, Weights

from user_core import jpeg
from user_core.errors import UserError
from user_core.node import Shell, run_node
from user_core.outcome import Boundary, Goal, Mode
from user_robot import wire
from user_robot.episode import Episode
from user_robot.eyes import Eyes
from user_robot.opening import Opening
from user_robot.row import Command, Observation, Result, Row, Sample
from user_robot.spool import Spool
from user_robot.task import make_task

HEARTBEAT_S = 0.5
LISTEN_S = 1.2
"""A node listens this long for another one of its cell before it takes goals, and goes on so."""
OVERTAKEN, CANCELLED = 'a newer goal took its place', 'cancelled by request'
LEAVE_WITHIN_S = 1.5
"""A node that ends waits this long for replay to take its last rows."""


class EpisodeNode:
    """One cell's episodes, one at a time. Everything runs in the executor's thread.

    A goal that comes in another's episode takes its place: whoever asked for that one was killed,
    or has given up. A row that the disk does not take ends its episode at once.
    """

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        config, self.cell = shell.config, shell.config.cells[shell.cell]
        self.realtime = config.pace == 'realtime'
        self.task = make_task(config.task)
        self.incarnation = time.time_ns()
        self.number = 0
        self.state, self.reason = 'IDLE', ''
        self.over: Future | None = None
        self.goal: Any = None
        self.goals: deque[Any] = deque()
        self.leave_at_s = 0.0

        away = [m != self.cell.machine for m in (config.policy.machine, config.replay.machine)]
        if self.cell.cameras and any(away):
            jpeg.codec()  # where it is missing, that is said now
        self.writer = wire.Writer(shell.run, shell.cell, self.task.text, self.incarnation, *away)
        self.observation_pub = shell.create_pub('observation')
        self.target_pub = shell.create_pub('target')
        self.row_pub = shell.create_pub('transition')
        self.spool = Spool(
            shell.folder / 'spool' / shell.cell, self.incarnation, self.row_pub.publish
        )
        period_s = 1 / self.cell.control_hz
        self.eyes = Eyes(self.cell.cameras, self.realtime, period_s)
        self.episode = Episode(self.task, self.eyes, self.realtime, period_s, self)
        self.opening = Opening(shell, self.task, self.eyes, self.spool)
        if self.spool.damaged:
            shell.get_logger().warning(
                f'{self.spool.damaged} rows of an earlier process were torn or damaged on disk'
            )
        shell.create_sub('robot_state', self.on_state)
        for camera in self.eyes.cameras:
            topic = self.cell.view_topic(camera)
            shell.create_sub(topic, partial(self.on_view, camera), camera=camera)
        shell.create_sub('action', self.on_action)
        shell.create_sub('ack', self.on_ack)
        shell.create_sub('weights', self.on_weights)
        shell.create_sub('metrics', self.on_metrics)
        shell.create_timer(HEARTBEAT_S, self.on_heartbeat)
        self.listening: Any = shell.create_timer(LISTEN_S, self.on_alone)
        self.server = ActionServer(
            shell, RunEpisode, 'run_episode', self.on_episode,
            goal_callback=self.on_goal,
            handle_accepted_callback=self.on_accepted,
            cancel_callback=self.on_cancel,
        )  # fmt: skip
        if self.realtime:
            shell.create_timer(
                period_s, self.on_tick, clock=Clock(clock_type=ClockType.STEADY_TIME)
            )

    # ------------------------------------------------------------------ one of a name

    def on_metrics(self, message: Metrics) -> None:
        """Refuses to be the second episode node of a cell: two would command one arm."""
        own = self.shell.get_fully_qualified_name()
        if message.node == own and 'incarnation_s' in message.names:
            other = message.values[message.names.index('incarnation_s')]
            if other < self.incarnation / 1e9:
                raise UserError(
                    f'Cell {self.shell.cell} is already alive on this ROS domain',
                    f'another {own} answers',
                    'End it, rename the cell, or set another ROS_DOMAIN_ID',
                )

    def on_alone(self) -> None:
        """Nobody else has this name: goals may come."""
        self.shell.destroy_timer(self.listening)
        self.listening = None

    # ------------------------------------------------------------------ the path

    def on_state(self, message: RobotState) -> None:
        """A sample of the arm."""
        sample = wire.sample(message)
        self.eyes.hear(sample)
        self.opening.hear(sample)
        if self.episode.running:
            self.episode.on_sample(sample)
            self.settle()

    def on_view(self, camera: str, message: Any) -> None:
        """What a camera sees."""
        if problem := self.eyes.see(camera, *wire.view(message)):
            self.shell.get_logger().error(f'{problem}: it is not used')
        elif self.episode.running:
            self.episode.on_view()
            self.settle()
        else:
            self.opening.look()

    def on_action(self, message: Action) -> None:
        """An answer of the policy or the demonstrator."""
        if message.id.run == self.shell.run:
            self.episode.on_answer(wire.answer(message))
            self.settle()

    def on_tick(self) -> None:
        """Realtime: the control tick."""
        self.episode.tick()
        self.settle()

    def observation(self, observation: Observation) -> None:
        """Outbox."""
        self.observation_pub.publish(self.writer.observation(observation))

    def command(self, command: Command) -> None:
        """Outbox."""
        self.target_pub.publish(self.writer.target(command, time.time_ns()))

    def row(self, row: Row) -> None:
        """Outbox."""
        self.spool.put(serialize_message(self.writer.row(row, self.spool.seq)))

    def on_ack(self, message: Ack) -> None:
        """Replay has stored rows."""
        if message.cell == self.shell.cell:
            self.spool.acknowledge(message.incarnation, message.next_seq)

    def on_weights(self, message: Weights) -> None:
        """A newer version is there: the lag of the acting one is measured against it."""
        if message.run == self.shell.run:
            self.episode.newest_version[message.policy] = message.version

    # ------------------------------------------------------------------ an episode

    def on_goal(self, goal: RunEpisode.Goal) -> GoalResponse:
        """A known mode, and no goal before the node knows that it is alone, or when it ends."""
        busy = self.listening or self.leave_at_s or goal.mode not in tuple(Mode)
        return GoalResponse.REJECT if busy else GoalResponse.ACCEPT

    def on_accepted(self, handle: Any) -> None:
        """The newest goal counts."""
        self.goals.append(handle)
        if self.goal:
            self.cut(OVERTAKEN)
        else:
            self.next()

    def next(self) -> None:
        """Now it is the oldest goal's turn."""
        self.goal = self.goals.popleft() if self.goals else None
        if self.goal:
            self.goal.execute()

    async def on_episode(self, handle: Any) -> RunEpisode.Result:
        """Opening, steps, result."""
        request = handle.request
        goal = Goal(Mode(request.mode), request.policy, request.policy_version, request.seed)
        self.number = max(self.number + 1, time.time_ns())
        try:
            if handle.is_cancel_requested:
                error = CANCELLED
            else:
                error = OVERTAKEN if self.goals else await self.opening.open(goal, self.number)
            if error:
                result = Result(self.number, error, True, Boundary.ABORT)
            else:
                self.over = Future()
                self.state = 'RUNNING'
                self.episode.begin(goal, self.number, cast(Sample, self.opening.sample))
                self.settle()
                result = await self.over
            self.state, self.reason = 'IDLE', result.reason
        finally:
            self.over = None
            self.next()
        if handle.is_cancel_requested:
            handle.canceled()
        else:
            handle.succeed()
        return _message(result)

    def settle(self) -> None:
        """Lets the action finish when its episode has ended, at the latest with a full disk."""
        if self.spool.full:
            self.episode.abort(self.spool.full, void=True)
        if self.over is not None and not self.episode.running and not self.over.done():
            self.over.set_result(self.episode.result)

    def on_cancel(self, handle: Any) -> CancelResponse:
        """The present goal is cut; one that waits for its turn ends when it comes."""
        if handle is self.goal:
            self.cut(CANCELLED)
        return CancelResponse.ACCEPT

    def cut(self, reason: str) -> None:
        """Ends what goes on; the arm gets no further command, so it holds."""
        self.episode.abort(reason, void=True)
        self.settle()
        self.opening.end(reason)

    # ------------------------------------------------------------------ twice a second

    def on_heartbeat(self) -> None:
        """Watches what has to come, sends rows again, tells how it goes."""
        if not self.realtime:
            self.episode.tick()
            self.settle()
        self.opening.watch()
        self.spool.poll()
        episode, spool = self.episode, self.spool
        if episode.running and self.goal is not None:
            distance, force = episode.look()
            self.goal.publish_feedback(
                RunEpisode.Feedback(step=episode.step, distance=distance, force=force)
            )
        state, reason = self.condition()
        self.shell.metrics(
            state,
            reason,
            incarnation_s=self.incarnation / 1e9,
            rows=spool.seq,
            rows_unacknowledged=len(spool),
            rows_in_memory=spool.in_memory,
            rows_resent=spool.resent,
            rows_damaged=spool.damaged,
            **{f'{name}_age_s': age_s for name, age_s in self.eyes.ages().items()},
            **episode.counts,
        )

    def condition(self) -> tuple[str, str]:
        """One word for what the cell does or waits for, and why."""
        if full := self.spool.full:
            alone = f'; {n} rows are in memory alone' if (n := self.spool.in_memory) else ''
            return 'DISK_FULL', full + alone
        if self.opening.state:
            return self.opening.state, self.opening.reason()
        lack = self.episode.lack() if self.episode.running else ('', '')
        return lack if lack[0] else (self.state, self.reason)

    def interrupt(self) -> None:
        """Ctrl-C: the episode is cut where it is; replay gets a moment to take its last rows."""
        self.cut('the episode node ends')
        self.leave_at_s = time.monotonic() + LEAVE_WITHIN_S
        self.shell.create_timer(0.02, self.on_leaving)

    def on_leaving(self) -> None:
        """Ends the node when replay has every row, or in time without; they stay on disk."""
        if not len(self.spool) or time.monotonic() > self.leave_at_s:
            self.shell.finish()

    def close(self) -> None:
        """Rows that replay lacks are on disk, unless it is full."""
        if lost := self.spool.close():
            self.shell.get_logger().error(f'the disk is full: {lost} rows are lost')


def _message(r: Result) -> RunEpisode.Result:
    return RunEpisode.Result(
        reason=r.reason,
        invalid=r.void,
        boundary=int(r.boundary),
        episode=r.episode,
        episode_return=r.episode_return,
        length=r.length,
        interventions=r.interventions,
        first_version=r.first_version,
        last_version=r.last_version,
        peak_force=r.peak_force_n,
        distance=r.distance_m if np.isfinite(r.distance_m) else 0.0,
        policy_lag=r.policy_lag,
        duration=r.duration_s,
        late_steps=r.late_steps,
        period=r.period_s,
    )


def main() -> None:
    """Entry point."""
    run_node(EpisodeNode, 'episode')


if __name__ == '__main__':
    main()
