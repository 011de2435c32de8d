# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The episode's shell: messages in and out, the run_episode action, the reset, the spool."""

from __future__ import annotations

import time
from typing import Any, cast

import numpy as np
from rclpy.action import ActionClient, ActionServer, CancelResponse, GoalResponse
from rclpy.clock import Clock, ClockType
from rclpy.serialization import serialize_message
from rclpy.task import Future
from std_srvs.srv import Trigger
from user_msgs.action import MoveTo, RunEpisode
from user_msgs.msg import Ack, Action, Metrics, RobotState, Weights

from user_core.arm_config import Jointed
from user_core.errors import UserError
from user_core.messages import doubles, pose_msg
from user_core.node import Shell, run_node
from user_core.outcome import Boundary, Goal, Mode
from user_robot import wire
from user_robot.episode import Episode
from user_robot.latch import Mode as ArmMode
from user_robot.row import Command, Observation, Result, Row, Sample
from user_robot.spool import Spool
from user_robot.task import make_task

HEARTBEAT_S = 0.5
LISTEN_S = 1.2
"""A node listens this long for another one of its cell before it takes goals, and goes on so."""
LEAVE_WITHIN_S = 1.5
"""A node that ends waits this long for replay to take its last rows."""
NO_ARM, MOVING, NO_PERSON = 'no arm', 'moving', 'no person'
ARM_WITHIN_S, ACCEPT_WITHIN_S, RESET_WITHIN_S = 8.0, 3.0, 30.0
"""A reset fails when the arm is not heard, did not accept or end it in time (steady clock)."""


class EpisodeNode:
    """One cell's episodes, one at a time. Everything runs in the executor's thread."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        config, self.cell = shell.config, shell.config.cells[shell.cell]
        self.realtime = config.pace == 'realtime'
        self.task = make_task(config.task)
        self.speed = config.task.reset_speed_m_s, config.task.reset_speed_rad_s
        arm = self.cell.arm
        self.jointed = arm if isinstance(arm, Jointed) else None
        self.incarnation = time.time_ns()
        self.number = 0
        self.resets = 0
        self.state, self.reason = 'IDLE', ''
        self.sample: Sample | None = None
        self.ready: Future | None = None
        self.over: Future | None = None
        self.moved = ''
        self.deadline_s = 0.0
        self.moving: Any = None
        self.goal: Any = None

        self.writer = wire.Writer(shell.run, shell.cell, self.task.text, self.incarnation)
        self.observation_pub = shell.create_pub('observation')
        self.target_pub = shell.create_pub('target')
        self.row_pub = shell.create_pub('transition')
        self.spool = Spool(
            shell.folder / 'spool' / shell.cell, self.incarnation, self.row_pub.publish
        )
        self.episode = Episode(self.task, self.realtime, 1 / self.cell.control_hz, self)
        shell.create_sub('robot_state', self.on_state)
        shell.create_sub('action', self.on_action)
        shell.create_sub('ack', self.on_ack)
        shell.create_sub('weights', self.on_weights)
        shell.create_sub('metrics', self.on_metrics)
        shell.create_service(Trigger, 'ready', self.on_ready)
        self.moves = ActionClient(shell, MoveTo, 'move_to')
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
                1 / self.cell.control_hz,
                self.on_tick,
                clock=Clock(clock_type=ClockType.STEADY_TIME),
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
        self.sample = sample = wire.sample(message)
        if self.episode.running:
            self.episode.on_sample(sample)
            self.settle()
        elif self.ready is not None:
            self.begin_when_ready()

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
        """One goal of a known mode at a time, and none before the node knows that it is alone."""
        busy = self.goal or self.listening or goal.mode not in tuple(Mode)
        return GoalResponse.REJECT if busy else GoalResponse.ACCEPT

    def on_accepted(self, handle: Any) -> None:
        """Now it is this one's turn."""
        self.goal = handle
        handle.execute()

    async def on_episode(self, handle: Any) -> RunEpisode.Result:
        """Reset, steps, result."""
        request = handle.request
        goal = Goal(Mode(request.mode), request.policy, request.policy_version, request.seed)
        self.number = max(self.number + 1, time.time_ns())
        try:
            error = await self.reset(goal)
            if not error and self.cell.ready == 'ask':
                error = await self.person()
            if error:
                result = Result(self.number, error, True, Boundary.ABORT)
            else:
                self.over = Future()
                self.state = 'RUNNING'
                self.episode.begin(goal, self.number, cast(Sample, self.sample))
                self.settle()
                result = await self.over
        finally:
            self.goal, self.ready, self.over = None, None, None
        self.state, self.reason = 'IDLE', result.reason
        if handle.is_cancel_requested:
            handle.canceled()
        else:
            handle.succeed()
        return _message(result)

    async def reset(self, goal: Goal) -> str:
        """Moves the arm to the start of the seed; '' or why it could not."""
        self.state = 'RESET'
        if not self.arm_is_there():
            self.ready, self.moved = Future(), NO_ARM
            self.deadline_s = time.monotonic() + ARM_WITHIN_S
            if error := await self.ready:
                return str(error)
        assert self.sample is not None
        start = self.task.start(goal.seed)
        request = MoveTo.Goal(
            waypoints=[pose_msg(p) for p in self.task.reset_path(self.sample.state.pose, start)],
            speed=self.speed[0],
            angular_speed=self.speed[1],
            seed=goal.seed,
        )
        request.id.run, request.id.cell, request.id.episode = (
            self.shell.run,
            self.shell.cell,
            self.number,
        )
        jointed = self.jointed
        if jointed and jointed.joint_reset_every and self.resets % jointed.joint_reset_every == 0:
            request.joints = doubles(jointed.home_q_rad)
            request.joint_speed = jointed.joint_speed_rad_s
        self.resets += 1
        self.ready, self.moved = Future(), MOVING
        self.deadline_s, self.moving, number = (
            time.monotonic() + ACCEPT_WITHIN_S,
            None,
            self.number,
        )
        self.moves.send_goal_async(request).add_done_callback(
            lambda f: self.on_move_accepted(f, number)
        )
        return str(await self.ready)

    def arm_is_there(self) -> bool:
        """The arm was heard and takes reset motions."""
        return self.sample is not None and self.moves.server_is_ready()

    def on_move_accepted(self, future: Future, number: int) -> None:
        """The arm took the reset motion or refused it."""
        handle = future.result()
        if handle.accepted and number == self.number and self.ready is not None:
            self.moving, self.deadline_s = handle, time.monotonic() + RESET_WITHIN_S
            handle.get_result_async().add_done_callback(lambda f: self.on_moved(f, number))
        elif handle.accepted:
            handle.cancel_goal_async()
        else:
            self.end_reset('the arm refused the reset motion')

    def on_moved(self, future: Future, number: int) -> None:
        """The reset motion ended; one that was given up may end late."""
        if number != self.number:
            return
        self.moving, self.moved = None, future.result().result.error
        if self.moved:
            self.end_reset(f'the reset failed: {self.moved}')
        else:
            self.begin_when_ready()

    def begin_when_ready(self) -> None:
        """An episode begins at the first sample that the arm took after its reset."""
        if not self.moved and self.sample is not None and self.sample.episode == self.number:
            self.end_reset('')

    async def person(self) -> str:
        """Waits until somebody says that the scene is ready; '' or why the wait has ended."""
        self.state, self.reason = 'WAIT_READY', f'prepare the scene: user ready {self.shell.cell}'
        self.ready, self.moved = Future(), NO_PERSON
        self.deadline_s = time.monotonic() + self.cell.ready_within_s
        error = str(await self.ready)
        self.reason = ''
        fault = self.sample is not None and self.sample.mode in (ArmMode.DISARMED, ArmMode.FAULT)
        return error or (cast(Sample, self.sample).reason if fault else '')

    def on_ready(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """A person says that the scene is ready."""
        response.success = self.state == 'WAIT_READY'
        response.message = 'the episode begins'
        if response.success:
            self.end_reset('')
        else:
            response.message = f'cell {self.shell.cell} waits for nobody: it is {self.state}'
        return response

    def end_reset(self, error: str) -> None:
        """Lets the action go on."""
        if self.ready is not None and not self.ready.done():
            self.ready.set_result(error)
            if self.moving is not None:
                self.moving.cancel_goal_async()

    def settle(self) -> None:
        """Lets the action finish when its episode has ended."""
        if self.over is not None and not self.episode.running and not self.over.done():
            self.over.set_result(self.episode.result)

    def on_cancel(self, handle: Any) -> CancelResponse:
        """The episode is cut; the arm gets no further command, so it holds."""
        self.episode.abort('cancelled by request', void=True)
        self.settle()
        self.end_reset('cancelled by request')
        return CancelResponse.ACCEPT

    # ------------------------------------------------------------------ twice a second

    def on_heartbeat(self) -> None:
        """Watches what has to come, sends rows again, tells how it goes."""
        if not self.realtime:
            self.episode.tick()
            self.settle()
        if self.ready is not None and self.moved == NO_ARM and self.arm_is_there():
            self.end_reset('')
        elif self.ready is not None and time.monotonic() > self.deadline_s:
            self.end_reset(
                f'nobody said ready for {self.cell.ready_within_s:.0f} s'
                if self.moved == NO_PERSON
                else f'the arm of cell {self.shell.cell} does not answer: no reset in time'
            )
        self.spool.poll()
        running, episode = self.episode.running, self.episode
        if running and self.goal is not None:
            distance, force = episode.look()
            self.goal.publish_feedback(
                RunEpisode.Feedback(step=episode.step, distance=distance, force=force)
            )
        self.shell.metrics(
            'WAIT_WEIGHTS' if running and episode.waits_for_weights() else self.state,
            self.reason,
            incarnation_s=self.incarnation / 1e9,
            rows=self.spool.seq,
            rows_unacknowledged=len(self.spool),
            rows_resent=self.spool.resent,
            rows_damaged=self.spool.damaged,
            **episode.counts,
        )

    def interrupt(self) -> None:
        """Ctrl-C: the episode is cut where it is; replay gets a moment to take its last rows."""
        self.episode.abort('the episode node ends', void=True)
        self.settle()
        self.end_reset('the episode node ends')
        self.leave_at_s = time.monotonic() + LEAVE_WITHIN_S
        self.shell.create_timer(0.02, self.on_leaving)

    def on_leaving(self) -> None:
        """Ends the node when replay has every row, or in time without; they stay on disk."""
        if not len(self.spool) or time.monotonic() > self.leave_at_s:
            self.shell.finish()

    def close(self) -> None:
        """Rows that replay lacks are on disk."""
        self.spool.close()


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
