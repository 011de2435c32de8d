# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Cameras that are devices: drivers, what keeps them alive, the node."""
