# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Versions of a policy's weights: immutable safetensors files, announced by hash, never
overwritten.

A version number is taken from a block that is reserved on disk before the first of its numbers is
used, so it never goes backwards, whatever is killed and whichever checkpoint a learner comes back
from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import hashlib
import json
import os
from pathlib import Path
import re
import shutil

from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from user_core.errors import UserError

BLOCK = 64
"""Versions reserved at a time: one synced write for this many."""

_SAFE = re.compile(r'[^A-Za-z0-9_.-]')


@dataclass(frozen=True)
class Version:
    """One announced version (msg/Weights.msg)."""

    policy: str
    version: int
    path: Path
    size: int
    sha256: str
    updates: int = 0
    env_steps: int = 0
    config_hash: str = ''


class BadWeightsError(ValueError):
    """A file that is not the version that was announced; the text says why."""


def shared_folder(run: str, run_folder: Path) -> Path:
    """Folder in which a run's newest weights are exchanged: shared memory, or the run's own where
    there is none.
    """
    memory = Path('/dev/shm')
    if memory.is_dir() and os.access(memory, os.W_OK):
        return memory / f'user-{os.getuid()}-{_SAFE.sub("_", run)}'
    return run_folder / 'weights'


class Publisher:
    """Writes versions into a folder and keeps the newest `keep_n` of each policy.

    `ledger` is a file of the run's folder that holds the end of the reserved block of version
    numbers; `archive` is the folder in which the run keeps copies of the versions that it
    evaluates.
    """

    def __init__(
        self,
        folder: Path,
        ledger: Path,
        config_hash: str,
        keep_n: int = 5,
        archive: Path | None = None,
    ) -> None:
        self.folder, self.ledger, self.archive = folder, ledger, archive or folder
        self.config_hash, self.keep_n = config_hash, keep_n
        folder.mkdir(parents=True, exist_ok=True)
        # Shared memory is everybody's: what is deleted below must be ours.
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise UserError(
                f'the weights cannot be exchanged in {folder}',
                'somebody else made that folder',
                'choose another name with run=NAME',
            )
        self.reserved = int(json.loads(ledger.read_text())['reserved']) if ledger.exists() else 0
        self.version = self.reserved
        self.newest: dict[str, Version] = {}
        self.kept: dict[str, list[Path]] = {}
        self.hashes: dict[Path, str] = {}
        # A fresh run finds nothing of an older one; a learner that comes back leaves what policies
        # may ask for.
        for path in sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime_ns):
            if path.suffix == '.safetensors' and self.reserved:
                self.kept.setdefault(path.stem.rpartition('-')[0], []).append(path)
            else:
                path.unlink()

    def publish(
        self, policy: str, tensors: Mapping[str, Tensor], updates: int, env_steps: int
    ) -> Version:
        """Writes the next version; once this returns it may be announced. Raises OSError on a full
        disk.
        """
        number = self.version + 1
        if number > self.reserved:
            write_durably(self.ledger, json.dumps({'reserved': number + BLOCK - 1}).encode())
            self.reserved = number + BLOCK - 1
        metadata = {
            'policy': policy,
            'version': str(number),
            'config_hash': self.config_hash,
            'updates': str(updates),
            'env_steps': str(env_steps),
        }
        data = bytes_of({k: v.detach().contiguous() for k, v in tensors.items()}, metadata)
        path = self.folder / f'{policy}-{number}.safetensors'
        part = path.with_suffix('.part')
        part.write_bytes(data)
        part.replace(path)
        self.version = number
        version = Version(
            policy,
            number,
            path,
            len(data),
            hashlib.sha256(data).hexdigest(),
            updates,
            env_steps,
            self.config_hash,
        )
        self.newest[policy] = version
        self.hashes[path] = version.sha256
        kept = self.kept.setdefault(policy, [])
        kept.append(path)
        while len(kept) > self.keep_n:
            old = kept.pop(0)
            old.unlink(missing_ok=True)
            self.hashes.pop(old, None)
        return version

    def find(self, policy: str, number: int) -> Version | None:
        """A version that is still kept or archived (0: the newest), also of an earlier life; any
        thread.
        """
        if not number:
            return self.newest.get(policy)
        for folder in (self.folder, self.archive):
            path = folder / f'{policy}-{number}.safetensors'
            try:
                data = path.read_bytes()
            except OSError:
                continue
            sha256 = self.hashes.get(path) or hashlib.sha256(data).hexdigest()
            return Version(policy, number, path, len(data), sha256, config_hash=self.config_hash)
        return None

    def close(self) -> None:
        """Takes the exchange folder away; chosen versions live in the run's checkpoints."""
        shutil.rmtree(self.folder, ignore_errors=True)


def read(
    data: bytes, sha256: str, policy: str, version: int, config_hash: str
) -> dict[str, Tensor]:
    """Tensors of a version after every check; an empty `sha256` or `config_hash` is not compared.

    Raises BadWeightsError when the bytes are not that version, or belong to another configuration.
    """
    found = hashlib.sha256(data).hexdigest()
    if sha256 and found != sha256:
        raise BadWeightsError(f'its content hash is {found[:12]}, {sha256[:12]} was announced')
    try:
        tensors = tensors_of(data)
        metadata = metadata_of(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise BadWeightsError(f'it is not a safetensors file: {error}') from error
    if (metadata.get('policy'), metadata.get('version')) != (policy, str(version)):
        raise BadWeightsError(
            f'it holds {metadata.get("policy")} version {metadata.get("version")}'
        )
    if config_hash and metadata.get('config_hash') != config_hash:
        raise BadWeightsError(
            f'it was trained with configuration {metadata.get("config_hash")}, '
            f'this one is {config_hash}'
        )
    return tensors


def metadata_of(data: bytes) -> dict[str, str]:
    """The header's metadata (the format's first 8 bytes are the header's length)."""
    length = int.from_bytes(data[:8], 'little')
    header = json.loads(data[8 : 8 + length])
    return dict(header.get('__metadata__', {}))


def byte_range(version: Version | None, offset: int, length: int) -> bytes:
    """A part of a version's file, for policies on other machines. Raises UserError when it is
    gone.
    """
    if version is None:
        raise UserError(
            'there are no such weights',
            'the learner has not published them, or keeps newer ones only',
        )
    try:
        with version.path.open('rb') as file:
            file.seek(offset)
            return file.read(length)
    except OSError as error:
        raise UserError(
            f'{version.policy} version {version.version} cannot be read', str(error)
        ) from error


def write_durably(path: Path, data: bytes) -> None:
    """Replaces a file so that after any crash it holds the old or the new content, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + '.part')
    with part.open('wb') as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
