# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Arms that speak topics."""
