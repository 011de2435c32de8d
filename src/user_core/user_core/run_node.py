# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The run's shell: an action client of every cell, the latched configuration, status.json, curves, exit code."""

import json
from pathlib import Path
import threading
import time

import numpy as np
from rclpy.action import ActionClient
from tensorboard.summary import Writer
from user_msgs import msg
from user_msgs.action import RunEpisode

from user_core import report
from user_core.config import config_hash
from user_core.errors import UserError
from user_core.node import Shell, run_node
from user_core.run import Announced, Boundary, Episode, Goal, Run, Stopped

NOT_REACHED = 3
"""Exit code of a run that ended in order, within its budget, without reaching its goal."""
LOST_S = 4.0
"""A cell that is silent this long has lost its episode (steady clock)."""


class CellClient:
    """Blocking face of one cell's run_episode action; called from a worker thread of the run, one at a time."""

    def __init__(self, shell: 'RunShell', cell: str) -> None:
        self.shell, self.cell = shell, cell
        self.action = ActionClient(shell, RunEpisode, f'/{cell}/run_episode')
        self.heard = time.monotonic()
        self.incarnation: float | None = None

    def __call__(self, goal: Goal) -> Episode:
        """One episode; never raises: what hinders it is a void episode with the reason."""
        stop = self.shell.run_.stop
        deadline = time.monotonic() + 20.0
        while not self.action.server_is_ready():
            if stop.is_set() or time.monotonic() > deadline:
                return Episode(goal, self.cell, Boundary.ABORT, f'cell {self.cell} is not there (no run_episode)', void=True)
            time.sleep(0.05)
        request = RunEpisode.Goal(mode=goal.mode, policy=goal.policy, policy_version=goal.version, seed=goal.seed)
        ended = threading.Event()
        answer: list = []
        self.heard, incarnation = time.monotonic(), self.incarnation
        self.shell.call_soon(lambda: self._send(request, answer, ended))
        asked = False
        while not ended.wait(0.1):
            if time.monotonic() - self.heard > LOST_S:
                return Episode(goal, self.cell, Boundary.ABORT, f'cell {self.cell} fell silent', void=True)
            if incarnation is not None and self.incarnation != incarnation:
                return Episode(goal, self.cell, Boundary.ABORT, f'the episode node of {self.cell} was restarted', void=True)
            if stop.is_set() and not asked and answer:
                asked = True
                self.shell.call_soon(answer[0].cancel_goal_async)
        if len(answer) < 2:
            return Episode(goal, self.cell, Boundary.ABORT, f'cell {self.cell} refused the episode', void=True)
        return self._episode(goal, answer[1])

    def _send(self, request: RunEpisode.Goal, answer: list, ended: threading.Event) -> None:
        def accepted(future) -> None:
            handle = future.result()
            if not handle.accepted:
                ended.set()
                return
            answer.append(handle)
            handle.get_result_async().add_done_callback(finished)

        def finished(future) -> None:
            answer.append(future.result().result)
            ended.set()

        self.action.send_goal_async(request).add_done_callback(accepted)

    def _episode(self, goal: Goal, result: RunEpisode.Result) -> Episode:
        return Episode(
            goal=goal,
            cell=self.cell,
            boundary=Boundary(result.boundary),
            reason=result.reason,
            void=result.invalid,
            episode_return=result.episode_return,
            length=result.length,
            interventions=result.interventions,
            first_version=result.first_version,
            last_version=result.last_version,
            peak_force=result.peak_force,
            distance=result.distance,
            policy_lag=result.policy_lag,
            duration_s=result.duration,
            late_steps=result.late_steps,
            period_s=np.asarray(result.period, np.float32),
        )


class RunShell(Shell):
    """Starts the run in a worker thread; the executor's thread only moves messages."""

    def __init__(self) -> None:
        super().__init__('run')
        self.numbers: dict[str, dict] = {}
        self.weights: dict[str, Announced] = {}
        self.curves = Writer(str(self.folder / 'tensorboard' / 'run'))
        self.cells = {cell: CellClient(self, cell) for cell in self.config.cells}
        self.run_ = Run(
            self.config, self.folder, dict(self.cells), self.learner, self.weights.get, self.curve, self.get_logger().info
        )
        self.create_sub('metrics', self.on_metrics)
        if self.config.evaluate:
            self.announce(Path(self.config.evaluate))
        else:
            self.create_sub('weights', self.on_weights)
        latched = self.create_pub('run_config')
        latched.publish(
            msg.RunConfig(run=self.run, config_hash=config_hash(self.config), config=self.config.model_dump_json())
        )
        self.create_timer(1.0, self.on_second)
        self.seconds = 0
        self.code = 0
        self.worker = threading.Thread(target=self.work, name='run', daemon=True)
        self.worker.start()

    def announce(self, folder: Path) -> None:
        """Evaluation of a finished run: its chosen version is announced from its own file, or nothing is."""
        numbers = folder / 'report.json'
        version = json.loads(numbers.read_text()).get('chosen_version') if numbers.exists() else None
        path = folder.resolve() / 'checkpoints' / f'actor-{version}.safetensors'
        if version is None or not path.exists():
            raise UserError(f'{folder} holds no chosen checkpoint', 'the run never passed an evaluation', 'choose another run')
        import hashlib

        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        recorded = json.loads(numbers.read_text())['chosen_sha256']
        if digest != recorded:
            raise UserError(f'{path} is not the checkpoint that the report names', 'its content hash differs', 'restore the file')
        self.weights['actor'] = Announced('actor', version, digest, path)
        self.latched_weights = self.create_pub('weights')
        self.latched_weights.publish(
            msg.Weights(run=self.run, policy='actor', version=version, path=str(path), size=path.stat().st_size, sha256=digest)
        )

    def on_metrics(self, message: msg.Metrics) -> None:
        """Keeps every node's newest numbers; an episode's heartbeat says that its cell lives."""
        numbers = dict(zip(message.names, message.values, strict=True))
        self.numbers[message.node] = {
            **numbers, 'state': message.state, 'reason': message.reason, 'heard': time.monotonic(),
        }
        cell, _, name = message.node.strip('/').partition('/')
        if name == 'episode' and cell in self.cells:
            self.cells[cell].heard = time.monotonic()
            self.cells[cell].incarnation = numbers.get('incarnation_s')

    def on_weights(self, message: msg.Weights) -> None:
        """Only this run's weights count; versions never go backwards."""
        known = self.weights.get(message.policy)
        if message.run == self.run and (known is None or message.version > known.version):
            self.weights[message.policy] = Announced(
                message.policy, message.version, message.sha256, Path(message.path)
            )

    def learner(self) -> dict:
        """The learner's newest numbers, empty when it was not heard yet."""
        return self.numbers.get('/learning/learner', {})

    def curve(self, name: str, value: float, step: int) -> None:
        """One point of a TensorBoard curve."""
        self.curves.add_scalar(name, value, step)

    def on_second(self) -> None:
        """status.json every second, the live line every fifth."""
        self.seconds += 1
        run = self.run_
        status = {
            'run': self.run,
            'at': time.time(),
            'phase': run.phase,
            'reason': run.reason,
            'env_steps': run.env_steps,
            'demos': sum(e.success for e in run.demos),
            'live': run.live(),
            'nodes': {
                name: {k: v for k, v in numbers.items() if k != 'heard'}
                | {'age_s': round(time.monotonic() - numbers['heard'], 2)}
                for name, numbers in self.numbers.items()
            },
        }
        part = self.folder / 'status.json.part'
        part.write_text(json.dumps(status))
        part.replace(self.folder / 'status.json')
        if self.seconds % 5 == 0:
            self.get_logger().info(run.live())
            self.curves.flush()

    def work(self) -> None:
        """The run itself, its report and its last line; then the node ends with the run's code."""
        run, name = self.run_, self.config.name
        solved, why = False, ''
        try:
            solved = run()
        except Stopped:
            why = 'stopped by request'
        except UserError as error:
            why, self.code = str(error), 1
        except Exception as error:
            self.get_logger().error(f'the run failed: {type(error).__name__}: {error}')
            why, self.code = 'a fault in the run itself; its log has the traceback', 1
            (self.folder / 'run-traceback.txt').write_text(''.join(__import__('traceback').format_exception(error)))
        run.phase, run.reason = 'END', why or run.reason
        numbers = report.write(run)
        self.on_second()
        self.curves.close()
        for line in self.last_lines(solved, why, numbers):
            self.get_logger().info(line)
        print(self.headline(solved, why, numbers), flush=True)
        if not solved and not self.code and not why:
            self.code = NOT_REACHED
        self.finish(self.code)

    def headline(self, solved: bool, why: str, numbers: dict) -> str:
        """The run's last line."""
        name, wanted = self.config.name, self.config.evaluation.consecutive
        if self.config.evaluate:
            low_high = numbers['fresh_success_wilson_95'] or (0.0, 1.0)
            n = numbers['fresh_episodes']
            return (f'{name}: {round((numbers["fresh_success_rate"] or 0) * n)}/{n} successes, 95 % interval '
                    f'[{low_high[0]:.2f}, {low_high[1]:.2f}], checkpoint {str(numbers["chosen_sha256"])[:12]}')
        if solved:
            return f'{name}: {wanted}/{wanted} consecutive autonomous successes'
        best = numbers['consecutive_successes']
        return (f'{name}: ended after {numbers["train_env_steps"]} training steps, longest streak {best}/{wanted}'
                + (f': {why}' if why else ': the goal was not reached within the budget'))

    def last_lines(self, solved: bool, why: str, numbers: dict) -> list[str]:
        """What a person wants to know at the end."""
        def text(key: str, form: str) -> str:
            return 'n/a' if numbers[key] is None else format(numbers[key], form)

        return [
            f'learned: success {text("fresh_success_rate", ".3f")} of {numbers["fresh_episodes"]} fresh starts, '
            f'{text("steps_per_success", ".1f")} steps, force p50 {text("force_p50_n", ".0f")} N '
            f'p95 {text("force_p95_n", ".0f")} N',
            f'cloned: {text("bc_success_rate", ".2f")} deterministic, {text("bc_sampled_success_rate", ".2f")} sampled, '
            f'{text("bc_steps_per_success", ".1f")} steps; demonstrations: {text("demo_success_rate", ".2f")}, '
            f'{text("demo_steps_per_success", ".1f")} steps',
            f'training: {numbers["train_env_steps"]} steps = {numbers["robot_minutes"]:.1f} robot minutes in '
            f'{numbers["train_wall_s"]:.0f} s; report and picture in {self.folder}',
        ]

    def close(self) -> None:
        """Ctrl-C: the run stops asking for episodes, writes its report and ends."""
        self.run_.stop.set()
        self.worker.join(timeout=8.0)


def main() -> None:
    """Entry point."""
    run_node(RunShell, 'run')


if __name__ == '__main__':
    main()
