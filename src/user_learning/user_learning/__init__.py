# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The learning computer: networks, algorithms, replay, weights and their nodes."""

import user_core as user_core  # before what takes long to import
