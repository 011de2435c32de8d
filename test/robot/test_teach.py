# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A person guides the arm with keys; a fragment of a page comes out, or nothing is lost."""

from collections.abc import Iterator
import math
import os
from pathlib import Path
import pty
import subprocess
import sys

from boxes import address
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from user_core.config import load
from user_core.errors import UserError
from user_core.geometry import Pose
from user_robot.arm import make_arm
from user_robot.drive import Drive
from user_robot.latch import Mode
from user_robot.task import make_task
from user_robot.teach import main as command
from user_robot.teach.jog import Jog
from user_robot.teach.record import Records
from user_robot.teach.session import Teaching

ROOT = Path(__file__).parents[2]
EXACT = [
    f'cells.arm0.arm.{key}=0'
    for key in ('hole_error_m', 'hole_error_rad', 'grasp_error_m', 'grasp_error_rad')
]
LOW = 'task.start_height_m=0.04'
SHOWN = '++eeee1qqqq2wwdd'
"""Into the hole, target, out, start, sideways."""
DOWN = Rotation.from_quat([1.0, 0.0, 0.0, 0.0])


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def typed(monkeypatch) -> Iterator:
    """Runs the command in this process with keys from a pipe."""
    ends = []

    def run(keys: str, *settings: str) -> None:
        reader, writer = os.pipe()
        os.write(writer, keys.encode())
        os.close(writer)
        ends.append(os.fdopen(reader))
        monkeypatch.setattr(sys, 'stdin', ends[-1])
        command.teach('peg', 'peg_rlpd', 'arm=sim', LOW, *EXACT, *settings)

    yield run
    for end in ends:
        end.close()


def session(tmp_path, *settings: str, **limits: str) -> Teaching:
    """A session of the simulated arm without a terminal."""
    config = load('peg_rlpd', [LOW, *EXACT, *settings])
    arm = make_arm(config.cells['arm0'].arm, 0.1)
    task = make_task(config.task)
    arm.reset(task.home, 0)
    task.frame = arm.state().pose
    drive = Drive(arm, command._limits(config, 'arm0', command.OWN | limits), task, 0.1)
    part = tmp_path / 'lab.yaml.part'
    return Teaching(Jog(drive), config.cells['arm0'].arm, part, lambda records: 'written')


def press(teaching: Teaching, keys: str) -> list[str]:
    """Presses keys one after the other, each when the last one's motion is over."""
    said = []
    for key in keys:
        said.append(teaching.press(key))
        teaching.advance(0.01)
        while not teaching.settled():
            teaching.advance(0.01)
    return said


def here(teaching: Teaching) -> Pose:
    return teaching.jog.drive.sample().state.pose


# ---------------------------------------------------------------------- the whole way


def test_what_was_taught_is_a_fragment_that_puts_the_task_where_it_was_shown(
    typed, tmp_path, capsys
):
    out = tmp_path / 'lab.yaml'
    typed(f'{SHOWN}x', f'out={out}')
    assert f'with={out}' in capsys.readouterr().out
    config = load('peg_rlpd', [f'with={out}'])
    assert config.task.frame.position_m == pytest.approx((0.5, 0.0, 0.132), abs=0.003)
    assert config.task.start_height_m == pytest.approx(0.04, abs=0.004)
    assert config.task.start_xy_m > 0
    task, safety = make_task(config.task), config.cells['arm0'].safety
    for seed in range(50):
        x, y, z = task.frame.rotation.inv().apply(task.start(seed).position - task.frame.position)
        for value, low, high in zip((x, y, z), safety.box_min_m, safety.box_max_m, strict=True):
            assert low < value < high
    assert safety.box_max_m[0] > 0.02  # it went 2 cm forward
    assert config.algorithm == load('peg_rlpd').algorithm
    assert not list(tmp_path.glob('*.part'))


def test_the_corners_that_were_recorded_are_the_sides_of_the_box(typed, tmp_path):
    out = tmp_path / 'lab.yaml'
    typed(f'{SHOWN}w3sssssaaa4x', f'out={out}')
    safety = load('peg_rlpd', [f'with={out}']).cells['arm0'].safety
    # The task's y points against the base's.
    assert safety.box_max_m[:2] == pytest.approx((0.03, 0.02), abs=0.003)
    assert safety.box_min_m[:2] == pytest.approx((-0.02, -0.01), abs=0.003)


def test_a_box_beside_the_target_is_refused_and_the_session_goes_on(typed, tmp_path, capsys):
    out = tmp_path / 'lab.yaml'
    typed(f'{SHOWN}3w4xssssaaaa4x', f'out={out}')
    assert 'The box does not hold the target' in capsys.readouterr().out
    assert out.exists()


def test_records_of_a_session_that_ended_early_are_offered_and_taken_up(typed, tmp_path, capsys):
    out, part = tmp_path / 'lab.yaml', tmp_path / 'lab.yaml.part'
    with pytest.raises(UserError, match=f'keys ended without x. What was recorded is in {part}'):
        typed(SHOWN, f'out={out}')
    assert not out.exists()
    typed('px', f'out={out}')
    assert f'earlier session are in {part}' in capsys.readouterr().out
    assert load('peg_rlpd', [f'with={out}']).task.start_height_m == pytest.approx(0.04, abs=0.004)
    assert not part.exists()


def test_earlier_records_that_are_not_taken_up_are_kept_aside(typed, tmp_path):
    out = tmp_path / 'lab.yaml'
    for keys in ('1', '-2'):
        with pytest.raises(UserError, match='without x'):
            typed(keys, f'out={out}')
    old = Records.read(tmp_path / 'lab.yaml.part.old')
    new = Records.read(tmp_path / 'lab.yaml.part')
    assert old is not None
    assert new is not None
    assert (old.target is None, old.start is None) == (False, True)
    assert (new.target is None, new.start is None) == (True, False)


def test_an_existing_file_is_replaced_only_when_that_was_asked_for(typed, tmp_path):
    out = tmp_path / 'lab.yaml'
    out.write_text('precious')
    with pytest.raises(UserError, match='overwrite=yes'):
        typed('x', f'out={out}')
    assert out.read_text() == 'precious'
    typed(f'{SHOWN}x', f'out={out}', 'overwrite=yes')
    assert load('peg_rlpd', [f'with={out}'])
    assert {p.name for p in tmp_path.iterdir()} == {'lab.yaml'}


@pytest.mark.parametrize('settings', [['reach=far'], ['force=0'], ['cell=arm9'], ['seeds=1']])
def test_a_setting_that_makes_no_sense_is_a_sentence(typed, settings):
    with pytest.raises(UserError):
        typed('x', *settings)


# ---------------------------------------------------------------------- keys and limits


@pytest.mark.parametrize(
    ('key', 'axis', 'sign'),
    [('w', 0, 1), ('s', 0, -1), ('a', 1, 1), ('d', 1, -1), ('q', 2, 1), ('e', 2, -1)],
)
def test_a_key_moves_the_tcp_by_a_step_along_an_axis_of_the_base(tmp_path, key, axis, sign):
    teaching = session(tmp_path)
    before = here(teaching).position
    press(teaching, f'++{key}{key}')
    way = here(teaching).position - before
    assert way[axis] == pytest.approx(0.02 * sign, abs=0.003)
    assert np.abs(np.delete(way, axis)).max() < 0.003


@pytest.mark.parametrize(
    ('key', 'axis', 'sign'),
    [('j', 0, 1), ('l', 0, -1), ('i', 1, 1), ('k', 1, -1), ('u', 2, 1), ('o', 2, -1)],
)
def test_a_key_turns_the_tcp_about_an_axis_of_the_base(tmp_path, key, axis, sign):
    teaching = session(tmp_path, 'cells.arm0.arm.clip_tilt_rad=0.03')  # firm enough to tilt it
    before = here(teaching).rotation
    press(teaching, f'+{key}{key}')
    turn = (here(teaching).rotation * before.inv()).as_rotvec()
    assert turn[axis] == pytest.approx(math.radians(4) * sign, abs=0.02)
    assert np.abs(np.delete(turn, axis)).max() < 0.01


def test_keys_do_not_lead_out_of_reach(tmp_path):
    teaching = session(tmp_path, reach='0.02')
    before = here(teaching).position[0]
    press(teaching, '++wwwww')
    assert here(teaching).position[0] - before == pytest.approx(0.02, abs=0.003)


def test_a_held_key_does_not_run_ahead_of_the_arm(tmp_path):
    teaching = session(tmp_path)
    begin = here(teaching).position[0]
    for _ in range(100):
        teaching.press('w')
        teaching.press('w')
        teaching.advance(0.01)
    released = here(teaching).position[0]
    assert released - begin > 0.01
    for _ in range(200):
        teaching.advance(0.01)
    assert here(teaching).position[0] - released < 0.013


def test_space_stops_the_arm_where_it_is(tmp_path):
    teaching = session(tmp_path)
    for key in '++www':
        teaching.press(key)
    for _ in range(30):
        teaching.advance(0.01)
    before = here(teaching).position[0]
    press(teaching, ' ')
    assert abs(here(teaching).position[0] - before) < 0.004


def test_a_contact_above_the_limit_holds_the_arm_until_r(tmp_path):
    teaching = session(tmp_path, force='5')
    press(teaching, '++wwww' + 4 * 'e')  # beside the hole
    assert teaching.jog.mode()[0] is Mode.FAULT
    assert 'force_limit_n' in teaching.status()
    assert 'r recovers' in teaching.status()
    lowest = here(teaching).position[2]
    press(teaching, 'eee')
    assert here(teaching).position[2] > lowest - 0.002
    press(teaching, 'r')
    assert 'recovered from' in teaching.heard()
    press(teaching, 'qq')
    assert teaching.jog.mode()[0] is Mode.ACTIVE
    assert here(teaching).position[2] > lowest + 0.01


def test_nothing_is_recorded_while_the_arm_moves(tmp_path):
    teaching = session(tmp_path)
    press(teaching, '++')
    teaching.press('w')
    for _ in range(25):
        teaching.advance(0.01)
    assert 'The arm moves' in teaching.press('1')
    assert teaching.records.target is None
    assert 'then 1' in teaching.status()


def test_a_start_that_is_not_above_the_target_is_refused(tmp_path):
    teaching = session(tmp_path)
    press(teaching, '1w2')
    with pytest.raises(UserError, match='above the target'):
        teaching.records.fragment(load('peg_rlpd').task, 'arm0')


def test_an_arm_without_a_load_on_its_page_says_so(tmp_path):
    teaching = session(tmp_path)
    assert 'kind sim has no load' in press(teaching, '5')[0]
    assert 'kind sim has no load' in press(teaching, '6')[0]


# ---------------------------------------------------------------------- terminals and robots


@pytest.mark.parametrize('end', ['ctrl-c', 'closed'])
def test_a_terminal_that_is_left_or_closed_ends_with_a_held_arm_and_nothing_lost(tmp_path, end):
    out = tmp_path / 'lab.yaml'
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(
            sys.executable,
            [
                sys.executable,
                '-m',
                'user_robot.teach.main',
                'peg',
                'peg_rlpd',
                'arm=sim',
                f'out={out}',
            ],
        )
    said = ''
    while 'then 1' not in said:
        said += os.read(fd, 4096).decode(errors='replace')
    os.write(fd, b'1')
    while 'target recorded' not in said:
        said += os.read(fd, 4096).decode(errors='replace')
    if end == 'ctrl-c':
        os.write(fd, b'\x03')
        while 'p takes it up' not in said:
            said += os.read(fd, 4096).decode(errors='replace')
        assert 'interrupted: the arm holds' in said.lower()
    else:
        os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert Records.read(Path(f'{out}.part')).target is not None
    assert not out.exists()
    assert 'Traceback' not in said


@pytest.mark.needs_ros
def test_a_franka_is_taught_through_its_own_driver(tmp_path):
    out, where = tmp_path / 'lab.yaml', address()
    done = subprocess.run(
        [
            sys.executable, '-m', 'user_core.cli', 'teach', 'peg', 'peg_rlpd', 'arm=franka_sim',
            f'cells.arm0.arm.address={where}', f'out={out}', 'cells.arm0.arm.clip_tilt_rad=0.05',
        ],
        input='++ee1qq2iii5kkkkkk5x', capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    config = load('peg_rlpd', [f'with={out}', 'arm=franka'])
    assert config.task.frame.position_m == pytest.approx((0.5, 0.0, 0.212), abs=0.006)
    assert config.task.start_height_m == pytest.approx(0.02, abs=0.006)
    assert config.cells['arm0'].arm.load_kg == pytest.approx(0.0, abs=0.15)


@pytest.mark.needs_ros
def test_a_foreign_arm_is_taught_through_its_topics(typed, tmp_path):
    foreign = subprocess.Popen(
        [
            sys.executable, str(ROOT / 'test/robot/foreign_arm.py'), '0.232',
            '--ros-args', '-r', '__ns:=/foreign',
        ]
    )  # fmt: skip
    try:
        typed('++e1qqq2x', 'arm=topics', f'out={tmp_path}/lab.yaml')
    finally:
        foreign.terminate()
        foreign.wait(20)
    config = load('peg_rlpd', [f'with={tmp_path}/lab.yaml'])
    assert config.task.frame.position_m == pytest.approx((0.5, 0.0, 0.222), abs=0.004)
    assert config.task.start_height_m == pytest.approx(0.03, abs=0.004)


def test_a_foreign_arm_that_is_not_there_is_a_sentence(typed, monkeypatch):
    from user_robot.foreign import arm as topics_arm

    monkeypatch.setattr(topics_arm, 'CONNECT_S', 0.5)
    with pytest.raises(UserError, match='No pose came'):
        typed('x', 'arm=topics')
