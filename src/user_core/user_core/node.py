# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What every node is made of: `run_node` is its main, `Shell` its rclpy face.

One process is one node with one single-threaded executor; long work runs in threads of its own
and comes back through `Shell.call_soon`. Signals are ours, not rclpy's: a node closes (the arm
holds) while its context still lives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
import ctypes
import os
from pathlib import Path
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any, NoReturn, cast

import rclpy
from rclpy.action import ActionClient, ActionServer
from rclpy.duration import Duration
from rclpy.event_handler import (
    PublisherEventCallbacks,
    QoSOfferedIncompatibleQoSInfo,
    QoSRequestedIncompatibleQoSInfo,
    SubscriptionEventCallbacks,
)
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.publisher import Publisher
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible
from rclpy.signals import SignalHandlerOptions
from rclpy.subscription import Subscription
from user_msgs.msg import Metrics, StepId
from user_msgs.msg import RunConfig as RunConfigMsg

from user_core import diagnostics, topics
from user_core.config import RunConfig, config_hash, from_json
from user_core.errors import UserError
from user_core.messages import doubles, stamp
from user_core.plan import machine_of
from user_core.shared_memory import Lease

CLOSE_WITHIN_S = 14.0
"""A node that has not ended this long after the first signal is cut off."""
LEAVE_WITHIN_S = 4
"""A node that is done has this long to leave the graph."""
DELIVER_WITHIN_S = 0.5
"""A closing node waits this long for its last messages to be received."""


class Shell(Node):
    """A node of a run.

    Attributes:
        config: the run's configuration.
        run: name of the run.
        folder: the run's folder on this machine.
        cell: its cell's name, empty for nodes that belong to none.
        camera: its camera's name, empty for nodes that belong to none.
        hash: the configuration's hash.
        hardware: what diagnostics name as the hardware: its cell, else its machine.
        lease: keeps what the run has in shared memory.
        exit_code: set by `finish`, None while the node runs.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, start_parameter_services=False)
        texts = {'config': '', 'run': '', 'run_folder': ''}
        for key in texts:
            texts[key] = self.declare_parameter(key, Parameter.Type.STRING).value or ''
            if not texts[key]:
                raise UserError(
                    f'Node {self.get_fully_qualified_name()} has no parameter {key}',
                    'it is a part of a plan',
                    'Start it with `user run` or the launch file',
                )
        self.config: RunConfig = from_json(texts['config'], 'parameter config')
        self.run = texts['run']
        self.folder = Path(texts['run_folder'])
        self.cell, _, self.camera = self.get_namespace().strip('/').partition('/')
        if self.cell not in self.config.cells:
            self.cell = self.camera = ''
        self.hash = config_hash(self.config)
        path = self.get_fully_qualified_name()
        self.hardware = self.cell or machine_of(self.config, path) or socket.gethostname()
        self.exit_code: int | None = None
        self._soon: deque[Callable[[], None]] = deque()
        self._wake = self.create_guard_condition(self._drain)
        self._metrics = self.create_pub('metrics')
        self._diagnostics = self.create_pub('diagnostics')
        self.lease = Lease(self.run)
        self._pulse = diagnostics.Pulse(diagnostics.PERIOD_S)
        self.create_sub('run_config', self._agree)

    def create_pub(
        self, key: str, cell: str | None = None, camera: str | None = None
    ) -> Publisher:
        """A publisher of the table's topic; a node may leave out its own cell and camera."""
        topic = topics.TOPICS[key]
        name = topics.name(key, cell or self.cell, camera or self.camera)

        def mismatch(info: QoSOfferedIncompatibleQoSInfo) -> None:
            self._mismatch(name, 'subscription', topic.writer)

        events = PublisherEventCallbacks(incompatible_qos=mismatch)
        return self.create_publisher(topic.type, name, topic.writer, event_callbacks=events)

    def create_sub(
        self,
        key: str,
        callback: Callable[[Any], None],
        cell: str | None = None,
        camera: str | None = None,
    ) -> Subscription:
        """A subscription of the table's topic; the callback runs in the executor's thread."""
        topic = topics.TOPICS[key]
        name = topics.name(key, cell or self.cell, camera or self.camera)

        def mismatch(info: QoSRequestedIncompatibleQoSInfo) -> None:
            self._mismatch(name, 'publisher', topic.reader)

        events = SubscriptionEventCallbacks(incompatible_qos=mismatch)
        return self.create_subscription(
            topic.type, name, callback, topic.reader, event_callbacks=events
        )

    def metrics(self, state: str, reason: str = '', **values: float) -> None:
        """Publishes the node's state, one word, why, and named numbers: for the run, and as
        diagnostics for other monitors. Every node does that once a second or more often.
        """
        node = self.get_fully_qualified_name()
        self._metrics.publish(
            Metrics(
                id=StepId(run=self.run, cell=self.cell),
                stamp=stamp(time.time_ns()),
                node=node,
                state=state,
                reason=reason,
                names=list(values),
                values=doubles(list(values.values())),
            )
        )
        self.diagnose(node, state, reason, self.hardware, values)

    def diagnose(
        self, name: str, state: str, reason: str, hardware: str, values: Mapping[str, float]
    ) -> None:
        """Diagnostics alone, of a part of the node; once a second, and at once when the state
        changes, however often this is called.
        """
        if self._pulse.due(name, state):
            told: dict[str, float | str] = {'run': self.run, **values}
            self._diagnostics.publish(diagnostics.array(name, hardware, state, reason, told))

    def call_soon(self, function: Callable[[], None]) -> None:
        """Runs the function in the executor's thread; may be called from any thread."""
        self._soon.append(function)
        self._wake.trigger()

    def finish(self, code: int = 0) -> None:
        """Ends the node with this exit code; may be called from any thread."""
        self.exit_code = code
        self._wake.trigger()

    def _drain(self) -> None:
        while self._soon:
            self._soon.popleft()()

    def _agree(self, msg: RunConfigMsg) -> None:
        """Leaves a run whose configuration is another one; other runs on the domain are normal."""
        if msg.run == self.run and msg.config_hash != self.hash:
            raise UserError(
                f'Node {self.get_fully_qualified_name()} does not join run {self.run}',
                f'its configuration is {self.hash}, the run has {msg.config_hash}',
                'Start every machine with the same page and the same settings',
            )

    def _mismatch(self, name: str, kind: str, own: QoSProfile) -> None:
        """Names both ends, a moment later: a peer's name comes after its endpoint."""

        def report() -> None:
            timer.cancel()
            self.destroy_timer(timer)
            if kind == 'publisher':
                peers = [p for p in self.get_publishers_info_by_topic(name) if _bad(p, own)]
            else:
                peers = [p for p in self.get_subscriptions_info_by_topic(name) if _bad(own, p)]
            who = ', '.join(f'{p.node_namespace.rstrip("/")}/{p.node_name}' for p in peers)
            self.get_logger().error(
                f'{self.get_fully_qualified_name()} and the {kind} of {who or "another node"} do '
                f'not match on {name}: their quality of service differs, so no message passes'
            )

        timer = self.create_timer(1.0, report)


def run_node(build: Callable[..., Any], name: str) -> NoReturn:
    """The main of a node: spins it until a signal, `Shell.finish`, an error or `rclpy.shutdown`.

    `build` is a subclass of Shell, built without arguments, or any class that takes a Shell. Its
    `close()`, if it has one, runs after the last callback and before the context ends, so it may
    still publish. If it has an `interrupt()`, a signal calls that and the node goes on until it
    calls `Shell.finish`, so that it may still hear answers.
    Exits with 0 after a signal, 2 with one sentence after a UserError, 1 after a fault, whose
    traceback goes to the run's logs.
    """
    try:
        rclpy.init(args=sys.argv, signal_handler_options=SignalHandlerOptions.NO)
    except Exception as error:
        print(f'FATAL {name} cannot join ROS: {error}', flush=True)
        raise SystemExit(1) from None
    executor = SingleThreadedExecutor()
    shell: Shell | None = None
    part: Any = None
    code = 0
    stopping = _watch_signals(lambda: shell.call_soon(_nothing) if shell is not None else None)
    try:
        if isinstance(build, type) and issubclass(build, Shell):
            part = shell = cast('Callable[[], Shell]', build)()
        else:
            shell = Shell(name)
            part = cast('Callable[[Shell], Any]', build)(shell)
        executor.add_node(shell)
        asked = False
        while rclpy.ok() and shell.exit_code is None:
            if stopping.is_set() and not asked:
                if not hasattr(part, 'interrupt'):
                    break
                asked = True
                part.interrupt()
            executor.spin_once()
        code = shell.exit_code or 0
    except ExternalShutdownException:
        pass
    except BaseException as error:
        code = _explain(error, shell, name)
    try:
        if hasattr(part, 'close'):
            part.close()
        if not code and shell is not None:
            code = shell.exit_code or 0
    except Exception as error:
        code = code or _explain(error, shell, name)
    _exit_after(LEAVE_WITHIN_S, code)
    with suppress(Exception):  # the context may be gone already
        if shell is not None:
            _deliver(shell)
        executor.shutdown(timeout_sec=1.0)
        if shell is not None:
            for action in list(shell.waitables):  # a node forgets them, and they keep it alive
                if isinstance(action, (ActionClient, ActionServer)):
                    action.destroy()
            shell.destroy_node()
            shell.lease.close()
    rclpy.try_shutdown()
    # The graph is left. What the interpreter and C++ would now take apart, a thread may still use.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the terminal may be gone
            stream.flush()
    os._exit(code)


class _Event(ctypes.Structure):
    """struct sigevent, with SIGEV_THREAD's parts."""

    _fields_ = (
        ('value', ctypes.c_int64), ('signal', ctypes.c_int), ('notify', ctypes.c_int),
        ('function', ctypes.c_void_p), ('attribute', ctypes.c_void_p),
        ('rest', ctypes.c_byte * 32),
    )  # fmt: skip


def _exit_after(seconds: int, code: int) -> None:
    """Ends this process with the code, even while something holds the interpreter's lock.

    The middleware may, now and then, never return from taking its participant away. No thread of
    Python would run then, so the C library itself calls _exit(code) from a timer.
    """
    libc = ctypes.CDLL(None)
    exit_now = ctypes.cast(libc._exit, ctypes.c_void_p)
    event = _Event(value=code, notify=2, function=exit_now)  # 2: SIGEV_THREAD
    timer, when = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 0, seconds, 0)
    if libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0:  # 1: CLOCK_MONOTONIC
        libc.timer_settime(timer, 0, when, None)


def _deliver(shell: Shell) -> None:
    """Waits a moment until the last words are received: a writer takes them along when it goes."""
    end = time.monotonic() + DELIVER_WITHIN_S
    for publisher in shell.publishers:
        left = max(end - time.monotonic(), 0.0)
        publisher.wait_for_all_acked(Duration(seconds=left))


def _nothing() -> None:
    """Work for the executor that makes it look up."""


def _watch_signals(wake: Callable[[], None]) -> threading.Event:
    """An event that SIGINT and SIGTERM set, waking the executor even while it waits in C."""
    stopping = threading.Event()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        reader.recv(1)
        stopping.set()
        wake()
        time.sleep(CLOSE_WITHIN_S)
        os._exit(1)

    watch.keep = writer  # type: ignore[attr-defined]  # the descriptor lives as long as the thread
    threading.Thread(target=watch, name='signals', daemon=True).start()
    return stopping


def _explain(error: BaseException, shell: Shell | None, name: str) -> int:
    """Logs one line; the traceback of a fault goes to the run's logs. Returns the exit code."""
    logger = shell.get_logger() if shell else rclpy.logging.get_logger(name)
    if isinstance(error, UserError):
        logger.fatal(str(error))
        return 2
    trace = ''.join(traceback.format_exception(error))
    where = trace
    if shell is not None and hasattr(shell, 'folder'):
        file = shell.get_fully_qualified_name().strip('/').replace('/', '_')
        place = shell.folder / 'logs' / f'{file}.trace'
        with suppress(OSError):  # a full disk: then the trace is all there is
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open('a') as out:
                out.write(f'{time.strftime("%F %T")}\n{trace}\n')
            where = f'see {place}'
    logger.fatal(f'fault in {name}: {type(error).__name__}: {error}; {where}')
    return 1


def _bad(writer: Any, reader: Any) -> bool:
    """Whether a publisher and a subscription (profiles or endpoint infos) cannot match."""
    profiles = [getattr(end, 'qos_profile', end) for end in (writer, reader)]
    return qos_check_compatible(*profiles)[0] == QoSCompatibility.ERROR
