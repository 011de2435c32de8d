# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Makes `rig`, the cell without ROS, importable by the tests beside it."""

from pathlib import Path
import sys

sys.path.insert(0, str(Path(__file__).parent))
