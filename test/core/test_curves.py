# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Curves end no run: a full disk costs points, a restart draws nothing twice."""

import errno
from pathlib import Path
import threading

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from user_core.curves import Curves


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of every curve, as TensorBoard shows them."""
    events = EventAccumulator(str(folder), size_guidance={'scalars': 0})
    events.Reload()
    return {
        tag: [(e.step, pytest.approx(e.value)) for e in events.Scalars(tag)]
        for tag in events.Tags()['scalars']
    }


def test_tensorboard_reads_what_several_threads_drew(tmp_path):
    curves = Curves(tmp_path / 'run')
    drawers = [
        threading.Thread(target=lambda t=t: [curves.point(t, n / 4, n) for n in range(50)])
        for t in ('a/x', 'b/y')
    ]
    for drawer in drawers:
        drawer.start()
    for drawer in drawers:
        drawer.join()
    curves.close()
    assert read(tmp_path / 'run') == {t: [(n, n / 4) for n in range(50)] for t in ('a/x', 'b/y')}


@pytest.mark.parametrize('took', [0, 7, 1000])
def test_a_full_disk_costs_the_points_that_came_meanwhile_and_no_others(
    tmp_path, monkeypatch, took
):
    curves = Curves(tmp_path)
    curves.point('a', 1.0, 1)
    curves.flush()
    opened = Path.open

    class Full:
        """A file that takes `took` bytes."""

        def __init__(self, file) -> None:
            self.file = file

        def __enter__(self) -> 'Full':
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> int:
            self.file.write(data[:took])
            if took < len(data):
                raise OSError(errno.ENOSPC, 'No space left on device')
            return len(data)

    with monkeypatch.context() as full:
        full.setattr(Path, 'open', lambda *a, **k: Full(opened(*a, **k)))
        for step in (2, 3):
            curves.point('a', 1.0, step)
        curves.flush()
    curves.point('a', 1.0, 4)
    curves.close()
    lost = 2 if took < 1000 else 0
    assert curves.dropped == lost
    assert [s for s, _ in read(tmp_path)['a']] == ([1, 4] if lost else [1, 2, 3, 4])


def test_a_folder_that_cannot_be_made_ends_nothing_and_is_made_when_there_is_room(tmp_path):
    (tmp_path / 'file').write_text('in the way')
    curves = Curves(tmp_path / 'file' / 'run')
    curves.point('a', 1.0, 1)
    curves.flush()
    assert curves.dropped == 1
    (tmp_path / 'file').unlink()
    curves.point('a', 1.0, 2)
    curves.close()
    assert read(tmp_path / 'file' / 'run') == {'a': [(2, 1.0)]}


@pytest.mark.parametrize('torn', [0, 5, 60])
def test_a_process_that_tells_a_part_of_the_story_twice_goes_on_where_each_curve_ended(
    tmp_path, torn
):
    first = Curves(tmp_path)
    for step in range(0, 100, 10):
        first.point('a', 1.0, step)
        first.point('b', 1.0, step // 10)
    first.close()
    if torn:
        (file,) = tmp_path.iterdir()
        file.write_bytes(file.read_bytes()[:-torn])
    second = Curves(tmp_path)
    for step in range(50, 150, 10):  # from the last checkpoint
        second.point('a', 2.0, step)
        second.point('b', 2.0, step // 10)
    second.close()
    for tag, points in read(tmp_path).items():
        steps = [step for step, _ in points]
        assert steps == sorted(steps), tag
        assert len(steps) >= 14, tag
