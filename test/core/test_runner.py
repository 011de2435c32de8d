# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The runner leaves nothing behind, whatever dies."""

import io
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from user_core.errors import UserError
from user_core.plan import NodeSpec
from user_core.runner import BACK_OFF_S, Process, Supervisor, find_executable, processes

READY = "import sys, time, signal, os; print('up', os.getpid(), flush=True)\n"


def script(name: str, body: str = '', **kwargs) -> Process:
    """A real child: Python without site, so that it starts in milliseconds."""
    code = READY + textwrap.dedent(body or 'time.sleep(60)')
    return Process(name, [sys._base_executable, '-S', '-E', '-c', code], **kwargs)


def supervised(tmp_path: Path, *parts: Process) -> tuple[int, list[str]]:
    out = io.StringIO()
    code = Supervisor(parts, tmp_path / 'logs', out).run()
    return code, out.getvalue().splitlines()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0]
    return state != 'Z'


def pids(lines: list[str]) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.search(r'up (\d+)', line))]


def until(true, seconds: float = 20.0):
    end = time.monotonic() + seconds
    while not (result := true()):
        assert time.monotonic() < end, 'waited in vain'
        time.sleep(0.02)
    return result


@pytest.mark.parametrize('code', [0, 3])
def test_the_run_s_exit_code_is_the_command_s_and_nothing_survives_it(tmp_path, code):
    ended, lines = supervised(
        tmp_path, script('arm'), script('run', f'time.sleep(0.3); sys.exit({code})', leads=True)
    )
    assert ended == code
    assert len(pids(lines)) == 2
    assert not any(alive(pid) for pid in pids(lines))


def test_every_line_is_prefixed_with_its_node_and_kept_in_its_log(tmp_path):
    body = "print('one'); print('two\\nthree'); sys.stderr.write('four')"
    body += '; sys.stdout.flush(); sys.stderr.flush()'
    code, lines = supervised(
        tmp_path,
        script('arm0/arm', f'{body}\ntime.sleep(60)'),
        script('run', 'time.sleep(0.8); print("the end")', leads=True),
    )
    assert code == 0
    for word in ('one', 'two', 'three'):
        assert f'arm0/arm | {word}' in lines
    assert 'four' in (tmp_path / 'logs' / 'arm0_arm.log').read_text()
    assert lines[-1] == 'the end'


def test_a_killed_process_is_started_again_and_the_run_goes_on(tmp_path):
    """The leader kills its neighbour, waits for the next incarnation, and ends well."""
    log = tmp_path / 'logs' / 'learner.log'
    body = f"""
    import re
    def seen(n):
        for _ in range(600):
            found = re.findall('up ([0-9]+)', open({str(log)!r}).read())
            if len(found) >= n:
                return int(found[-1])
            time.sleep(0.05)
        sys.exit(9)
    os.kill(seen(1), signal.SIGKILL)
    os.kill(seen(2), signal.SIGKILL)
    seen(3)
    """
    code, lines = supervised(
        tmp_path, script('learner', respawn=True), script('run', body, leads=True)
    )
    assert code == 0
    again = [line for line in lines if 'is started again' in line]
    assert len(again) == 2
    assert 'signal SIGKILL' in again[0]


def test_a_process_that_keeps_dying_ends_the_run_after_a_few_tries(tmp_path, monkeypatch):
    monkeypatch.setattr('user_core.runner.BACK_OFF_S', (0.01,) * len(BACK_OFF_S))
    code, lines = supervised(
        tmp_path, script('policy', "print('no luck'); sys.exit(1)", respawn=True)
    )
    assert code == 1
    assert len(pids(lines)) == len(BACK_OFF_S) + 1
    assert 'so the run ends: no luck' in lines[-1]


def test_a_process_that_said_why_it_cannot_go_on_is_not_started_again(tmp_path):
    code, lines = supervised(
        tmp_path,
        script('arm', "print('FATAL no such arm'); sys.exit(2)", respawn=True),
        script('run', leads=True),
    )
    assert code == 2
    assert [line for line in lines if 'so the run ends: FATAL no such arm' in line]


def test_a_process_that_is_not_required_may_go(tmp_path):
    code, _ = supervised(
        tmp_path,
        script('curves', 'sys.exit(5)', required=False),
        script('run', 'time.sleep(0.5)', leads=True),
    )
    assert code == 0


def test_a_missing_program_ends_the_run_with_its_name(tmp_path):
    code, lines = supervised(tmp_path, Process('arm', ['/no/such/program']))
    assert code == 1
    assert '/no/such/program' in lines[0]


def test_processes_end_stage_after_stage_and_those_of_one_together(tmp_path):
    body = f"""
    def end(*_):
        time.sleep(PAUSE)
        open({str(tmp_path / 'order')!r}, 'a').write(NAME + ' ')
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    time.sleep(60)
    """
    stages = {'arm': (0, 0.0), 'replay': (1, 0.4), 'learner': (1, 0.0), 'episode': (2, 0.2)}
    parts = [
        script(name, body.replace('NAME', repr(name)).replace('PAUSE', str(pause)), stage=stage)
        for name, (stage, pause) in stages.items()
    ]
    code, _ = supervised(tmp_path, *parts, script('run', 'time.sleep(0.5)', leads=True))
    assert code == 0
    assert (tmp_path / 'order').read_text().split() == ['episode', 'learner', 'replay', 'arm']


def test_the_run_is_started_again_when_a_signal_killed_it_and_not_when_it_ended(tmp_path):
    mark = tmp_path / 'again'
    body = f"""
    if not os.path.exists({str(mark)!r}):
        open({str(mark)!r}, 'w').close()
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(3)
    """
    code, lines = supervised(tmp_path, script('arm'), script('run', body, leads=True))
    assert code == 3
    assert [line for line in lines if 'is started again' in line] == [
        'the run ended (signal SIGKILL), is started again'
    ]
    assert len(pids(lines)) == 3  # the arm stayed


def test_a_run_that_is_killed_again_and_again_ends_everything(tmp_path, monkeypatch):
    monkeypatch.setattr('user_core.runner.BACK_OFF_S', (0.01,) * len(BACK_OFF_S))
    body = 'os.kill(os.getpid(), signal.SIGKILL)'
    code, lines = supervised(tmp_path, script('run', body, leads=True))
    assert code == 1
    assert sum('is started again' in line for line in lines) == len(BACK_OFF_S)
    assert 'so the run ends' in lines[-1]


RUNNER = """
import sys
from pathlib import Path
from user_core import runner
runner.CUT_OFF_S = runner.STAGE_S = float(sys.argv[1])
parts = [
    runner.Process(name, [sys._base_executable, '-S', '-E', '-c', code], respawn=True)
    for name, code in zip(('one', 'two'), sys.argv[3:], strict=True)
]
sys.exit(runner.Supervisor(parts, Path(sys.argv[2])).run())
"""

STUBBORN = (
    READY + 'for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, lambda *_: None)\n'
    'while True: time.sleep(1)'
)
GOOD = READY + 'time.sleep(60)'


def a_runner(
    tmp_path: Path, one: str, two: str, patience_s: float = 60.0
) -> tuple[subprocess.Popen, list[int]]:
    """A supervisor in a process of its own, and the pids of its two children."""
    logs = tmp_path / 'logs'
    runner = subprocess.Popen(
        [sys.executable, '-c', RUNNER, str(patience_s), str(logs), one, two],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0,
    )  # fmt: skip

    def up() -> list[int]:
        texts = [log.read_text() for log in sorted(logs.glob('*.log'))]
        found = pids(texts)
        return found if len(found) == 2 else []

    return runner, until(up)


def test_kill_9_of_the_runner_leaves_no_orphan(tmp_path):
    runner, children = a_runner(tmp_path, GOOD, GOOD)
    assert all(alive(pid) for pid in children)
    runner.kill()
    runner.wait()
    until(lambda: not any(alive(pid) for pid in children))


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_one_interrupt_ends_everything_and_says_so(tmp_path, number):
    runner, children = a_runner(tmp_path, GOOD, GOOD)
    runner.send_signal(number)
    assert runner.wait(20) == 128 + number
    assert not any(alive(pid) for pid in children)


def test_a_second_interrupt_kills_what_does_not_end(tmp_path):
    runner, children = a_runner(tmp_path, GOOD, STUBBORN)
    runner.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert alive(children[1])
    runner.send_signal(signal.SIGINT)
    assert runner.wait(20) == 130  # its patience alone is a minute
    assert not any(alive(pid) for pid in children)


def test_what_does_not_end_is_killed_after_a_while(tmp_path):
    runner, children = a_runner(tmp_path, STUBBORN, STUBBORN, patience_s=1.0)
    runner.send_signal(signal.SIGINT)
    assert runner.wait(40) == 130
    assert not any(alive(pid) for pid in children)


def test_grandchildren_end_with_their_parent(tmp_path):
    body = f"""
    import subprocess
    child = subprocess.Popen([{sys._base_executable!r}, '-S', '-c', 'import time; time.sleep(60)'])
    print('up', child.pid, flush=True)
    """
    code, lines = supervised(
        tmp_path,
        script('curves', f'{textwrap.dedent(body)}', required=False),
        script('run', 'time.sleep(0.5)', leads=True),
    )
    assert code == 0
    assert len(pids(lines)) == 3
    until(lambda: not any(alive(pid) for pid in pids(lines)))


def test_a_node_s_command_carries_name_namespace_parameters_and_priority(tmp_path, monkeypatch):
    program = tmp_path / 'prefix' / 'lib' / 'user_robot' / 'arm'
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\n')
    program.chmod(0o755)
    monkeypatch.setenv('AMENT_PREFIX_PATH', f'/nowhere:{tmp_path / "prefix"}')
    node = NodeSpec('user_robot', 'arm', 'arm', '/arm0', 'local', nice=5, env={'A': 'b'})
    config = '{"text": "it\'s \\"quoted\\": {}#"}'
    (process,) = processes([node], config, 'r1', tmp_path / 'r1')
    assert process.command[:4] == ['nice', '-n', '5', str(program)]
    assert '__node:=arm' in process.command
    assert '__ns:=/arm0' in process.command
    assert process.env['A'] == 'b'
    import yaml

    file = yaml.safe_load(Path(process.command[-1]).read_text())
    assert file['/arm0/arm']['ros__parameters'] == {
        'config': config,
        'run': 'r1',
        'run_folder': str(tmp_path / 'r1'),
    }


def test_an_executable_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setenv('AMENT_PREFIX_PATH', '/nowhere')
    with pytest.raises(UserError, match=r'arm of user_robot is not installed.*make build'):
        find_executable('user_robot', 'arm')
