# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a check says: whether all is well, and a sentence for people."""

from __future__ import annotations

from user_core.errors import UserError

Verdict = tuple[bool, str]


def bad(what: str, why: str = '', do: str = '') -> Verdict:
    """A verdict on something that is wrong, in the words of a UserError."""
    return False, str(UserError(what, why, do))
