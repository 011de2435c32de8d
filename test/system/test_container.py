# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A fresh container: the steps of docs/robot_computer.md reach training on a simulated robot."""

from pathlib import Path
import shutil
import subprocess

import pytest

ROOT = Path(__file__).parents[2]


def engine() -> str:
    """Docker or podman, whichever answers."""
    for name in ('docker', 'podman'):
        if shutil.which(name):
            done = subprocess.run([name, 'info'], capture_output=True, timeout=30, check=False)
            if done.returncode == 0 and b'Cannot connect' not in done.stdout + done.stderr:
                return name
    return ''


@pytest.mark.timeout(3600)
def test_the_documented_steps_reach_training_on_a_simulated_robot():
    program = engine()
    if not program:
        pytest.skip('neither docker nor podman answers here')
    archive = subprocess.run(['git', 'archive', 'HEAD'], cwd=ROOT, stdout=subprocess.PIPE)
    if archive.returncode:
        pytest.skip('this is no git checkout')
    build = [program, 'build', '-f', 'docs/robot.Containerfile', '-t', 'user-robot', '-']
    subprocess.run(build, cwd=ROOT, input=archive.stdout, check=True)
    begin = [program, 'run', '--rm', '--network=host', '--ipc=host', '--cap-add=SYS_NICE']
    begin += ['--ulimit', 'rtprio=99', '--ulimit', 'memlock=-1', 'user-robot']
    said = subprocess.run(
        [*begin, 'user', 'run', 'peg_rlpd', 'arm=franka_sim', 'budget.demos=2',
         'budget.env_steps=240', 'learner.warmup_updates=20', 'learner.clone_updates=50'],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 3, said.stdout[-3000:] + said.stderr[-3000:]  # in order, no goal
    assert 'training: 2' in said.stdout
