# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps a camera streaming: opens it in turn, reads it, mends it, keeps the newest picture."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
import fcntl
import os
from pathlib import Path
import tempfile
import threading
import time

from user_core.errors import UserError
from user_robot.camera.camera import Camera, Frame
from user_robot.camera.health import Health

LOCK = Path(tempfile.gettempdir()) / 'user-cameras.lock'
"""Held by who opens a camera of this machine; its time is that of the last opening."""
TURN_S = 20.0
"""Whoever waits longer for its turn says so, and tries again."""
TURN_POLL_S = 0.05
READ_S = 0.1
FIRST_S = 5.0
"""A camera that was opened gives its first picture within this ..."""
SILENT_S = 1.0
"""... and each further one; then it is opened anew."""
SOUND_S = 5.0
"""A camera that has streamed for so long begins with no fault in its past."""
BACK_OFF_S = (0.5, 0.5, 1.0, 2.0)
"""Pause after an attempt without a device, with one and in vain once, twice, or more often."""
CLOSE_S = 2.0
FPS_N = 30


class Keeper:
    """One camera, in a thread of its own, and a slot for its newest picture.

    A picture that is not new is dropped, so a frozen camera is silent. What fails is tried again
    for ever; a device that is there and fails twice in a row is reset, `camera.resets` times, then
    it has failed. `take` and `health` may be called from any thread and never wait.

    Args:
        camera: not open.
        max_age_s: a camera whose newest picture is older is lost.
        wake: called from the thread when the slot is filled that was empty.
        lock: the file by which the machine's cameras take turns.
    """

    def __init__(
        self,
        camera: Camera,
        max_age_s: float,
        wake: Callable[[], None] = lambda: None,
        lock: Path = LOCK,
    ) -> None:
        self.camera, self.max_age_s = camera, max_age_s
        self._wake, self._turn_file = wake, lock
        self._lock = threading.Lock()
        self._slot: Frame | None = None
        self._newest: Frame | None = None
        self._exposed = self._arrived = time.monotonic()
        self._arrivals: deque[float] = deque(maxlen=FPS_N)
        self._frames = self._dropped = self._resets = 0
        self._reason, self._in_vain, self._tried, self._failed = '', 0, 0, False
        self._error: BaseException | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name='camera', daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ for others

    def take(self) -> Frame | None:
        """The newest picture, once."""
        if self._error is not None:
            raise self._error
        with self._lock:
            frame, self._slot = self._slot, None
            return frame

    def health(self) -> Health:
        """How the camera is now."""
        now = time.monotonic()
        with self._lock:
            age_s, silent_s = now - self._exposed, now - self._arrived
            numbers = self._frames, self._dropped, self._resets
            if self._newest is not None and age_s <= self.max_age_s:
                span_s = self._arrivals[-1] - self._arrivals[0] if self._arrivals else 0.0
                fps = (len(self._arrivals) - 1) / span_s if span_s > 0 else 0.0
                return Health('STREAMING', '', age_s, fps, *numbers)
            if self._newest is None and not self._reason:
                return Health('OPENING', f'{self.camera.title} is opened', age_s, 0.0, *numbers)
            if self._newest is None:
                why = f'no picture yet, after {silent_s:.1f} s'
            elif silent_s <= self.max_age_s:
                why = f'pictures come {age_s:.2f} s old, and max_age_s is {self.max_age_s}'
            else:
                why = f'no picture for {silent_s:.1f} s, and max_age_s is {self.max_age_s}'
            state = 'FAILED' if self._failed else 'LOST'
            return Health(state, f'{why}: {self._reason}'.rstrip(': '), age_s, 0.0, *numbers)

    def close(self) -> None:
        """Ends the thread, which lets the camera go."""
        self._closing.set()
        self._thread.join(CLOSE_S)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    with turn(self._turn_file, self.camera.open_gap_s):
                        self.camera.open()
                    self._stream()
                except TurnError as error:
                    self._say(str(error))
                except UserError as error:
                    self._mend(str(error))
                finally:
                    self.camera.close(again=True)
                self._closing.wait(BACK_OFF_S[min(self._in_vain, len(BACK_OFF_S) - 1)])
            self.camera.close()
        except Exception as error:  # a fault of the program: the node ends with it
            self._error = error
            self._wake()

    def _stream(self) -> None:
        """Reads until the end, or raises UserError."""
        opened = heard = time.monotonic()
        number, patience_s = -1, FIRST_S
        while not self._closing.is_set():
            frame = self.camera.read(READ_S)
            now = time.monotonic()
            if frame is not None and self._keep(frame, number, now):
                number, heard, patience_s = frame.number, now, SILENT_S
                if now - opened > SOUND_S:
                    self._in_vain, self._tried, self._failed = 0, 0, False
            elif now - heard > patience_s:
                what = 'no picture' if frame is None else 'no new picture, only the last one again'
                raise UserError(f'{self.camera.title} gave {what} for {patience_s:.0f} s')

    def _keep(self, frame: Frame, number: int, now: float) -> bool:
        """Puts a new picture into the slot; false when it is not new."""
        with self._lock:
            last = self._newest
            if frame.number <= number or (last is not None and frame.stamp_s == last.stamp_s):
                self._dropped += 1
                return False
            asleep = self._slot is None
            self._dropped += not asleep
            self._slot = self._newest = frame
            self._arrived, self._exposed = now, now - max(time.time() - frame.stamp_s, 0.0)
            self._arrivals.append(now)
            self._frames += 1
            self._reason = ''
        if asleep:
            self._wake()
        return True

    def _mend(self, reason: str) -> None:
        """After an attempt in vain: the first time only another one, then resets."""
        camera = self.camera
        camera.close(again=True)
        there = camera.present()
        self._in_vain = self._in_vain + 1 if there else 0
        if self._failed and not there:  # somebody pulled it out
            self._tried, self._failed = 0, False
        elif self._in_vain >= 2 and self._tried < camera.resets:
            self._tried += 1
            self._resets += 1
            camera.reset()
        elif self._in_vain >= 2 and camera.resets:
            self._failed = True
            reason += f' {self._tried} resets did not help: pull it out and plug it in again.'
        self._say(reason)

    def _say(self, reason: str) -> None:
        """Why there is no picture."""
        with self._lock:
            self._reason = reason
            self._arrivals.clear()


class TurnError(UserError):
    """The camera was not tried: another one is being opened all the time."""


@contextmanager
def turn(file: Path, gap_s: float) -> Iterator[None]:
    """The turn to open a camera: one process at a time, `gap_s` after the one before; at once
    when that is 0.

    Raises:
        TurnError: the one before took more than TURN_S.
    """
    if not gap_s:
        yield
        return
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
        file.chmod(0o666)  # for every user
    handle = os.open(file, os.O_RDWR)  # creating would be refused where another user made it
    try:
        end = time.monotonic() + TURN_S
        while not _locks(handle):
            if time.monotonic() > end:
                raise TurnError(
                    f'another camera is being opened, for more than {TURN_S:.0f} s',
                    f'its process holds {file}',
                    f'see which one hangs (`fuser -v {file}`), and end it or pull its camera out',
                )
            time.sleep(TURN_POLL_S)
        since_s = time.time() - os.fstat(handle).st_mtime
        time.sleep(max(gap_s - since_s, 0.0) if since_s >= 0 else gap_s)
        try:
            yield
        finally:
            os.utime(handle)
    finally:
        os.close(handle)


def _locks(handle: int) -> bool:
    """Takes the lock, which ends with the process; false while another one has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
