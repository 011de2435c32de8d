# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What the cameras of a cell saw last, and whether that is good enough to act on. No ROS.

A view's instant of exposure is taken to this process's steady clock once, when it arrives; every
age is a subtraction from then on, whatever the cell's clock does.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
import math
import time

from user_core.camera_config import View as Camera
from user_core.messages import NS
from user_robot.row import Picture, Pictures, Sample, View

FASTER = 2.0
"""A camera with this many pictures a step gives a new one for each, whatever its phase."""


class Eyes:
    """The newest view of every camera. One thread.

    Realtime: a view counts while it is not older than its camera's `max_age_s`. Lockstep: it
    counts when it shows the very instant of the arm's sample.

    Args:
        cameras: their sections of the configuration, by name; may be empty.
        realtime: the cell's pace.
        period_s: one control step.
        steady: clock in s.
        system_ns: clock in ns; what devices stamp with.
    """

    def __init__(
        self,
        cameras: Mapping[str, Camera],
        realtime: bool,
        period_s: float,
        steady: Callable[[], float] = time.monotonic,
        system_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.cameras = dict(sorted(cameras.items()))
        self.realtime = realtime
        self.refused: dict[str, str] = {}
        self._faster = {n for n, c in cameras.items() if c.fps * period_s >= FASTER}
        self._drawn = {n for n, c in cameras.items() if getattr(c, 'kind', '') == 'sim'}
        self._steady, self._system_ns = steady, system_ns
        self._views: dict[str, View] = {}
        self._arm_ns, self._heard_s = 0, math.inf

    def hear(self, sample: Sample) -> None:
        """The arm's newest sample; drawn cameras stamp with its clock."""
        self._arm_ns, self._heard_s = round(sample.state.stamp_s * NS), self._steady()

    def see(
        self, name: str, stamp_ns: int, encoding: str, height: int, width: int, data: array[int]
    ) -> str:
        """A view of a camera has arrived; '' or why it is of no use, said once."""
        camera, now = self.cameras[name], self._steady()
        late_s = (self._now_ns(name, now) - stamp_ns) / NS
        whole = encoding == 'jpeg' or len(data) == height * width * 3
        if encoding not in ('rgb8', 'jpeg') or not whole or (height, width) != (
            camera.height, camera.width,
        ):  # fmt: skip
            problem = (
                f'camera {name} sends {width} x {height} {encoding or "without an encoding"} of'
                f' {len(data)} bytes where {camera.width} x {camera.height} rgb8 is asked for'
            )
            return self._refuse(name, problem)
        # Drawn pictures may come before the sample that tells their clock.
        if self.realtime and name not in self._drawn and -late_s > camera.max_age_s:
            problem = f'camera {name} sends pictures of {-late_s:.2f} s in the future'
            return self._refuse(name, f'{problem}: compare the clocks')
        self.refused.pop(name, None)
        exposed_s = now - max(0.0, late_s)
        last = self._views.get(name)
        if last is None or not self.realtime or exposed_s >= last.exposed_s:
            self._views[name] = View(
                stamp_ns, exposed_s, now, encoding, height, width, data, camera.jpeg_quality
            )
        return ''

    def problem(self, sample: Sample, since_s: float = -math.inf) -> str:
        """Why no step may begin or end with this sample, else ''.

        `since_s`: realtime: every view has to be exposed after that (steady clock).
        """
        now, stamp_ns = self._steady(), round(sample.state.stamp_s * NS)
        for name, camera in self.cameras.items():
            view = self._views.get(name)
            if name in self.refused:
                return self.refused[name]
            if view is None:
                return f'camera {name} sent no picture'
            if not self.realtime and view.stamp_ns != stamp_ns:
                return f'camera {name} sent no picture of this step'
            if self.realtime and view.exposed_s < since_s:
                return f'camera {name} sent no picture since the reset'
            age_s, came_s = now - view.exposed_s, now - view.arrived_s
            if self.realtime and age_s > camera.max_age_s:
                clocks = came_s <= camera.max_age_s
                return (
                    f'the newest picture of camera {name} is {age_s:.2f} s old, and'
                    f' {camera.max_age_s:g} s is the limit'
                ) + (f'; it came {came_s:.2f} s ago: compare the clocks' if clocks else '')
        return ''

    def look(self, before: Pictures = ()) -> Pictures:
        """The newest view of each camera that has one; `before`: those of the step before."""
        now, old = self._steady(), {p.name: p.view.stamp_ns for p in before}
        return tuple(
            Picture(
                name,
                view,
                now - view.exposed_s if self.realtime else 0.0,
                old.get(name) == view.stamp_ns,
            )
            for name in self.cameras
            if (view := self._views.get(name))
        )

    def missed(self, pictures: Pictures) -> bool:
        """Whether a camera that is fast enough for every step gave no new picture for this one."""
        return any(p.repeated and p.name in self._faster for p in pictures)

    def ages(self) -> dict[str, float]:
        """Age in s of the newest view of each camera that has one."""
        now = self._steady()
        return {name: now - view.exposed_s for name, view in self._views.items()}

    def _refuse(self, name: str, problem: str) -> str:
        """The problem; '' when the camera's last view was refused, too."""
        new = name not in self.refused
        self.refused[name] = problem
        return problem if new else ''

    def _now_ns(self, name: str, now: float) -> float:
        """The camera's clock."""
        if name not in self._drawn:
            return self._system_ns()
        return self._arm_ns + max(0.0, now - self._heard_s) * NS
