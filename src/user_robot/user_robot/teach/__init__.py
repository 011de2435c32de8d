# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""`user teach`: guide the arm, record a task."""
