# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated FR3 with its peg behind a Franka's network protocol, in a process of its own.

The plan starts it like a node, but it is none: 1000 steps a second leave no room for ROS in the
same interpreter. By hand: `python -m user_sim.franka.server --address 127.0.0.2`.
SIGUSR1 presses and releases the enabling button.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
import gc
import json
import logging
import os
from pathlib import Path
import signal
import sys
import time

import numpy as np

from user_core.config import FrankaSimConfig, PegTask, Task
from user_core.errors import UserError
from user_robot.task import make_task
from user_sim.device import placed
from user_sim.franka.arm import SimulatedFr3
from user_sim.franka.box import ControlBox
from user_sim.franka.scene import STEP_S, FrankaScene
from user_sim.scene import take_snapshot
from user_sim.snapshot import HZ, Writer, place

FALL_BEHIND_S = 0.05
"""Time that is caught up; what is beyond is lost, and simulated time is slower than the clock."""
LATE_S = 0.001
FIFO_PRIORITY = 20
_SNAPSHOT_EVERY = round(1 / (HZ * STEP_S))


@dataclass(frozen=True)
class Setup:
    """What a server needs to know.

    Attributes:
        arm: its configuration.
        task: where the arm stands at first: above the block.
        seed: of the unobserved errors.
        run, cell: name the snapshots.
        folder: the run's folder, None by hand.
        lost_cycles: control cycles without a command that abort a motion.
        sticky: errors cannot be cleared.
    """

    arm: FrankaSimConfig
    task: Task
    seed: int = 0
    run: str = 'by-hand'
    cell: str = 'arm0'
    folder: Path | None = None
    lost_cycles: int = 200
    sticky: bool = False


class FrankaServer:
    """Scene, control box and snapshots, kept on the clock by one thread.

    Attributes:
        box: what clients talk to.
        scene: the physics.
        ticks: simulated milliseconds so far.
        late: ticks that began more than 1 ms after their time.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        home = make_task(setup.task).home
        self.scene = FrankaScene(setup.arm, home, setup.seed)
        self.arm = SimulatedFr3(self.scene)
        self.box = ControlBox(self.arm, setup.arm.address, setup.lost_cycles, setup.sticky)
        try:
            self.box.init()
        except OSError as error:
            raise UserError(
                f'the simulated FR3 cannot serve at {setup.arm.address}',
                'ports 1337 and 1338 there belong to another program, or the address is not one '
                'of this machine',
                'end the other one or choose another arm.address, such as 127.0.0.2',
            ) from error
        name = setup.cell if setup.folder else f'{setup.cell}-{setup.arm.address}'
        self._writer = Writer(place(setup.run, name))
        self.ticks = self.late = self.lost = 0
        self._lateness = np.zeros(1000, np.int64)  # in 0.1 ms
        self._stopping = self._released = False
        self._began = self._told = time.monotonic()

    def stop(self, *_: object) -> None:
        """Ends `spin`; for signal handlers too."""
        self._stopping = True

    def toggle_button(self, *_: object) -> None:
        """Presses or releases the enabling button; for a signal handler."""
        self._released = not self._released

    def spin(self) -> None:
        """Serves until `stop`."""
        box, arm, lateness = self.box, self.arm, self._lateness
        self._began = self._told = due = time.monotonic()
        while not self._stopping:
            if self._released != box.stopped:
                box.press_stop(self._released)
            box.process_commands()
            arm.step()
            box.send_state()
            self.ticks += 1
            if self.ticks % _SNAPSHOT_EVERY == 0:
                self._take_snapshot()
            now = time.monotonic()
            if self.ticks % 1000 == 0:
                self._tell(now)
            due += STEP_S
            if now < due:
                time.sleep(due - now)
                now = time.monotonic()
            behind = now - due
            if behind > LATE_S:
                self.late += 1
            lateness[min(int(behind * 1e4), 999)] += 1
            if behind > FALL_BEHIND_S:
                due = now

    def close(self) -> None:
        """Closes the sockets and tells how it went."""
        self.box.cleanup()
        self._writer.close()
        self._write_status(time.monotonic())
        s = self.status(time.monotonic())
        print(
            f'{s["ticks"]} ticks, realtime factor {s["realtime_factor"]:.3f}, '
            f'late by p99 {s["late_p99_ms"]:.1f} ms, {s["late"]} late, {s["faults"]} faults',
            flush=True,
        )

    def status(self, now: float) -> dict[str, float]:
        """Named numbers since the start."""
        share = np.cumsum(self._lateness) / max(self._lateness.sum(), 1)
        return {
            'ticks': self.ticks,
            'realtime_factor': self.ticks * STEP_S / max(now - self._began, 1e-9),
            'late': self.late,
            'late_p99_ms': float(np.searchsorted(share, 0.99)) / 10,
            'faults': self.box.faults,
            'attempts': self.scene.attempts,
        }

    def _tell(self, now: float) -> None:
        if now - self._told >= 1.0:
            self._told = now
            self._write_status(now)

    def _write_status(self, now: float) -> None:
        if self.setup.folder is not None:
            with suppress(OSError):
                logs = self.setup.folder / 'logs'
                part = logs / f'{self.setup.cell}_franka_server.part'
                part.write_text(json.dumps(self.status(now)))
                part.replace(part.with_suffix('.json'))

    def _take_snapshot(self) -> None:
        model, data, time_s = self.scene.model, self.scene.data, self.ticks * STEP_S
        self._writer.write(take_snapshot(model, data, self.arm.hand_width, time_s))


def read_arguments(arguments: Sequence[str]) -> Setup:
    """The setup from a node's arguments, or from those given by hand.

    Raises:
        UserError: the arguments belong to no cell with a simulated FR3.
    """
    ours, ros = list(arguments), []
    if '--ros-args' in ours:
        cut = ours.index('--ros-args')
        ours, ros = ours[:cut], ours[cut + 1 :]
    parser = argparse.ArgumentParser(prog='user_sim.franka.server', description=__doc__)
    parser.add_argument('--address', help='where to serve; an address of this machine')
    parser.add_argument('--seed', type=int, help='of the unobserved errors')
    parser.add_argument('--exact', action='store_true', help='no unobserved errors')
    parser.add_argument('--lost-cycles', type=int, default=200, help='a real box takes 20')
    parser.add_argument('--sticky-reflex', action='store_true', help='errors cannot be cleared')
    options = parser.parse_args(ours)
    setup = _from_ros(ros) if ros else Setup(FrankaSimConfig(), PegTask())
    arm = setup.arm
    if options.address:
        arm = arm.model_copy(update={'address': options.address})
    if options.exact:
        errors = ('hole_error_m', 'hole_error_rad', 'grasp_error_m', 'grasp_error_rad')
        arm = arm.model_copy(update=dict.fromkeys(errors, 0.0))
    return replace(
        setup,
        arm=arm,
        seed=setup.seed if options.seed is None else options.seed,
        lost_cycles=options.lost_cycles,
        sticky=options.sticky_reflex,
    )


def _from_ros(arguments: Sequence[str]) -> Setup:
    here = placed(arguments)
    arm = here.cell.arm
    if not isinstance(arm, FrankaSimConfig):
        raise UserError(
            f'cell {here.cell_name} has no simulated FR3',
            f'its arm is of kind {arm.kind}',
            'choose arm=franka_sim for it',
        )
    config = here.config
    return Setup(arm, config.task, config.seed, here.run, here.cell_name, here.folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: 0 after a signal, 2 after a plain sentence."""
    # franky-sim logs what clients do wrong with a traceback each.
    logging.getLogger('franky_sim').setLevel(logging.CRITICAL)
    try:
        setup = read_arguments(sys.argv[1:] if arguments is None else arguments)
        server = FrankaServer(setup)
    except UserError as error:
        print(f'FATAL {error}', flush=True)
        raise SystemExit(2) from None
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.stop)
    signal.signal(signal.SIGUSR1, server.toggle_button)
    gc.collect()
    gc.freeze()
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(FIFO_PRIORITY))
    print(f'the simulated FR3 answers at {setup.arm.address}', flush=True)
    try:
        server.spin()
    finally:
        server.close()


if __name__ == '__main__':
    main()
