# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""canshim.c, compiled: what makes a program that speaks SocketCAN a node of an emulated bus."""

from __future__ import annotations

import hashlib
from importlib.resources import files
import os
from pathlib import Path
import subprocess

from user_core.errors import UserError


def place_shim(folder: Path) -> Path:
    """Puts canshim.so, compiled once per user and version, into the bus's folder.

    Raises:
        UserError: there is no C compiler, or it failed.
    """
    source = (files('user_sim.arx') / 'canshim.c').read_bytes()
    cache = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'user'
    built = cache / f'canshim-{hashlib.sha256(source).hexdigest()[:16]}.so'
    if not built.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = built.with_suffix(f'.{os.getpid()}')
        command = ['cc', '-O2', '-shared', '-fPIC', '-x', 'c', '-', '-o', str(part), '-ldl']
        try:
            subprocess.run(command, input=source, check=True, capture_output=True)
        except FileNotFoundError:
            raise UserError(
                'the emulated CAN bus cannot be made',
                'there is no C compiler',
                'run `sudo apt install gcc`',
            ) from None
        except subprocess.CalledProcessError as error:
            raise UserError(
                'the emulated CAN bus cannot be made',
                f'the C compiler says: {error.stderr.decode(errors="replace").strip()[-300:]}',
                'run `sudo apt install gcc libc6-dev`',
            ) from None
        part.replace(built)
    place = folder / 'canshim.so'
    link = folder / f'.canshim.{os.getpid()}'
    link.unlink(missing_ok=True)
    link.symlink_to(built)
    link.replace(place)
    return place
