# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the built workspace known to every start of the environment's Python.

tools/setup.sh copies this file into the environment's site-packages, where a .pth file imports it
first of all. The dynamic loader reads LD_LIBRARY_PATH once, at exec, and the middleware opens the
messages' libraries by name: an interpreter that was started without the variable starts itself
again, once per process tree (children inherit it).
"""

import os
from pathlib import Path
import sys

ROOT = Path(sys.prefix).parent
"""The checkout; the environment lies in it as .venv."""


def prepend(name: str, folders: list[Path]) -> bool:
    """Put the folders that the variable lacks before what it holds; true if it changed."""
    present = [part for part in os.environ.get(name, '').split(os.pathsep) if part]
    missing = [str(folder) for folder in folders if str(folder) not in present]
    if missing:
        os.environ[name] = os.pathsep.join(missing + present)
    return bool(missing)


def activate() -> None:
    """Extend sys.path, AMENT_PREFIX_PATH and LD_LIBRARY_PATH; may start the process anew."""
    python = f'lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages'
    wheels = sorted((Path(sys.prefix) / python).glob('ros_*.libs'))  # empty where ROS 2 is sourced
    prefixes = sorted(path.parent for path in (ROOT / 'install').glob('user_*/share'))
    libraries = [prefix / 'lib' for prefix in prefixes if prefix.name == 'user_msgs']
    if wheels:
        prefixes.append(Path(sys.prefix))
        libraries += [Path(sys.prefix) / 'lib', *wheels]
        os.environ['_ROS_WHEELS_BOOTSTRAP_COMPLETE'] = '1'  # what the wheels would do themselves
    prepend('AMENT_PREFIX_PATH', prefixes)
    if prepend('LD_LIBRARY_PATH', libraries):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    # src before build: tracebacks name the files that people edit; build holds the entry points.
    packages = [ROOT / top / prefix.name for top in ('src', 'build') for prefix in prefixes]
    sys.path += [str(folder) for folder in packages if (folder / 'setup.py').exists()]
    sys.path += [str(prefix / python) for prefix in prefixes if prefix.name == 'user_msgs']


activate()
