# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The replay's node: what it does with a row beside storing it."""

from __future__ import annotations

from array import array
from pathlib import Path
from types import SimpleNamespace

from colours import episode
import pytest

pytest.importorskip('user_msgs.msg')
from user_msgs.msg import Image, StepId, Transition

from user_core import jpeg
from user_core.outcome import Mode
from user_learning.replay_node import ReplayNode
from user_learning.row import Row
from user_learning.store import Store
from user_learning.video import Videos

pytestmark = pytest.mark.needs_ros


def message(row: Row) -> Transition:
    """What a cell sends of it, as far as videos need it."""
    images = [
        Image(name=p.name, encoding=p.encoding, height=p.height, width=p.width,
              data=array('B', p.data.tobytes()))
        for p in row.images
    ]  # fmt: skip
    return Transition(
        id=StepId(run=row.run, cell=row.cell, episode=row.episode, step=row.step),
        incarnation=row.incarnation, seq=row.seq, mode=int(row.mode), policy=row.policy,
        policy_version=row.policy_version, boundary=int(row.boundary), closing=row.closing,
        images=images,
    )  # fmt: skip


def test_a_row_that_comes_twice_is_once_in_the_video(tmp_path: Path) -> None:
    store, said = Store(tmp_path / 'store'), []
    node = SimpleNamespace(
        shell=SimpleNamespace(run='run'),
        store=store,
        videos=Videos(tmp_path / 'videos', 10.0, said.append),
        waiting={},
        acknowledge=lambda: None,
    )
    for row in episode(1, 12, Mode.EVAL):
        for _ in range(2):
            ReplayNode.on_row(node, message(row))
    ReplayNode.close(node)
    assert store.duplicates == 13
    assert said == []
    cv2 = jpeg.codec()
    video = cv2.VideoCapture(str(tmp_path / 'videos' / 'eval-actor-3-side.webm'))
    frames = 0
    while video.read()[0]:
        frames += 1
    assert frames == 13
