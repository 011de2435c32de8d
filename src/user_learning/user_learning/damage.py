# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What is not a record is kept aside and told: once, in `damage.log` beside the segments."""

from __future__ import annotations

from collections.abc import Iterable
import os
from pathlib import Path
import shutil
import time

LOG = 'damage.log'


class Torn:
    """The end of a file that holds no whole record. Raises OSError on a full disk, anywhere; all
    of it can be done again.
    """

    def __init__(self, path: Path, begin: int) -> None:
        self.path, self.begin = path, begin
        self.size = max(path.stat().st_size - begin, 0)
        self.aside = path.with_name(f'{path.name}.torn-{begin}')

    def __str__(self) -> str:
        return (
            f'{self.path.name} byte {self.begin}: a torn tail of {self.size} bytes was cut off and'
            f' kept in {self.aside.name}'
        )

    def keep(self) -> None:
        """Copies it."""
        with self.path.open('rb') as file, self.aside.open('wb') as copy:
            file.seek(self.begin)
            shutil.copyfileobj(file, copy)
            copy.flush()
            os.fsync(copy.fileno())

    def cut(self) -> None:
        """Cuts it off."""
        with self.path.open('rb+') as file:
            file.truncate(self.begin)
            os.fsync(file.fileno())


def report(folder: Path, lasting: Iterable[str], new: Iterable[str]) -> list[str]:
    """Writes into the log, with the time, what is new and what lasts and was not told before;
    returns that. Raises OSError; then nothing was written.
    """
    path = folder / LOG
    known = path.read_text(errors='replace') if path.exists() else ''
    texts = [text for text in lasting if f' {text}\n' not in known] + list(new)
    if texts:
        stamp = time.strftime('%FT%TZ', time.gmtime())
        lines = ''.join(f'{stamp} {text}\n' for text in texts)
        with path.open('ab', buffering=0) as file:
            begin = file.tell()
            try:
                file.write(lines.encode())
                os.fsync(file.fileno())
            except OSError:
                file.truncate(begin)
                raise
    return texts
