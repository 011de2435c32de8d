# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What comes before an episode's first step: arm, reset motion, person, cameras; one wait each."""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Any, cast

from rclpy.action import ActionClient
from rclpy.task import Future
from std_srvs.srv import Trigger
from user_msgs.action import MoveTo

from user_core.arm_config import Jointed
from user_core.messages import doubles, pose_msg
from user_core.node import Shell
from user_core.outcome import Goal
from user_robot.eyes import Eyes
from user_robot.latch import Mode as ArmMode
from user_robot.row import Sample
from user_robot.task import Task

ARM_WITHIN_S, ACCEPT_WITHIN_S, RESET_WITHIN_S = 8.0, 3.0, 30.0
"""A reset fails when the arm is not heard, did not accept or end it in time (steady clock)."""
CAMERA_WITHIN_S = 30.0
"""An episode is given up when a camera is not seen for this long after the reset (steady clock);
a device that was plugged out or had to be reset is back by then."""


class Opening:
    """Opens one episode at a time. Everything runs in the executor's thread.

    Attributes:
        state: RESET, WAIT_READY, WAIT_CAMERA, or '' when nothing is opened.
        sample: the arm's newest; whoever sets it calls `look`.
    """

    def __init__(self, shell: Shell, task: Task, eyes: Eyes) -> None:
        self.shell, self.task, self.eyes = shell, task, eyes
        self.cell = shell.config.cells[shell.cell]
        config, arm = shell.config.task, self.cell.arm
        self.speed = config.reset_speed_m_s, config.reset_speed_rad_s
        self.jointed = arm if isinstance(arm, Jointed) else None
        self.state = ''
        self.sample: Sample | None = None
        self._resets = self._number = 0
        self._moving: Any = None
        self._moved = False
        self._there: Callable[[], bool] = lambda: False
        self._over = Future()
        self._since_s = self._deadline_s = 0.0
        self._moves = ActionClient(shell, MoveTo, 'move_to')
        shell.create_service(Trigger, 'ready', self._on_ready)

    # ------------------------------------------------------------------ the order

    async def open(self, goal: Goal, number: int) -> str:
        """Brings the cell to the start of the seed; '' or why it could not."""
        self._number = number
        try:
            return (
                await self._wait('RESET', ARM_WITHIN_S, self._arm_is_there)
                or await self._move(goal)
                or await self._person()
                or await self._wait('WAIT_CAMERA', CAMERA_WITHIN_S, lambda: not self._blind())
            )
        finally:
            self.state = ''

    async def _wait(self, state: str, within_s: float, there: Callable[[], bool]) -> str:
        """Until `there()`; '' or why it took too long or was ended."""
        self.state, self._there, self._over = state, there, Future()
        self._since_s = time.monotonic()
        self._deadline_s = self._since_s + within_s
        self.look()
        return str(await self._over)

    def look(self) -> None:
        """Something came: whoever waits for it goes on."""
        if self.state and self._there():
            self.end('')

    def watch(self) -> None:
        """Now and then: nothing is waited for for ever."""
        self.look()
        if self.state and time.monotonic() > self._deadline_s:
            self.end(self._late())

    def end(self, error: str) -> None:
        """Ends the present wait; with an error it is the last one."""
        if self.state and not self._over.done():
            self._over.set_result(error)
            if self._moving is not None:
                self._moving.cancel_goal_async()

    def reason(self) -> str:
        """What a person should know while nothing moves."""
        if self.state == 'WAIT_READY':
            return f'prepare the scene: user ready {self.shell.cell}'
        return self._late() if self.state == 'WAIT_CAMERA' else ''

    def _late(self) -> str:
        if self.state == 'WAIT_READY':
            return f'nobody said ready for {self.cell.ready_within_s:.0f} s'
        if self.state == 'WAIT_CAMERA':
            return f'{self._blind()} (waiting for {time.monotonic() - self._since_s:.1f} s)'
        return f'the arm of cell {self.shell.cell} does not answer: no reset in time'

    # ------------------------------------------------------------------ the reset motion

    def _arm_is_there(self) -> bool:
        """The arm was heard and takes reset motions."""
        return self.sample is not None and self._moves.server_is_ready()

    async def _move(self, goal: Goal) -> str:
        """Moves the arm to the start; over at the first sample that it took there."""
        here = cast(Sample, self.sample).state.pose
        path = self.task.reset_path(here, self.task.start(goal.seed))
        speed_m_s, speed_rad_s = self.speed
        request = MoveTo.Goal(
            waypoints=[pose_msg(pose) for pose in path],
            speed=speed_m_s,
            angular_speed=speed_rad_s,
            seed=goal.seed,
        )
        number, jointed = self._number, self.jointed
        request.id.run, request.id.cell, request.id.episode = (
            self.shell.run,
            self.shell.cell,
            number,
        )
        if jointed and jointed.joint_reset_every and self._resets % jointed.joint_reset_every == 0:
            request.joints = doubles(jointed.home_q_rad)
            request.joint_speed = jointed.joint_speed_rad_s
        self._resets += 1
        self._moving, self._moved = None, False
        self._moves.send_goal_async(request).add_done_callback(
            lambda future: self._on_accepted(future, number)
        )
        return await self._wait(
            'RESET',
            ACCEPT_WITHIN_S,
            lambda: self._moved and cast(Sample, self.sample).episode == number,
        )

    def _on_accepted(self, future: Future, number: int) -> None:
        """The arm took the reset motion or refused it."""
        handle = future.result()
        if handle.accepted and number == self._number and not self._over.done():
            self._moving, self._deadline_s = handle, time.monotonic() + RESET_WITHIN_S
            handle.get_result_async().add_done_callback(lambda f: self._on_moved(f, number))
        elif handle.accepted:
            handle.cancel_goal_async()
        elif number == self._number:
            self.end('the arm refused the reset motion')

    def _on_moved(self, future: Future, number: int) -> None:
        """The reset motion ended; one that was given up may end late."""
        if number != self._number:
            return
        self._moving, error = None, future.result().result.error
        if error:
            self.end(f'the reset failed: {error}')
        else:
            self._moved = True
            self.look()

    # ------------------------------------------------------------------ person and cameras

    async def _person(self) -> str:
        """Waits until somebody says that the scene is ready, where the cell asks."""
        if self.cell.ready != 'ask':
            return ''
        error = await self._wait('WAIT_READY', self.cell.ready_within_s, lambda: False)
        sample = cast(Sample, self.sample)
        fault = sample.mode in (ArmMode.DISARMED, ArmMode.FAULT)
        return error or (sample.reason if fault else '')

    def _on_ready(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """A person says that the scene is ready."""
        response.success = self.state == 'WAIT_READY'
        response.message = 'the episode begins'
        if response.success:
            self.end('')
        else:
            state = self.state or 'IDLE'
            response.message = f'cell {self.shell.cell} waits for nobody: it is {state}'
        return response

    def _blind(self) -> str:
        """Which camera has not seen the scene since the wait began, or ''."""
        return self.eyes.problem(cast(Sample, self.sample), self._since_s)
