# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Supervises the processes of a plan on this machine: `user run` without ros2 launch.

Every line of every process is prefixed on stdout and kept in <run folder>/logs. Processes are
started in the plan's order and ended stage by stage. The kernel ends them when the supervisor
dies, even by `kill -9`. One thread; children must be started from it (the kernel's signal goes out
when the *thread* that started them ends).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
import ctypes
from dataclasses import dataclass, field
import json
import os
from pathlib import Path
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import IO, Self, TextIO

from user_core.errors import UserError
from user_core.plan import NodeSpec

PR_SET_PDEATHSIG = 1
CUT_OFF_S = 10.0
"""All processes are gone this long after the first Ctrl-C, the stubborn ones by SIGKILL; what an
arm needs to park and let go comes on top."""
STAGE_S = 2.0
"""The processes of a stage are given this long before the next ones are asked to end, too."""
BACK_OFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Wait before each respawn; a process that stays up for HEALTHY_S starts over at the first."""
HEALTHY_S = 20.0
USER_ERROR = 2
"""Exit code of a process that said in one sentence why it cannot go on."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Process:
    """One supervised process.

    Attributes:
        name: prefix of its lines; its log is <logs>/<name with _ for />.log.
        command: argument vector.
        env: added to the environment.
        respawn: start it again when it dies, but not after exit code 2.
        required: when it is gone for good, everything ends.
        leads: its end, with any code, is the end of everything, and its lines have no prefix; when
            a signal killed it that was not ours, it is started again.
        end_s: it gets this long to end by itself, alone, whatever else is asked for.
        stage: those of the highest stage are asked to end first, together.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    respawn: bool = False
    required: bool = True
    leads: bool = False
    end_s: float = 0.0
    stage: int = 0

    child: subprocess.Popen[bytes] | None = None
    log: IO[bytes] | None = None
    rest: bytes = b''
    said: str = ''
    deaths: int = 0
    born: float = 0.0
    due: float | None = None


class Supervisor:
    """Runs processes until the leading one ends, a required one is lost, or Ctrl-C."""

    def __init__(
        self,
        processes: Sequence[Process],
        logs: Path,
        out: TextIO | None = None,
        lock: int | None = None,
    ) -> None:
        """`lock` is a descriptor that every process inherits."""
        self.processes, self.logs, self.out = list(processes), logs, out or sys.stdout
        self._inherited = () if lock is None else (lock,)
        self._selector = selectors.DefaultSelector()
        self._code: int | None = None
        self._signals = 0
        self._quiet = False

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._reader.setblocking(False)
        self._old = {
            number: signal.signal(number, self._count)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._reader, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        self._kill(*self.processes)
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        for end in (self._selector, self._reader, self._writer):
            end.close()

    def run(self) -> int:
        """Starts everything, returns the exit code when everything has ended.

        The leading process's code; 130 after Ctrl-C; 2 or 1 when a required process was lost.
        """
        with self:
            for process in self.processes:
                self._start(process)
            while self._code is None:
                self._turn(self._next_due())
            self._end()
            return self._code

    def _count(self, number: int, _: object) -> None:
        self._signals += 1
        if self._code is None:
            self._code = 128 + number

    def _start(self, process: Process) -> None:
        process.born, process.due = time.monotonic(), None
        if process.log is None:
            process.log = (self.logs / f'{process.name.replace("/", "_")}.log').open('ab')
        try:
            process.child = subprocess.Popen(
                process.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(process.env),
                process_group=0,
                pass_fds=self._inherited,
                preexec_fn=die_with_parent(),  # safe: no other thread runs, and it takes no lock
            )
        except OSError as error:
            self._say(process, f'cannot be started: {error}')
            self._lost(process, 1)
            return
        os.set_blocking(_pipe(process).fileno(), False)
        self._selector.register(_pipe(process), selectors.EVENT_READ, process)

    def _next_due(self) -> float:
        dues = [p.due for p in self.processes if p.due is not None]
        wait = min(dues) - time.monotonic() if dues else 0.5
        return min(max(wait, 0.0), 0.5)

    def _turn(self, timeout_s: float) -> None:
        """Passes on lines, notices deaths, starts what is due again."""
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                with suppress(BlockingIOError):
                    self._reader.recv(64)
            else:
                self._read(key.data)
        for process in self.processes:
            if process.child is not None and process.child.poll() is not None:
                self._reap(process)
            if process.due is not None and process.due <= time.monotonic() and self._code is None:
                self._start(process)

    def _read(self, process: Process) -> bool:
        """Takes what the process has written; False at the end of its output."""
        out = _pipe(process)
        try:
            data = os.read(out.fileno(), 65536)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(out)
            return False
        assert process.log is not None
        with suppress(OSError):  # a full disk ends no run: the terminal still has the lines
            process.log.write(data)
            process.log.flush()
        *lines, process.rest = (process.rest + data).split(b'\n')
        for line in lines:
            self._say(process, line.decode(errors='replace').rstrip())
        return True

    def _reap(self, process: Process) -> None:
        """Notes the end of a process: output, children it left, what follows from it."""
        child, out = process.child, _pipe(process)
        assert child is not None
        if out.fileno() in {key.fd for key in self._selector.get_map().values()}:
            while self._read(process):
                pass
        if process.rest:
            self._say(process, process.rest.decode(errors='replace'))
            process.rest = b''
        with suppress(KeyError, ValueError):
            self._selector.unregister(out)
        out.close()
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        process.child = None
        if self._code is None:
            self._lost(process, child.returncode)
        elif child.returncode > 0 and not process.leads:
            self._say(process, f'WARN ended with exit code {child.returncode}')

    def _lost(self, process: Process, code: int) -> None:
        if process.leads and code >= 0:
            self._code, self._quiet = code, code == 0
            return
        how = f'exit code {code}' if code >= 0 else f'signal {signal.Signals(-code).name}'
        if time.monotonic() - process.born > HEALTHY_S:
            process.deaths = 0
        may = (process.respawn and code != USER_ERROR) or process.leads
        again = may and process.deaths < len(BACK_OFF_S)
        if again:
            process.due = time.monotonic() + BACK_OFF_S[process.deaths]
            process.deaths += 1
            who = 'the run ' if process.leads else ''  # its lines have no prefix
            self._say(process, f'{who}ended ({how}), is started again')
        elif process.required:
            self._code = code if code in (1, USER_ERROR) else 1
            self._say(process, f'ended ({how}), so the run ends: {process.said}')
        else:
            self._say(process, f'ended ({how})')

    def _end(self) -> None:
        """Asks stage after stage to end, each when the one before has; kills what remains.

        A second Ctrl-C kills at once, except a process that needs its time to end, and what stands
        below it.
        """
        asked, cut = self._signals, time.monotonic() + CUT_OFF_S

        def hurried() -> bool:
            return self._signals > max(asked, 1)

        for stage in sorted({p.stage for p in self.processes}, reverse=True):
            group = [p for p in self.processes if p.stage == stage and p.child is not None]
            for process in group:
                self._ask(process)
            end_s, now = max((p.end_s for p in group), default=0.0), time.monotonic()
            until = now + (end_s or min(STAGE_S, cut - now))
            while any(p.child for p in group) and time.monotonic() < until:
                self._turn(0.05)
                if hurried():
                    self._kill(*(p for p in self.processes if p.stage >= stage and not p.end_s))
            if end_s:
                cut += time.monotonic() - now
        while any(p.child for p in self.processes) and time.monotonic() < cut and not hurried():
            self._turn(0.05)
        self._kill(*self.processes)

    def _ask(self, process: Process) -> None:
        """By SIGTERM: one that is still starting ends at once and silently; of SIGINT Python would
        make a traceback.
        """
        if process.child is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.child.pid, signal.SIGTERM)

    def _kill(self, *processes: Process) -> None:
        for process in reversed(processes):
            if process.child is not None:
                if process.child.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.child.pid, signal.SIGKILL)
                    process.child.wait()
                    self._say(process, 'did not end in time and was killed')
                self._reap(process)
            if process.log is not None:
                process.log.close()
                process.log = None

    def _say(self, process: Process, line: str) -> None:
        """One line to the terminal; after a run's good end only warnings are left to say."""
        if line.strip():
            process.said = line
        if self._quiet and not process.leads and not line.startswith(('WARN', 'ERROR', 'FATAL')):
            return
        with suppress(OSError):  # the reader or the whole terminal may be gone
            print(line if process.leads else f'{process.name} | {line}', file=self.out, flush=True)


def die_with_parent() -> Callable[[], None]:
    """For `preexec_fn`: the child is ended by SIGTERM when we are gone, however we went."""
    parent = os.getpid()

    def bind() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return bind


def _pipe(process: Process) -> IO[bytes]:
    assert process.child is not None
    assert process.child.stdout is not None
    return process.child.stdout


def find_executable(package: str, executable: str) -> Path:
    """<prefix>/lib/<package>/<executable> in the first ament prefix that has it.

    Raises:
        UserError: none has it.
    """
    prefixes = [p for p in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep) if p]
    for prefix in prefixes:
        path = Path(prefix) / 'lib' / package / executable
        if os.access(path, os.X_OK):
            return path
    raise UserError(
        f'The executable {executable} of {package} is not installed',
        'no folder of AMENT_PREFIX_PATH holds it' if prefixes else 'AMENT_PREFIX_PATH is empty',
        'Run `make build`',
    )


def may_have(nice: int) -> bool:
    """Whether this user may start processes of that priority."""
    most = resource.getrlimit(resource.RLIMIT_NICE)[0]
    return nice >= 0 or os.geteuid() == 0 or most == resource.RLIM_INFINITY or 20 - nice <= most


def processes(nodes: Sequence[NodeSpec], config: str, run: str, folder: Path) -> list[Process]:
    """The plan's nodes as processes; writes their parameter files into the run's folder.

    Raises:
        UserError: an executable is missing.
    """
    place = folder / 'params'
    place.mkdir(parents=True, exist_ok=True)
    values = {'config': config, 'run': run, 'run_folder': str(folder)}
    lines = [f'    {key}: {json.dumps(value)}\n' for key, value in values.items()]
    result = []
    for node in nodes:
        name = node.path.strip('/')
        file = place / f'{name.replace("/", "_")}.yaml'
        file.write_text(f'{node.path}:\n  ros__parameters:\n{"".join(lines)}')
        command = [
            *(('nice', '-n', str(node.nice)) if node.nice and may_have(node.nice) else ()),
            str(find_executable(node.package, node.executable)),
            *('--ros-args', '-r', f'__node:={node.name}', '-r', f'__ns:={node.namespace}'),
            *('--params-file', str(file)),
        ]
        leads = node.executable == 'run'
        env = {
            'RCUTILS_LOGGING_USE_STDOUT': '1',
            'RCUTILS_CONSOLE_OUTPUT_FORMAT': '{message}' if leads else '{severity} {message}',
            'PYTHONUNBUFFERED': '1',
            'USER_NODE': '1',
            'ROS_LOG_DIR': str(folder / 'logs' / 'ros'),
            **node.env,
        }
        again = node.respawn, node.required, leads
        result.append(Process(name, command, env, *again, node.end_s, node.stage))
    return result
