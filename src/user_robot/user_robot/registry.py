# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""From a `kind` on the page to the class that serves it, imported on use: none needs another's
library.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
import sys
from typing import Any

from user_core.errors import UserError

PACKAGES = {
    'arx5_interface': 'arx5-interface',
    'cv2': 'opencv-python-headless',
    'franky': 'franky-control',
    'pyrealsense2': 'pyrealsense2',
}
"""Where modules come from, by the name they are imported by."""


def look_up(registry: Mapping[str, str], kind: str, thing: str, key: str) -> Any:
    """The class of a kind; `registry` names it as module:class, `key` is where the page chooses.

    Raises:
        UserError: there is no such kind, or its library does not load.
    """
    if kind not in registry:
        raise UserError(
            f'there is no {thing} of kind {kind!r}',
            f'the kinds are: {", ".join(sorted(registry))}',
            f'choose one of them for {key}',
        )
    module, _, name = registry[kind].partition(':')
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        if (error.name or '').startswith('user_'):
            raise
        raise missing(f'{thing} of kind {kind!r}', error) from error


def missing(thing: str, error: ImportError) -> UserError:
    """Which library is missing, and the line that installs it."""
    if 'libusb' in str(error):
        do = 'install it: sudo apt-get install -y libusb-1.0-0'
    else:
        name = (error.name or '').partition('.')[0]
        package = PACKAGES.get(name, name)
        do = 'run `make setup`'
        do += f', or: {sys.executable} -m pip install --no-deps {package}' if package else ''
    return UserError(f'the {thing} needs a library that is missing', str(error), do)
