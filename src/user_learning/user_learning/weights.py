# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Versions of a policy's weights: immutable safetensors files, announced by hash, never
overwritten.

A version number is taken from a block that is reserved on disk before the first of its numbers is
used, so it never goes backwards, whatever is killed and whichever checkpoint a learner comes back
from. A file is whole as soon as it has its name: what a killed learner wrote and had no time to
announce is found by whoever asks for the newest version.
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
import threading
import time

from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from user_core.errors import UserError

BLOCK = 64
"""Versions reserved at a time: one synced write for this many."""

LEASE_S = 30.0
"""A version of which somebody fetched a part stays this long after the last part."""
LEASES_N = 4
"""Versions that stay so at the same time; a further one ends the lease that is oldest."""

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
    there is none. Runs of one name in several places have one each; whoever cleans up after killed
    runs knows it by its first words.
    """
    memory = Path('/dev/shm')
    if memory.is_dir() and os.access(memory, os.W_OK):
        place = hashlib.sha256(str(run_folder.resolve()).encode()).hexdigest()[:8]
        return memory / f'user-{os.getuid()}-{_SAFE.sub("_", run)}-{place}.weights'
    return run_folder / 'weights'


class Publisher:
    """Writes versions into a folder and keeps the newest `keep_n` of each policy, and for a while
    those that somebody is fetching.

    `ledger` is a file of the run's folder that holds the end of the reserved block of version
    numbers; `archive` is the folder in which the run keeps copies of the versions that it
    evaluates. `publish` is called from one thread, `part` from any.
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
        self._kept: dict[str, dict[int, Version]] = {}
        self._archived: dict[Path, Version] = {}
        self._leases: dict[tuple[str, int], float] = {}
        self._lock = threading.Lock()
        self._adopt()

    def _adopt(self) -> None:
        """A learner that comes back keeps what policies may ask for; a fresh run finds nothing of
        an older one.
        """
        found = []
        for path in self.folder.iterdir():
            try:
                if not self.reserved or path.suffix != '.safetensors':
                    raise BadWeightsError
                found.append(version_of(path, self.config_hash))
            except (BadWeightsError, OSError):
                path.unlink(missing_ok=True)
        for version in sorted(found, key=lambda v: v.version):
            self._kept.setdefault(version.policy, {})[version.version] = version
            self.newest[version.policy] = version

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
        with self._lock:
            self.newest[policy] = version
            self._kept.setdefault(policy, {})[number] = version
            self._drop(policy)
        return version

    def _drop(self, policy: str) -> None:
        """Deletes what is neither new nor being fetched. The caller holds the lock."""
        now, kept = time.monotonic(), self._kept[policy]
        for number in list(kept)[: -self.keep_n]:
            if self._leases.get((policy, number), 0.0) < now:
                kept.pop(number).path.unlink(missing_ok=True)
                self._leases.pop((policy, number), None)

    def part(self, policy: str, number: int, offset: int, length: int) -> tuple[Version, bytes]:
        """A byte range of a version that is kept or archived (0: the newest), also of an earlier
        life, for policies on other machines. The version stays until they had time for the rest.

        Raises UserError when there is no such version, or it cannot be read.
        """
        with self._lock:
            newest = self.newest.get(policy)
            number = number or (newest.version if newest else 0)
            version = self._kept.get(policy, {}).get(number)
            if version is not None:
                self._leases.pop((policy, number), None)
                self._leases[policy, number] = time.monotonic() + LEASE_S
                while len(self._leases) > LEASES_N:
                    del self._leases[next(iter(self._leases))]
        try:
            version = version or self._from_archive(policy, number)
            with version.path.open('rb') as file:
                file.seek(offset)
                return version, file.read(length)
        except FileNotFoundError as error:
            if not number:
                raise UserError(f'the learner has published no {policy} yet') from error
            raise UserError(
                'there are no such weights',
                'the learner has not published them, or keeps newer ones only',
            ) from error
        except (OSError, BadWeightsError) as error:
            raise UserError(f'{policy} version {number} cannot be read', str(error)) from error

    def _from_archive(self, policy: str, number: int) -> Version:
        path = self.archive / f'{policy}-{number}.safetensors'
        if path not in self._archived:
            self._archived = {path: version_of(path)}
        return self._archived[path]

    def close(self) -> None:
        """Takes the exchange folder away; chosen versions live in the run's checkpoints."""
        shutil.rmtree(self.folder, ignore_errors=True)


def version_of(path: Path, config_hash: str = '') -> Version:
    """What a file holds, by its own header.

    Raises BadWeightsError when it is no whole version, or one of another configuration, and
    OSError when it cannot be read.
    """
    data = path.read_bytes()
    policy, _, number = path.stem.rpartition('-')
    if not number.isdecimal():
        raise BadWeightsError('its name names no version')
    read(data, '', policy, int(number), config_hash)
    said = metadata_of(data)
    return Version(
        policy,
        int(number),
        path,
        len(data),
        hashlib.sha256(data).hexdigest(),
        int(said.get('updates', 0)),
        int(said.get('env_steps', 0)),
        said.get('config_hash', ''),
    )


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
