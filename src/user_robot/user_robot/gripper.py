# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The gripper's action, beside the control step and never in it."""

from __future__ import annotations

import math
import time
from typing import Any

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.task import Future
from user_msgs.action import MoveGripper

from user_core.errors import UserError
from user_core.node import Shell
from user_robot.drive import Drive

LOOK_S = 0.05
NEAR_M = 0.002
"""The wanted width is reached within this."""
STILL_S = 0.6
"""Fingers that did not move for this long have stopped (steady clock)."""
WITHIN_S = 5.0


class Gripper:
    """Serves `move_gripper`: begins the motion, then looks at the measured width until it is
    reached, something is held, or the fingers stand still. One goal at a time.
    """

    def __init__(self, shell: Shell, drive: Drive) -> None:
        self.shell, self.drive = shell, drive
        self.handle: Any = None
        self.server = ActionServer(
            shell, MoveGripper, 'move_gripper', self.on_move,
            goal_callback=self.on_goal,
            cancel_callback=lambda handle: CancelResponse.ACCEPT,
        )  # fmt: skip

    def on_goal(self, goal: MoveGripper.Goal) -> GoalResponse:
        """One at a time, with numbers that mean something."""
        good = goal.width >= 0 and goal.speed > 0 and goal.force >= 0 and math.isfinite(goal.width)
        return GoalResponse.ACCEPT if good and self.handle is None else GoalResponse.REJECT

    async def on_move(self, handle: Any) -> MoveGripper.Result:
        """Begins the motion and waits for its end, in the executor's thread."""
        goal, self.handle = handle.request, handle
        try:
            self.drive.grip(goal.width, goal.speed, goal.force)
            error = await self.settled(handle, goal)
        except UserError as refused:
            error = str(refused)
        finally:
            self.handle = None
        if handle.is_cancel_requested:
            handle.canceled()
        elif error:
            handle.abort()
        else:
            handle.succeed()
        state = self.drive.sample().state
        return MoveGripper.Result(error=error, width=state.gripper_m, grasped=state.grasped)

    def settled(self, handle: Any, goal: MoveGripper.Goal) -> Future:
        """A future that gets '' or why the fingers did not get there."""
        over, begun = Future(), time.monotonic()
        width, moved_s = self.drive.sample().state.gripper_m, begun

        def look() -> None:
            nonlocal width, moved_s
            state, now = self.drive.sample().state, time.monotonic()
            if abs(state.gripper_m - width) > 1e-4:
                width, moved_s = state.gripper_m, now
            handle.publish_feedback(MoveGripper.Feedback(width=state.gripper_m))
            near = abs(state.gripper_m - goal.width) <= NEAR_M
            still = now - moved_s > STILL_S
            if handle.is_cancel_requested or now - begun > WITHIN_S:
                end('the gripper did not get there in time')
            elif near if not goal.force else state.grasped and still:
                end('')
            elif still and now - begun > 2 * STILL_S:
                held = 'nothing was grasped' if goal.force else 'something is in the way'
                end(f'the fingers stopped at {state.gripper_m:.3f} m: {held}')

        def end(error: str) -> None:
            self.shell.destroy_timer(timer)
            over.set_result(error)

        timer = self.shell.create_timer(LOOK_S, look)
        return over
