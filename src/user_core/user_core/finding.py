# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""One line of `user doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from user_core.errors import UserError

How = Literal['ok', 'warn', 'bad']


class Finding(NamedTuple):
    """How one thing is: `bad` keeps a run from working, `warn` makes it worse or less safe."""

    how: How
    what: str
    value: str
    mend: str = ''

    @property
    def text(self) -> str:
        """One line, with the command that mends it."""
        mend = f'; mend: {self.mend}' if self.mend else ''
        return f'{self.how:4} {self.what}: {self.value}{mend}'


Probe = Callable[[], Iterable[Finding]]


def findings(what: str, probe: Probe) -> Iterable[Finding]:
    """What a probe finds; whatever goes wrong in it becomes a line, too."""
    try:
        yield from probe()
    except UserError as error:
        yield Finding('bad', what, ' '.join(str(error).split()))
    except Exception as error:
        yield Finding('warn', what, f'could not be looked at: {type(error).__name__}: {error}')
