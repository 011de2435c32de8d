# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What hinders an arm is one sentence with what to do, before anything moves."""

from pathlib import Path
import subprocess
import sys

from boxes import address, answering, reply
import numpy as np
import pytest

from user_core.config import FrankaConfig, TopicsConfig, load
from user_core.errors import UserError
from user_core.geometry import Pose
from user_robot import arm_check
from user_robot.arm_check import computer, look
from user_robot.arx.can import interface
from user_robot.foreign.check import judge
from user_robot.franka.kinematics import flange
from user_robot.teach.device import device

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def user(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-m', 'user_core.cli', *arguments],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip


@pytest.mark.needs_ros
def test_a_robot_of_another_version_is_one_message_and_no_second_attempt():
    where = address()
    with answering(where, reply(1, 9)) as requests:
        settings = (f'cells.arm0.arm.address={where}', 'cells.arm0.arm.realtime=ignore')
        done = user('check', 'peg_rlpd', 'arm=franka', *settings, 'move=yes')
    assert done.returncode == 2
    (said,) = done.stderr.strip().splitlines()
    assert 'server version 9' in said
    assert 'by-robot-server-version/9/' in said
    assert 'all is well' not in done.stdout
    assert len(requests) == 1


def cell(*settings: str):
    return load('peg_rlpd', list(settings)).cells['arm0']


def test_a_robot_that_is_not_there_speaks_of_fci():
    verdicts = list(look(cell('arm=franka', f'cells.arm0.arm.address={address()}'), move=False))
    assert not verdicts[-1][0]
    assert 'Activate FCI' in verdicts[-1][1]


def test_a_simulated_franka_passes_every_check_at_two_postures():
    where = address()
    with device(load('peg_rlpd', ['arm=franka_sim', f'cells.arm0.arm.address={where}']), 'arm0'):
        real = cell(
            'arm=franka',
            f'cells.arm0.arm.address={where}',
            'cells.arm0.arm.realtime=ignore',
            'cells.arm0.arm.min_success_rate=0.1',
        )
        verdicts = list(look(real, move=True))
    assert all(good for good, _ in verdicts), verdicts
    said = '\n'.join(text for _, text in verdicts)
    assert 'the hand answers: its fingers are' in said
    assert 'at this posture differ' in said
    assert 'after 5 deg of the last joint differ' in said
    assert 'control cycles came in time' in said


def test_a_pose_that_its_joints_do_not_explain_is_refused():
    from user_robot.franka.check import _agree

    frame = flange(np.array([0.0, -0.3, 0.0, -2.2, 0.0, 1.9, 0.785]))
    reported = Pose.from_rotvec(frame[:3, 3], np.zeros(3))
    turned = np.eye(4)
    turned[:3, 3] = frame[:3, 3]
    assert _agree(reported, turned, 'here')[0]
    turned[0, 3] += 0.002
    good, text = _agree(reported, turned, 'here')
    assert not good
    assert '2.00 mm' in text
    assert 'end effector in Desk' in text


@pytest.mark.parametrize(
    ('realtime', 'flag', 'version', 'good', 'words'),
    [
        ('enforce', '1', '#1 SMP', True, 'is a realtime one'),
        ('enforce', None, '#1 SMP PREEMPT_RT', True, 'is a realtime one'),
        ('enforce', None, '#1 SMP PREEMPT_DYNAMIC', False, 'arm.realtime=ignore'),
        ('ignore', '0', '#1 SMP PREEMPT_DYNAMIC', True, 'a busy computer stops the robot'),
    ],
)
def test_a_kernel_without_realtime_is_told_with_the_alternative_and_its_price(
    tmp_path, realtime, flag, version, good, words
):
    file = tmp_path / 'realtime'
    if flag is not None:
        file.write_text(f'{flag}\n')
    verdict = next(computer(FrankaConfig(realtime=realtime), file, version))
    assert verdict[0] is good
    assert words in verdict[1]


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(arm_check.LIBRARIES, 'franka_sim', 'no_such_library')
    good, text = next(look(cell('arm=franka_sim'), move=False))
    assert not good
    assert 'cannot import no_such_library' in text


@pytest.mark.parametrize('kind', ['sim', 'franka_sim', 'arx_sim'])
def test_a_simulated_arm_needs_nothing_but_its_library(kind):
    verdicts = list(look(cell(f'arm={kind}'), move=True))
    assert [good for good, _ in verdicts] == [True, True]
    assert 'nothing to connect' in verdicts[1][1]


def test_a_can_interface_that_is_missing_or_down_comes_with_the_line_that_helps(tmp_path):
    with pytest.raises(UserError, match=r'no CAN interface can0.*ip link set can0 up'):
        interface('can0', tmp_path)
    (tmp_path / 'can1').mkdir()
    (tmp_path / 'can1' / 'flags').write_text('0x40080\n')
    with pytest.raises(UserError, match=r'can1.*or correct'):
        interface('can0', tmp_path)
    with pytest.raises(UserError, match='can1 is down'):
        interface('can1', tmp_path)
    (tmp_path / 'can1' / 'flags').write_text('0x40081\n')
    assert 'is up' in interface('can1', tmp_path)


def heard(hz: float, age_s: float, *frames: str) -> list[tuple[float, float, str]]:
    return [(i / hz, age_s, frames[i % len(frames)]) for i in range(30)]


def test_a_topic_is_told_with_its_rate_age_and_frame():
    assert judge('/f/current_pose', True, 1, heard(100, 0.004, 'base'), 0.1) == (
        True, '/f/current_pose: 100 Hz, stamps at most 4 ms old, frame base',
    )  # fmt: skip


@pytest.mark.parametrize(
    ('needed', 'writers', 'age_s', 'good', 'words'),
    [
        (True, 0, None, False, 'ROS_DOMAIN_ID'),
        (True, 1, None, False, '1 publish it but sent nothing'),
        (False, 0, None, True, 'goes without'),
        (True, 1, 3.0, False, 'clocks of both computers'),
        (True, 2, 0.01, False, 'End all but one'),
    ],
)
def test_a_topic_that_is_silent_old_or_doubled_is_told(needed, writers, age_s, good, words):
    messages = [] if age_s is None else heard(50, age_s, 'base')
    verdict = judge('/f/current_pose', needed, writers, messages, 0.1)
    assert verdict[0] is good
    assert words in verdict[1]


@pytest.mark.needs_ros
def test_a_foreign_arm_that_is_not_there_is_told_by_its_topic(monkeypatch):
    from user_robot.foreign import check as arm_check_topics

    monkeypatch.setattr(arm_check_topics, 'LISTEN_S', 0.3)
    verdicts = list(arm_check_topics.topics(TopicsConfig(namespace='/other')))
    wrong = [text for good, text in verdicts if not good]
    assert ['/other/current_pose is silent' in wrong[0], len(wrong)] == [True, 2]
    assert 'nobody listens to /other/target_pose' in wrong[1].lower()
