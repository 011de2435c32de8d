# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Errors meant for people."""

from __future__ import annotations


class UserError(Exception):
    """What went wrong, why, and what to do: one sentence each, shown without a traceback.

    Commands and nodes print it once and leave with exit code 2.
    """

    def __init__(self, what: str, why: str = '', do: str = '') -> None:
        super().__init__(what, why, do)
        self.what, self.why, self.do = what, why, do

    def __str__(self) -> str:
        return ' '.join(_sentence(part) for part in (self.what, self.why, self.do) if part)


def _sentence(text: str) -> str:
    text = text.strip()
    first = text.split(maxsplit=1)[0] if text else ''
    if first.isalpha():  # a word of the language, not a path or a key
        text = text[0].upper() + text[1:]
    return text if text.endswith(('.', '!', '?')) else f'{text}.'
