# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated FR3's scene, state and arguments."""

import json
from pathlib import Path
import signal
import subprocess
import sys
from typing import Any

from boxes import address
from franka_rig import DOWN, HOME, START_S, wait_for
from franky_sim.franka_robot_state import FrankaRobotState
import mujoco
import numpy as np
import yaml

from user_core.config import FrankaSimConfig, RunConfig
from user_core.geometry import Array, Pose
from user_sim.franka.scene import FrankaScene
from user_sim.franka.server import read_arguments
from user_sim.franka.state import StateMessage
from user_sim.scene import peg_scene, solve_ik
from user_sim.snapshot import Reader, place


def test_a_plan_starts_it_like_a_node(tmp_path: Path) -> None:
    arm = FrankaSimConfig(address='127.0.0.9')
    page = {'name': 'peg', 'pace': 'realtime', 'seed': 7, 'cells': {'left': {'arm': arm}}}
    config = RunConfig.model_validate(page)
    parameters = {'config': config.to_json(), 'run': 'peg-1', 'run_folder': str(tmp_path)}
    file = tmp_path / 'parameters.yaml'
    file.write_text(yaml.safe_dump({'/**': {'ros__parameters': parameters}}))
    setup = read_arguments(
        ['--ros-args', '--params-file', str(file), '-r', '__node:=box', '-r', '__ns:=/left']
    )
    assert (setup.arm, setup.seed, setup.run, setup.cell) == (arm, 7, 'peg-1', 'left')
    assert setup.folder == tmp_path


def test_a_run_finds_numbers_about_the_server_in_its_logs(tmp_path: Path) -> None:
    (tmp_path / 'logs').mkdir()
    where = address()
    page = {'name': 'peg', 'pace': 'realtime',
            'cells': {'arm0': {'arm': {'kind': 'franka_sim', 'address': where}}}}  # fmt: skip
    config = RunConfig.model_validate(page)
    parameters = {'config': config.to_json(), 'run': tmp_path.name, 'run_folder': str(tmp_path)}
    file = tmp_path / 'parameters.yaml'
    file.write_text(json.dumps({'/**': {'ros__parameters': parameters}}))
    process = subprocess.Popen(
        [sys.executable, '-m', 'user_sim.franka.server', '--ros-args', '--params-file', str(file),
         '-r', '__ns:=/arm0'],
    )  # fmt: skip
    status = tmp_path / 'logs' / 'arm0_franka_server.json'
    try:
        wait_for(status.exists)
        numbers = json.loads(status.read_text())
        assert numbers['ticks'] > 0
        assert 0 < numbers['realtime_factor'] < 1.1
        snapshot = Reader(place(tmp_path.name, 'arm0')).read()
        assert snapshot is not None
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(START_S) == 0
    assert not place(tmp_path.name, 'arm0').exists()


def test_every_field_of_the_state_is_where_libfranka_expects_it() -> None:
    rng = np.random.default_rng(0)
    ours = StateMessage()
    values: dict[str, Any] = {}
    for name, field in ours.field.items():
        if field.dtype == np.uint8:
            field[:] = rng.integers(0, 2, field.shape)
            bits = tuple(bool(bit) for bit in field)
            values[name] = bits if field.size > 1 else int(field[0])
        else:
            field[:] = rng.uniform(-1, 1, field.shape)
            numbers = tuple(float(number) for number in field)
            values[name] = numbers if field.size > 1 else numbers[0]
    assert ours.tobytes() == FrankaRobotState(**values).pack_state()


def test_the_next_attempt_has_new_errors_and_an_idle_peg_keeps_its_own() -> None:
    scene = FrankaScene(FrankaSimConfig(), Pose(HOME, DOWN), seed=5)

    def put(z_m: float) -> Array:
        solve_ik(scene.model, scene.data, scene.tcp, Pose(np.array([0.5, 0.0, z_m]), DOWN))
        scene.data.qvel[:] = 0.0
        for _ in range(3):
            scene.step(np.zeros(7))
        return np.concatenate([scene.data.mocap_pos[0], scene.model.body_pos[scene.peg]])

    first = put(0.232)
    np.testing.assert_array_equal(put(0.19), first)  # never near: nothing new above
    np.testing.assert_array_equal(put(0.232), first)
    np.testing.assert_array_equal(put(0.165), first)
    np.testing.assert_array_equal(put(0.20), first)  # not yet well above
    second = put(0.232)
    assert (second != first).sum() >= 4
    assert np.abs(second - first).max() < 3e-3
    np.testing.assert_array_equal(put(0.232), second)
    again = FrankaScene(FrankaSimConfig(), Pose(HOME, DOWN), seed=5)
    np.testing.assert_array_equal(
        np.concatenate([again.data.mocap_pos[0], again.model.body_pos[again.peg]]), first
    )


def test_a_drawn_arm_stands_where_the_simulated_one_does() -> None:
    drawn = mujoco.MjModel.from_xml_string(peg_scene(FrankaSimConfig(), drawn=True))
    scene = FrankaScene(FrankaSimConfig(), Pose(HOME, DOWN))
    data = mujoco.MjData(drawn)
    data.qpos[:] = scene.data.qpos
    mujoco.mj_forward(drawn, data)
    np.testing.assert_allclose(data.site('tcp').xpos, HOME, atol=1e-6)
    assert data.ncon == 0  # its shells touch nothing
    assert drawn.ngeom > scene.model.ngeom
    assert {drawn.camera(i).name for i in range(drawn.ncam)} == {'wrist', 'side'}
