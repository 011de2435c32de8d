# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Videos of evaluation episodes, read back."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
from pathlib import Path

from colours import VIEWS, episode, tone
from disks import fill
import numpy as np
import pytest
from writing import mounted

from user_core import jpeg
from user_core.outcome import Boundary, Mode
from user_learning.row import Row
from user_learning.video import Videos


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def videos(tmp_path: Path, said: list[str]) -> Iterator[Videos]:
    videos = Videos(tmp_path / 'videos', 10.0, said.append)
    yield videos
    videos.close()


def evaluated(number: int, steps: int = 12, boundary: Boundary = Boundary.SUCCESS,
              encoding: str = 'rgb8', version: int = 3) -> list[Row]:  # fmt: skip
    return [
        dataclasses.replace(
            row,
            boundary=boundary if row.boundary else Boundary.NONE,
            policy_version=0 if row.closing else version,
        )
        for row in episode(number, steps, Mode.EVAL, encoding)
    ]


def frames(path: Path) -> tuple[list[np.ndarray], float]:
    cv2 = jpeg.codec()
    video, pictures = cv2.VideoCapture(str(path)), []
    while True:
        there, bgr = video.read()
        if not there:
            return pictures, video.get(cv2.CAP_PROP_FPS)
        pictures.append(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB))


@pytest.mark.parametrize('encoding', ['rgb8', 'jpeg'])
def test_an_evaluation_leaves_a_video_of_each_camera(
    tmp_path: Path, videos: Videos, encoding: str, said: list[str]
) -> None:
    for row in evaluated(90, encoding=encoding):
        videos.add(row)
    videos.close()
    assert not said
    for k, (camera, (height, width)) in enumerate(VIEWS.items()):
        pictures, hz = frames(tmp_path / 'videos' / f'eval-actor-3-{camera}.webm')
        assert len(pictures) == 13
        assert hz == pytest.approx(10.0)
        assert min(pictures[0].shape[:2]) >= 256
        assert pictures[0].shape[0] * width == pytest.approx(
            pictures[0].shape[1] * height, rel=0.02
        )
        assert np.abs(pictures[0].mean((0, 1)) - tone(90, 0, k)).max() < 12


def test_the_first_success_replaces_the_first_try_and_stays(
    tmp_path: Path, videos: Videos
) -> None:
    tries = [(10, 4, Boundary.TIMEOUT), (11, 5, Boundary.ABORT), (12, 6, Boundary.SUCCESS),
             (13, 7, Boundary.SUCCESS), (14, 8, Boundary.TIMEOUT)]  # fmt: skip
    for number, steps, boundary in tries:
        for row in evaluated(number, steps, boundary):
            videos.add(row)
    for row in evaluated(20, 9, Boundary.TIMEOUT, version=4):
        videos.add(row)
    videos.close()
    folder = tmp_path / 'videos'
    assert len(frames(folder / 'eval-actor-3-side.webm')[0]) == 7
    assert len(frames(folder / 'eval-actor-4-side.webm')[0]) == 10
    assert len(list(folder.iterdir())) == 4


def test_an_evaluation_that_ended_before_a_policy_acted_leaves_no_video(
    tmp_path: Path, videos: Videos
) -> None:
    for row in evaluated(1)[-1:] + evaluated(2, 4):
        videos.add(row)
    videos.close()
    names = {path.name for path in (tmp_path / 'videos').iterdir()}
    assert names == {f'eval-actor-3-{camera}.webm' for camera in VIEWS}


def test_a_video_that_is_not_done_when_the_run_ends_is_left_out_by_name(
    tmp_path: Path, videos: Videos, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('user_learning.video.CLOSE_WITHIN_S', 0.0)
    for row in evaluated(1, 2000):
        videos.add(row)
    videos.close()
    assert len(said) == 1
    assert 'the run ended first' in said[0]
    assert not list(tmp_path.rglob('.*.webm'))


def test_other_rows_leave_no_video_and_no_picture_in_memory(
    tmp_path: Path, videos: Videos
) -> None:
    for row in episode(1, 5) + episode(2, 5, Mode.DEMO) + evaluated(3)[:-1] + evaluated(4)[:2]:
        videos.add(row)
    kept = [e.number for e in videos._episodes.values()]
    videos.close()
    assert kept == [4]
    assert not (tmp_path / 'videos').exists()


def test_an_episode_too_long_for_memory_keeps_its_beginning(
    tmp_path: Path, videos: Videos, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('user_learning.video.MOST_BYTES', 4000)
    for row in evaluated(1, 40):
        videos.add(row)
    videos.close()
    row_bytes = sum(3 * h * w for h, w in VIEWS.values())
    pictures, _ = frames(tmp_path / 'videos' / 'eval-actor-3-side.webm')
    assert len(pictures) == -(-4000 // row_bytes)


def test_a_picture_that_cannot_be_read_is_said_and_harms_nobody(
    videos: Videos, said: list[str]
) -> None:
    for row in evaluated(1):
        side, wrist = row.images
        videos.add(dataclasses.replace(row, images=(side, dataclasses.replace(wrist, width=99))))
    videos.close()
    assert len(said) == 1
    assert 'eval-actor-3' in said[0]


@pytest.mark.parametrize('least', [None, 0])
def test_a_disk_without_room_costs_the_video_and_nothing_else(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, least: int | None
) -> None:
    """Rows come first; and OpenCV says nothing when it could not write all."""
    if least is not None:
        monkeypatch.setattr('user_learning.video.LEAST_FREE_BYTES', least)
    with mounted(tmp_path / 'disk', 'size=1m') as disk:
        fill(disk)
        videos = Videos(disk / 'videos', 10.0, said.append)
        for row in evaluated(1):
            videos.add(row)
        videos.close()
        assert len(said) == 1
        assert 'no video eval-actor-3' in said[0]
        assert not list(disk.rglob('*.*m*'))
