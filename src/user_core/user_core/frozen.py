# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Versions that a run judges: copied into its own folder, as
checkpoints/<policy>-<version>.safetensors, so that no learner can take them away.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
import shutil

from user_core.outcome import Announced, Attempt


def place(folder: Path, policy: str, version: int) -> Path:
    """Where a run keeps a version."""
    return folder / 'checkpoints' / f'{policy}-{version}.safetensors'


def keep(folder: Path, weights: Announced) -> None:
    """Copies a version before it is judged. Raises OSError: the disk is full."""
    kept = place(folder, weights.policy, weights.version)
    if kept.exists() or not weights.path.exists():
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix('.part')
    shutil.copyfile(weights.path, part)
    part.replace(kept)


def find(folder: Path, cut: Attempt) -> Announced | None:
    """The version of an evaluation that was cut, from its own file; None when that is gone."""
    path = place(folder, cut.policy, cut.version)
    try:
        whole = hashlib.sha256(path.read_bytes()).hexdigest() == cut.sha256
    except OSError:
        return None
    return Announced(cut.policy, cut.version, cut.sha256, path) if whole else None
