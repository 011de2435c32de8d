# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Cameras on the page: serials, sizes, pace and place are checked before anything starts."""

import pytest

from user_core.config import RunConfig, SimCameraConfig, load, weights_hash
from user_core.errors import UserError
from user_core.plan import plan

PAGE = """
name: seen
machines: {robot: {}, gpu: {}}
cells:
  arm0:
    machine: robot
    arm: {kind: franka}
    cameras:
      wrist:
        {kind: realsense, serial: '017322071690', width: 64, height: 48, crop: [0.2, 0, 0.8, 1]}
      side: {kind: v4l2, device: /dev/v4l/by-id/side, machine: gpu}
policy: {kind: cnn, machine: gpu}
replay: {machine: gpu}
learner: {machine: gpu}
"""


@pytest.fixture
def page(tmp_path):
    file = tmp_path / 'seen.yaml'
    file.write_text(PAGE)
    return file


def refusal(page, *settings: str) -> str:
    with pytest.raises(UserError) as caught:
        load(page, settings)
    return str(caught.value)


def test_a_serial_keeps_its_leading_zero_and_a_number_is_refused(page):
    assert load(page).cells['arm0'].cameras['wrist'].serial == '017322071690'
    bare = PAGE.replace("'017322071690'", '17322071690')
    page.write_text(bare)
    assert 'cells.arm0.cameras.wrist.serial is 17322071690, but must be a valid string' in refusal(
        page
    )


def test_one_device_is_one_camera(page):
    camera = '{kind: realsense, serial: "017322071690"}'
    twice = 'are both device 017322071690 of machine robot'
    assert twice in refusal(page, f'cells.arm0.cameras.side={camera}')
    other = f'cells.arm1={{machine: robot, cameras: {{wrist: {camera}}}}}'
    assert twice in refusal(page, other)


def test_each_device_is_a_node_where_it_is_plugged_in(page):
    cameras = [n for n in plan(load(page)) if n.executable in ('camera', 'cameras')]
    assert [(n.path, n.machine) for n in cameras] == [
        ('/arm0/wrist/camera', 'robot'),
        ('/arm0/side/camera', 'gpu'),
    ]


def test_drawn_cameras_need_no_serial_share_a_node_and_may_wait(page):
    config = load(page, ['arm=sim', 'cameras=sim'])
    assert config.pace == 'lockstep'
    assert config.cells['arm0'].cameras['wrist'] == SimCameraConfig(
        width=64, height=48, crop=(0.2, 0, 0.8, 1)
    )
    cameras = [n for n in plan(config) if n.executable in ('camera', 'cameras')]
    assert [n.path for n in cameras] == ['/arm0/cameras']
    assert load(page, ['arm=sim']).pace == 'realtime'


def test_nothing_can_be_drawn_where_nothing_is_simulated(page):
    assert 'an arm of kind franka has none' in refusal(page, 'cameras=sim')


def test_the_cells_of_a_policy_see_alike(page):
    other = 'cells.arm1={machine: robot, cameras: {wrist: {}}}'
    said = refusal(page, 'arm=sim', 'cameras=sim', other)
    assert 'cells.arm1.cameras must have the names and sizes of cells.arm0.cameras' in said


def test_a_policy_that_sees_needs_cameras():
    assert 'policy.kind cnn needs cameras' in refusal('peg_rlpd', 'policy.kind=cnn')


def test_what_a_row_shows_is_known_before_the_run(page):
    config = load(page)
    assert config.views == {'side': (128, 128), 'wrist': (48, 64)}
    assert config.picture_bytes == 3 * (128 * 128 + 48 * 64)


def test_weights_belong_to_the_views_they_were_learned_from(page):
    same = load(page, ['cells.arm0.cameras.side.max_age_s=0.2', 'policy.device=cuda'])
    assert weights_hash(same) == weights_hash(load(page))
    other = load(page, ['cells.arm0.cameras.side.width=64'])
    assert weights_hash(other) != weights_hash(load(page))


def test_a_camera_is_not_lost_between_two_of_its_pictures(page):
    slow = 'cells.arm0.cameras.side.fps=3'
    assert 'max_age_s must be above 1 / fps = 0.333' in refusal(page, slow)


def test_a_crop_has_room():
    with pytest.raises(ValueError, match='left < right'):
        RunConfig(name='n', cells={'arm0': {'cameras': {'wrist': {'crop': (0.5, 0, 0.4, 1)}}}})
