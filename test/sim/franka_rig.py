# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated FR3 in a process of its own, and a franky client as a driver would be one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import time
from typing import Any

from boxes import Box
import franky
import numpy as np

from user_core.config import FrankaSimConfig
from user_core.geometry import Array
from user_sim.snapshot import Reader, place

DOWN = np.array([1.0, 0.0, 0.0, 0.0])
HOME = np.array([0.5, 0.0, 0.232])
HOME_Q = np.array([0.0, -0.3, 0.0, -2.2, 0.0, 1.9, 0.785])
START_S = 20.0


def home(x: float, y: float, z: float) -> Array:
    """A point this far from home, m."""
    return HOME + np.array([x, y, z])


class Server(Box):
    """A running server."""

    def picture(self) -> Reader:
        """Where its scene can be seen from outside."""
        return Reader(place('by-hand', f'arm0-{self.address}'))


@contextmanager
def serve(*options: str) -> Iterator[Server]:
    """A server in its own process, ended by SIGTERM."""
    server = Server(options)
    server.start()
    try:
        yield server
        server.process.terminate()
        out = server.process.communicate(timeout=START_S)[0]
        print(out)
        assert server.process.returncode == 0
        assert 'realtime factor' in out
    finally:
        server.process.kill()
        server.process.wait()


def connect(server: Server, force_n: float = 250.0) -> Any:
    """A franky robot with wide thresholds and no error."""
    robot = franky.Robot(
        server.address, realtime_config=franky.RealtimeConfig.Ignore, relative_dynamics_factor=0.7
    )
    robot.recover_from_errors()
    robot.set_collision_behavior(250.0, force_n)
    return robot


def tracker(robot: Any) -> Any:
    """The impedance law with the gains of the configuration."""
    c = FrankaSimConfig()
    return franky.CartesianImpedanceTracker(
        robot,
        gains=franky.CartesianImpedanceGains.diagonal(
            np.repeat([c.stiffness_n_m, c.stiffness_nm_rad], 3),
            np.repeat([c.damping_ns_m, c.damping_nms_rad], 3),
        ),
        translational_error_clip=np.full(3, c.clip_m),
        rotational_error_clip=np.array([c.clip_tilt_rad, c.clip_tilt_rad, c.clip_yaw_rad]),
        posture_task=franky.PostureTask(HOME_Q, c.posture_nm_rad),
        max_delta_tau=c.max_delta_tau_nm,
        period=0.05,
    )


def follow(law: Any, start: Array, end: Array, speed_m_s: float = 0.08) -> bool:
    """Moves the target along a line, then settles; False when control was lost."""
    steps = int(np.ceil(np.linalg.norm(end - start) / speed_m_s / law.period))
    for i in range(1, steps + 7):
        if not law.tick():
            return False
        share = min(i / max(steps, 1), 1.0)
        law.set_target(franky.Affine(start + share * (end - start), DOWN))
    return True


def errors(state: Any) -> set[str]:
    """Names of the errors that are on."""
    on = state.current_errors
    return {n for n in dir(on) if not n.startswith('_') and getattr(on, n) is True}


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; fails when it does not come."""
    end = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def motion_rad(reader: Reader, seconds: float = 0.2) -> float:
    """How far the joints move in this much simulated time."""
    first = reader.read()
    assert first is not None
    end, seen = time.monotonic() + START_S, [first]
    while seen[-1].time_s < first.time_s + seconds:
        assert time.monotonic() < end
        time.sleep(0.01)
        latest = reader.read()
        if latest is not None:
            seen.append(latest)
    return float(np.ptp([snapshot.q for snapshot in seen], axis=0).max())
