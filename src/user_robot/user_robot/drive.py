# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""One arm under its limits: latch, safety, deadline, resets, faults. The arm node without ROS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
import threading
import time

import numpy as np

from user_core import config as schema
from user_core.errors import UserError
from user_core.geometry import Array, Pose, angle
from user_robot.arm import Arm, ArmState
from user_robot.latch import Latch, Mode
from user_robot.motion import Travel
from user_robot.row import Command, Sample
from user_robot.safety import FORCE, REFUSED, Safety
from user_robot.task import Task

SLICE_S = 0.02
"""Reset motions advance by this much at a time in lockstep."""
RECOVER_WITHIN_S = 2.0
"""A fault that a recovery has not cleared by then stays one (steady clock)."""
PRESS_MORE_N = 10.0
"""A reset that begins in a press above the limit may press by this much more."""
EARLY_SLICES = 2
"""The hold comes this many slices before its deadline, as slices come late now and then."""
FOREIGN_AFTER_S = 2.0
"""An episode that has not commanded for so long lets other stacks move the arm (steady clock)."""
START_M, START_RAD = 0.01, 0.1
"""A reset that ends further from its goal has failed."""


class Drive:
    """Commands in, samples out.

    Lockstep: `step` applies a command and lets one control period pass. Realtime: one thread calls
    `advance` at its own rate while another hands in commands with `command`; a lock guards both.

    Args:
        arm: the driver.
        limits: of the cell.
        task: gives the frame of the limits, and the home where a simulated arm begins.
        period_s: one control period.
        min_success_rate: no reset motion begins below this share of control cycles in time.

    Attributes:
        hold_max_s: longest time from the last valid command to the hold that its absence caused
            (steady clock).
    """

    def __init__(
        self,
        arm: Arm,
        limits: schema.Safety,
        task: Task,
        period_s: float,
        steady: Callable[[], float] = time.monotonic,
        min_success_rate: float = 0.0,
    ) -> None:
        self.arm, self.limits, self.period_s, self._steady = arm, limits, period_s, steady
        self.safety = Safety(limits, task.frame)
        self.latch = Latch()
        self.motion: Travel | None = None
        self._min_success_rate = min_success_rate
        self._lock = threading.RLock()
        self._episode, self._step, self._commanded = 0, 0, False
        self._limited = 0
        self._commanded_s = steady()
        self.holds, self.hold_max_s = 0, 0.0
        self._foreign = False
        self._pressed_n = 0.0
        self._recovering: tuple[float, Callable[[bool, str], None]] | None = None
        arm.reset(task.home, 0)
        self._state = arm.state()
        self._applied = self._state.pose
        self._goal: Pose | None = self._applied
        self.latch.arm()

    # ------------------------------------------------------------------ commands

    def command(self, command: Command) -> bool:
        """Applies a command of the present episode; True when the arm follows it.

        A command that is stale, out of order, not finite, or not allowed by the latch changes
        nothing and leaves REFUSED in the next sample; one that is not finite makes the arm hold.
        """
        with self._lock:
            old = command.episode != self._episode or (
                self._commanded and command.step <= self._step
            )
            if old or self.motion or not self.latch.allows():
                self._limited |= REFUSED
                return False
            self._step, self._commanded, self._foreign = command.step, True, False
            return self._apply(command.pose, command.gripper_m)

    def follow(self, target: Pose) -> bool:
        """Applies the target of another ROS stack, under the same limits and deadline; never
        while an episode commands or a reset goes on.
        """
        with self._lock:
            since_s = self._steady() - self._commanded_s
            taken = self._episode and not self._foreign and since_s < FOREIGN_AFTER_S
            if taken or self.motion or not self.latch.allows():
                return False
            followed = self._apply(target, math.nan)
            self._foreign = self._foreign or followed
            return followed

    def step(self, command: Command) -> Sample:
        """Lockstep: the command, one control period, the sample that answers it."""
        with self._lock:
            self.command(command)
            if self.latch.allows():
                self.arm.advance(self.period_s)
            self._observe()
            return self.sample()

    def advance(self, seconds: float) -> Sample:
        """One slice of time: the reset motion goes on, or the deadline is watched."""
        with self._lock:
            if self.motion:
                if self.motion.line:
                    self.arm.servo(self.motion.line.target(seconds, self._state.pose), math.nan)
            else:
                self._watch(seconds)
            self.arm.advance(seconds)
            self._observe()
            if self.motion:
                self._travel(self.motion)
            return self.sample()

    def _watch(self, slice_s: float) -> None:
        """Holds before the deadline passes, whichever slice the next one would be."""
        deadline_s = self.limits.deadline_s
        early_s = min(EARLY_SLICES * slice_s, deadline_s / 2)
        age_s = self._steady() - self._commanded_s
        if self.latch.mode is Mode.ACTIVE and age_s > deadline_s - early_s:
            self.latch.deadline(age_s)
            self._rest()
            self.holds += 1
            self.hold_max_s = max(self.hold_max_s, self._steady() - self._commanded_s)

    def sample(self) -> Sample:
        """The newest measurement and what became of the last command."""
        with self._lock:
            return Sample(
                self._episode,
                self._step,
                self._commanded,
                self._state,
                self._applied,
                self._limited,
                self.latch.mode,
                self.latch.reason,
            )

    def _apply(self, pose: Pose, gripper_m: float) -> bool:
        state = self._state
        target, self._limited = self.safety.apply(pose, state.pose, state.wrench)
        if self._limited & REFUSED:
            self._rest()
            return False
        self.latch.command()
        self._commanded_s = self._steady()
        self._applied = target
        self.arm.servo(target, gripper_m)
        return True

    # ------------------------------------------------------------------ resets

    def move(
        self,
        waypoints: Sequence[Pose],
        speed_m_s: float,
        speed_rad_s: float,
        episode: int,
        seed: int,
        snap: bool,
        ended: Callable[[str], None],
        joints: Array | None = None,
        joint_speed_rad_s: float = 0.5,
    ) -> None:
        """Begins a reset motion; `ended` gets '' or why it failed, in the advancing thread.

        It recovers the arm from a contact first, `safety.recoveries_in_a_row` times at most.
        `snap`: the last waypoint is not travelled, the simulated arm is put there. `joints`: a
        posture to go through before the last waypoint.
        """

        def begin(done: bool, text: str) -> None:
            rate = self._state.success_rate
            if not done:
                ended(text)
            elif rate < self._min_success_rate:
                ended(
                    f'only {rate:.0%} of the control cycles come in time, and '
                    f'arm.min_success_rate is {self._min_success_rate:.0%}: '
                    'free the computer, or see docs/arms.md'
                )
            else:
                self.latch.rest()
                self._goal, self._next, self._ended = goal, (episode, seed), ended
                self.motion = Travel(way, None if snap else joints, speeds)
                self._go_on(self.motion)

        with self._lock:
            self._state = self.arm.state()
            goal = waypoints[-1] if waypoints else None
            way = list(waypoints[:-1]) or [self._state.pose] if snap else list(waypoints)
            speeds = (
                min(speed_m_s, self.limits.max_speed_m_s),
                min(speed_rad_s, self.limits.max_speed_rad_s),
                joint_speed_rad_s,
            )
            self._pressed_n = self._state.peak_force_n
            busy = self.motion or self._recovering
            if refusal := 'another motion runs' if busy else self._refusal():
                ended(refusal)
            elif self.latch.mode is Mode.FAULT:
                self.latch.in_a_row += 1
                self._recover(begin)
            else:
                self.latch.in_a_row = 0
                begin(True, '')

    def errors(self) -> tuple[float, float]:
        """Metres and radians between the arm and the last reset's goal."""
        goal = self._goal or self._state.pose  # a joint motion has none
        off = self._state.pose.position - goal.position
        return float(math.hypot(*off)), angle(self._state.pose, goal)

    def grip(self, width_m: float, speed_m_s: float, force_n: float) -> None:
        """Begins a motion of the gripper.

        Raises:
            UserError: the arm may not move, or has no gripper.
        """
        with self._lock:
            if not self.latch.allows():
                raise UserError('the gripper does not move', self.latch.reason)
            self.arm.grip(width_m, speed_m_s, force_n)

    def cancel(self, reason: str) -> None:
        """Ends a reset motion where it is, and a recovery that would begin one."""
        with self._lock:
            if self._recovering:
                (_, answer), self._recovering = self._recovering, None
                answer(False, reason)
            if self.motion:
                self.motion = None
                self._rest()
                self._ended(reason)

    def _refusal(self) -> str:
        """Why no reset motion may begin, or ''."""
        latch, most = self.latch, self.limits.recoveries_in_a_row
        if latch.mode is not Mode.FAULT:
            return '' if latch.allows() else latch.reason
        if latch.reset_recovers and latch.in_a_row >= most:
            return (
                f'the arm needed {most} recoveries in a row, the last from: {latch.reason}: '
                'look at it, then call recover'
            )
        return '' if latch.reset_recovers else latch.reason

    def _go_on(self, motion: Travel) -> None:
        try:
            motion.next(self._state.pose, self.arm.move_joints)
        except UserError as error:
            self.cancel(str(error))

    def _travel(self, motion: Travel) -> None:
        pose, line = self._state.pose, motion.line
        if not self.latch.allows():
            self.cancel(self.latch.reason)
        elif line and line.stuck():
            self.cancel(
                f'the arm cannot follow its reset, {line.remaining_m(pose):.3f} m before the end'
            )
        elif (line and not line.done(pose)) or self._state.moving:
            return
        elif motion.more():
            self._go_on(motion)
        else:
            self._arrive()

    def _arrive(self) -> None:
        """The episode begins here, if here is its start."""
        episode, seed = self._next
        self.motion, error = None, ''
        try:
            self.arm.reset(self._goal or self._state.pose, seed)
        except UserError as unreachable:
            error = str(unreachable)
        self._state = self.arm.state()
        off_m, off_rad = self.errors()
        if not error and (off_m > START_M or off_rad > START_RAD):
            error = f'the arm stopped {off_m:.3f} m and {off_rad:.2f} rad from its start'
        if error:
            self._rest()
        else:
            self._applied = self._state.pose
            self._episode, self._step, self._commanded, self._limited = episode, 0, False, 0
            self._foreign, self._commanded_s = False, self._steady()
            self.latch.rest()
        self._ended(error)

    # ------------------------------------------------------------------ stops

    def stop(self, reason: str) -> None:
        """Latches: the arm holds until `clear_stop`."""
        with self._lock:
            self.latch.stop(reason)
            self._rest()
            self.cancel(reason)

    def emergency(self, pressed: bool) -> None:
        """The level of the emergency stop; its rising edge stops the arm."""
        with self._lock:
            if self.latch.emergency(pressed):
                self._rest()
                self.cancel(self.latch.reason)

    def clear_stop(self) -> tuple[bool, str]:
        """Ends a stop: (done, sentence for people)."""
        with self._lock:
            return self.latch.clear_stop()

    def recover(self, answer: Callable[[bool, str], None]) -> None:
        """Leaves a fault; `answer` gets (done, sentence for people) within RECOVER_WITHIN_S, in
        the advancing thread when the driver needs time.
        """
        with self._lock:
            self.latch.in_a_row = 0
            self._recover(answer)

    def _recover(self, answer: Callable[[bool, str], None]) -> None:
        self._rest()
        if self._recovering:
            answer(False, 'another recovery is under way')
        elif self._state.fault and not self.latch.stopped:
            self.arm.recover()
            self._recovering = self._steady() + RECOVER_WITHIN_S, answer
        else:
            answer(*self.latch.recover())

    def _rest(self) -> None:
        self.arm.hold()
        self._applied = self._state.pose

    def _observe(self) -> None:
        """Takes the new measurement and judges it."""
        state = self._state = self.arm.state()
        if self._recovering:
            self._await_recovery(state, *self._recovering)
        elif state.fault and (
            self.latch.mode is not Mode.FAULT or (self.latch.reset_recovers and not state.reflex)
        ):
            self.latch.fault(state.fault, reset_recovers=state.reflex)
            self._rest()
        elif self.latch.allows() and (excess := self._excess(state)):
            self.latch.fault(excess, reset_recovers=True)
            self.arm.hold()

    def _await_recovery(
        self, state: ArmState, until_s: float, answer: Callable[[bool, str], None]
    ) -> None:
        if not state.fault:
            self._recovering = None
            self._rest()
            answer(*self.latch.recover())
        elif self._steady() > until_s:
            self._recovering = None
            answer(False, f'the fault did not clear in {RECOVER_WITHIN_S:.0f} s: {state.fault}')

    def _excess(self, state: ArmState) -> str:
        """Which limit of force or speed the measurement passes, or ''."""
        limits, peak = self.limits, state.peak_force_n
        speed = float(np.linalg.norm(state.twist[:3]))
        turning = float(np.linalg.norm(state.twist[3:]))
        # A reset has to be able to back out of the press that it begins in.
        pressed = self._pressed_n + PRESS_MORE_N if self.motion else 0.0
        if peak > max(limits.force_limit_n, pressed):
            self._limited |= FORCE
            return (
                f'the contact force of {peak:.0f} N is above safety.force_limit_n = '
                f'{limits.force_limit_n:.0f} N'
            )
        if speed > limits.max_speed_m_s:
            return f'{speed:.2f} m/s is above safety.max_speed_m_s = {limits.max_speed_m_s}'
        if turning > limits.max_speed_rad_s:
            return (
                f'{turning:.2f} rad/s is above safety.max_speed_rad_s = {limits.max_speed_rad_s}'
            )
        return ''
