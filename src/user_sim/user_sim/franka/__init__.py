# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated Franka behind the robot's own network protocol."""
