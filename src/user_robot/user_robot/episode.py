# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""One episode of one cell, step by step. No ROS, no thread: calls in, calls of the outbox out.

    sample ──► observation ──► answer ──► command ──► sample ──► next observation, then the row

Lockstep: the sample that answers a command closes its step, as soon as every camera saw that
instant. Realtime: `tick` closes it with the newest sample and the newest views.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
import math
import time
from typing import Protocol

import numpy as np

from user_core.outcome import Boundary, Goal, Mode
from user_robot.action_space import DIMENSION
from user_robot.chunk import Chunk
from user_robot.eyes import Eyes
from user_robot.latch import Mode as ArmMode
from user_robot.row import (
    NO_FLOATS,
    Answer,
    Choice,
    Command,
    Moment,
    Observation,
    Result,
    Row,
    Sample,
    Source,
)
from user_robot.safety import REFUSED
from user_robot.task import Task

ASK_AGAIN_S = 1.0
"""An observation without an answer is sent again after this long (steady clock), to a new node."""
PATIENCE_S = 8.0
"""Nobody answered, or arm or camera sent nothing, for this long (steady clock): it is void."""
TELL_S = 0.5
"""What is waited for longer than this (steady clock) is told."""
REFUSALS = 3
"""Unusable answers in a row that end an episode."""
SCRIPTED = 'the demonstrator'


class Outbox(Protocol):
    """Where an episode's messages go. In the caller's thread, in the order of the data's path."""

    def observation(self, observation: Observation) -> None:
        """To whoever acts."""

    def command(self, command: Command) -> None:
        """To the arm."""

    def row(self, row: Row) -> None:
        """To replay."""


class Episode:
    """Runs one episode at a time.

    Rows: n actions leave n rows and a closing row, which carries the boundary again and the last
    observation. An abort before an action's outcome was measured leaves no row for that action,
    only the closing row. A step in which no action arrived in time (realtime) keeps the target
    that was in force: its row says what that was, how late the action is at least, and is not
    valid for learning. Nor is one that a camera which is faster than the steps saw no change in.
    """

    def __init__(
        self,
        task: Task,
        eyes: Eyes,
        realtime: bool,
        period_s: float,
        out: Outbox,
        steady: Callable[[], float] = time.monotonic,
        system_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.task, self.eyes, self.out = task, eyes, out
        self.realtime, self.period_s = realtime, period_s
        self._steady, self._system_ns = steady, system_ns
        self._chunk = Chunk(realtime)
        self.counts: Counter[str] = Counter()
        self.newest_version: dict[str, int] = {}
        self.result: Result | None = None
        self.running = False
        self.step = 0

    # ------------------------------------------------------------------ in

    def begin(self, goal: Goal, episode: int, sample: Sample) -> None:
        """Starts at a sample taken after the reset; `episode` has to be new."""
        self.goal, self.id = goal, episode
        self.result = Result(episode)
        self.running, self.step = True, 0
        self._chunk.clear()
        self._choice: Choice | None = None
        self._idle = 'unanswered'
        self._outcome: Sample | None = None
        self._refusals = 0
        self._peak = 0.0
        self._lags = 0.0
        self._sample = sample
        self._heard_s = self._progress_s = self._steady()
        self._now = self._look(sample, 0)
        self._begun_s = sample.state.stamp_s
        if self._now.flaw:
            self.abort(self._now.flaw, void=True)
        else:
            self._ask()

    def on_answer(self, answer: Answer) -> None:
        """An action; whatever answers no open question is dropped and counted."""
        if not self._ours(answer):
            self.counts['stray_actions'] += 1
        elif unwanted := self._chunk.unwanted(answer, self.step, acting=self._choice is not None):
            self.counts[unwanted] += 1
            self._idle = 'outdated'
        elif problem := self._problem(answer):
            self._refuse(answer, problem)
        elif self.realtime and (blind := self.eyes.problem(self._sample)):
            self.abort(blind, void=True)
        else:
            self._refusals = 0
            self._chunk.answer = answer
            if self._choice is None:
                self._act()

    def on_sample(self, sample: Sample) -> None:
        """A sample of the arm; in lockstep the one that answers the command closes the step."""
        if not self.running:
            return
        self._sample, self._heard_s = sample, self._steady()
        stopped = sample.mode in (ArmMode.FAULT, ArmMode.DISARMED)
        if sample.episode != self.id:
            self.abort('the arm does not know the episode: it was started anew', void=True)
        elif self.realtime:
            self._peak = max(self._peak, sample.state.peak_force_n)
            if stopped:
                self._close(sample)
        elif sample.answers and sample.step == self.step and self._choice:
            self._outcome = sample
            self.on_view()
        elif stopped:
            self.abort(sample.reason, void=sample.mode is ArmMode.DISARMED)

    def on_view(self) -> None:
        """Lockstep: the last camera to see what the arm's sample measured closes the step."""
        if self.running and self._outcome and not self.eyes.problem(self._outcome):
            self._close(self._outcome)

    def tick(self) -> None:
        """Realtime: the control tick. Lockstep: now and then, only to watch the clock."""
        if not self.running:
            return
        if self._watch(self._steady()) or not self.realtime:
            return
        if self._choice or self.step:
            self._close(self._sample)
        elif (now := self._look(self._sample, 0)).flaw:
            self.abort(now.flaw, void=True)
        else:
            self._now, self._begun_s = now, now.sample.state.stamp_s
            self._ask()

    def abort(self, reason: str, void: bool) -> None:
        """Ends the episode without a measurement; `void`: it says nothing about the policy."""
        if self.running:
            self._finish(Boundary.ABORT, reason, void)

    def look(self) -> tuple[float, float]:
        """Distance to the goal in m and contact force in N, now."""
        state = self._sample.state
        return self.task.distance(state), float(np.linalg.norm(state.wrench[:3]))

    def lack(self) -> tuple[str, str]:
        """What a running episode waits for, if it does: one word, and a sentence why."""
        state, reason, since_s = self._lack()
        return (state, reason) if state and self._steady() - since_s > TELL_S else ('', '')

    # ------------------------------------------------------------------ the step

    def _look(self, sample: Sample, step: int) -> Moment:
        state = self.task.observe(sample.state)
        finite = sample.state.pose.isfinite() and sample.applied.isfinite()
        if finite and np.isfinite(state).all():
            flaw = self.eyes.problem(sample)
        else:
            flaw = 'the arm reports a state that is not finite'
        pictures = self.eyes.look(self._now.pictures if step else ())
        missed = self.eyes.missed(pictures)
        if missed:
            self.counts['missed_views'] += 1
        return Moment(
            step, sample, state, self._system_ns(), self._steady(), pictures, flaw, missed
        )

    def _ask(self) -> None:
        self._chunk.asked, self._asked_s = self.step, self._steady()
        goal, now = self.goal, self._now
        self.out.observation(
            Observation(
                self.id, self.step, goal.mode, goal.policy, goal.version, now.state,
                now.sample.state.stamp_s, now.pictures,
            )
        )  # fmt: skip

    def _act(self) -> None:
        """Sends the present step's action, if there is one, to the arm, inside the policy's
        range.
        """
        choice = self._choice = self._chunk.choice(self.step)
        if choice is None:
            return
        self._progress_s = self._steady()
        action = np.clip(choice.action, -1.0, 1.0)
        if not np.array_equal(action, choice.action):
            self.counts['out_of_range_actions'] += 1
        target = self.task.actions.to_target(action, self._now.sample.state.pose)
        self.out.command(Command(self.id, self.step, target, choice.gripper_m))

    def _close(self, sample: Sample) -> None:
        """The step's outcome is there: judge it, ask for the next action, hand out the row."""
        before, choice, self._outcome = self._now, self._choice, None
        after = self._look(sample, self.step + 1)
        if after.flaw:  # kept nowhere: the closing row is the last good observation's
            self.abort(after.flaw, void=True)
            return
        peak = max(self._peak, sample.state.peak_force_n)
        self._peak = 0.0
        outcome = replace(sample.state, peak_force_n=peak)
        verdict = self.task.judge(before.sample.state, outcome, self.step + 1)
        reason, goes_on = '', verdict[2] is Boundary.NONE
        if sample.mode in (ArmMode.FAULT, ArmMode.DISARMED):
            verdict, reason, goes_on = (0.0, False, Boundary.ABORT), sample.reason, False
        self._now, self._choice = after, None
        self.step += 1
        if choice is None:
            self.counts[f'idle_{self._idle}'] += 1
        self._idle = 'unanswered'
        if goes_on:
            self._act()
            if self._chunk.due(self.step):
                self._ask()
        row = self._row(before, choice, after, verdict, peak)
        self._count(row, choice, after, after.at_s - before.at_s)
        self.out.row(row)
        if not goes_on:
            self._finish(verdict[2], reason, void=sample.mode is ArmMode.DISARMED)

    def _row(
        self,
        before: Moment,
        choice: Choice | None,
        after: Moment,
        verdict: tuple[float, bool, Boundary],
        peak: float,
    ) -> Row:
        """`executed_action` is the inverse of what the arm applied, whoever asked for it."""
        sample, (reward, terminated, boundary) = after.sample, verdict
        executed = self.task.actions.from_target(sample.applied, before.sample.state.pose)
        followed = sample.answers and (sample.episode, sample.step) == (self.id, before.step)
        answer = choice.answer if choice else None
        clear = not (before.missed or after.missed or sample.limited & REFUSED)
        return Row(
            self.id,
            before.step,
            self.goal.mode,
            before.sample.state.stamp_s,
            before.arrived_ns,
            before.state,
            before.pictures,
            policy=answer.policy if answer else '',
            policy_version=answer.version if answer else 0,
            source=answer.source if answer else Source.POLICY,
            policy_action=choice.action if choice else NO_FLOATS,
            executed_action=executed.astype(np.float32),
            horizon=len(answer.chunk) if answer else 0,
            chunk_index=choice.index if choice else 0,
            gripper_m=choice.gripper_m if choice else math.nan,
            reward=reward,
            terminated=terminated,
            truncated=boundary in (Boundary.TIMEOUT, Boundary.ABORT),
            boundary=boundary,
            valid=choice is not None and followed and clear,
            lateness_s=0.0 if choice else after.at_s - before.at_s,
            peak_force_n=peak,
            limited=sample.limited,
        )

    def _finish(self, boundary: Boundary, reason: str, void: bool) -> None:
        result, now = self.result, self._now
        assert result is not None
        self.running = False
        self._outcome = None
        if not now.flaw:
            self.out.row(
                Row(
                    self.id, self.step, self.goal.mode,
                    now.sample.state.stamp_s, now.arrived_ns, now.state, now.pictures,
                    terminated=boundary in (Boundary.SUCCESS, Boundary.FAILURE),
                    truncated=boundary in (Boundary.TIMEOUT, Boundary.ABORT),
                    boundary=boundary,
                    closing=True,
                )
            )  # fmt: skip
        result.boundary, result.reason, result.void = boundary, reason, void
        result.length = self.step
        result.policy_lag = self._lags / self.step if self.step else 0.0
        result.duration_s = now.sample.state.stamp_s - self._begun_s

    # ------------------------------------------------------------------ checks and counts

    def _ours(self, answer: Answer) -> bool:
        """Whether the answer is of this episode, by who is asked in its mode."""
        if not self.running or answer.episode != self.id:
            return False
        return (answer.source == Source.POLICY) is (self.goal.mode is not Mode.DEMO)

    def _problem(self, answer: Answer) -> str:
        """Why an answer cannot be used, or ''."""
        chunk = answer.chunk
        if chunk.ndim != 2 or not chunk.size or chunk.shape[1] != DIMENSION:
            return f'sent an action of shape {chunk.shape} where (horizon, {DIMENSION}) is needed'
        if not np.isfinite(chunk).all():
            return 'sent an action that is not finite'
        asked = self.goal
        if answer.source == Source.POLICY and asked.policy and answer.policy != asked.policy:
            return f'answered for policy {asked.policy!r}'
        if answer.source == Source.POLICY and asked.version and answer.version != asked.version:
            return f'answered with version {answer.version} where {asked.version} was asked for'
        return ''

    def _refuse(self, answer: Answer, problem: str) -> None:
        """No motion for an unusable answer; the question is asked again, a few times."""
        self.counts['refused_actions'] += 1
        self._refusals += 1
        self._idle = 'refused'
        if self._refusals >= REFUSALS:
            who = f'policy {answer.policy!r}' if answer.policy else SCRIPTED
            self.abort(f'{who} (version {answer.version}) {problem}', void=True)
        elif not self.realtime:
            self._ask()

    def _lack(self) -> tuple[str, str, float]:
        """What is waited for: a word, a sentence, and since when (steady clock)."""
        now, policy = self._steady(), self.goal.policy
        silent_s, waited_s = now - self._heard_s, now - self._progress_s
        if self.realtime and silent_s > 5 * self.period_s:
            return 'WAIT_ARM', f'the arm sent no state for {silent_s:.1f} s', self._heard_s
        if self._outcome:
            blind = self.eyes.problem(self._outcome)
            return 'WAIT_CAMERA', f'{blind} within {waited_s:.1f} s', self._progress_s
        if self._choice:
            word = '' if self.realtime else 'WAIT_ARM'
            return word, f'the arm did not answer for {waited_s:.1f} s', self._progress_s
        state, who, why = 'WAIT_POLICY', f'policy {policy!r}', ''
        if self.goal.mode is Mode.DEMO:
            state, who = 'WAIT_DEMONSTRATOR', SCRIPTED
        elif not self.step and not self.newest_version.get(policy):
            state, why = 'WAIT_WEIGHTS', ': no weights of it were announced'
        return state, f'{who} did not answer for {waited_s:.1f} s{why}', self._progress_s

    def _watch(self, now: float) -> bool:
        """Asks again or gives up when a message does not come; True when the episode ended."""
        state, reason, since_s = self._lack()
        dead_arm = self.realtime and state == 'WAIT_ARM'
        if dead_arm or (state and now - since_s > PATIENCE_S):
            self.abort(reason, void=True)
        elif not self.realtime and self._choice is None and now - self._asked_s > ASK_AGAIN_S:
            self._ask()
        return not self.running

    def _count(self, row: Row, choice: Choice | None, after: Moment, period_s: float) -> None:
        result = self.result
        assert result is not None
        result.episode_return += row.reward
        result.peak_force_n = max(result.peak_force_n, row.peak_force_n)
        result.distance_m = min(result.distance_m, self.task.distance(after.sample.state))
        result.period_s.append(period_s)
        if choice is None:
            result.late_steps += 1
            return
        version = row.policy_version
        result.first_version = min(result.first_version or version, version)
        result.last_version = max(result.last_version, version)
        newest = self.newest_version.get(row.policy, version)
        self._lags += max(0, newest - version)
