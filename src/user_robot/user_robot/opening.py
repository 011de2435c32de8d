# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What comes before an episode's first step: a wait for each of what it needs, in one order.

Everything that a cell needs, the word that its episode node tells while that is away, and how long
it waits (steady clock). Meanwhile nobody commands, so the arm holds; what comes in time ends the
wait by itself. After that the episode is void with the reason, and the next goal waits anew.

    away                    before the first step           in the episode
    room on the disk        DISK_FULL, 10 s                 void at once, rows stay in memory
    replay (256 rows back)  WAIT_REPLAY, 30 s               goes on, its rows wait on disk
    arm                     WAIT_ARM, 8 s; a reset is void  void after 5 periods without a state
                            at once, or after 30 s          (lockstep: WAIT_ARM, 8 s), at once when
                                                            a new one is heard
    person, where asked     WAIT_READY, `ready_within_s`    -
    camera                  WAIT_CAMERA, 30 s               void at once, past `max_age_s`
                                                            (lockstep: WAIT_CAMERA, 8 s)
    weights, policy or      -                               WAIT_WEIGHTS, WAIT_POLICY,
    demonstrator                                            WAIT_DEMONSTRATOR, 8 s; late steps
    who asked for it        -                               goes on to its end; the next goal of
                                                            anybody cuts it and takes its place
"""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Any, cast

from rclpy.action import ActionClient
from rclpy.task import Future
from std_srvs.srv import Trigger
from user_msgs.action import MoveTo

from user_core.arm_config import Jointed
from user_core.cell_client import UNSTORED_N
from user_core.messages import doubles, pose_msg
from user_core.node import Shell
from user_core.outcome import Goal
from user_robot.eyes import Eyes
from user_robot.latch import Mode as ArmMode
from user_robot.row import Sample
from user_robot.spool import Spool
from user_robot.task import Task

ROOM_WITHIN_S, REPLAY_WITHIN_S = 10.0, 30.0
"""An episode is given up when disk or replay take no rows for this long (steady clock): who asked
may be gone, and no arm moves long after that.
"""
ARM_WITHIN_S, ACCEPT_WITHIN_S, RESET_WITHIN_S = 8.0, 3.0, 30.0
"""A reset fails when the arm is not heard, did not accept or end it in time (steady clock)."""
HEARD_WITHIN_S = {'realtime': 0.5, 'lockstep': 2.0}
"""An arm that was not heard for this long is away (steady clock); in lockstep it is silent in its
reset.
"""
CAMERA_WITHIN_S = 30.0
"""An episode is given up when a camera is not seen for this long after the reset (steady clock);
a device that was plugged out or had to be reset is back by then."""


class Opening:
    """Opens one episode at a time. Everything runs in the executor's thread.

    Attributes:
        state: what is waited for, one word, or '' when nothing is opened.
        sample: the arm's newest.
    """

    def __init__(self, shell: Shell, task: Task, eyes: Eyes, spool: Spool) -> None:
        self.shell, self.task, self.eyes, self.spool = shell, task, eyes, spool
        self.cell = shell.config.cells[shell.cell]
        config, arm = shell.config.task, self.cell.arm
        self.speed = config.reset_speed_m_s, config.reset_speed_rad_s
        self.jointed = arm if isinstance(arm, Jointed) else None
        self.state = ''
        self.sample: Sample | None = None
        self._heard_s, self._heard_within_s = 0.0, HEARD_WITHIN_S[shell.config.pace]
        self._cut = ''
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
        self._number, self._cut = number, ''
        spool = self.spool
        try:
            return (
                await self._wait('DISK_FULL', ROOM_WITHIN_S, lambda: not spool.full)
                or await self._wait(
                    'WAIT_REPLAY', REPLAY_WITHIN_S, lambda: len(spool) <= UNSTORED_N
                )
                or await self._wait('WAIT_ARM', ARM_WITHIN_S, self._arm_is_there)
                or await self._move(goal)
                or await self._person()
                or await self._wait('WAIT_CAMERA', CAMERA_WITHIN_S, lambda: not self._blind())
            )
        finally:
            self.state = ''

    def hear(self, sample: Sample) -> None:
        """The arm's newest sample. Neither its episode nor its clock goes back, but in an arm that
        was started anew.
        """
        before, self.sample, self._heard_s = self.sample or sample, sample, time.monotonic()
        back = sample.episode < before.episode or sample.state.stamp_s < before.state.stamp_s
        if back and self._resetting:
            self.end(f'the arm of cell {self.shell.cell} was started anew')
        self.look()

    @property
    def _resetting(self) -> bool:
        """Whether the arm has been asked to come to the start."""
        return self.state in ('RESET', 'WAIT_READY', 'WAIT_CAMERA')

    def _silent(self) -> bool:
        return time.monotonic() - self._heard_s > self._heard_within_s

    async def _wait(self, state: str, within_s: float, there: Callable[[], bool]) -> str:
        """Until `there()`; '' or why it took too long or was ended."""
        self.state, self._there, self._over = state, there, Future()
        self._since_s = time.monotonic()
        self._deadline_s = self._since_s + within_s
        self.look()
        said = '' if self._cut else str(await self._over)
        return self._cut or said

    def look(self) -> None:
        """Something came: whoever waits for it goes on."""
        if self.state and self._there():
            self.end('')

    def watch(self) -> None:
        """Now and then: nothing is waited for for ever."""
        self.look()
        if self.state and time.monotonic() > self._deadline_s:
            self.end(self._late())
        elif self._resetting and self.shell.config.pace == 'realtime' and self._silent():
            self.end(f'the arm of cell {self.shell.cell} fell silent')

    def end(self, error: str) -> None:
        """Ends the present wait; with an error it is the last one."""
        self._cut = self._cut or error
        if self.state and not self._over.done():
            self._over.set_result(error)
            if self._moving is not None:
                self._moving.cancel_goal_async()

    def reason(self) -> str:
        """What a person should know while nothing moves."""
        if self.state in ('', 'RESET'):
            return ''
        if self.state == 'WAIT_READY':
            return f'prepare the scene: user ready {self.shell.cell}'
        return self._late()

    def _late(self) -> str:
        if self.state == 'WAIT_READY':
            return f'nobody said ready for {self.cell.ready_within_s:.0f} s'
        lacks = {
            'DISK_FULL': lambda: self.spool.full,
            'WAIT_REPLAY': lambda: f'replay lacks {len(self.spool)} rows of this cell',
            'WAIT_ARM': lambda: f'the arm of cell {self.shell.cell} does not answer',
            'RESET': lambda: (
                f'the arm of cell {self.shell.cell} does not answer: no reset in time'
            ),
            'WAIT_CAMERA': self._blind,
        }
        return f'{lacks[self.state]()} (waiting for {time.monotonic() - self._since_s:.1f} s)'

    # ------------------------------------------------------------------ the reset motion

    def _arm_is_there(self) -> bool:
        """The arm is heard and takes reset motions."""
        heard = self.sample is not None and not self._silent()
        return heard and self._moves.server_is_ready()

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
