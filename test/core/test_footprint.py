# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a run takes is said, and refused where it is not there, before it is taken."""

from __future__ import annotations

import pytest

from user_core import check
from user_core.config import RunConfig, load
from user_core.errors import UserError
from user_core.footprint import GB, ROW_BYTES, Footprint, available_memory, segment_bytes
from user_core.plan import plan

CAMERAS = (
    'cells.arm0.cameras={wrist: {kind: sim}, side: {kind: sim}}',
    'policy={kind: cnn}',
    'budget.env_steps=1000000',
)
PAIR = 2 * 128 * 128 * 3


def page(*settings: str) -> RunConfig:
    return load('peg_rlpd', [*CAMERAS, *settings])


def test_more_memory_than_is_free_is_refused_in_gigabytes():
    footprint = Footprint.of(page('replay.memory_gb=10'))
    footprint.refuse_memory(free=int(11 * GB))
    with pytest.raises(UserError, match=r'take 10\.\d GB of memory.*9\.0 GB are free'):
        footprint.refuse_memory(free=int(9 * GB))


def test_a_page_that_asks_for_more_memory_than_this_machine_has_does_not_start():
    free = available_memory() / GB
    config = page(f'replay.memory_gb={3 * free}', 'replay.window_rows=1000000000',
                  'budget.env_steps=1000000000')  # fmt: skip
    with pytest.raises(UserError, match='GB of memory'):
        check.memory(config, plan(config))


def test_pictures_take_what_the_page_gives_them_and_demonstrations_at_most_half_of_it():
    footprint = Footprint.of(page('replay.memory_gb=2', 'budget.max_demo_attempts=1000'))
    online, demos = footprint.frames
    assert 0.9 * 2 * GB < (online + demos) * PAIR <= 2 * GB
    assert demos <= online
    few = Footprint.of(page('replay.memory_gb=2', 'budget.max_demo_attempts=10'))
    assert few.frames[1] == 10 * 121
    assert few.frames[0] > online


def test_a_small_run_takes_no_more_than_its_rows():
    footprint = Footprint.of(page('budget.env_steps=1000', 'budget.max_demo_attempts=10'))
    assert footprint.memory_bytes < 0.5 * GB
    assert footprint.disk_bytes < 10 * GB


def test_without_pictures_a_run_takes_next_to_nothing():
    footprint = Footprint.of(load('peg_rlpd'))
    assert footprint.memory_bytes < 0.1 * GB
    assert footprint.disk_bytes < 1 * GB


def test_the_disk_is_bounded_by_the_page_and_never_below_the_window():
    bounded = Footprint.of(page('replay.disk_gb=30', 'replay.window_rows=10000'))
    assert 30 * GB < bounded.disk_bytes < 32 * GB
    window = Footprint.of(page('replay.disk_gb=1', 'replay.window_rows=100000'))
    assert window.disk_bytes > 100_000 * (PAIR + ROW_BYTES)


def test_segments_are_few_also_where_the_window_takes_more_than_the_page_gives_the_disk():
    assert segment_bytes(load('peg_rlpd', ['replay.disk_gb=1'])) == 64 << 20
    window = page('replay.disk_gb=1', 'replay.window_rows=1000000')
    assert 1_000_000 * PAIR / segment_bytes(window) < 256
    assert segment_bytes(page('replay.disk_gb=10000')) == 512 << 20


def test_pictures_of_another_machine_are_stored_as_jpeg():
    far = page('machines={local: {}, gpu: {}}', 'replay.machine=gpu', 'learner.machine=gpu')
    near = Footprint.of(page())
    assert Footprint.of(far).stored_picture_bytes < near.stored_picture_bytes / 3
    assert Footprint.of(far).picture_bytes == near.picture_bytes
    assert 'kB of pictures a row' in near.text
