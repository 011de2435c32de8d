# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What each key of `user teach` does, and the line that tells how things stand."""

from __future__ import annotations

from collections.abc import Callable
import math
from pathlib import Path
import threading
import time
from typing import Any

import numpy as np

from user_core.arm_config import Franka
from user_core.errors import UserError
from user_core.geometry import Array, Pose, relative
from user_robot.franka.kinematics import HAND
from user_robot.latch import Mode
from user_robot.row import Sample
from user_robot.teach.fit import PIVOTS_N, joined, load, pivot
from user_robot.teach.jog import Jog
from user_robot.teach.record import Records

HELP = """\
  w s  forward, back (x)      j l  turn about x      + -  step: 0.5, 1, 5, 10 mm
  a d  left, right   (y)      i k  turn about y    space  hold: stop here
  q e  up, down      (z)      u o  turn about z      g G  close, open the gripper
  1    record the target: peg fully in the hole       2    record the start: straight above
  3 4  record opposite corners of the box, from above (else: where you went + 10 mm)
  5    measure the load, in air: at two or more tilts of the hand
  6    find the TCP: tip in one spot, four or more orientations
  p    take up the records of an earlier session      r    recover from a fault
  h    this help          x    write the fragment and end          Ctrl-C  end without it
  An arm that can be guided by hand may be: the keys 1 to 6 record where it is."""
AIR_S = 0.5
"""A wrench in air is the mean over this."""
STALE_S = 0.5
STILL_M_S = 0.01
NOISE_N = 3.0
"""A force that varies by more (standard deviation) is none in air and at rest."""
GRIPPER = 0.1, 20.0


class Teaching:
    """Keys in, records out. Thread safe: one thread calls `advance`, another the rest.

    Args:
        jog: moves the arm.
        arm: configuration of the arm.
        part: where the records are kept between sessions.
        finish: writes the fragment and says so; UserError when something is missing.
    """

    def __init__(self, jog: Jog, arm: Any, part: Path, finish: Callable[[Records], str]) -> None:
        self.jog, self.arm, self.part, self.finish = jog, arm, part, finish
        self.records = Records()
        self.earlier = Records.read(part)
        self.done = False
        self.begin = jog.goal
        self._pivots: list[Pose] = []
        self._air: list[tuple[Pose, Array]] = []
        self._sampling: list[Array] | None = None
        self._answer = ''
        self._stamp_s, self._fresh_s = math.nan, time.monotonic()
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ time

    def advance(self, seconds: float) -> None:
        """One slice of time."""
        with self._lock:
            sample = self.jog.advance(seconds)
            state = sample.state
            if state.stamp_s != self._stamp_s:
                self._stamp_s, self._fresh_s = state.stamp_s, time.monotonic()
                self.records.visit(state.pose.position)
                if self._sampling is not None:
                    self._sampling.append(state.wrench)
                    self._sampled_s += seconds
                    if self._sampled_s >= AIR_S:
                        self._answer = self._said(self._weigh)

    def settled(self) -> bool:
        """Nothing goes on that a next key would disturb."""
        with self._lock:
            return self._sampling is None and self.jog.settled()

    def hold(self) -> None:
        """The arm stays where it is."""
        with self._lock:
            self.jog.rest()
            self.jog.drive.stop('the teaching has ended')

    # ------------------------------------------------------------------ keys

    def press(self, key: str) -> str:
        """Does what the key says; what people are told, '' for nothing."""
        if key == 'x':
            return self._said(self._end)
        with self._lock:
            own: dict[str, Callable[[], str]] = {
                '1': lambda: self._record('target'),
                '2': lambda: self._record('start'),
                '3': lambda: self._record('corner 1'),
                '4': lambda: self._record('corner 2'),
                '5': self._measure,
                '6': self._pivot,
                'p': self._take_up,
                'r': self._recover,
                'g': lambda: self._grip(0.0),
                'G': lambda: self._grip(0.08),
                'h': lambda: HELP,
                '?': lambda: HELP,
            }
            if key in own:
                return self._said(own[key])
            if self.jog.press(key):
                return ''
            return f'{key!r} means nothing here: h shows the keys'

    def heard(self) -> str:
        """What a key that took its time has to say, once."""
        with self._lock:
            said, self._answer = self._answer, ''
            return said

    def _said(self, step: Callable[[], str]) -> str:
        try:
            return step()
        except UserError as error:
            return str(error)

    def _still(self) -> Sample:
        """The sample that is recorded."""
        sample = self.jog.drive.sample()
        if time.monotonic() - self._fresh_s > STALE_S:
            raise UserError('nothing is recorded', 'the arm sends no measurements')
        if not sample.state.pose.isfinite():
            raise UserError('nothing is recorded', 'the measured pose is not finite')
        speed = float(np.linalg.norm(sample.state.twist[:3]))
        if speed > STILL_M_S:
            why = f'the arm moves with {1000 * speed:.0f} mm/s'
            raise UserError('nothing is recorded', why, 'hold still and press again')
        return sample

    def _record(self, what: str) -> str:
        pose = self._still().state.pose
        if what == 'target':
            self.records.target = pose
        elif what == 'start':
            self.records.start = pose
        else:
            self.records.corners[what] = pose
        self.records.visit(pose.position)
        return self._kept(f'{what} recorded at {_place(pose)}')

    def _kept(self, text: str) -> str:
        if self.earlier is not None:  # not taken up: kept aside
            self.part.replace(self.part.with_name(f'{self.part.name}.old'))
            self.earlier = None
        self.records.save(self.part)
        return text

    def _take_up(self) -> str:
        if self.earlier is None:
            raise UserError('there are no earlier records')
        self.records, self.earlier = self.earlier, None
        return f'the records of {self.part} are taken up'

    def _recover(self) -> str:
        self.jog.drive.recover(self._recovered)
        return ''

    def _recovered(self, done: bool, text: str) -> None:
        self._answer = text
        self.jog.rest()

    def _grip(self, width_m: float) -> str:
        speed = getattr(self.arm, 'gripper_speed_m_s', GRIPPER[0])
        force = getattr(self.arm, 'gripper_force_n', GRIPPER[1])
        self.jog.drive.grip(width_m, speed, 0.0 if width_m else force)
        return 'the gripper opens' if width_m else 'the gripper closes'

    def _end(self) -> str:
        text = self.finish(self.records)
        self.done = True
        self.part.unlink(missing_ok=True)
        return text

    # ------------------------------------------------------------------ the tool

    def _franka(self) -> Franka:
        if not isinstance(self.arm, Franka):
            raise UserError(f'an arm of kind {self.arm.kind} has no load and TCP on its page')
        return self.arm

    def _measure(self) -> str:
        self._franka()
        self._still()
        self._sampling, self._sampled_s = [], 0.0
        return 'measuring: hands off'

    def _weigh(self) -> str:
        samples, self._sampling = np.array(self._sampling), None
        if samples[:, :3].std(axis=0).max() > NOISE_N:
            raise UserError('nothing is measured', 'the force varies', 'hold it still, in air')
        self._air.append((self._still().state.pose, samples.mean(axis=0)))
        if len(self._air) < 2:
            return 'the load at one orientation: tilt the hand by 30 degrees, then 5 again'
        more, config = load(*zip(*self._air, strict=True)), self._franka()
        known_m = np.array(config.load_com_m)
        self.records.load = joined(
            config.load_kg, known_m, more, np.array(config.tcp_m) + HAND.apply(more.com_m)
        )
        kg, com_m = self.records.load
        return self._kept(
            f'load {kg:.3f} kg, centre {_mm(com_m)} mm from the flange, of {len(self._air)}'
            f' orientations that agree within {more.rms_n:.1f} N, {more.rms_nm:.2f} Nm'
        )

    def _pivot(self) -> str:
        config = self._franka()
        self._pivots.append(self._still().state.pose)
        if len(self._pivots) < PIVOTS_N:
            left = PIVOTS_N - len(self._pivots)
            return f'pivot {len(self._pivots)}: keep the tip there, turn the hand, {left} more'
        tip = pivot(self._pivots)
        self.records.shift_m = tip.offset_m
        self.records.tcp_m = np.array(config.tcp_m) + HAND.apply(tip.offset_m)
        return self._kept(
            f'TCP {_mm(self.records.tcp_m)} mm from the flange, of {len(self._pivots)}'
            f' orientations that agree within {tip.rms_m * 1000:.1f} mm'
        )

    # ------------------------------------------------------------------ the line

    def status(self) -> str:
        """What to do next, pose in mm and deg, force, step; the first words fit any terminal."""
        with self._lock:
            sample = self.jog.drive.sample()
            state, (mode, reason) = sample.state, self.jog.mode()
            turn = np.degrees(relative(self.begin, state.pose)[1])
            force_n = float(np.linalg.norm(state.wrench[:3]))
            stopped = mode in (Mode.FAULT, Mode.DISARMED)
            parts = (
                f'{mode.name}: {reason}: r recovers' if stopped else self._next(),
                _place(state.pose),
                f'{turn[0]:.1f} {turn[1]:.1f} {turn[2]:.1f} deg',
                f'{force_n:.0f} N',
                f'step {self.jog.step_m * 1000:g} mm',
            )
            return ' | '.join(parts)

    def _next(self) -> str:
        records = self.records
        if records.empty() and self.earlier is not None:
            return 'p takes up earlier records; or peg into the hole, then 1'
        if records.target is None:
            return 'peg into the hole, then 1'
        if records.start is None:
            return 'straight up by 10 cm, then 2'
        if len(records.corners) == 1:
            return 'the other corner of the box: 3 or 4'
        return 'x writes; or 3 4 box, 5 load, 6 TCP'


def _mm(values: Array) -> str:
    return ' '.join(f'{round(v * 1000, 1) + 0.0:.1f}' for v in values)


def _place(pose: Pose) -> str:
    return f'{_mm(pose.position)} mm'
