# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What the process that owns the ARX SDK tells the driver: one datagram, 200 times a second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from user_core.geometry import Array, Pose
from user_robot.arm import ArmState


@dataclass(frozen=True, slots=True)
class Report:
    """One sample.

    Attributes:
        state: None: there is no sample, the process ends, `fault` says why.
        fault: what is wrong with the motors.
        released: they are damped for good.
        motion: number of the last joint motion that was asked for.
    """

    state: ArmState | None
    fault: str = ''
    released: bool = False
    motion: int = 0

    def pack(self) -> bytes:
        """As bytes; `unpack` is the inverse."""
        s = self.state
        if s is None:
            return np.zeros(1).tobytes() + self.fault.encode()
        numbers = (
            [s.q.size, s.stamp_s, s.gripper_m, s.peak_force_n, s.success_rate],
            [s.moving, s.grasped, self.released, self.motion],
            *(s.pose.position, s.pose.quaternion, s.twist, s.wrench, s.q, s.dq, s.tau),
        )
        return np.concatenate(numbers, dtype=float).tobytes() + self.fault.encode()


def unpack(data: bytes) -> Report:
    """The report in a datagram."""
    n = int(np.frombuffer(data, count=1)[0])
    if n == 0:
        return Report(None, data[8:].decode())
    count = 28 + 3 * n
    x: Array = np.frombuffer(data, count=count)
    fault = data[8 * count :].decode()
    state = ArmState(
        pose=Pose(x[9:12], x[12:16]),
        twist=x[16:22],
        wrench=x[22:28],
        q=x[28 : 28 + n],
        dq=x[28 + n : 28 + 2 * n],
        tau=x[28 + 2 * n :],
        gripper_m=float(x[2]),
        stamp_s=float(x[1]),
        peak_force_n=float(x[3]),
        success_rate=float(x[4]),
        fault=fault,
        moving=bool(x[5]),
        grasped=bool(x[6]),
    )
    return Report(state, fault, bool(x[7]), int(x[8]))
