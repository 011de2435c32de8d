# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a person has shown, and the fragment of a page that follows from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from user_core.config import PegTask
from user_core.errors import UserError
from user_core.geometry import Array, Pose, relative

MARGIN_M = 0.01
"""The box reaches this much beyond where the TCP was."""
BEYOND_M = 0.005
"""... but no further below the target than this."""
INSIDE_M = 0.005
"""Starts keep this far inside the box."""
APART_M = 0.003
"""The TCP's way is remembered in steps of this."""


@dataclass(eq=False)
class Records:
    """Poses of the TCP in the base frame, and estimates for the page.

    Attributes:
        target: inserted.
        start: above the hole.
        corners: opposite corners of the box, seen along z; it reaches from target to start.
        visited: (3,) positions since the first of target and start.
        tcp_m: of the tip in the flange's frame, when it was found.
        shift_m: (3,) from the TCP in use to that tip, in the TCP's frame.
        load: (kg, (3,) m in the flange's frame), when it was measured.
    """

    target: Pose | None = None
    start: Pose | None = None
    corners: dict[str, Pose] = field(default_factory=dict)
    visited: list[Array] = field(default_factory=list)
    tcp_m: Array | None = None
    shift_m: Array = field(default_factory=lambda: np.zeros(3))
    load: tuple[float, Array] | None = None

    def visit(self, position: Array) -> None:
        """Remembers where the TCP is, once there is something to remember."""
        begun = self.target is not None or self.start is not None
        if begun and np.isfinite(position).all():
            last = self.visited[-1] if self.visited else None
            if last is None or float(np.linalg.norm(position - last)) > APART_M:
                self.visited.append(position)

    def empty(self) -> bool:
        """Nothing was recorded yet."""
        shown = (self.target, self.start, self.tcp_m, self.load)
        return not self.corners and all(part is None for part in shown)

    # ------------------------------------------------------------------ the fragment

    def fragment(self, task: PegTask, cell: str) -> dict[str, Any]:
        """Keys of the page that were taught.

        Args:
            task: of the page: what was not shown stays as it is there.
            cell: whose box and arm it is.

        Raises:
            UserError: something was not shown, or does not fit together.
        """
        if self.target is None or self.start is None:
            missing = 'target (1)' if self.target is None else 'start (2)'
            raise UserError(f'the {missing} was not recorded')
        frame, start = self._tip(self.target), self._tip(self.start)
        above = relative(frame, start)[0]
        height = -float(above[2])
        if height <= task.success_depth_m + INSIDE_M:
            raise UserError(
                f'the start lies {height * 1000:.0f} mm above the target, along its z',
                f'an episode would begin in success (task.success_depth_m'
                f' {task.success_depth_m * 1000:.0f} mm)',
                'go up, away from the hole, and record it again with 2',
            )
        low, high = self._box(frame, above)
        side = float(min(*-low[:2], *high[:2])) - INSIDE_M
        if side < 0:
            raise UserError(
                'the box does not hold the target and the start',
                f'it reaches from {_mm(low)} to {_mm(high)} mm in the frame of the target',
                'record the corners (3, 4) wider',
            )
        safety = {'box_min_m': _round(low), 'box_max_m': _round(high)}
        content: dict[str, Any] = {
            'cells': {cell: {'safety': safety}},
            'task': {
                'frame': {
                    'position_m': _round(frame.position),
                    'quaternion_xyzw': _round(frame.quaternion, 6),
                },
                'start_height_m': round(height, 4),
                'start_xy_m': round(min(task.start_xy_m, side), 4),
            },
        }
        arm: dict[str, Any] = {}
        if self.tcp_m is not None:
            arm['tcp_m'] = _round(self.tcp_m)
        if self.load is not None:
            arm |= {'load_kg': round(self.load[0], 3), 'load_com_m': _round(self.load[1])}
        if arm:
            content['cells'][cell]['arm'] = arm
        return content

    def _tip(self, pose: Pose) -> Pose:
        """The pose of the tip that was found, where the TCP in use was at `pose`."""
        return Pose(pose.position + pose.rotation.apply(self.shift_m), pose.quaternion)

    def _box(self, frame: Pose, start: Array) -> tuple[Array, Array]:
        """Lowest and highest corner in the task's frame, m."""
        if len(self.corners) == 2:
            ends = np.array([relative(frame, self._tip(p))[0] for p in self.corners.values()])
            low, high = ends.min(axis=0), ends.max(axis=0)
            # Beside the hole nothing can go as deep as in it.
            low[2], high[2] = min(low[2], start[2] - MARGIN_M), max(high[2], BEYOND_M)
            return low, high
        inverse = frame.rotation.inv()
        # The way was taken with the TCP in use; turned hands would blur it by their tilt alone.
        shift = frame.rotation.apply(self.shift_m)
        way = [inverse.apply(v + shift - frame.position) for v in self.visited]
        points = np.array([*way, start, np.zeros(3)])
        low, high = points.min(axis=0) - MARGIN_M, points.max(axis=0) + MARGIN_M
        high[2] = BEYOND_M
        return low, high

    # ------------------------------------------------------------------ between sessions

    def save(self, path: Path) -> None:
        """Writes the records, whole or not at all."""
        poses = {'target': self.target, 'start': self.start, **self.corners}
        content = {
            'poses': {
                key: [*p.position.tolist(), *p.quaternion.tolist()]
                for key, p in poses.items()
                if p is not None
            },
            'visited': [v.tolist() for v in self.visited],
            'tcp_m': None if self.tcp_m is None else self.tcp_m.tolist(),
            'shift_m': self.shift_m.tolist(),
            'load': None if self.load is None else [self.load[0], *self.load[1].tolist()],
        }
        _replace(path, json.dumps(content))

    @classmethod
    def read(cls, path: Path) -> Records | None:
        """The records of an earlier session; None when there are none that can be read."""
        try:
            content = json.loads(path.read_text())
            poses = {
                k: Pose(np.array(v[:3], float), np.array(v[3:], float))
                for k, v in content['poses'].items()
            }
            tcp, load = content['tcp_m'], content['load']
            return cls(
                poses.pop('target', None),
                poses.pop('start', None),
                poses,
                [np.array(v, float) for v in content['visited']],
                None if tcp is None else np.array(tcp, float),
                np.array(content['shift_m'], float),
                None if load is None else (float(load[0]), np.array(load[1:], float)),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def write(
    fragment: dict[str, Any], path: Path, head: str, overwrite: bool, check: Callable[[Path], Any]
) -> None:
    """Writes the fragment below a comment, whole or not at all.

    Args:
        fragment: keys of a page.
        path: of the new file.
        head: one line for people.
        overwrite: an existing file may be replaced.
        check: looks at the written file before it gets its name; raises what is wrong.

    Raises:
        UserError: the file exists and may not be overwritten, or cannot be written.
    """
    new = _new(path)
    try:
        new.write_text(f'# {head}\n{yaml.safe_dump(fragment, default_flow_style=None)}')
        check(new)
        if overwrite:
            new.replace(path)
        else:
            os.link(new, path)
    except FileExistsError as error:
        raise refusal(path) from error
    except OSError as error:
        raise UserError(f'{path} cannot be written', str(error), 'give out=FILE') from error
    finally:
        new.unlink(missing_ok=True)


def refusal(path: Path) -> UserError:
    """Why a file that exists is left alone."""
    return UserError(f'{path} exists', '', f'Set out={path} overwrite=yes, or another out=FILE')


def _replace(path: Path, text: str) -> None:
    new = _new(path)
    new.write_text(text)
    new.replace(path)


def _new(path: Path) -> Path:
    return path.with_name(f'.{path.name}.{os.getpid()}')


def _round(values: Array, digits: int = 4) -> list[float]:
    return [round(float(v), digits) + 0.0 for v in values]


def _mm(values: Array) -> str:
    return ' '.join(f'{v * 1000:.0f}' for v in values)
