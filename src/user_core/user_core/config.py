# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The one page of YAML that is a run, as frozen models.

A page holds what differs from the defaults; a default lives in the models alone. Every part of
the configuration can be imported from here.
"""

from __future__ import annotations

from collections.abc import Sequence
import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from user_core import page, resume
from user_core.arm_config import (
    LOCKSTEP,
    Arm,
    Arx,
    ArxConfig,
    ArxSimConfig,
    Franka,
    FrankaConfig,
    FrankaSimConfig,
    SimArmConfig,
    TopicsConfig,
)
from user_core.camera_config import (
    Camera,
    RealsenseConfig,
    SimCameraConfig,
    TopicsCameraConfig,
    V4l2Config,
)
from user_core.cell_config import (
    Cell,
    PegTask,
    PoseConfig,
    ReachTask,
    Safety,
    ScriptTeleop,
    Task,
    Teleop,
)
from user_core.learning_config import (
    Algorithm,
    CnnPolicy,
    Learner,
    MlpPolicy,
    Policy,
    Replay,
    Rlpd,
)
from user_core.schema import Name, Positive, Section, of_kind

__all__ = [
    'Algorithm',
    'Arm',
    'Arx',
    'ArxConfig',
    'ArxSimConfig',
    'Budget',
    'Camera',
    'Cell',
    'CnnPolicy',
    'Evaluation',
    'Franka',
    'FrankaConfig',
    'FrankaSimConfig',
    'Learner',
    'Machine',
    'MlpPolicy',
    'PegTask',
    'Policy',
    'PoseConfig',
    'ReachTask',
    'RealsenseConfig',
    'Replay',
    'Rlpd',
    'RunConfig',
    'Safety',
    'ScriptTeleop',
    'SimArmConfig',
    'SimCameraConfig',
    'Task',
    'Teleop',
    'TopicsCameraConfig',
    'TopicsConfig',
    'V4l2Config',
    'config_hash',
    'load',
    'resume_hash',
    'weights_hash',
]

Count = Annotated[int, Field(ge=1)]


class Machine(Section):
    """A computer that runs a part of the plan."""

    address: str | None = None
    """Host name or IP for people; every machine runs the same line with its own `machine`."""


class Budget(Section):
    """What a run may spend."""

    env_steps: Count = 12_000
    """Training steps of all cells together; evaluation and demonstrations do not count."""
    demos: Annotated[int, Field(ge=0)] = 20
    """Successful demonstrations to collect before training."""
    max_demo_attempts: Count = 60
    """Attempts after which the run ends for want of demonstrations."""
    wall_s: Positive | None = None
    """Wall time after which the run ends; null: none."""


class Evaluation(Section):
    """How one frozen version of the weights is judged, deterministic."""

    consecutive: Count = 100
    """Successes in a row that end the training."""
    fresh_episodes: Annotated[int, Field(ge=0)] = 200
    """Episodes from fresh seeds for the chosen version."""
    fresh_success_rate: Annotated[float, Field(ge=0, le=1)] = 0.98
    """Share of them that must succeed, else training goes on."""
    gate_successes: Count = 18
    """An evaluation begins when this many ..."""
    gate_window: Count = 20
    """... of the last training episodes succeeded."""
    gate_steps_share: Annotated[float, Field(gt=0)] | None = None
    """... and took at most this share of a demonstration's steps on average; null: any. The noise
    of training makes an episode about a third longer than the policy that is judged."""
    min_steps_between: Annotated[int, Field(ge=0)] = 500
    """Training steps between two evaluations, at least."""
    clone_episodes: Annotated[int, Field(ge=0)] = 50
    """Episodes of behaviour cloning on the same demonstrations, for comparison."""

    @model_validator(mode='after')
    def _gate_can_open(self) -> Evaluation:
        if self.gate_successes > self.gate_window:
            raise ValueError('gate_successes must not be larger than gate_window')
        return self


class RunConfig(Section):
    """One run: machines, cells, task, policy, algorithm, budgets."""

    name: Name
    """Name of the experiment; run folders begin with it."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of every random number of the run."""
    pace: Literal['lockstep', 'realtime'] = 'lockstep'
    """lockstep: a simulated cell advances one period per command; realtime: the clock decides. Not
    given: lockstep where every arm can wait, else realtime."""
    runs: str = 'runs'
    """Folder that holds the run folders, relative to where the command was given."""
    tensorboard_port: Annotated[int, Field(ge=1024, le=65535)] | None = None
    """Port on which the curves are served while the run lasts; null: not served."""
    machines: dict[Name, Machine] = Field(default={'local': Machine()}, min_length=1)
    """Computers by name."""
    cells: dict[Name, Cell] = Field(default={'arm0': Cell()}, min_length=1)
    """Robots by name; the name is the ROS namespace."""
    task: Task = PegTask()
    policy: Policy = MlpPolicy()
    algorithm: Algorithm = Rlpd()
    replay: Replay = Replay()
    learner: Learner = Learner()
    budget: Budget = Budget()
    evaluation: Evaluation = Evaluation()
    evaluate: str | None = None
    """Run folder whose chosen weights are evaluated; null: an ordinary run. Set by `user eval`."""

    @model_validator(mode='before')
    @classmethod
    def _parts_have_a_kind(cls, content: Any) -> Any:
        return of_kind(of_kind(content, 'task', 'peg'), 'policy', 'mlp')

    @model_validator(mode='before')
    @classmethod
    def _pace_of_the_arms(cls, content: Any) -> Any:
        if not isinstance(content, dict) or 'pace' in content:
            return content
        cells = content.get('cells') or {}
        arms = [cell.get('arm') for cell in cells.values() if isinstance(cell, dict)]
        kinds = {arm.get('kind', 'sim') for arm in arms if isinstance(arm, dict)}
        for cell in cells.values():
            cameras = (cell.get('cameras') or {}) if isinstance(cell, dict) else {}
            kinds |= {c.get('kind', 'sim') for c in cameras.values() if isinstance(c, dict)}
        return {**content, 'pace': 'realtime'} if kinds - set(LOCKSTEP) else content

    @model_validator(mode='after')
    def _arms_can_wait(self) -> RunConfig:
        for name, cell in self.cells.items():
            if self.pace == 'lockstep' and cell.arm.kind not in LOCKSTEP:
                raise ValueError(
                    f'pace lockstep needs an arm that can wait, and cells.{name}.arm is of kind'
                    f' {cell.arm.kind}: leave pace out or set pace=realtime'
                )
            for camera, section in cell.cameras.items():
                if self.pace == 'lockstep' and section.kind not in LOCKSTEP:
                    raise ValueError(
                        f'pace lockstep needs cameras that can wait, and'
                        f' cells.{name}.cameras.{camera} is of kind {section.kind}: leave pace out'
                        ' or set pace=realtime'
                    )
        return self

    @model_validator(mode='after')
    def _each_device_is_one_camera(self) -> RunConfig:
        known: dict[tuple[str, str], str] = {}
        for name, cell in self.cells.items():
            for camera, section in cell.cameras.items():
                device = getattr(section, 'serial', '') or getattr(section, 'device', '')
                place = section.machine or cell.machine, device
                if device and place in known:
                    raise ValueError(
                        f'cells.{known[place]} and cells.{name}.cameras.{camera} are both device'
                        f' {device} of machine {place[0]}'
                    )
                known[place] = f'{name}.cameras.{camera}'
        return self

    @model_validator(mode='after')
    def _cells_see_alike(self) -> RunConfig:
        first, *others = self.cells
        for name in others:
            if _views(self.cells[name]) != self.views:
                raise ValueError(
                    f'cells.{name}.cameras must have the names and sizes of cells.{first}.cameras:'
                    ' one policy serves all cells'
                )
        if self.policy.kind == 'cnn' and not self.views:
            raise ValueError('policy.kind cnn needs cameras: name them in cells.*.cameras')
        return self

    @model_validator(mode='after')
    def _machines_exist(self) -> RunConfig:
        places = {f'cells.{name}.machine': cell.machine for name, cell in self.cells.items()}
        for name, cell in self.cells.items():
            for camera, section in cell.cameras.items():
                if section.machine is not None:
                    places[f'cells.{name}.cameras.{camera}.machine'] = section.machine
        for part in ('policy', 'replay', 'learner'):
            places[f'{part}.machine'] = getattr(self, part).machine
        for path, machine in places.items():
            if machine not in self.machines:
                known = ', '.join(self.machines)
                raise ValueError(f'{path} is {machine}, which machines does not list: {known}')
        return self

    @model_validator(mode='after')
    def _learner_reads_the_store(self) -> RunConfig:
        if self.learner.machine != self.replay.machine:
            raise ValueError('learner.machine must be replay.machine: it reads the store there')
        return self

    @property
    def views(self) -> dict[str, tuple[int, int]]:
        """Height and width of what each camera of a cell gives, in the order of their names."""
        return _views(next(iter(self.cells.values())))

    @property
    def picture_bytes(self) -> int:
        """Bytes of the raw pictures of one row."""
        return sum(3 * height * width for height, width in self.views.values())

    def to_json(self) -> str:
        """The resolved configuration, with every default, as one line."""
        return json.dumps(self.model_dump(mode='json'), sort_keys=True)


def _views(cell: Cell) -> dict[str, tuple[int, int]]:
    return {name: (c.height, c.width) for name, c in sorted(cell.cameras.items())}


def load(source: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads a page (path, or name of a shipped one), puts the fragments of `with=FILE` over it
    and applies `a.b=value` overrides.

    Raises:
        UserError: no such page or fragment, or something on it is wrong.
    """
    path = page.find(source)
    content, origin = page.read(path), str(path)
    settings, fragments = page.merge(content, overrides)
    _let_arms_choose_the_pace(content, settings)
    page.override(RunConfig, content, settings)
    return page.validate(RunConfig, content, origin, settings, fragments)


def _let_arms_choose_the_pace(content: dict[str, Any], settings: Sequence[str]) -> None:
    """A page of a run in lockstep may be taken to an arm that cannot wait."""
    kinds = {text.partition('=')[2] for text in settings if text.startswith(('arm=', 'cameras='))}
    paced = any(text.startswith('pace=') for text in settings)
    if kinds - set(LOCKSTEP) and not paced and content.get('pace') == 'lockstep':
        del content['pace']


def from_json(text: str, origin: str = 'the configuration') -> RunConfig:
    """The configuration that `RunConfig.to_json` wrote.

    Raises:
        UserError: the text is none.
    """
    return page.validate(RunConfig, page.from_json(text, origin), origin)


def config_hash(config: RunConfig) -> str:
    """16 hex digits over everything that the nodes of one run must agree on."""
    return _hash(config.model_dump(mode='json', exclude={'runs', 'tensorboard_port'}))


def resume_hash(config: RunConfig) -> str:
    """16 hex digits over what a resumed run may not change: what was learned depends on it."""
    return _hash(resume.fixed(config.model_dump(mode='json')))


def weights_hash(config: RunConfig) -> str:
    """16 hex digits over what gives weights their meaning: task, network and control rates.

    A version from one run may act in another one (`user eval`) when these are equal.
    """
    task = config.task.model_dump(mode='json', include={'kind', 'scale_m', 'scale_rad', 'frame'})
    places = {'machine', 'device', 'weights'}
    network = config.policy.model_dump(mode='json', exclude=places)
    rates = sorted({cell.control_hz for cell in config.cells.values()})
    return _hash([task, network, rates, *([config.views] if config.policy.kind == 'cnn' else [])])


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
