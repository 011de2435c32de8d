# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""One arm under its limits: latch, safety, deadline, reset motions. The arm node without ROS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import math
import threading
import time

from user_core import config as schema
from user_core.errors import UserError
from user_core.geometry import Pose, angle
from user_robot.arm import Arm, ArmState
from user_robot.latch import Latch, Mode
from user_robot.motion import Motion
from user_robot.row import Command, Sample
from user_robot.safety import FORCE, REFUSED, Safety
from user_robot.task import Task

SLICE_S = 0.02
"""Reset motions advance by this much at a time in lockstep."""


class Drive:
    """Commands in, samples out.

    Lockstep: `step` applies a command and lets one control period pass. Realtime: one thread calls
    `advance` at its own rate while another hands in commands with `command`; a lock guards both.

    Args:
        arm: the driver.
        limits: of the cell.
        task: gives the frame of the limits, and the home where a simulated arm begins.
        period_s: one control period.
    """

    def __init__(
        self,
        arm: Arm,
        limits: schema.Safety,
        task: Task,
        period_s: float,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.arm, self.limits, self.period_s, self._steady = arm, limits, period_s, steady
        self.safety = Safety(limits, task.frame)
        self.latch = Latch()
        self.motion: Motion | None = None
        self._lock = threading.RLock()
        self._episode, self._step, self._commanded = 0, 0, False
        self._limited = 0
        self._clock_s = 0.0
        self._commanded_s = steady()
        arm.reset(task.home, 0)
        self._state = self._measure()
        self._applied = self._goal = self._state.pose
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
            self._step, self._commanded = command.step, True
            state = self._state
            target, self._limited = self.safety.apply(command.pose, state.pose, state.wrench)
            if self._limited & REFUSED:
                self.arm.hold()
                self._applied = state.pose
                return False
            self.latch.command()
            self._commanded_s = self._steady()
            self._applied = target
            self.arm.servo(target, command.gripper_m)
            return True

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
                self.arm.servo(self.motion.target(seconds, self._state.pose), math.nan)
            else:
                age = self._steady() - self._commanded_s
                if self.latch.mode is Mode.ACTIVE and age > self.limits.deadline_s:
                    self.latch.deadline(age)
                    self._rest()
            self.arm.advance(seconds)
            self._observe()
            if self.motion:
                self._follow(self.motion)
            return self.sample()

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

    # ------------------------------------------------------------------ resets

    def move(
        self,
        waypoints: list[Pose],
        speed_m_s: float,
        speed_rad_s: float,
        episode: int,
        seed: int,
        snap: bool,
        ended: Callable[[str], None],
    ) -> None:
        """Begins a reset motion; `ended` gets '' or why it failed, in the advancing thread.

        `snap`: the last waypoint is not travelled, the simulated arm is put there.
        """
        with self._lock:
            if refusal := (
                self.latch.reset_allowed() or ('another motion runs' if self.motion else '')
            ):
                ended(refusal)
                return
            self._state = self._measure()
            here, goal = self._state.pose, waypoints[-1]
            way = (waypoints[:-1] or [here]) if snap else waypoints
            self.latch.rest()
            self.motion = Motion(here, way, speed_m_s, speed_rad_s)
            self._goal, self._next, self._ended = goal, (episode, seed), ended

    def errors(self) -> tuple[float, float]:
        """Metres and radians between the arm and the last reset's goal."""
        off = self._state.pose.position - self._goal.position
        return float(math.hypot(*off)), angle(self._state.pose, self._goal)

    def cancel(self, reason: str) -> None:
        """Ends a reset motion where it is."""
        with self._lock:
            if self.motion:
                self.motion = None
                self._rest()
                self._ended(reason)

    def _follow(self, motion: Motion) -> None:
        pose = self._state.pose
        if not self.latch.allows():
            self.cancel(self.latch.reason)
        elif motion.stuck():
            self.cancel(
                f'the arm cannot follow its reset, {motion.remaining_m(pose):.3f} m before the end'
            )
        elif motion.done(pose):
            self.motion = None
            episode, seed = self._next
            try:
                self.arm.reset(self._goal, seed)
            except UserError as error:
                self._rest()
                self._ended(str(error))
                return
            self._clock_s = self._state.stamp_s
            self._state = self._measure()
            self._applied = self._state.pose
            self._episode, self._step, self._commanded, self._limited = episode, 0, False, 0
            self.latch.rest()
            self._ended('')

    # ------------------------------------------------------------------ stops

    def stop(self, reason: str) -> None:
        """Latches: the arm holds until `clear_stop`."""
        with self._lock:
            self.latch.stop(reason)
            self._rest()
            self.cancel(reason)

    def clear_stop(self) -> str:
        """A sentence for people."""
        with self._lock:
            return self.latch.clear_stop()

    def recover(self) -> tuple[bool, str]:
        """Leaves a fault: (done, sentence for people)."""
        with self._lock:
            self._rest()
            return self.latch.recover()

    def _rest(self) -> None:
        self.arm.hold()
        self._applied = self._state.pose

    def _observe(self) -> None:
        """Takes the new measurement and judges its contact force."""
        self._state = self._measure()
        peak, limit = self._state.peak_force_n, self.limits.force_limit_n
        if peak > limit and self.latch.allows() and not self.motion:
            self._limited |= FORCE
            self.latch.fault(
                f'the contact force of {peak:.0f} N is above safety.force_limit_n = {limit:.0f} N',
                reset_recovers=True,
            )
            self.arm.hold()

    def _measure(self) -> ArmState:
        """The arm's sample on a clock that never goes back, not even at a reset."""
        state = self.arm.state()
        return replace(state, stamp_s=self._clock_s + state.stamp_s)
