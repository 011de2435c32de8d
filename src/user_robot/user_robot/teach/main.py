# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Guides the arm and records a task into a fragment of a page: `teach peg [PAGE] [key=value ...]`.

Besides the page's keys: out=FILE, overwrite=yes, cell=NAME, reach=METRES (half the side of the box
in which keys may move the TCP about where it is at first), force=NEWTON (above it the arm holds).
Keys come from the terminal, or one after the other from a pipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
import os
from pathlib import Path
import select
import shutil
import signal
import sys
import termios
import threading
import time
import tty
from typing import NoReturn, TextIO

from user_core.arm_config import LOCKSTEP
from user_core.config import PegTask, RunConfig, Safety, load
from user_core.errors import UserError
from user_robot.arm import Arm, make_arm
from user_robot.drive import Drive
from user_robot.task import make_task
from user_robot.teach.device import device
from user_robot.teach.jog import Jog
from user_robot.teach.record import Records, refusal, write
from user_robot.teach.session import HELP, Teaching

OWN = {'out': 'lab.yaml', 'overwrite': 'no', 'cell': '', 'reach': '0.3', 'force': '40'}
"""Settings of the command itself."""
ROTATION_RAD = (1.2, 1.2, 2.2)
LOOK_S, SHOW_S = 0.02, 0.1
MOST_LATE_S = 0.1


class _Left(Exception):  # noqa: N818  # somebody leaves: no error
    """The person, or the terminal, has gone."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: 0 with a fragment written, 2 with one sentence, 130 after Ctrl-C."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        teach(*(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        _print(str(error), sys.stderr)
        raise SystemExit(2) from None
    except _Left as left:
        _print(str(left), sys.stderr)
        raise SystemExit(130) from None


def teach(kind: str, page: str = 'peg_rlpd', *settings: str) -> None:
    """One session.

    Raises:
        UserError: it cannot begin, or nothing can be written.
        _Left: it was left without a fragment.
    """
    own = OWN | {k: v for k, _, v in (s.partition('=') for s in settings) if k in OWN and v}
    given = [s for s in settings if s.partition('=')[0] not in OWN]
    config = load(page, given)
    if kind != 'peg' or not isinstance(config.task, PegTask):
        raise UserError(f'{page} holds a task of kind {config.task.kind}', 'peg can be taught')
    name, out, overwrite = _cell(config, own['cell']), Path(own['out']), own['overwrite'] == 'yes'
    if out.exists() and not overwrite:
        raise refusal(out)
    limits, shown, cell = _limits(config, name, own), config.task, config.cells[name]
    line = ' '.join(('user run', page, f'with={out}', *given))

    def finish(records: Records) -> str:
        fragment = records.fragment(shown, name)
        write(
            fragment, out, f'Taught by guiding the arm. Use it: {line}',
            overwrite, check=lambda new: load(page, [*given, f'with={new}']),
        )  # fmt: skip
        wide_mm = 1000 * fragment['task']['start_xy_m']
        return f'written: {out}, starts within +-{wide_mm:.0f} mm sideways\nuse it: {line}'

    with device(config, name) as site:
        arm = make_arm(cell.arm, 1 / cell.control_hz, site)
        try:
            jog = Jog(_drive(arm, config, limits, 1 / cell.control_hz))
            teaching = Teaching(jog, cell.arm, out.with_name(f'{out.name}.part'), finish)
            _session(arm, teaching, waits=cell.arm.kind in LOCKSTEP)
        finally:
            arm.close(healthy=False)  # no way home is known from where it was guided to


def _drive(arm: Arm, config: RunConfig, limits: Safety, period_s: float) -> Drive:
    """The arm under limits about where it is."""
    task = make_task(config.task)
    arm.reset(task.home, 0)  # a simulated arm is put there, another one stays
    task.frame = arm.state().pose
    return Drive(arm, limits, task, period_s)


def _cell(config: RunConfig, name: str) -> str:
    names = list(config.cells)
    if name in names or (not name and len(names) == 1):
        return name or names[0]
    raise UserError('which cell is taught?', f'the page has {", ".join(names)}', 'set cell=NAME')


def _limits(config: RunConfig, name: str, own: dict[str, str]) -> Safety:
    """The limits of a session: a wide box about where the arm is, slow, and soft in contact."""
    try:
        reach, force = float(own['reach']), float(own['force'])
    except ValueError as error:
        raise UserError('reach and force are numbers', str(error)) from None
    if not (0 < reach < 2 and 0 < force < 200):
        raise UserError('reach is below 2 m and force below 200 N, both above 0')
    return Safety(
        box_min_m=(-reach, -reach, -reach),
        box_max_m=(reach, reach, reach),
        box_rotation_rad=ROTATION_RAD,
        max_step_m=config.cells[name].safety.max_step_m,
        max_step_rad=config.cells[name].safety.max_step_rad,
        force_soft_n=force / 2,
        force_limit_n=force,
        max_speed_m_s=0.25,
        max_speed_rad_s=1.5,
    )


# ---------------------------------------------------------------------- the session


def _session(arm: Arm, teaching: Teaching, waits: bool) -> None:
    """Keys until x. `waits`: the arm's time can wait, so a pipe is read as fast as possible."""
    terminal = sys.stdin.isatty()
    ended, failed = threading.Event(), list[BaseException]()
    law = threading.Thread(
        target=_advance, args=(arm, teaching, ended, failed), name='law', daemon=True
    )
    inline = waits and not terminal
    if not inline:
        law.start()
    _print(HELP if terminal else 'keys come from a pipe')
    if teaching.earlier is not None:
        _print(f'records of an earlier session are in {teaching.part}: p takes them up')
    try:
        with _raw(terminal):
            for key in _keys(sys.stdin.fileno()):
                if failed:
                    why = f'{type(failed[0]).__name__}: {failed[0]}'
                    raise UserError('the arm cannot be moved on', why, _saved(teaching))
                if key:
                    _print(teaching.press(key))
                if teaching.done:
                    return
                if terminal:
                    _print(teaching.heard())
                    _show(teaching.status())
                elif key:
                    _settle(arm, teaching, inline, failed)
                    _print(teaching.heard())
        raise UserError('the keys ended without x', '', _saved(teaching))
    except _Left as left:
        raise _Left(f'{left}: the arm holds. {_saved(teaching)}') from None
    finally:
        teaching.hold()
        ended.set()
        if not inline:
            law.join(1.0)


def _settle(arm: Arm, teaching: Teaching, inline: bool, failed: list[BaseException]) -> None:
    if inline:
        teaching.advance(arm.slice_s)
    else:
        time.sleep(2 * LOOK_S)
    while not teaching.settled() and not failed:
        if inline:
            teaching.advance(arm.slice_s)
        else:
            time.sleep(LOOK_S)


def _advance(
    arm: Arm, teaching: Teaching, ended: threading.Event, failed: list[BaseException]
) -> None:
    """The law's thread: slice after slice on the steady clock."""
    due = time.monotonic()
    while not ended.is_set():
        try:
            teaching.advance(arm.slice_s)
        except Exception as error:
            failed.append(error)
            return
        due = max(due + arm.slice_s, time.monotonic() - MOST_LATE_S)
        time.sleep(max(0.0, due - time.monotonic()))


def _saved(teaching: Teaching) -> str:
    if teaching.records.empty():
        return 'nothing was recorded'
    return f'what was recorded is in {teaching.part}: p takes it up next time'


# ---------------------------------------------------------------------- the terminal


def _keys(fd: int) -> Iterator[str]:
    """Keys as they come, '' every little while without one; ends with the input."""
    while True:
        ready, _, _ = select.select([fd], [], [], LOOK_S)
        if not ready:
            yield ''
            continue
        try:
            data = os.read(fd, 64)
        except OSError:  # the terminal was closed
            raise _Left('the terminal has gone') from None
        if not data:
            return
        if data.startswith(b'\x1b'):  # arrows and the like: no key of ours
            continue
        yield from (c for c in data.decode(errors='ignore') if c not in '\r\n')


@contextmanager
def _raw(terminal: bool) -> Iterator[None]:
    """Keys without the return key, unseen."""
    if not terminal:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        with suppress(OSError, termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        _print('')


_shown = [0.0, False]
"""When the line was shown last, and whether it stands there."""


def _show(text: str) -> None:
    """Refreshes the line."""
    now = time.monotonic()
    if now - _shown[0] >= SHOW_S:
        columns = shutil.get_terminal_size().columns
        _shown[:] = [now, True]
        with suppress(OSError):
            print(f'\r\x1b[2K{text[: columns - 1]}', end='', flush=True)


def _print(text: str, out: TextIO | None = None) -> None:
    """Prints below the line; a terminal that has gone is no reason to fail."""
    if text:
        clear = '\r\x1b[2K' if _shown[1] else ''
        _shown[:] = [0.0, False]
        with suppress(OSError):
            print(clear + text, file=out or sys.stdout, flush=True)


def _leave(number: int, frame: object) -> NoReturn:
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)  # from here on the arm is put to rest, once
    words = {signal.SIGINT: 'interrupted', signal.SIGHUP: 'the terminal has gone'}
    raise _Left(words.get(signal.Signals(number), 'ended by a signal'))


if __name__ == '__main__':
    main()
