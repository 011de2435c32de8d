# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The run's face of one cell: its run_episode action as a blocking call."""

from __future__ import annotations

from collections.abc import Callable
import threading
import time

from action_msgs.msg import GoalStatus
from action_msgs.srv import CancelGoal
import numpy as np
from rclpy.action import ActionClient
from rclpy.task import Future
from user_msgs.action import RunEpisode

from user_core.node import Shell
from user_core.outcome import Boundary, Episode, Goal

LOST_S = 4.0
"""A cell that is silent this long has lost its episode (steady clock)."""
APPEAR_S = 20.0
"""How long an episode waits for its cell to be there (steady clock)."""
ACCEPT_S = 5.0
"""A request that is not answered this long went to a server that has died unnoticed."""
UNSTORED_N = 256
"""A cell with more rows than this that replay has not acknowledged gets no new episode."""


class CellClient:
    """Asks one cell for episodes, one at a time, from a worker thread of the run.

    Attributes:
        heard: steady time of the cell's last heartbeat, set by the executor's thread.
        incarnation: when the cell's episode node was started, as its heartbeat says.
        unstored: its rows that replay lacks, as its heartbeat says.
        state: what it does, as its heartbeat says; empty before the first.
    """

    def __init__(self, shell: Shell, cell: str, stopping: Callable[[], bool]) -> None:
        self.shell, self.cell, self.stopping = shell, cell, stopping
        self.action = ActionClient(shell, RunEpisode, f'/{cell}/run_episode')
        self.heard = time.monotonic()
        self.incarnation: float | None = None
        self.unstored = 0.0
        self.state = ''
        cancel = f'/{cell}/run_episode/_action/cancel_goal'
        self._cancel = shell.create_client(CancelGoal, cancel)

    def __call__(self, goal: Goal) -> Episode:
        """One episode; never raises: what hinders it is a void episode with the reason."""
        deadline = time.monotonic() + APPEAR_S
        while not (there := self.action.server_is_ready()) or self.unstored > UNSTORED_N:
            if self.stopping() or time.monotonic() > deadline:
                why = (
                    f'replay lacks {self.unstored:.0f} of its rows' if there else 'no run_episode'
                )
                return self._void(goal, f'cell {self.cell} is not there or not ready: {why}')
            time.sleep(0.05)
        request = RunEpisode.Goal(
            mode=goal.mode, policy=goal.policy, policy_version=goal.version, seed=goal.seed
        )
        ended = threading.Event()
        answer: list = []  # the goal's handle once it is accepted, then its status and result
        self.heard, incarnation = time.monotonic(), self.incarnation
        self.shell.call_soon(lambda: self._send(request, answer, ended))
        asked, sent = False, time.monotonic()

        def give_up(reason: str) -> Episode:
            """Nobody waits for it any more, so it must not go on: it would train uncounted."""
            ended.set()
            if answer:
                self.shell.call_soon(answer[0].cancel_goal_async)
            return self._void(goal, reason)

        while not ended.wait(0.1):
            if not answer and time.monotonic() - sent > ACCEPT_S:
                return give_up(f'cell {self.cell} did not answer the request')
            if time.monotonic() - self.heard > LOST_S:
                return give_up(f'cell {self.cell} fell silent')
            if incarnation is not None and self.incarnation != incarnation:
                return give_up(f'the episode node of {self.cell} was restarted')
            if self.stopping() and not asked and answer:
                asked = True
                self.shell.call_soon(answer[0].cancel_goal_async)
        if len(answer) < 2:
            return self._void(goal, f'cell {self.cell} refused the episode')
        if answer[1].status == GoalStatus.STATUS_ABORTED:  # a fault: its result is empty
            return self._void(goal, f'the episode node of {self.cell} failed in the episode')
        return self._episode(goal, answer[1].result)

    @property
    def quiet(self) -> bool:
        """Whether it does nothing and replay has all its rows."""
        return self.state == 'IDLE' and not self.unstored

    def clear(self) -> None:
        """Cancels an episode that runs for nobody, because the run that wanted it was killed."""
        if self._cancel.service_is_ready():
            self._cancel.call_async(CancelGoal.Request())  # no identity: every goal

    def _void(self, goal: Goal, reason: str) -> Episode:
        return Episode(goal, self.cell, Boundary.ABORT, reason, void=True)

    def _send(self, request: RunEpisode.Goal, answer: list, ended: threading.Event) -> None:
        """Runs in the executor's thread, as do the answers."""

        def accepted(future: Future) -> None:
            handle = future.result()
            if ended.is_set():  # given up meanwhile
                handle.cancel_goal_async()
                return
            if not handle.accepted:
                ended.set()
                return
            answer.append(handle)
            handle.get_result_async().add_done_callback(finished)

        def finished(future: Future) -> None:
            answer.append(future.result())
            ended.set()

        self.action.send_goal_async(request).add_done_callback(accepted)

    def _episode(self, goal: Goal, result: RunEpisode.Result) -> Episode:
        return Episode(
            goal=goal,
            cell=self.cell,
            boundary=Boundary(result.boundary),
            reason=result.reason,
            void=result.invalid,
            episode_return=result.episode_return,
            length=result.length,
            interventions=result.interventions,
            first_version=result.first_version,
            last_version=result.last_version,
            peak_force=result.peak_force,
            distance=result.distance,
            policy_lag=result.policy_lag,
            duration_s=result.duration,
            late_steps=result.late_steps,
            period_s=np.asarray(result.period, np.float32),
        )
