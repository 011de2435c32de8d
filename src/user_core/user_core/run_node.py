# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The run's shell: cells, the latched configuration, status.json, curves, report, exit code."""

from contextlib import suppress
import json
from pathlib import Path
import threading
import time
import traceback

from user_msgs import msg

from user_core import live, picture, report, run_folder, run_lock
from user_core.cell_client import CellClient
from user_core.config import config_hash, weights_hash
from user_core.curves import Curves
from user_core.errors import UserError
from user_core.node import Shell, run_node
from user_core.outcome import Announced
from user_core.run import Run
from user_core.tally import StoppedError, Stored
from user_core.vitals import Rate, vitals

NOT_REACHED = 3
"""Exit code of a run that ended in order, within its budget, without reaching its goal."""
LIVE_S = (5, 15)
"""Seconds between two live lines: in the first minute and while it waits; else."""
PATIENT = ('WAIT_READY', 'DISK_FULL', 'RESTORING')
"""States of a cell, replay or the learner that the run waits for without end."""
SETTLED_S = 2.0
"""The learner has counted what replay stored after this long."""
GONE_S = 5.0
"""What a node said this long ago, it no longer says."""


class RunShell(Shell):
    """Starts the run in a worker thread; the executor's thread only moves messages."""

    def __init__(self) -> None:
        super().__init__('run')
        self.lock = run_lock.claim(self.folder / run_lock.RUN)
        self.numbers: dict[str, dict] = {}
        self.weights: dict[str, Announced] = {}
        self.curves = Curves(self.folder / 'tensorboard' / 'run')
        self.cells = {cell: CellClient(self, cell, self.stopping) for cell in self.config.cells}
        self.run_ = Run(
            self.config,
            self.folder,
            dict(self.cells),
            self.learner,
            self.arms,
            self.weights.get,
            self.curves.point,
            self.get_logger().info,
            self.stored,
            self.hindered,
        )
        self.rate = Rate()
        self.quiet_s: float | None = None
        self.cleared_s = 0.0
        cells = (f'/{cell}/episode' for cell in self.config.cells)
        self.awaited = {'/learning/replay', '/learning/learner', *cells}
        self.create_sub('metrics', self.on_metrics)
        if self.config.evaluate:
            self.announce(Path(self.config.evaluate))
        else:
            self.create_sub('weights', self.on_weights)
        latched = self.create_pub('run_config')
        latched.publish(
            msg.RunConfig(
                run=self.run,
                config_hash=config_hash(self.config),
                config=self.config.model_dump_json(),
            )
        )
        self.create_timer(1.0, self.on_second)
        self.seconds = 0
        self.code = 0
        self.worker = threading.Thread(target=self.work, name='run', daemon=True)
        self.worker.start()

    def announce(self, folder: Path) -> None:
        """Announces the chosen version of a finished run from its own file, to be judged again.

        Raises:
            UserError: there is no such version that `config` can act with.
        """
        chosen = self.weights['actor'] = run_folder.chosen(folder, self.config)
        self.latched_weights = self.create_pub('weights')
        self.latched_weights.publish(
            msg.Weights(
                run=self.run,
                policy='actor',
                version=chosen.version,
                path=str(chosen.path),
                size=chosen.path.stat().st_size,
                sha256=chosen.sha256,
                config_hash=weights_hash(self.config),
            )
        )

    def on_metrics(self, message: msg.Metrics) -> None:
        """Keeps the newest numbers of every node of this run; an episode's heartbeat says that
        its cell lives.
        """
        if message.id.run != self.run:
            return
        numbers = dict(zip(message.names, message.values, strict=True))
        self.numbers[message.node] = {
            **numbers,
            'state': message.state,
            'reason': message.reason,
            'heard': time.monotonic(),
        }
        if message.state in PATIENT and message.node in self.awaited:
            self.run_.awaited_s = time.monotonic()
        cell, _, name = message.node.strip('/').partition('/')
        if name == 'episode' and cell in self.cells:
            client = self.cells[cell]
            client.heard, client.state = time.monotonic(), message.state
            client.incarnation = numbers.get('incarnation_s')
            client.unstored = numbers.get('rows_unacknowledged', 0.0)
            if not all(client.quiet for client in self.cells.values()):
                self.quiet_s = None
            elif self.quiet_s is None:
                self.quiet_s = time.monotonic()

    def on_weights(self, message: msg.Weights) -> None:
        """Only this run's weights count; versions never go backwards."""
        known = self.weights.get(message.policy)
        if message.run == self.run and (known is None or message.version > known.version):
            self.weights[message.policy] = Announced(
                message.policy, message.version, message.sha256, Path(message.path)
            )

    def arms(self) -> list[dict]:
        """The newest numbers of every cell's arm node that was heard."""
        names = (f'/{cell}/arm' for cell in self.config.cells)
        return [self.numbers[name] for name in names if name in self.numbers]

    def learner(self) -> dict:
        """The learner's newest numbers, empty when it was not heard yet."""
        return self.numbers.get('/learning/learner', {})

    def stored(self) -> Stored | None:
        """What the store holds when every cell is quiet and the learner has counted its rows;
        cancels what still runs for an earlier run node. From the worker's thread.
        """
        now, quiet_s, learner = time.monotonic(), self.quiet_s, self.learner()
        if quiet_s is None:
            if now - self.cleared_s > 1.0:
                self.cleared_s = now
                self.call_soon(self.clear)
            return None
        counted = learner.get('state') in ('WAIT_DEMOS', 'IDLE', 'TRAINING') and 'demos' in learner
        if not counted or learner['heard'] < quiet_s + SETTLED_S:
            return None
        return Stored(int(learner['demos']), int(learner['env_steps']))

    def clear(self) -> None:
        """Ends episodes that nobody waits for."""
        for client in self.cells.values():
            if client.state not in ('', 'IDLE'):
                client.clear()

    def hindered(self) -> str:
        """Which node's disk is full, or ''."""
        for node in self.awaited:
            told = self.numbers.get(node, {})
            if told.get('state') == 'DISK_FULL' and time.monotonic() - told['heard'] < GONE_S:
                return f'the disk of {node} is full: {told["reason"]}'
        return ''

    def stopping(self) -> bool:
        """Whether somebody asked the run to end early."""
        return self.run_.stop.is_set()

    def on_second(self) -> None:
        """status.json and numbers every second, the live line less often."""
        self.seconds += 1
        run = self.run_
        try:
            self.write_status()
        except OSError as error:  # a full disk ends no run
            why = f'status.json cannot be written: {error.strerror}'
            self.get_logger().warning(why, throttle_duration_sec=30.0)
        self.metrics(
            'DISK_FULL' if run.full else run.phase,
            run.waits or run.reason,
            demos=run.good_demos,
            env_steps=run.env_steps,
            evaluations=len(run.attempts),
            curves_dropped=self.curves.dropped,
        )
        early = self.seconds <= 60 or run.waits
        if self.seconds % LIVE_S[0 if early else 1] == 0:
            self.get_logger().info(live.line(run))
        if self.seconds % 5 == 0:
            self.curves.flush()

    def write_status(self) -> None:
        """What the run and its nodes last said of themselves, whole or not at all."""
        run = self.run_
        status = {
            'run': self.run,
            'at': time.time(),
            'phase': run.phase,
            'reason': run.waits or run.reason,
            'env_steps': run.env_steps,
            'demos': run.good_demos,
            'live': live.line(run),
            'vitals': vitals(run.recent, self.numbers, self.rate),
            'nodes': {
                name: {k: v for k, v in numbers.items() if k != 'heard'}
                | {'silent_s': round(time.monotonic() - numbers['heard'], 2)}
                for name, numbers in self.numbers.items()
            },
        }
        part = self.folder / 'status.json.part'
        part.write_text(json.dumps(status))
        part.replace(self.folder / 'status.json')

    def work(self) -> None:
        """The run and its report, in a thread of its own; the node ends with the run's code."""
        try:
            solved, why = self.go()
            self.conclude(solved, why)
            if not solved and not self.code:
                self.code = NOT_REACHED
        except Exception as error:
            self.fault(error)
        finally:
            self.finish(self.code)

    def go(self) -> tuple[bool, str]:
        """Whether the goal was reached, and why the run ended early, if it did."""
        try:
            return self.run_(), ''
        except StoppedError:
            return False, 'stopped by request'
        except UserError as error:
            self.code = 1
            return False, str(error)
        except Exception as error:
            return False, self.fault(error)

    def fault(self, error: Exception) -> str:
        """Logs one line, keeps the traceback in the run folder; returns what people are told."""
        self.code = 1
        self.get_logger().error(f'the run failed: {type(error).__name__}: {error}')
        trace = ''.join(traceback.format_exception(error))
        with suppress(OSError):  # a full disk
            (self.folder / 'run-traceback.txt').write_text(trace)
        return 'a fault in the run itself; run-traceback.txt in its folder has the traceback'

    def conclude(self, solved: bool, why: str) -> None:
        """Report, picture and last lines."""
        run = self.run_
        run.pass_time()
        run.phase, run.reason = 'END', why or run.reason
        numbers = report.of(run)
        with suppress(StoppedError):  # what a full disk took is in the journal, for a resume
            run.when_there_is_room(lambda: report.write(run, numbers))
            if not run.stop.is_set():  # Ctrl-C does not wait for it
                run.when_there_is_room(lambda: picture.draw(run, self.folder / 'success.png'))
            run.record('over', solved=solved, why=why)
        for line in self.last_lines(numbers):
            self.get_logger().info(line)
        print(self.headline(solved, why, numbers), flush=True)

    def headline(self, solved: bool, why: str, numbers: dict) -> str:
        """The run's last line."""
        name, wanted = self.config.name, self.config.evaluation.consecutive
        if self.config.evaluate and why:
            return f'{name}: not judged: {why}'
        if self.config.evaluate:
            low, high = numbers['fresh_success_wilson_95'] or (0.0, 1.0)
            n = numbers['fresh_episodes']
            return (
                f'{name}: {round((numbers["fresh_success_rate"] or 0) * n)}/{n} successes, '
                f'95 % interval [{low:.2f}, {high:.2f}], '
                f'checkpoint {str(numbers["chosen_sha256"])[:12]}'
            )
        if solved:
            return f'{name}: {wanted}/{wanted} consecutive autonomous successes'
        return (
            f'{name}: ended after {numbers["train_env_steps"]} training steps, '
            f'longest streak {numbers["consecutive_successes"]}/{wanted}: '
            + (why or 'the goal was not reached within the budget')
        )

    def last_lines(self, numbers: dict) -> list[str]:
        """What a person wants to know at the end."""

        def text(key: str, form: str) -> str:
            return 'n/a' if numbers[key] is None else format(numbers[key], form)

        return [
            f'learned: success {text("fresh_success_rate", ".3f")} '
            f'of {numbers["fresh_episodes"]} fresh starts, '
            f'{text("steps_per_success", ".1f")} steps, '
            f'force p50 {text("force_p50_n", ".0f")} N p95 {text("force_p95_n", ".0f")} N',
            f'cloned: {text("bc_success_rate", ".2f")} deterministic, '
            f'{text("bc_sampled_success_rate", ".2f")} sampled, '
            f'{text("bc_steps_per_success", ".1f")} steps; '
            f'demonstrations: {text("demo_success_rate", ".2f")}, '
            f'{text("demo_steps_per_success", ".1f")} steps',
            f'training: {numbers["train_env_steps"]} steps = '
            f'{text("robot_minutes", ".1f")} robot minutes in '
            f'{text("train_wall_s", ".0f")} s; report and picture in {self.folder}',
        ]

    def interrupt(self) -> None:
        """Ctrl-C: cancels the running episode; the worker writes the report and ends the node."""
        self.run_.stop.set()

    def close(self) -> None:
        """The last status and curves, after the last callback."""
        with suppress(OSError):  # a full disk
            self.write_status()
        self.curves.close()


def main() -> None:
    """Entry point."""
    run_node(RunShell, 'run')


if __name__ == '__main__':
    main()
