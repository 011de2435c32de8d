# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the whole learner: one safetensors file each (no pickle), written durably, newest
two kept.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from user_core.errors import UserError
from user_learning.weights import metadata_of, write_durably

SCHEMA = 1
"""Shape of a checkpoint's metadata; a reader refuses newer ones."""

KEEP = 2


def save(
    folder: Path, tensors: Mapping[str, Tensor], progress: Mapping[str, int | float | str]
) -> Path:
    """Writes a checkpoint named by progress['updates'] and returns its path. Raises OSError on a
    full disk.
    """
    path = folder / f'learner-{int(progress["updates"]):010d}.safetensors'
    text = json.dumps({'schema': SCHEMA, **progress})
    write_durably(
        path, bytes_of({k: v.contiguous() for k, v in tensors.items()}, {'learner': text})
    )
    for old in found(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def found(folder: Path) -> list[Path]:
    """Checkpoints, oldest first."""
    return sorted(folder.glob('learner-*.safetensors'))


def load(folder: Path, config_hash: str) -> tuple[dict[str, Tensor], dict] | None:
    """The newest readable checkpoint: tensors and progress; None when there is none.

    A broken file is passed over for the one before it. Raises UserError when it belongs to another
    configuration, or when there are files and none is readable: a run never starts over by itself.
    """
    paths = found(folder)
    for path in reversed(paths):
        data = path.read_bytes()
        try:
            tensors, progress = tensors_of(data), json.loads(metadata_of(data)['learner'])
        except (SafetensorError, ValueError, KeyError):
            continue
        if progress['schema'] > SCHEMA:
            raise UserError(
                f'{path.name} is newer than this version of USER',
                '',
                'resume with the version that wrote it',
            )
        if progress['config_hash'] != config_hash:
            raise UserError(
                f'{path.name} belongs to another configuration',
                f'it was written with {progress["config_hash"]}, this one is {config_hash}',
                'start a new run, or use the config.json of that run',
            )
        return tensors, progress
    if paths:
        raise UserError(
            f'no checkpoint in {folder} is readable', 'all of them are damaged', 'start a new run'
        )
    return None
