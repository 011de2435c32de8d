# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The drawn cameras' shell: one node for all of a cell.

Lockstep: every sample of the arm is answered with a view of its instant from each camera, a
repeated sample with the same view again. Realtime: each camera gives its pictures a second, and
none of a scene that stands still.
"""

from __future__ import annotations

from functools import partial
import time
from typing import Any

from rclpy.clock import Clock, ClockType
from std_msgs.msg import Header
from user_msgs.msg import RobotState

from user_core import topics
from user_core.diagnostics import Pulse
from user_core.messages import stamp
from user_core.node import Shell, run_node
from user_robot.camera.camera import Lens
from user_robot.camera.node import camera_info, image
from user_robot.spread import Spread
from user_sim.drawn import DrawnCameras
from user_sim.snapshot import place
from user_sim.studio import WHOLE

LOOK_S = 0.1
"""How often the cameras' state is looked at."""
TELL_S = 1.0
"""How often it is told."""


class CameraNode:
    """Draws and publishes in the executor's thread, where its graphics were made."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        cell, lockstep = shell.config.cells[shell.cell], shell.config.pace == 'lockstep'
        self.drawn = DrawnCameras(cell, place(shell.run, shell.cell), lockstep)
        keys = 'view', 'image_raw', 'camera_info'
        self.pubs = {
            name: {key: shell.create_pub(key, camera=name) for key in keys}
            for name in self.drawn.views
        }
        self.pulse = Pulse(TELL_S)
        self.latency = Spread()  # from the scene's being written to its view's being sent
        if lockstep:
            shell.create_sub('robot_state', self.on_state)
        else:
            for name, view in self.drawn.views.items():
                self.every(1 / view.section.fps, partial(self.on_tick, name))
        self.every(LOOK_S, self.on_look)

    def every(self, seconds: float, callback: Any) -> None:
        """A timer on the steady clock."""
        self.shell.create_timer(seconds, callback, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def on_state(self, message: RobotState) -> None:
        """Lockstep: the arm wrote the scene before it told this sample."""
        if message.id.run == self.shell.run and self.drawn.look(told=True):
            for name in self.drawn.views:
                self.publish(name, self.drawn.draw(name))

    def on_tick(self, name: str) -> None:
        """Realtime: the next picture of one camera, if there is anything new to see."""
        if self.drawn.look() and self.drawn.draw(name):
            self.publish(name, new=True)

    def publish(self, name: str, new: bool) -> None:
        """The view as it was drawn last; then what somebody listens to."""
        drawn, pubs, view = self.drawn, self.pubs[name], self.drawn.views[name]
        header = Header(stamp=stamp(drawn.stamp_ns), frame_id=f'{self.shell.cell}_{name}')
        pubs['view'].publish(image(header, view.pixels))
        if new and drawn.snapshot and view.frames > 1:  # the first one may show an old scene
            self.latency.add(time.time() - drawn.snapshot.stamp_s)
        if pubs['image_raw'].get_subscription_count():
            pubs['image_raw'].publish(image(header, drawn.whole(name)))
        if pubs['camera_info'].get_subscription_count():
            f, (width, height) = drawn.studio.focal_px(view.scene), WHOLE
            lens = Lens(f, f, width / 2, height / 2, 'plumb_bob', (0.0,) * 5)
            pubs['camera_info'].publish(camera_info(header, height, width, lens))

    def on_look(self) -> None:
        """How the cameras are, each second and at once when that changes: the worst for the run,
        all of them for rqt.
        """
        healths = {name: self.drawn.health(name) for name in self.drawn.views}
        for name, h in healths.items():
            part = topics.name('view', self.shell.cell, name).rpartition('/')[0]
            self.shell.diagnose(part, h.state, h.reason, self.shell.hardware, h.numbers)
        worst = max(healths.values(), key=lambda h: (h.state != 'STREAMING', h.age_s))
        if self.pulse.due('cameras', worst.state):
            self.shell.metrics(
                worst.state,
                worst.reason,
                **worst.numbers,
                latency_p50_ms=self.latency.ms(0.5),
                latency_p99_ms=self.latency.ms(0.99),
            )

    def close(self) -> None:
        """Lets the graphics go."""
        self.drawn.close()


def main() -> None:
    """Entry point."""
    run_node(CameraNode, 'cameras')


if __name__ == '__main__':
    main()
