# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Is my run normal? Every number of the panel in a live run, and none of the run beside it."""

from collections import defaultdict
import math
from pathlib import Path
import time

from diagnostic_msgs.msg import DiagnosticArray
import pytest
from running import SHORT, Running
from scenes import need_graphics
from user_msgs.msg import Metrics, StepId

from user_core import run_folder, status, topics
from user_core.config import load
from user_core.guest import Guest
from user_learning.row import Row
from user_learning.tail import Tail

pytestmark = pytest.mark.timeout(700)

EYE = 'cameras={wrist: {width: 64, height: 64}}'


@pytest.fixture
def start(tmp_path):
    """Starts runs of one cell, named like it, each in a folder of its own; ends them."""
    runs = []

    def begin(cell: str, *settings: str) -> Running:
        folder = tmp_path / cell
        folder.mkdir()
        page = folder / 'page.yaml'
        page.write_text(f'name: {cell}\ncells: {{{cell}: {{}}}}\n')
        run = Running(folder, *SHORT, f'run={cell}', *settings, config=str(page))
        run.folder = folder / cell
        runs.append(run)
        return run

    yield begin
    for run in runs:
        run.close()


def accuse(seconds: float) -> dict[str, set[str]]:
    """A third run on the domain says of its learner, with the same name, that all is lost; what
    /diagnostics tells meanwhile: the names of each run.
    """
    names = defaultdict(set)

    def on_diagnostics(message: DiagnosticArray) -> None:
        for each in message.status:
            names[next(v.value for v in each.values if v.key == 'run')].add(each.name)

    metrics, diagnostics = topics.TOPICS['metrics'], topics.TOPICS['diagnostics']
    with Guest('third') as guest:
        pub = guest.node.create_publisher(metrics.type, topics.name('metrics'), metrics.writer)
        guest.node.create_subscription(
            diagnostics.type, topics.name('diagnostics'), on_diagnostics, diagnostics.reader
        )
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for node in ('/learning/learner', '/third/arm'):
                pub.publish(Metrics(id=StepId(run='third'), node=node, state='HALTED'))
            guest.executor.spin_once(0.05)
    return names


def cells_of(folder: Path) -> set[str]:
    return {row.cell for row in Tail(folder / 'store').rows() if isinstance(row, Row)}


def test_every_number_of_the_panel_is_there_and_finite_and_none_is_of_another_run(start):
    need_graphics()
    left = start('left', 'budget.env_steps=100000', f'cells.left.{EYE}')
    right = start('right', 'budget.env_steps=100000')
    wanted = {f'{field.line} {field.name}' for field in status.FIELDS}

    def complete(said: dict) -> bool:
        return wanted <= set(status.fields(said)) and len(status.camera_ages(said['nodes'])) == 1

    left.until(complete, 400.0)
    right.until(lambda said: said['demos'] > 0, 200.0)
    diagnosed = accuse(6.0)
    said = left.until(complete)
    numbers = status.fields(said)
    assert all(math.isfinite(value) for value in numbers.values()), numbers
    assert numbers['training of the last'] >= 1
    assert numbers['rates steps/s'] > 0
    assert numbers['rates period ms p50'] > 0
    assert numbers['buffer rows'] > 0
    assert numbers['buffer MB'] > 0
    assert 0 <= status.camera_ages(said['nodes'])['/left']['wrist'] < 5
    for run in (left, right):
        page = load(run.folder)
        assert set(run.status()['nodes']) == set(status.speaking(page)), 'the others are not ours'
        assert cells_of(run.folder) == set(page.cells)
        assert set(status.speaking(page)) <= diagnosed[run.folder.name], 'every node, for rqt'
        shown = status.show(run.folder)
        assert 'not heard yet' not in shown
        assert 'all finite' in shown
        assert 'HALTED' not in shown
    pid = left.pid('policy')
    left.kill('policy')
    told = left.until(lambda s: s['nodes']['/learning/policy']['silent_s'] > 1.0)
    assert told['phase'] == 'TRAINING'
    left.until(lambda s: s['nodes']['/learning/policy']['silent_s'] < 1.0)
    assert left.pid('policy') != pid
    assert run_folder.status(left.folder)[1] < 5.0
