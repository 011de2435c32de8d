# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Looks whether a cell's cameras can be used: `camera_check CELL MACHINE`, the configuration on
stdin.

Prints a line of JSON for each verdict: {"good": bool, "text": sentence}. An empty MACHINE stands
for all. From each camera one picture is saved, with the part framed that becomes its view.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
import json
import os
from pathlib import Path
import signal
import sys
import tempfile
import time
from typing import Any

import cv2

from user_core.config import RunConfig, from_json
from user_core.errors import UserError
from user_robot.camera.camera import Frame, make_camera
from user_robot.camera.framing import Framing
from user_robot.camera.keeper import FIRST_S, LOCK, READ_S, turn
from user_robot.verdict import Verdict, bad

WITHIN_S = 120
"""A check that takes longer is ended, wherever it hangs."""
LOOK_S = 1.0
"""A camera is watched for so long: its exposure settles, its rate is seen."""
RATE = 0.8
"""Share of `fps` that a camera must reach."""
RED = (255, 0, 0)


@dataclass
class Seen:
    """What a camera showed: its newest picture; arrival (steady clock) and age of each, s."""

    frame: Frame
    arrivals: list[float] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)


def look(config: RunConfig, cell: str, machine: str, folder: Path) -> Iterator[Verdict]:
    """Verdicts on the cameras of a cell that are on the machine ('': on any), as they come."""
    place = config.cells[cell].machine
    for name, camera in config.cells[cell].cameras.items():
        if machine not in ('', camera.machine or place):
            continue
        if camera.kind == 'sim':
            from user_sim.camera_check import check

            yield from check(config, cell, name, folder)
            continue
        try:
            good, text = judge(camera, watch(camera), folder / f'{cell}_{name}.png')
            yield good, f'{name}: {text}'
        except UserError as error:
            yield False, f'{name}: {error}'


def watch(config: Any) -> Seen:
    """Its pictures for LOOK_S after the first.

    Raises:
        UserError: a library is missing, the camera is not there, or it does not stream.
    """
    camera, seen = make_camera(config), None
    try:
        with turn(LOCK, camera.open_gap_s):
            camera.open()
        end = time.monotonic() + FIRST_S
        while time.monotonic() < end:
            frame = camera.read(READ_S)
            if frame is None or (seen is not None and frame.number <= seen.frame.number):
                continue
            if seen is None:
                seen, end = Seen(frame), time.monotonic() + LOOK_S
            seen.frame = frame
            seen.arrivals.append(time.monotonic())
            seen.ages.append(time.time() - frame.stamp_s)
        if seen is None:
            raise UserError(
                f'{camera.title} gave no picture for {FIRST_S:.0f} s',
                f'there are: {"; ".join(camera.others()) or "none"}',
                'start its node, or correct its topic'
                if config.kind == 'topics'
                else 'plug it in again',
            )
        return seen
    finally:
        camera.close()


def judge(config: Any, seen: Seen, file: Path) -> Verdict:
    """The verdict on what was seen; saves a picture with the part framed that is the view."""
    color = seen.frame.color.copy()
    height, width = color.shape[:2]
    left, top, right, bottom = Framing(config).part(height, width)
    cv2.rectangle(color, (left, top), (right - 1, bottom - 1), RED, 2)
    file.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(file), cv2.cvtColor(color, cv2.COLOR_RGB2BGR))
    span_s = seen.arrivals[-1] - seen.arrivals[0]
    fps = (len(seen.arrivals) - 1) / span_s if span_s > 0 else 0.0
    age_s = max(seen.ages)
    text = (
        f'{width}x{height} at {fps:.0f} Hz, at most {1000 * age_s:.0f} ms old; the frame in {file}'
        f' becomes the view of {config.width}x{config.height}'
    )
    if fps < RATE * config.fps:
        return bad(
            text,
            f'the page asks for {config.fps:g} Hz',
            'give it a USB 3 port of its own and light, or set fps to what it reaches',
        )
    if not -config.max_age_s <= age_s <= config.max_age_s:
        return bad(text, f'max_age_s is {config.max_age_s}', 'set the clocks of both computers')
    return True, text


def main() -> None:
    """Entry point: always 0 when it could look; the verdicts are in the lines."""
    signal.alarm(WITHIN_S)
    config = from_json(sys.stdin.read(), 'the configuration')
    folder = Path(tempfile.gettempdir()) / f'user-check-{os.getuid()}'
    for good, text in look(config, sys.argv[1], sys.argv[2], folder):
        print(json.dumps({'good': good, 'text': text}), flush=True)


if __name__ == '__main__':
    main()
