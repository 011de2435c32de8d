# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Videos of evaluations: what a policy's version saw when it first succeeded, else its first try.

videos/eval-<policy>-<version>-<camera>.webm
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
import contextlib
from dataclasses import dataclass, field
import os
from pathlib import Path
import shutil
import threading

from user_core import jpeg
from user_core.outcome import Boundary, Mode
from user_learning.row import Picture, Row

LEAST_PX = 256
"""Smaller pictures are enlarged to this height or more: players blur what they enlarge."""

MOST_BYTES = 256 << 20
"""Pictures of running episodes that are kept; what comes beyond is left out of the video."""

CLOSE_WITHIN_S = 4.0
"""Time for the videos that are not written yet when the run ends."""

LEAST_FREE_BYTES = 32 << 20
"""Room on the disk that is left to rows: with less, no video is written on."""

CODECS = (('VP80', 'webm'), ('mp4v', 'mp4'))
"""Ways to write a video, the best one first, as four characters and the file's ending."""


@dataclass
class _Episode:
    """A running episode, and its pictures in the order of its rows."""

    number: int
    version: tuple[str, int]
    rows: list[tuple[Picture, ...]] = field(default_factory=list)
    size: int = 0


class Videos:
    """Keeps the pictures of evaluation episodes and writes videos in a thread of its own, which
    yields to everything else. `tell` gets a sentence, in that thread, when one cannot be written.
    """

    def __init__(self, folder: Path, hz: float, tell: Callable[[str], None]) -> None:
        self.folder, self.hz, self.tell = folder, hz, tell
        self._episodes: dict[str, _Episode] = {}
        self._succeeded: dict[tuple[str, int], bool] = {}
        self._writer = ThreadPoolExecutor(1, 'videos', initializer=_yield_to_all)
        self._last: Future[None] | None = None
        self._late = threading.Event()

    def add(self, row: Row) -> None:
        """Takes the next row of a cell; rows of other modes cost nothing, nor do episodes that
        ended before a policy acted.
        """
        if row.mode not in (Mode.EVAL, Mode.EVAL_SAMPLED) or not row.images:
            return
        episode = self._episodes.get(row.cell)
        if episode is None or episode.number != row.episode:
            self._episodes.pop(row.cell, None)
            if not row.policy:
                return
            version = row.policy, row.policy_version
            episode = self._episodes[row.cell] = _Episode(row.episode, version)
        if self._succeeded.get(episode.version):
            return
        if sum(e.size for e in self._episodes.values()) < MOST_BYTES:
            episode.rows.append(row.images)
            episode.size += sum(picture.data.nbytes for picture in row.images)
        if row.closing:
            self._end(self._episodes.pop(row.cell), row.boundary == Boundary.SUCCESS)

    def close(self) -> None:
        """Waits for the last video, `CLOSE_WITHIN_S` at most; those that are late are left out."""
        if self._last is not None:
            wait([self._last], CLOSE_WITHIN_S)
        self._late.set()
        self._writer.shutdown(wait=True)

    def _end(self, episode: _Episode, success: bool) -> None:
        if success or episode.version not in self._succeeded:
            self._succeeded[episode.version] = success
            policy, number = episode.version
            name = f'eval-{policy}-{number}'
            self._last = self._writer.submit(self._write, name, episode.rows)

    def _write(self, name: str, rows: list[tuple[Picture, ...]]) -> None:
        try:
            for k, picture in enumerate(rows[0]):
                path = self.folder / f'{name}-{picture.name}'
                write(path, [row[k] for row in rows], self.hz, self._late)
        except Exception as error:  # OpenCV has errors of its own; rows go on without a video
            self.tell(f'no video {name}: {error}')


def write(path: Path, pictures: list[Picture], hz: float, late: threading.Event) -> Path:
    """Writes a video of pictures at `hz`. Returns its file, whose ending is the codec's.

    Raises:
        ValueError: the bytes of one are no picture of its size.
        OSError: the disk takes no file, OpenCV has no codec, or `late` was set before the end.
        UserError: OpenCV is missing.
    """
    cv2 = jpeg.codec()
    height, width = pictures[0].height, pictures[0].width
    times = -(-LEAST_PX // min(height, width))
    size = width * times // 2 * 2, height * times // 2 * 2
    path.parent.mkdir(exist_ok=True)
    for codec, ending in CODECS:
        part = path.with_name(f'.{path.name}.{ending}')
        video = cv2.VideoWriter(str(part), cv2.VideoWriter_fourcc(*codec), hz, size)
        try:
            if not video.isOpened():
                continue
            for picture in pictures:
                if late.is_set():
                    raise OSError('the run ended first')
                if shutil.disk_usage(part.parent).free < LEAST_FREE_BYTES:
                    raise OSError('the disk is nearly full')
                bgr = cv2.cvtColor(picture.pixels(), cv2.COLOR_RGB2BGR)
                video.write(cv2.resize(bgr, size, interpolation=cv2.INTER_NEAREST))
            video.release()
            if cv2.VideoCapture(str(part)).get(cv2.CAP_PROP_FRAME_COUNT) != len(pictures):
                raise OSError('the disk took only a part of it')  # OpenCV does not say so
            return part.rename(path.with_name(f'{path.name}.{ending}'))
        finally:
            video.release()
            part.unlink(missing_ok=True)
    raise OSError('OpenCV has no codec for it')


def _yield_to_all() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
