# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The words that every part of USER shares."""

import os
import signal

if os.environ.get('USER_NODE'):
    # A node of a plan that is ended while it still imports has nothing to say; its own handlers
    # come with `run_node`.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
