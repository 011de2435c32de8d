# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The driver of a Franka: franky's Cartesian impedance law under 10 Hz targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
import threading
import time

import franky
import numpy as np

from user_core.arm_config import Franka
from user_core.errors import UserError
from user_core.geometry import Array, Pose
from user_robot.arm import BY_HAND, ArmState, Site
from user_robot.franka.hand import FrankaHand
from user_robot.franka.link import LOST, FrankaLink, affine
from user_robot.franka.reading import measurement, trouble
from user_robot.franka.robot_clock import RobotClock

POLL_S = 0.002
"""The driver's thread looks at the robot at this period."""
SILENCE_S = 0.1
"""With a realtime kernel, a robot without a new state for this long is lost. Without one such
gaps prove nothing, and libfranka's own second decides."""
DOUBT_S = 0.03
"""Without a new state for this long, the driver looks whether the connection still stands."""
HANG_S = 1.0
"""A driver's thread that did not come round for this long waits for a robot that is silent."""
WARM_S = 0.1
"""The control success rate counts the last 100 cycles: known after this much control."""
SETTLE_S = 1.0
ARRIVED_RAD, STILL_RAD_S = 0.005, 0.02

Job = Iterator[None]


class FrankaArm:
    """One Franka, real or behind a simulated control box; see `user_robot.arm.Arm`.

    The law runs at 1 kHz in franky's C++ thread, whatever Python does. One driver's thread makes
    every call that may block; state, servo and hold only exchange values with it. The hand has
    its own thread.

    Stops: a target that no longer changes is held by the law, its push bounded by stiffness times
    clip. When this process is killed (kill -9) the control box misses its commands within 20 ms
    and stops the arm by itself (communication_constraints_violation); `recover` in the next
    process leaves that. `close` fades the law's torque and leaves the arm to the control box,
    which holds it.

    Args:
        config: of the arm.
        period_s: of the commands.
    """

    slice_s = 0.005

    def __init__(self, config: Franka, period_s: float, site: Site = BY_HAND) -> None:
        self.config, self.period_s = config, period_s
        self._fault, self._moving = ('', False), False
        self._tracker: franky.CartesianImpedanceTracker | None = None
        self._loop = ''
        self._job: Job | None = None
        self._wish: Callable[[], Job] | None = None
        self._asked = ''
        self._lock = threading.Lock()
        self._peak_n = 0.0
        self._clock = RobotClock()
        self._beat_s = time.monotonic()
        self._link: FrankaLink | None = FrankaLink(config)
        raw = self._link.read()
        self._sample = raw, self._clock.stamp(raw.time.to_sec(), time.time())
        self._fresh_s = time.monotonic()
        self._begin()
        try:
            self._hand = FrankaHand(config) if config.gripper else None
        except UserError:
            self._end()
            raise
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._drive, name='franka', daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ any thread, never blocks

    def reset(self, pose: Pose, seed: int) -> None:
        """A real arm is where it is."""

    def state(self) -> ArmState:
        """The newest sample, at most 4 ms old while the law runs."""
        measured = measurement(*self._sample)
        with self._lock:
            peak_n, self._peak_n = self._peak_n, 0.0
        fault, reflex = self._fault
        if not fault and time.monotonic() - self._beat_s > HANG_S:
            fault = self._silent()
        hand = self._hand
        return replace(
            measured,
            gripper_m=hand.width_m if hand else 0.0,
            peak_force_n=max(peak_n, measured.peak_force_n),
            fault=fault or (hand.fault if hand else ''),
            reflex=reflex,
            moving=self._moving,
            grasped=hand.grasped if hand else False,
        )

    def servo(self, target: Pose, gripper_m: float) -> None:
        """Sets the law's target; a changed gripper width moves the hand, a width of 0 closes it
        with the configured force. Nothing happens in a fault, in a joint motion, or when the
        target is not finite.
        """
        tracker = self._tracker
        if tracker is None or self._fault[0] or not target.isfinite():
            return
        tracker.set_target(affine(target))
        if self._hand is not None:
            self._hand.stream(gripper_m)

    def advance(self, seconds: float) -> None:
        """Time passes by itself."""

    def hold(self) -> None:
        """Makes the present pose the target; brakes a joint motion."""
        if self._hand is not None:
            self._hand.hold()
        tracker = self._tracker
        if self._moving:
            self._ask('halt', self._halt)
        elif tracker is not None:
            tracker.set_target(self._sample[0].O_T_EE)

    def recover(self) -> None:
        """Begins one attempt to leave a fault: connects again, clears the robot's errors, holds
        the present pose. An attempt that fails says so in `state().fault`, within 5 s.
        """
        if self._hand is not None:
            self._hand.recover()
        if self._fault[0]:
            self._ask('recovery', self._recovery)

    def move_joints(self, q: Array, speed_rad_s: float) -> None:
        """Begins a joint motion under the robot's stiff position control; no joint is faster than
        `speed_rad_s`. Nothing happens in a fault.
        """
        goal = np.array(q, float)
        if goal.shape != (7,) or not np.isfinite(goal).all() or not speed_rad_s > 0:
            raise UserError('a joint motion of a Franka needs seven angles and a speed above 0')
        if not self._fault[0]:
            self._moving = True
            self._ask('joints', lambda: self._joint_motion(goal, speed_rad_s))

    def grip(self, width_m: float, speed_m_s: float, force_n: float) -> None:
        """Begins a motion of the hand. While one runs the newest wish waits for its end."""
        if self._hand is None:
            raise UserError(
                f'the robot at {self.config.address} has no hand',
                'cells.<cell>.arm.gripper is false',
                'set it to true when a Franka hand is mounted',
            )
        self._hand.grip(width_m, speed_m_s, force_n)

    def close(self, healthy: bool = True) -> None:
        """Moves nothing: holds, fades the law's torque, disconnects; blocks for 5 s at most."""
        deadline = time.monotonic() + 4.8
        if self._hand is not None:
            self._hand.begin_close()
        self._closing.set()
        self._thread.join(4.0)
        if self._hand is not None:
            self._hand.close(max(deadline - time.monotonic(), 0.0))

    # ------------------------------------------------------------------ the driver's thread

    def _ask(self, name: str, wish: Callable[[], Job]) -> None:
        """The newest wish is the driver's next job; one that is asked for again goes on."""
        with self._lock:
            if name != self._asked or name == 'joints':
                self._asked, self._wish = name, wish

    def _done(self) -> None:
        with self._lock:
            self._job = None
            if self._wish is None:
                self._asked = ''

    def _begin(self) -> None:
        """The law's start, in the constructor's thread. A robot in a fault is no error."""
        problem = trouble(self._sample[0])
        if problem[0]:
            self._fail(*problem)
            return
        try:
            for _ in self._engage():
                time.sleep(POLL_S)
                self._look()
        except franky.RealtimeException as error:
            raise UserError(
                'this computer cannot control a Franka in real time',
                f'{error}'.removeprefix('libfranka: '),
                'allow this user realtime priorities (rtprio in /etc/security/limits.conf), or'
                ' set cells.<cell>.arm.realtime: ignore to try anyway',
            ) from error
        except (franky.Exception, RuntimeError) as error:
            self._fail(f'the robot does not take the control loop: {error}')

    def _drive(self) -> None:
        while not self._closing.is_set():
            try:
                self._poll()
            except LOST:
                self._lose()
            except Exception as error:  # a fault with a reason, whatever it is
                self._fail(f'the driver could not go on: {error}')
            self._beat_s = time.monotonic()
            time.sleep(POLL_S)
        with suppress(franky.Exception, RuntimeError):  # nobody is left to tell
            self._end()

    def _poll(self) -> None:
        with self._lock:
            wish, self._wish = self._wish, None
        if wish is not None:
            self._job = wish()
        self._look()
        if self._job is not None:
            if next(self._job, self) is self:
                self._done()
        elif self._loop == 'law' and self._link is not None and not self._link.in_control():
            self._ended(self._link)

    def _look(self) -> None:
        """Takes the newest state, its peak force and its faults."""
        link = self._link
        if link is None:
            return
        before, raw, now_s = self._sample[0], link.read(), time.monotonic()
        if raw.time.to_sec() != before.time.to_sec():
            self._fresh_s = now_s
        force_n = float(np.linalg.norm(raw.O_F_ext_hat_K[:3]))
        with self._lock:
            self._peak_n = max(self._peak_n, force_n)
        self._sample = raw, self._clock.stamp(raw.time.to_sec(), time.time())
        text, reflex = trouble(raw)
        if text and not self._fault[0].startswith(text):
            self._fail(text, reflex)
        elif not self._fault[0] and (silence_s := now_s - self._fresh_s) > DOUBT_S:
            if link.hung_up():
                self._lose()
            elif self.config.realtime == 'enforce' and silence_s > SILENCE_S:
                self._fail(self._silent())

    def _ended(self, link: FrankaLink) -> None:
        """The control loop is gone although nobody ended it: says why."""
        self._loop, self._tracker = '', None
        why = 'it gives no reason'
        try:
            link.finish()
        except franky.ControlException as error:
            why = str(error).removeprefix('libfranka: ')
        text, reflex = trouble(link.read())
        self._fail(text or f'the robot ended the control: {why}', reflex)

    def _fail(self, text: str, reflex: bool = False) -> None:
        tracker = self._tracker
        if tracker is not None:
            tracker.set_target(self._sample[0].O_T_EE)
        self._fault = (text, reflex)
        self._tracker, self._moving = None, False
        self._done()

    def _lose(self) -> None:
        """Lets go of a connection. Its end may take a second, which must not pass in the thread
        of a `servo` that is just using it: it is kept until that is over.
        """
        kept = self._link, self._tracker
        self._fail(self._silent())
        self._link, self._loop = None, ''
        time.sleep(POLL_S)
        del kept

    def _silent(self) -> str:
        return f'the robot at {self.config.address} does not answer'

    # ------------------------------------------------------------------ jobs: a step at each poll

    def _engage(self) -> Job:
        """Starts the law at the present pose and sees it run."""
        link = self._link
        if link is None:
            return
        link.set_up()
        tracker = link.track()
        self._loop, begun_s = 'law', time.monotonic()
        while time.monotonic() - begun_s < WARM_S:
            yield
            if not link.in_control():
                self._ended(link)
                return
        self._tracker = tracker

    def _release(self) -> Job:
        """Ends the running control loop with the motion that is made for it."""
        link, loop = self._link, self._loop
        if link is None:
            return
        self._tracker, self._loop = None, 'ending'
        if link.in_control():
            if loop == 'law':
                link.rest()
            elif loop == 'joints':
                link.end_joints()
        while link.in_control():
            yield
        self._loop = ''
        link.finish()

    def _joint_motion(self, goal: Array, speed_rad_s: float) -> Job:
        link = self._link
        if link is None or self._fault[0]:
            self._moving = False
            return
        yield from self._release()
        link.move_joints(goal, speed_rad_s)
        self._loop, arrived_s = 'joints', 0.0
        while not self._settled(goal, arrived_s):
            if not arrived_s and np.abs(self._sample[0].q_d - goal).max() < ARRIVED_RAD:
                arrived_s = time.monotonic()
            yield
            if not link.in_control():
                self._ended(link)
                return
        yield from self._halt()

    def _settled(self, goal: Array, arrived_s: float) -> bool:
        """The arm stands at the goal, or the command has stood there for long enough."""
        if not arrived_s:
            return False
        off, speed = np.abs(self._sample[0].q - goal).max(), np.abs(self._sample[0].dq).max()
        waited_s = time.monotonic() - arrived_s
        return bool(off < ARRIVED_RAD and speed < STILL_RAD_S) or waited_s > SETTLE_S

    def _halt(self) -> Job:
        """Back to the law at the present pose."""
        if self._tracker is None and not self._fault[0]:
            yield from self._release()
            yield from self._engage()
        elif self._tracker is not None:
            self._tracker.set_target(self._sample[0].O_T_EE)
        self._moving = False

    def _recovery(self) -> Job:
        if self._link is None:
            try:
                self._link = FrankaLink(self.config)
            except UserError as error:
                self._fault = (f'{error.what}: {error.why}'.removesuffix(': '), False)
                return
            self._clock.restart()
        link = self._link
        with suppress(franky.ControlException):  # the fault that we are leaving
            yield from self._release()
        text, reflex = link.clear_errors()
        if text:
            self._fault = (f'{text}; recovery did not clear it', reflex)
            return
        yield from self._engage()
        if self._tracker is not None:
            self._fault = ('', False)

    def _end(self) -> None:
        """Lets go of the robot: hold, fade, disconnect."""
        if self._tracker is not None:
            self._tracker.set_target(self._sample[0].O_T_EE)
        deadline = time.monotonic() + 3.0
        for _ in self._release():
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        self._link = None
