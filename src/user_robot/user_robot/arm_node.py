# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The arm's shell: targets in, samples out, resets, gripper, stop and recover."""

from __future__ import annotations

from functools import partial
import threading
import time
from typing import Any

from geometry_msgs.msg import PoseStamped
import numpy as np
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.task import Future
from std_msgs.msg import Bool
from std_srvs.srv import Trigger
from user_msgs.action import MoveTo
from user_msgs.msg import Target

from user_core.arm_config import LOCKSTEP, RealArm
from user_core.messages import NS, nanoseconds, numbers, pose
from user_core.node import Shell, run_node
from user_robot import priority, wire
from user_robot.arm import Site, make_arm
from user_robot.drive import SLICE_S, Drive
from user_robot.gripper import Gripper
from user_robot.row import Sample
from user_robot.spread import Spread
from user_robot.standard import Standard
from user_robot.task import make_task

FALLEN_BEHIND_S = 0.1
"""A law that is this late does not catch up: the lost time is counted."""
PARK_WITHIN_S = 5.0
"""A retreat at the end that takes longer is given up."""


class ArmNode:
    """One arm. Lockstep: all in the executor's thread. Realtime: the law has its own thread.

    Useful alone: it follows `target_pose`, under the same limits, while no episode commands.
    """

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        config, cell = shell.config, shell.config.cells[shell.cell]
        self.realtime = config.pace == 'realtime'
        self.task = make_task(config.task)
        real = cell.arm if isinstance(cell.arm, RealArm) else RealArm(min_success_rate=0.0)
        period_s = 1 / cell.control_hz
        site = Site(shell.cell, shell.folder, shell.run, cell.looked_at)
        self.arm = make_arm(cell.arm, period_s, site)
        self.drive = Drive(
            self.arm, cell.safety, self.task, period_s, min_success_rate=real.min_success_rate
        )
        self.park_up_m = real.park_up_m
        self.simulated = cell.arm.kind in LOCKSTEP
        self.writer = wire.Writer(shell.run, shell.cell)
        self.behind_s = 0.0
        self.steps = self.late_slices = 0
        self.period, self.latency, self.age = Spread(), Spread(), Spread()
        self.state_pub = shell.create_pub('robot_state')
        self.standard = Standard(shell, self.simulated)
        shell.create_sub('target', self.on_target)
        shell.create_sub('target_pose', self.on_foreign_target)
        shell.create_sub('estop', self.on_estop)
        shell.create_service(Trigger, 'stop', self.on_stop)
        shell.create_service(Trigger, 'clear_stop', self.on_clear)
        # Its answer takes time; in the default group nothing else would run meanwhile.
        waiting = ReentrantCallbackGroup()
        shell.create_service(Trigger, 'recover', self.on_recover, callback_group=waiting)
        self.moves = ActionServer(
            shell, MoveTo, 'move_to', self.on_move,
            goal_callback=self.on_goal,
            cancel_callback=self.on_cancel,
        )  # fmt: skip
        self.gripper = Gripper(shell, self.drive)
        shell.create_timer(0.5, self.on_heartbeat)
        self.stopped = shell.folder / f'stopped_{shell.cell}'
        if self.stopped.exists():
            self.drive.stop(
                'it was stopped before this node was started: call clear_stop to go on'
            )
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self.drive_in_realtime, name='law', daemon=True)
        if self.realtime:
            self.thread.start()
            if why := priority.take():
                shell.get_logger().warning(f'{why}, so a busy machine may delay the arm')
        self.announce()

    # ------------------------------------------------------------------ the path

    def on_target(self, target: Target) -> None:
        """A command; in lockstep its answer is the sample one period later."""
        if target.id.run != self.shell.run:
            return
        command = wire.command(target)
        self.steps += 1
        if self.realtime:
            self.drive.command(command)
            self.latency.add((time.time_ns() - nanoseconds(target.stamp)) / NS)
        else:
            self.publish(self.drive.step(command))

    def on_foreign_target(self, target: PoseStamped) -> None:
        """A target of another stack, in the arm's base frame."""
        if self.realtime:
            self.drive.follow(pose(target.pose))

    def publish(self, sample: Sample) -> None:
        """The sample first; then what viewers and other stacks listen to."""
        self.state_pub.publish(self.writer.state(sample))
        self.standard.publish(sample.state)

    def announce(self) -> None:
        """Tells a change of the latch at once; in realtime the next sample tells it anyway."""
        if not self.realtime:
            self.publish(self.drive.sample())

    def drive_in_realtime(self) -> None:
        """The law's thread: slice after slice on the steady clock; a fault in it ends the node."""
        slice_s = self.arm.slice_s
        due = before = time.monotonic()
        while not self.closing.is_set():
            try:
                sample = self.drive.advance(slice_s)
                self.publish(sample)
            except Exception as error:
                self.shell.call_soon(partial(_raise, error))
                return
            now = time.monotonic()
            if not self.simulated:
                self.age.add(time.time() - sample.state.stamp_s)
            self.period.add(now - before)
            self.late_slices += now - before > 1.5 * slice_s
            before = now
            due += slice_s
            wait = due - now
            if wait > 0:
                time.sleep(wait)
            elif wait < -FALLEN_BEHIND_S:
                self.behind_s -= wait
                due -= wait

    # ------------------------------------------------------------------ resets

    def on_goal(self, goal: MoveTo.Goal) -> GoalResponse:
        """A motion needs a goal, numbers for poses, and speeds above zero."""
        speeds = goal.speed > 0 and goal.angular_speed > 0  # false for NaN, too
        speeds = speeds and (not goal.joints or goal.joint_speed > 0)
        poses = all(pose(p).isfinite() for p in goal.waypoints)
        good = (goal.waypoints or goal.joints) and speeds and poses
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
            joints=numbers(goal.joints) if goal.joints else None,
            joint_speed_rad_s=goal.joint_speed,
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

    # ------------------------------------------------------------------ stops

    def on_estop(self, message: Bool) -> None:
        """The emergency stop's level; its rising edge stops the arm."""
        self.drive.emergency(message.data)
        if message.data:
            self.stopped.touch()
        self.announce()

    def on_stop(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Latches a stop."""
        self.drive.stop('stopped by request: call clear_stop to go on')
        self.stopped.touch()
        self.announce()
        response.success, response.message = True, 'the arm holds until clear_stop'
        return response

    def on_clear(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Ends a stop."""
        response.success, response.message = self.drive.clear_stop()
        if response.success:
            self.stopped.unlink(missing_ok=True)
        self.announce()
        return response

    async def on_recover(
        self, request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        """Leaves a fault, in any state; answers within two seconds."""
        answer = Future()
        self.drive.recover(lambda *said: self.shell.call_soon(lambda: answer.set_result(said)))
        response.success, response.message = await answer
        self.announce()
        return response

    def on_heartbeat(self) -> None:
        """What the arm is up to, twice a second: for people and for a late episode node."""
        self.announce()
        sample, latch = self.drive.sample(), self.drive.latch
        self.standard.look()
        numbers = {
            'steps': self.steps,
            'behind_s': self.behind_s,
            'clock_s': sample.state.stamp_s,
            'faults': latch.faults,
            'recoveries': latch.recoveries,
            'holds': self.drive.holds,
            'hold_max_s': self.drive.hold_max_s,
            'success_rate': sample.state.success_rate,
        }
        if self.realtime:
            numbers |= {
                'late_slices': self.late_slices,
                'period_p99_ms': self.period.ms(0.99),
                'command_latency_p50_ms': self.latency.ms(0.5),
                'command_latency_p99_ms': self.latency.ms(0.99),
            }
            if not self.simulated:
                numbers['state_age_p99_ms'] = self.age.ms(0.99)
        self.shell.metrics(sample.mode.name, sample.reason, **numbers)

    # ------------------------------------------------------------------ the end

    def park(self) -> None:
        """The configured retreat: from the goal towards the starts, straight, in time."""
        here, over = self.drive.sample().state.pose, threading.Event()
        out = self.task.home.position - self.task.frame.position
        out *= self.park_up_m / float(np.linalg.norm(out))
        away = type(here)(here.position + out, here.quaternion)
        self.drive.move([away], 0.1, 0.5, 0, 0, snap=False, ended=lambda why: over.set())
        over.wait(PARK_WITHIN_S)
        self.drive.cancel('the retreat took too long')

    def close(self) -> None:
        """Hold, retreat if configured and well, then let go of the arm: always in this order."""
        healthy = self.drive.latch.allows() and (not self.realtime or self.thread.is_alive())
        try:
            if self.realtime and self.park_up_m and healthy:
                self.drive.cancel('the arm node ends')
                self.park()
            self.drive.stop('the arm node ends')
            self.closing.set()
            if self.realtime:
                self.thread.join(timeout=1.0)
            self.publish(self.drive.sample())
        finally:
            self.arm.close(healthy)


def _raise(error: Exception) -> None:
    raise error


def main() -> None:
    """Entry point."""
    run_node(ArmNode, 'arm')


if __name__ == '__main__':
    main()
