# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The scripted demonstrators: able, slow, and no better than a person."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from user_core.config import load
from user_core.errors import UserError
from user_core.geometry import Pose, relative
from user_core.outcome import Boundary
from user_robot.safety import Safety
from user_robot.task import TASKS, make_task
from user_sim.arm import SimArm
from user_sim.expert import EXPERTS, PegExpert, ReachExpert, make_expert

EPISODES_N = 24
PAGE = Path(__file__).parents[2] / 'config' / 'peg_rlpd.yaml'
REACH = ['task={kind: reach}', 'cells.arm0.arm.clip_m=0.02', 'cells.arm0.safety.box_max_m=[1,1,1]']
REACH += ['cells.arm0.safety.box_min_m=[-1,-1,-1]']


MOVING = ['cells.arm0.arm.hole_error_m=0.02', 'task.success_lateral_m=0.03']


def demonstrate(overrides: list[str], episodes_n: int) -> list[tuple[Boundary, int, float]]:
    """(boundary, steps, peak force in N) of demonstrations in the shipped cell."""
    config = load(PAGE, overrides)
    cell = next(iter(config.cells.values()))
    task = make_task(config.task)
    arm, safety = SimArm(cell.arm), Safety(cell.safety, task.frame)
    expert = make_expert(config.task, 0)
    result = []
    for seed in range(episodes_n):
        arm.reset(task.start(seed), seed)
        expert.reset()
        if cell.expert_sees:
            hole = Pose(arm.data.mocap_pos[0], arm.data.mocap_quat[0][[1, 2, 3, 0]])
            expert.see(relative(task.frame, hole)[0])
        state, peak, boundary, step = arm.state(), 0.0, Boundary.NONE, 0
        while boundary == Boundary.NONE:
            action = expert(task.observe(state))
            target = task.actions.to_target(action, state.pose)
            arm.servo(safety.apply(target, state.pose, state.wrench)[0], np.nan)
            arm.advance(1 / cell.control_hz)
            before, state, step = state, arm.state(), step + 1
            peak = max(peak, state.peak_force_n)
            boundary = task.judge(before, state, step)[2]
        result.append((boundary, step, peak))
    return result


@pytest.fixture(scope='module')
def episodes() -> list[tuple[Boundary, int, float]]:
    return demonstrate([], EPISODES_N)


def test_the_expert_mostly_succeeds_but_not_always(episodes: list) -> None:
    successes = sum(b == Boundary.SUCCESS for b, _, _ in episodes)
    assert 0.5 * EPISODES_N <= successes < EPISODES_N


def test_the_expert_is_as_slow_as_a_person(episodes: list) -> None:
    steps = [n for b, n, _ in episodes if b == Boundary.SUCCESS]
    assert 60 <= np.mean(steps) <= 110
    assert min(steps) > 45


def test_the_expert_never_hits_hard(episodes: list) -> None:
    assert max(peak for _, _, peak in episodes) < 60


def test_where_the_hole_moves_the_expert_looks_and_mostly_succeeds() -> None:
    seen = demonstrate(MOVING, EPISODES_N)
    steps = [n for b, n, _ in seen if b == Boundary.SUCCESS]
    assert len(steps) >= 0.7 * EPISODES_N
    assert 60 <= np.mean(steps) <= 110
    assert max(peak for _, _, peak in seen) < 60


def test_without_a_look_it_aims_where_the_hole_should_be() -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(0, 0.02, (50, 19)).astype(np.float32)
    blind, looking = PegExpert(5), PegExpert(5)
    looking.see(np.zeros(3))
    assert all(np.array_equal(blind(s), looking(s)) for s in states)


def test_the_expert_knows_nothing_else_than_the_observation() -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(0, 0.02, (50, 19)).astype(np.float32)
    for kind in (PegExpert, ReachExpert):
        one, other = kind(5), kind(5)
        actions = [one(s) for s in states]
        assert all(np.array_equal(a, other(s)) for a, s in zip(actions, states, strict=True))
        assert all(
            a.shape == (6,) and a.dtype == np.float32 and abs(a).max() <= 1 for a in actions
        )


def test_the_expert_pauses_as_a_person_does() -> None:
    expert = PegExpert(1)
    state = np.zeros(19, np.float32)
    state[9] = -0.1
    state[7] = 0.05
    still = [np.abs(expert(state)).max() < 0.15 for _ in range(100)]
    assert 10 < sum(still) < 90


def test_the_expert_reaches_a_goal_far_slower_than_the_arm_could() -> None:
    reached = demonstrate(REACH, 8)
    steps = [n for b, n, _ in reached if b == Boundary.SUCCESS]
    assert len(steps) >= 5
    assert 24 <= np.mean(steps) <= 50


def test_every_task_has_an_expert_and_one_without_is_refused() -> None:
    assert sorted(EXPERTS) == sorted(TASKS)
    with pytest.raises(UserError, match='peg, reach'):
        make_expert(SimpleNamespace(kind='fold'), 0)
