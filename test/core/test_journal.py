# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A run that was cut anywhere goes on as if it had not been: nothing is lost, nothing twice."""

from dataclasses import replace
import errno
import json
import os
import threading
import time

import numpy as np
import pytest
from scripted import ScriptedCell, make

from user_core import live
from user_core.errors import UserError
from user_core.journal import NAME, Journal, episode_of, line_of
from user_core.outcome import Announced, Boundary, Episode, Goal, Mode
from user_core.run import Run
from user_core.tally import StoppedError, Stored, Tally

EPISODE = Episode(
    Goal(Mode.TRAIN, 'actor', 0, 1 << 33),
    'arm0',
    Boundary.TIMEOUT,
    'a reason with "quotes", \n and é',
    length=7,
    peak_force=3.25,
    duration_s=0.7,
    period_s=np.array([0.1, 0.25], np.float32),
)


def event(n: int) -> dict:
    return {'what': 'episode', 'wall_s': float(n), 'seconds': {}, **line_of(EPISODE), 'seed': n}


def short(n: int) -> dict:
    return {'what': 'episode', 'text': 'é{"}', 'seed': n}


def test_an_episode_is_read_as_it_was_written(tmp_path):
    Journal(tmp_path / NAME).append(event(1))
    (read,) = Journal(tmp_path / NAME).events
    back = episode_of(read)
    assert replace(back, period_s=None) == replace(
        EPISODE, goal=replace(EPISODE.goal, seed=1), period_s=None
    )
    assert isinstance(back.boundary, Boundary)
    assert isinstance(back.goal.mode, Mode)
    np.testing.assert_array_equal(back.period_s, EPISODE.period_s)


def test_a_journal_that_was_torn_at_any_byte_keeps_every_whole_line_and_takes_the_next(tmp_path):
    whole = tmp_path / NAME
    journal = Journal(whole)
    sizes = [0]
    for n in range(3):
        journal.append(short(n))
        sizes.append(whole.stat().st_size)
    data = whole.read_bytes()
    torn = tmp_path / 'torn.jsonl'
    for size in range(len(data) + 1):
        torn.write_bytes(data[:size])
        kept = sum(size >= end for end in sizes) - 1
        journal = Journal(torn)
        assert [e['seed'] for e in journal.events] == list(range(kept))
        journal.append(short(9))
        assert [e['seed'] for e in Journal(torn).events] == [*range(kept), 9]


def test_of_a_torn_line_nothing_is_left_behind_a_shorter_one(tmp_path):
    path = tmp_path / NAME
    path.write_bytes(b'{"what": "episode", "text": "' + b'x' * 500)
    Journal(path).append(short(1))
    assert [e['seed'] for e in Journal(path).events] == [1]
    assert path.read_text() == json.dumps(short(1)) + '\n'


def test_a_last_line_of_zeros_counts_as_torn_and_a_damaged_one_in_between_is_refused(tmp_path):
    path = tmp_path / NAME
    line = json.dumps(event(0)).encode() + b'\n'
    path.write_bytes(line + b'\0' * 20 + b'\n')
    assert len(Journal(path).events) == 1
    path.write_bytes(line + b'\0' * 20 + b'\n' + line)
    with pytest.raises(UserError, match='line 2 is damaged'):
        Journal(path)


def test_a_line_that_the_disk_took_a_part_of_is_not_there_and_the_next_try_is_whole(
    tmp_path, monkeypatch
):
    journal = Journal(tmp_path / NAME)
    journal.append(event(0))
    write = os.pwrite
    monkeypatch.setattr(os, 'pwrite', lambda file, data, at: write(file, data[:30], at))
    with pytest.raises(OSError, match='a part'):
        journal.append(event(1))
    assert [e['seed'] for e in Journal(tmp_path / NAME).events] == [0]
    monkeypatch.undo()
    journal.append(event(2))
    assert [e['seed'] for e in Journal(tmp_path / NAME).events] == [0, 2]


# ---------------------------------------------------------------------- a run goes on


class Scene:
    """A cell whose demonstrations and training depend on how many there were, and whose judged
    episodes on their starts. The second streak passes, its fresh starts do not quite, then all is
    well.
    """

    def __init__(self) -> None:
        self.run: Tally | None = None

    def __call__(self, goal: Goal, _: int) -> bool:
        place = goal.seed & (1 << 28) - 1
        if goal.mode is Mode.DEMO:
            return len(self.run.demos) % 3 != 1
        if goal.mode is Mode.TRAIN:
            return len(self.run.trained) >= 5
        if goal.policy == 'clone':
            return place % 2 == 0
        streak, fresh = (goal.seed >> 28 & 15 == stream for stream in (2, 3))
        return not (streak and place == 4) and not (fresh and place < 3000 and place % 4 == 0)


OVERRIDES = (
    'evaluation.gate_successes=4',
    'evaluation.gate_window=5',
    'evaluation.min_steps_between=60',
    'evaluation.consecutive=6',
    'evaluation.fresh_episodes=8',
    'evaluation.clone_episodes=3',
)


def staged(folder) -> tuple[Run, ScriptedCell]:
    scene = Scene()
    cell = ScriptedCell(scene)
    scene.run = make(folder, cell, overrides=OVERRIDES)
    return scene.run, cell


def story(tally: Tally) -> dict:
    """What a run is judged by."""
    return {
        'demos': [e.success for e in tally.demos],
        'trained': [(e.success, e.length) for e in tally.trained],
        'env_steps': tally.env_steps,
        'attempts': [
            (a.kind, a.version, a.at_env_steps, a.successes, [e.goal.seed for e in a.episodes])
            for a in tally.attempts
        ],
        'best': tally.best and tally.best.successes,
    }


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """A run that nobody cut, and its journal."""
    folder = tmp_path_factory.mktemp('whole')
    run, _ = staged(folder)
    assert run() is True
    kinds = [a.kind for a in run.attempts]
    assert kinds == ['streak', 'streak', 'fresh', 'streak', 'fresh', 'clone', 'clone_sampled']
    return run, (folder / NAME).read_bytes()


def test_from_every_prefix_of_its_journal_a_run_comes_to_the_same_end(tmp_path, whole):
    reference, data = whole
    lines = data.splitlines(keepends=True)
    for n in range(len(lines) + 1):
        folder = tmp_path / str(n)
        (folder / 'checkpoints').mkdir(parents=True)
        for policy in ('actor', 'clone'):
            (folder / 'checkpoints' / f'{policy}-3.safetensors').write_bytes(policy.encode())
        (folder / NAME).write_bytes(b''.join(lines[:n]) + b'{"what": "epis')
        run, cell = staged(folder)
        before = {(e.goal.policy, e.goal.mode, e.goal.seed) for e in told(run)}
        assert run() is True
        assert story(run) == story(reference), n
        asked = [(g.policy, g.mode, g.seed) for g in cell.goals]
        assert len(set(asked)) == len(asked)
        assert not before & set(asked), n


def told(run: Tally) -> list[Episode]:
    judged = [e for a in run.attempts for e in a.episodes]
    return [*run.demos, *run.trained, *judged, *(run.open.episodes if run.open else ())]


def test_a_run_that_reads_its_journal_knows_what_the_run_that_wrote_it_knew(tmp_path, whole):
    reference, data = whole
    (tmp_path / NAME).write_bytes(data)
    assert story(staged(tmp_path)[0]) == story(reference)


class KilledError(Exception):
    pass


def killed_after(n: int, gives=lambda *_: True) -> ScriptedCell:
    """A cell that kills its run instead of the n-th answer."""

    def answer(goal: Goal, count: int) -> bool:
        if count == n:
            raise KilledError
        return gives(goal, count)

    return ScriptedCell(answer)


def test_a_run_that_is_killed_again_and_again_gives_no_start_twice(tmp_path):
    given = []
    for n in (1, 1, 2, 1, 1, 3):
        cell = killed_after(n)
        with pytest.raises(KilledError):
            make(tmp_path, cell, overrides=['budget.demos=9'])()
        given += [goal.seed for goal in cell.goals]
    assert len(set(given)) == len(given) == 9


def test_an_evaluation_that_was_cut_goes_on_with_its_version_whatever_is_newest(tmp_path):
    with pytest.raises(KilledError):
        make(tmp_path, killed_after(3 + 18 + 4))()  # in the streak's 4th episode
    cell = ScriptedCell()
    run = make(tmp_path, cell)
    assert len(run.open.episodes) == 3
    newer = Announced('actor', 9, 'newer', tmp_path / 'nowhere')
    announced, run.announced = run.announced, lambda p: newer if p == 'actor' else announced(p)
    assert run() is True
    assert [a.version for a in run.attempts[:2]] == [3, 3]
    assert len(run.attempts[0].episodes) == 10
    seeds = [e.goal.seed for e in run.attempts[0].episodes]
    assert len(set(seeds)) == 10


def test_an_evaluation_whose_version_is_gone_begins_anew_on_other_starts(tmp_path):
    with pytest.raises(KilledError):
        make(tmp_path, killed_after(3 + 18 + 4))()
    (tmp_path / 'checkpoints' / 'actor-3.safetensors').write_bytes(b'torn')
    cell = ScriptedCell()
    run = make(tmp_path, cell)
    judged = {e.goal.seed for e in run.open.episodes}
    assert run() is True
    assert not judged & {g.seed for g in cell.goals}
    assert len(run.attempts[0].episodes) == 10


@pytest.mark.parametrize(
    ('journaled', 'stored', 'asked'),
    [(2, 3, 0), (2, 2, 1), (3, 2, 1), (1, 3, 0)],
    ids=['one was stored untold', 'all told', 'power took one', 'two were stored untold'],
)
def test_demonstrations_are_counted_in_the_store_and_none_is_collected_twice(
    tmp_path, journaled, stored, asked
):
    make(tmp_path, ScriptedCell(), overrides=[f'budget.demos={journaled}']).demonstrate()
    cell = ScriptedCell()
    run = make(tmp_path, cell, stored=lambda: Stored(stored, 0))
    run.settle()
    run.demonstrate()
    assert len(cell.goals) == asked
    assert run.good_demos == 3
    again = make(tmp_path, ScriptedCell())  # what the store holds is journaled, too
    assert again.good_demos == 3


def test_of_training_steps_the_larger_count_counts_and_the_budget_is_kept(tmp_path):
    with pytest.raises(KilledError):
        make(tmp_path, killed_after(3 + 10, lambda goal, _: goal.mode is Mode.DEMO))()
    run = make(
        tmp_path,
        ScriptedCell(lambda goal, _: False, length=100),
        stored=lambda: Stored(3, 1250),
        overrides=['budget.env_steps=2000'],
    )
    assert run.env_steps == 9 * 20
    assert run() is False
    assert run.env_steps == 2050
    assert len(run.trained) == 9 + 8


def test_a_run_that_goes_on_waits_until_the_rows_are_handed_in(tmp_path):
    with pytest.raises(KilledError):
        make(tmp_path, killed_after(2)).demonstrate()
    cell, there = ScriptedCell(), []
    run = make(tmp_path, cell, stored=lambda: there[0] if there else None)
    run.starts = 1
    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    time.sleep(0.3)
    assert not cell.goals
    assert 'waits: rows of the last time' in live.line(run)
    there.append(Stored(2, 0))
    worker.join(timeout=20)
    assert sum(g.mode is Mode.DEMO for g in cell.goals) == 1


def test_wall_time_of_the_budget_goes_on_and_a_pause_costs_none(tmp_path):
    with pytest.raises(KilledError):
        make(tmp_path, killed_after(3)).demonstrate()
    run = make(tmp_path, ScriptedCell(), overrides=['budget.wall_s=1000'])
    assert 0 < run.elapsed() < 5
    lines = (tmp_path / NAME).read_text().splitlines()
    late = [json.dumps({**json.loads(line), 'wall_s': 999.9}) + '\n' for line in lines]
    (tmp_path / NAME).write_text(''.join(late))
    run = make(tmp_path, ScriptedCell(), overrides=['budget.wall_s=1000'])
    time.sleep(0.2)
    with pytest.raises(UserError, match='1000 s of wall time'):
        run()


@pytest.mark.parametrize('full', ['journal', 'version'])
def test_a_full_disk_holds_the_run_with_a_reason_and_it_goes_on_when_there_is_room(
    tmp_path, monkeypatch, full
):
    monkeypatch.setattr('user_core.tally.ROOM_S', 0.02)
    room = threading.Event()

    def no_room(*_):
        if not room.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cell = ScriptedCell()
    run = make(tmp_path, cell)
    if full == 'journal':
        append = run.journal.append
        monkeypatch.setattr(
            run.journal, 'append',
            lambda line: no_room() if line['what'] == 'episode' and not room.is_set()
            else append(line),
        )  # fmt: skip
    else:
        copy = __import__('shutil').copyfile
        monkeypatch.setattr('shutil.copyfile', lambda *a: no_room() or copy(*a))
    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    end = time.monotonic() + 20
    while not run.full:
        assert time.monotonic() < end
        time.sleep(0.01)
    asked = len(cell.goals)
    time.sleep(0.3)
    assert len(cell.goals) == asked
    assert 'No space left' in live.line(run)
    room.set()
    worker.join(timeout=20)
    assert run.attempts[-1].kind == 'clone_sampled'
    assert not run.full
    assert story(make(tmp_path, ScriptedCell())) == story(run)


def test_a_run_on_a_full_disk_ends_when_it_is_asked_to(tmp_path, monkeypatch):
    run = make(tmp_path, ScriptedCell())

    def no_room(_):
        run.stop.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run.journal, 'append', no_room)
    with pytest.raises(StoppedError):
        run()


def test_an_episode_that_ends_when_enough_are_there_counts_where_it_is_stored(tmp_path):
    """Two cells: the other one's demonstration is in the store, whoever was first."""
    meet = threading.Barrier(2, timeout=10)

    def together(goal, n):
        meet.wait()
        return True

    run = make(
        tmp_path, ScriptedCell(together), ScriptedCell(together), overrides=['budget.demos=1']
    )
    run.demonstrate()
    assert len(run.demos) == 2
    assert len(make(tmp_path, ScriptedCell(), ScriptedCell()).demos) == 2
