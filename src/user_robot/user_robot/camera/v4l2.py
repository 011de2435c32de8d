# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The driver of cameras that the kernel knows (UVC), and of video files, through OpenCV."""

from __future__ import annotations

import os
from pathlib import Path
import time

import cv2

from user_core.camera_config import V4l2Config
from user_core.errors import UserError
from user_robot.camera.camera import Frame, Lens

SELECT_S = '1'
"""A device that sends nothing is given up after this; OpenCV waits for 10 s otherwise."""
FOREIGN_S = 60.0
"""A stamp that says so long ago, or the future, is none of the steady clock."""


class V4l2Camera:
    """A V4L2 device, or a video file that is shown at `fps` in a loop.

    A device's stamps are the kernel's, of the steady clock, moved to the system's.
    """

    open_gap_s = 0.0
    resets = 0
    lens: Lens | None = None

    def __init__(self, config: V4l2Config) -> None:
        self.config = config
        self.title = f'the camera {config.device}'
        self._capture: cv2.VideoCapture | None = None
        self._count = 0
        self._due: float | None = None  # of a file's next picture, steady clock

    def open(self) -> None:
        """Begins to capture."""
        c, path = self.config, Path(self.config.device)
        if not path.exists():
            raise UserError(
                f'{self.title} is not connected',
                f'there are: {", ".join(self.others()) or "none"}',
                'plug it in, or correct cells.<cell>.cameras.<camera>.device',
            )
        os.environ.setdefault('OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT', SELECT_S)
        film = path.is_file()
        capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG if film else cv2.CAP_V4L2)
        if not film:
            capture.set(cv2.CAP_PROP_FOURCC, cv2.VideoWriter.fourcc(*c.fourcc))
            capture.set(cv2.CAP_PROP_FRAME_WIDTH, c.capture_width)
            capture.set(cv2.CAP_PROP_FRAME_HEIGHT, c.capture_height)
            capture.set(cv2.CAP_PROP_FPS, c.fps)
        if not capture.isOpened():
            capture.release()
            raise UserError(
                f'{self.title} does not begin',
                'it is no camera or video, another program has it, or this user may not read it',
                'see `fuser -v` and the group video, or give another device',
            )
        self._capture, self._due = capture, time.monotonic() if film else None

    def read(self, within_s: float) -> Frame | None:
        """The next picture of the device; of a file the next one when it is due."""
        capture = self._capture
        assert capture is not None
        if self._due is not None:
            wait_s = self._due - time.monotonic()
            time.sleep(max(min(wait_s, within_s), 0.0))
            if wait_s > within_s:
                return None
            # A late one does not hurry those that follow.
            self._due = (
                max(self._due, time.monotonic() - 1 / self.config.fps) + 1 / self.config.fps
            )
        came, picture = capture.read()
        if not came and self._due is not None:  # the film is over
            capture.set(cv2.CAP_PROP_POS_FRAMES, 0)
            came, picture = capture.read()
        if not came:
            raise UserError(f'{self.title} is lost', 'it gives no picture')
        self._count += 1
        color = cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
        stamped_s = 0.0 if self._due is not None else capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
        return Frame(color, time.time() - behind_s(stamped_s, time.monotonic()), self._count)

    def present(self) -> bool:
        """Whether the device is there."""
        return Path(self.config.device).exists()

    def others(self) -> list[str]:
        """The devices there are, by the names that stay first."""
        found = sorted(Path('/dev/v4l/by-id').glob('*')) + sorted(Path('/dev').glob('video*'))
        return [str(path) for path in found]

    def reset(self) -> None:
        """There is none."""

    def close(self, again: bool = False) -> None:
        """Lets the device go."""
        del again
        if self._capture is not None:
            self._capture.release()
            self._capture = None


def behind_s(stamped_s: float, now_s: float) -> float:
    """Time since the kernel stamped a picture, seconds long after a stall; 0 where it does not
    (stamp 0) or has another clock. Both on the steady clock.
    """
    seconds = now_s - stamped_s
    return seconds if stamped_s and 0 <= seconds < FOREIGN_S else 0.0
