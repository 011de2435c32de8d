# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Makes pip forget the packages that an interrupted installation left incomplete.

A killed pip can leave a package that looks installed and is not: its RECORD lists files that are
missing or cut. Without its .dist-info folder the next `pip install` brings it again. Used by
tools/setup.sh; standard library only.
"""

import csv
from pathlib import Path
import shutil
import sys


def is_whole(info: Path) -> bool:
    """True if all that the .dist-info folder lists is there, in its size."""
    record = info / 'RECORD'
    if not record.exists() or not (info / 'INSTALLER').exists():
        return False
    with record.open(newline='') as lines:
        for name, _, size in csv.reader(lines):
            file = info.parent / name
            if (
                file.suffix == '.pyc'
            ):  # compiled anew on installation, even where a wheel ships one
                continue
            if not file.exists() or (size and file.stat().st_size != int(size)):
                return False
    return True


def forget_half_installed(site: Path, since: float) -> list[str]:
    """Remove the .dist-info folders of the incomplete packages in `site`; returns their names.

    Only packages written after `since` (seconds since the epoch) count: what an earlier
    installation completed may have been mended since and differ from its RECORD for that reason.
    """
    written = [info for info in site.glob('*.dist-info') if info.stat().st_mtime >= since]
    broken = sorted(info for info in written if not is_whole(info))
    for info in broken:
        shutil.rmtree(info)
    return [info.name.removesuffix('.dist-info') for info in broken]


if __name__ == '__main__':
    marker = Path(sys.argv[2])  # laid when the installation began
    for package in forget_half_installed(Path(sys.argv[1]), marker.stat().st_mtime):
        sys.stdout.write(f'  {package} was half installed\n')
