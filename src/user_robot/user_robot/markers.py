# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What rviz draws of a cell: box, goal, target, measured pose, wrench, mode. No node here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from builtin_interfaces.msg import Duration
from geometry_msgs.msg import Point, Vector3
import numpy as np
from std_msgs.msg import ColorRGBA
from user_msgs.msg import RobotState
from visualization_msgs.msg import Marker, MarkerArray

from user_core import config as schema
from user_core.geometry import Array, Pose
from user_core.messages import pose, pose_msg
from user_robot.latch import Mode

AXIS_M = 0.05
TOOL_M = 0.08
"""Length of the arrow along the tool."""
METRES_PER_N = 0.01
FELT_N = 1.0
"""A smaller force is not drawn."""
LIFETIME_S = 1
"""What is not drawn anew vanishes: a picture of a dead arm would lie."""
COLOURS = {
    Mode.DISARMED: (0.5, 0.5, 0.5),
    Mode.READY: (0.3, 0.8, 0.3),
    Mode.ACTIVE: (0.2, 0.5, 1.0),
    Mode.HOLD: (1.0, 0.8, 0.1),
    Mode.FAULT: (1.0, 0.1, 0.1),
}
"""Of the box and the text, by the arm's mode."""


class Markers:
    """Draws a cell's state, in the arm's base frame, metres.

    Args:
        cell: its name; the frame is `<cell>/base`.
        safety: the cell's limits.
        frame: the task's frame in the arm's base.
    """

    def __init__(self, cell: str, safety: schema.Safety, frame: Pose) -> None:
        self.cell = cell
        low, high = np.array(safety.box_min_m), np.array(safety.box_max_m)
        middle = frame.position + frame.rotation.apply((low + high) / 2)
        self._box = Pose(middle, frame.quaternion)
        self._size = Vector3(**dict(zip('xyz', (high - low).tolist(), strict=True)))
        self._text = middle + np.array([0.0, 0.0, float(np.linalg.norm(high - low))])
        self._goal = frame

    def draw(self, state: RobotState) -> MarkerArray:
        """Six markers, always with the same namespaces."""
        mode = Mode(state.mode)
        colour = COLOURS[mode]
        box = self._marker('box', Marker.CUBE, colour, 0.15)
        box.pose, box.scale = pose_msg(self._box), self._size
        goal = self._marker('goal', Marker.LINE_LIST, colour)
        goal.scale.x = 0.003
        for axis in np.eye(3):
            tip = self._goal.position + AXIS_M * self._goal.rotation.apply(axis)
            goal.points += _points(self._goal.position, tip)
            goal.colors += [_colour(axis)] * 2
        measured, applied = pose(state.pose), pose(state.applied)
        text = self._marker('mode', Marker.TEXT_VIEW_FACING, colour)
        text.text = '\n'.join(part for part in (f'{self.cell} {mode.name}', state.reason) if part)
        text.pose.position, text.scale.z = _points(self._text)[0], 0.02
        force = METRES_PER_N * state.wrench[:3]
        wrench = self._arrow('wrench', measured.position, force, (1.0, 0.5, 0.0))
        if np.linalg.norm(force) < METRES_PER_N * FELT_N:
            wrench.action = Marker.DELETE
        return MarkerArray(
            markers=[
                box,
                goal,
                self._tool('measured', measured, (0.9, 0.9, 0.9)),
                self._tool('applied', applied, (0.2, 0.5, 1.0)),
                wrench,
                text,
            ]
        )

    def _tool(self, name: str, at: Pose, colour: Iterable[float]) -> Marker:
        """An arrow along the tool, its tip at the TCP."""
        way = at.rotation.apply([0.0, 0.0, TOOL_M])
        return self._arrow(name, at.position - way, way, colour)

    def _arrow(self, name: str, start: Array, way: Array, colour: Iterable[float]) -> Marker:
        arrow = self._marker(name, Marker.ARROW, colour)
        arrow.points = _points(start, start + way)
        arrow.scale.x, arrow.scale.y, arrow.scale.z = 0.005, 0.012, 0.015
        return arrow

    def _marker(self, name: str, kind: int, colour: Iterable[float], alpha: float = 1.0) -> Any:
        # Stamp 0: rviz takes the newest transform, whichever clock the cell has.
        marker = Marker(ns=name, type=kind, color=_colour(colour, alpha))
        marker.header.frame_id = f'{self.cell}/base'
        marker.lifetime = Duration(sec=LIFETIME_S)
        return marker


def _points(*positions: Array) -> list[Point]:
    return [Point(**dict(zip('xyz', p.tolist(), strict=True))) for p in positions]


def _colour(rgb: Iterable[float], alpha: float = 1.0) -> ColorRGBA:
    red, green, blue = map(float, rgb)
    return ColorRGBA(r=red, g=green, b=blue, a=alpha)
