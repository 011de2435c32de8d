# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The drawn cameras of a cell: which scene they show, and when they count as lost. No ROS."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
import time

import numpy as np
from numpy.typing import NDArray

from user_core.arm_config import LOCKSTEP, PegScene
from user_core.camera_config import SimCameraConfig
from user_core.config import Cell
from user_core.messages import NS
from user_robot.camera.framing import Framing
from user_robot.camera.health import Health
from user_sim.snapshot import Reader, Snapshot
from user_sim.studio import WHOLE, Studio

TOLD_EVERY_S = 1.0
"""In lockstep, where a scene may rest, the arm repeats its sample within this time."""
FPS_N = 30


class Drawing:
    """One camera's view, overwritten by the next one.

    Attributes:
        scene: name of the scene's camera.
        part: left, top, right, bottom of what the view shows of WHOLE, pixels.
        pixels: (height, width, 3).
        snapshot: what they show, None before the first.
        frames: how many there were.
        drawn_s: when the last ones were drawn (steady clock).
    """

    def __init__(self, name: str, section: SimCameraConfig) -> None:
        self.section, self.scene = section, section.scene or name
        self.part = Framing(section).part(WHOLE[1], WHOLE[0])
        self.pixels = np.zeros((section.height, section.width, 3), np.uint8)
        self.snapshot: Snapshot | None = None
        self.frames = 0
        self.drawn_s: deque[float] = deque(maxlen=FPS_N)


class DrawnCameras:
    """All drawn cameras of one cell, as they see its newest scene.

    The thread that made it uses it: graphics belong to one thread.

    Attributes:
        views: the cameras by name.
        snapshot: the newest scene, None before the first.
        studio: draws.

    Raises:
        UserError: this machine cannot draw.
    """

    def __init__(
        self,
        cell: Cell,
        path: Path,
        lockstep: bool,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        assert isinstance(cell.arm, PegScene)  # the configuration has seen to it
        sections = {n: c for n, c in cell.cameras.items() if isinstance(c, SimCameraConfig)}
        self.views = {name: Drawing(name, section) for name, section in sorted(sections.items())}
        self.snapshot: Snapshot | None = None
        self._reader = Reader(path)
        self._simulated_time = cell.arm.kind in LOCKSTEP
        self._spare_s = TOLD_EVERY_S if lockstep else 0.0
        self._steady, self._alive_s = steady, steady()
        self._arranged: Snapshot | None = None
        widths, heights = zip(
            WHOLE, *((c.width, c.height) for c in sections.values()), strict=True
        )
        self.studio = Studio(cell.arm, max(widths), max(heights))

    @property
    def stamp_ns(self) -> int:
        """Instant of the newest scene: that of the arm's sample where the arm has a clock of its
        own, else the system's.
        """
        assert self.snapshot is not None
        s = self.snapshot
        return round((s.time_s if self._simulated_time else s.stamp_s) * NS)

    def look(self, told: bool = False) -> bool:
        """Takes the newest scene; False while there is none. `told`: the arm has just spoken."""
        new, old = self._reader.read(), self.snapshot
        if new and (old is None or (new.time_s, new.stamp_s) != (old.time_s, old.stamp_s)):
            self.snapshot, told = new, True
        if told:
            self._alive_s = self._steady()
        return self.snapshot is not None

    def draw(self, name: str) -> bool:
        """Draws a camera's view of the newest scene; False when it shows that already."""
        view = self.views[name]
        if view.snapshot is self.snapshot:
            return False
        self._draw(view.scene, view.part, view.pixels)
        view.snapshot = self.snapshot
        view.frames += 1
        view.drawn_s.append(self._steady())
        return True

    def whole(self, name: str) -> NDArray[np.uint8]:
        """All that a camera sees of the newest scene."""
        pixels = np.zeros((WHOLE[1], WHOLE[0], 3), np.uint8)
        self._draw(self.views[name].scene, (0, 0, *WHOLE), pixels)
        return pixels

    def health(self, name: str) -> Health:
        """How a camera is; its age is that of the scene's last sign of life (steady clock)."""
        view, age_s = self.views[name], self._steady() - self._alive_s
        if self.snapshot is None:
            return Health('OPENING', f'camera {name} waits for the simulated arm', age_s)
        max_age_s, times = view.section.max_age_s, view.drawn_s
        if age_s > max_age_s + self._spare_s:
            why = f'the simulated scene stands still for {age_s:.1f} s, and max_age_s is'
            return Health('LOST', f'camera {name}: {why} {max_age_s:g}', age_s, 0.0, view.frames)
        fps = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
        return Health('STREAMING', '', age_s, fps, view.frames)

    def close(self) -> None:
        """Lets scene and graphics go."""
        self._reader.close()
        self.studio.close()

    def _draw(self, scene: str, part: tuple[int, int, int, int], out: NDArray[np.uint8]) -> None:
        if self.snapshot and self._arranged is not self.snapshot:
            self.studio.arrange(self.snapshot)
            self._arranged = self.snapshot
        self.studio.draw(scene, part, out)
