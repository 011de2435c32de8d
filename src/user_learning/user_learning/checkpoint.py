# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the whole learner: one safetensors file each (no pickle), written durably, newest
two kept.

A file holds tensors, and as JSON how far the learner was: its place in the store among them. The
rows themselves stay in the store, which deletes none that a kept checkpoint needs (`held_place`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any
import zlib

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from user_core.errors import UserError
from user_learning.tail import Place
from user_learning.weights import metadata_of, write_durably

SCHEMA = 2
"""Shape of a checkpoint's metadata."""

KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """What was loaded. `lost` says what a damaged newer file held, if there was one."""

    path: Path
    tensors: dict[str, Tensor]
    progress: dict[str, Any]
    lost: str = ''

    @property
    def place(self) -> Place:
        """The end of what the learner had read of its store."""
        return self.progress['segment'], self.progress['offset']

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors below a prefix, without it."""
        begin = f'{prefix}.'
        return {k[len(begin) :]: v for k, v in self.tensors.items() if k.startswith(begin)}


def save(folder: Path, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> Path:
    """Writes a checkpoint named by progress['updates'] and returns its path. Raises OSError on a
    full disk.
    """
    for torn in folder.glob('learner-*.part'):
        torn.unlink(missing_ok=True)
    path = path_of(folder, progress['updates'])
    whole = {k: v.contiguous() for k, v in tensors.items()}
    text = json.dumps({'schema': SCHEMA, **progress})
    write_durably(path, bytes_of(whole, {'learner': f'{_crc(text, whole)} {text}'}))
    for old in found(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def path_of(folder: Path, updates: int) -> Path:
    """File of the checkpoint after so many updates."""
    return folder / f'learner-{updates:010d}.safetensors'


def found(folder: Path) -> list[Path]:
    """Checkpoints, oldest first."""
    return sorted(folder.glob('learner-*.safetensors'))


def load(folder: Path, resume_hash: str) -> Checkpoint | None:
    """The newest whole checkpoint; None when there is none.

    A damaged file is passed over for the one before it, and set aside. Raises UserError when that
    belongs to another configuration, or when there are files and none is whole: a run never starts
    over by itself.
    """
    damaged: list[Path] = []
    for path in reversed(found(folder)):
        try:
            data = path.read_bytes()
            tensors, (crc, text) = tensors_of(data), _said(data)
            progress = json.loads(text)
            if crc != _crc(text, tensors):
                raise ValueError('its checksum is wrong')
        except (OSError, SafetensorError, ValueError, KeyError):
            damaged.append(path)
            continue
        if progress['schema'] != SCHEMA:
            raise UserError(
                f'{path.name} was written by another version of USER',
                f'its schema is {progress["schema"]}, this version reads {SCHEMA}',
                'resume with the version that wrote it',
            )
        if progress['resume_hash'] != resume_hash:
            raise UserError(
                f'{path.name} belongs to another configuration',
                f'it was written with {progress["resume_hash"]}, this one is {resume_hash}',
                'start a new run, or use the config.json of that run',
            )
        for other in damaged:
            other.replace(other.with_suffix('.damaged'))
        return Checkpoint(path, tensors, progress, _lost(damaged, progress['updates']))
    if damaged:
        raise UserError(
            f'no checkpoint in {folder} is readable', 'all of them are damaged', 'start a new run'
        )
    return None


def held_place(folder: Path) -> Place | None:
    """The place in the store of the oldest kept checkpoint, by the files' headers alone; None when
    there is none.
    """
    for path in found(folder):
        try:
            with path.open('rb') as file:
                length = file.read(8)
                data = length + file.read(min(int.from_bytes(length, 'little'), _MOST_HEADER))
            progress = json.loads(_said(data)[1])
            return int(progress['segment']), int(progress['offset'])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it went meanwhile, or is damaged
    return None


_MOST_HEADER = 16 << 20
"""Bytes of the longest header that is believed."""


def _said(data: bytes) -> tuple[str, str]:
    """Checksum and JSON of a file that begins with `data`."""
    crc, _, text = metadata_of(data)['learner'].partition(' ')
    return crc, text


def _crc(text: str, tensors: Mapping[str, Tensor]) -> str:
    """One checksum over everything: the format has none."""
    crc = zlib.crc32(text.encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f'{name}{tuple(tensor.shape)}'.encode(), crc)
        crc = zlib.crc32(tensor.numpy().reshape(-1).view(np.uint8).data, crc)
    return f'{crc:08x}'


def _lost(damaged: list[Path], updates: int) -> str:
    if not damaged:
        return ''
    newest = int(damaged[0].stem.partition('-')[2])
    return (
        f'{damaged[0].name} is damaged: updates {updates + 1} to {newest} are made again, from the'
        ' checkpoint before it'
    )
