# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The arm's shell: targets in, samples out, reset motions, stop and recover."""

from __future__ import annotations

from functools import partial
import threading
import time
from typing import Any

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.task import Future
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger
from user_msgs.action import MoveTo
from user_msgs.msg import Target

from user_core.messages import doubles, pose, stamp_s
from user_core.node import Shell, run_node
from user_robot import wire
from user_robot.arm import make_arm
from user_robot.drive import SLICE_S, Drive
from user_robot.row import Sample
from user_robot.task import make_task

REALTIME_SLICE_S = 0.01
"""The simulated arm's law runs ahead by this much at a time, and a sample is sent after each."""
JOINTS_S = 0.05
"""Joint states are for viewers: at most one in this time (steady clock)."""
FALLEN_BEHIND_S = 0.1
"""A simulation that is this late does not catch up: the lost time is counted."""


class ArmNode:
    """One arm. Lockstep: all in the executor's thread. Realtime: the law has its own thread."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        config, cell = shell.config, shell.config.cells[shell.cell]
        self.realtime = config.pace == 'realtime'
        self.drive = Drive(
            make_arm(cell.arm, 1 / cell.control_hz),
            cell.safety,
            make_task(config.task),
            1 / cell.control_hz,
        )
        self.writer = wire.Writer(shell.run, shell.cell)
        self.joints = JointState(
            name=[f'joint{i + 1}' for i in range(self.drive.sample().state.q.size)]
        )
        self.joints_at_s = 0.0
        self.behind_s = 0.0
        self.steps = 0
        self.state_pub = shell.create_pub('robot_state')
        self.joints_pub = shell.create_pub('joint_states')
        self.clock_pub = shell.create_pub('clock')
        shell.create_sub('target', self.on_target)
        for name, call in (
            ('stop', self.on_stop),
            ('clear_stop', self.on_clear),
            ('recover', self.on_recover),
        ):
            shell.create_service(Trigger, name, call)
        self.moves = ActionServer(
            shell, MoveTo, 'move_to', self.on_move,
            goal_callback=self.on_goal,
            cancel_callback=self.on_cancel,
        )  # fmt: skip
        shell.create_timer(0.5, self.on_heartbeat)
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self.drive_in_realtime, name='law', daemon=True)
        if self.realtime:
            self.thread.start()
        self.announce()

    def on_target(self, target: Target) -> None:
        """A command; in lockstep its answer is the sample one period later."""
        if target.id.run != self.shell.run:
            return
        command = wire.command(target)
        self.steps += 1
        if self.realtime:
            self.drive.command(command)
        else:
            self.publish(self.drive.step(command))

    def publish(self, sample: Sample) -> None:
        """The sample first; then, for viewers, the clock and the joints."""
        self.state_pub.publish(self.writer.state(sample))
        state, now = sample.state, time.monotonic()
        if self.clock_pub.get_subscription_count():
            self.clock_pub.publish(Clock(clock=stamp_s(state.stamp_s)))
        if now - self.joints_at_s >= JOINTS_S and self.joints_pub.get_subscription_count():
            self.joints_at_s, joints = now, self.joints
            joints.header.stamp = stamp_s(state.stamp_s)
            joints.position, joints.velocity, joints.effort = map(
                doubles, (state.q, state.dq, state.tau)
            )
            self.joints_pub.publish(joints)

    def announce(self) -> None:
        """Tells a change of the latch at once; in realtime the next sample tells it anyway."""
        if not self.realtime:
            self.publish(self.drive.sample())

    def drive_in_realtime(self) -> None:
        """The law's thread: slice after slice on the steady clock; a fault in it ends the node."""
        due = time.monotonic()
        while not self.closing.is_set():
            try:
                self.publish(self.drive.advance(REALTIME_SLICE_S))
            except Exception as error:
                self.shell.call_soon(partial(_raise, error))
                return
            due += REALTIME_SLICE_S
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            elif wait < -FALLEN_BEHIND_S:
                self.behind_s -= wait
                due -= wait

    def on_goal(self, goal: MoveTo.Goal) -> GoalResponse:
        """A motion needs a goal, numbers for poses, and speeds above zero."""
        speeds = goal.speed > 0 and goal.angular_speed > 0  # false for NaN, too
        good = goal.waypoints and speeds and all(pose(p).isfinite() for p in goal.waypoints)
        return GoalResponse.ACCEPT if good else GoalResponse.REJECT

    async def on_move(self, handle: Any) -> MoveTo.Result:
        """A reset motion: lockstep runs it here at once, realtime in the law's thread."""
        goal, ended = handle.request, Future()
        self.drive.move(
            [pose(p) for p in goal.waypoints],
            goal.speed,
            goal.angular_speed,
            goal.id.episode,
            goal.seed,
            snap=not self.realtime,
            ended=lambda why: self.shell.call_soon(lambda: ended.set_result(why)),
        )
        while self.drive.motion and not self.realtime:
            sample = self.drive.advance(SLICE_S)
            if not self.drive.motion:
                self.publish(sample)
        error = await ended
        if handle.is_cancel_requested:
            handle.canceled()
        elif error:
            handle.abort()
        else:
            handle.succeed()
        off_m, off_rad = self.drive.errors()
        return MoveTo.Result(error=error, position_error=off_m, angle_error=off_rad)

    def on_cancel(self, handle: Any) -> CancelResponse:
        """Ends the motion where it is."""
        self.drive.cancel('the reset motion was cancelled')
        return CancelResponse.ACCEPT

    def on_stop(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Latches a stop."""
        self.drive.stop('stopped by request: call clear_stop to go on')
        self.announce()
        response.success, response.message = True, 'the arm holds until clear_stop'
        return response

    def on_clear(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Ends a stop."""
        response.success, response.message = True, self.drive.clear_stop()
        self.announce()
        return response

    def on_recover(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Leaves a fault, in any state."""
        response.success, response.message = self.drive.recover()
        self.announce()
        return response

    def on_heartbeat(self) -> None:
        """What the arm is up to, twice a second: for people and for a late episode node."""
        self.announce()
        sample = self.drive.sample()
        self.shell.metrics(
            sample.mode.name, sample.reason, steps=self.steps, behind_s=self.behind_s,
            clock_s=sample.state.stamp_s,
        )  # fmt: skip

    def close(self) -> None:
        """The arm holds, then its thread ends."""
        self.drive.stop('the arm node ends')
        self.closing.set()
        if self.realtime:
            self.thread.join(timeout=1.0)


def _raise(error: Exception) -> None:
    raise error


def main() -> None:
    """Entry point."""
    run_node(ArmNode, 'arm')


if __name__ == '__main__':
    main()
