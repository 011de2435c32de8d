# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Whole runs over several seeds: writes the table of docs/results.md and prints one JSON line.

    .venv/bin/python bench/seeds.py seeds=0,1,2,3,4 [key=value ...]

Runs that exist already (runs/seeds-<config>-<seed>) are read, not repeated.
"""

import json
from pathlib import Path
import re
import subprocess
import sys

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs' / 'results.md'
BEGIN, END = '<!-- seeds: begin -->', '<!-- seeds: end -->'
COLUMNS = {
    'seed': ('seed', '{:d}'),
    'consecutive_successes': ('in a row', '{:d}'),
    'train_env_steps': ('training steps', '{:d}'),
    'robot_minutes': ('robot min', '{:.1f}'),
    'wall_minutes': ('wall min, whole run', '{:.1f}'),
    'fresh_success_rate': ('fresh success', '{:.3f}'),
    'steps_per_success': ('steps', '{:.1f}'),
    'bc_success_rate': ('cloned', '{:.2f}'),
    'bc_sampled_success_rate': ('cloned + noise', '{:.2f}'),
    'bc_steps_per_success': ('cloned steps', '{:.1f}'),
    'demo_success_rate': ('demonstrator', '{:.2f}'),
    'demo_steps_per_success': ('its steps', '{:.1f}'),
    'force_p50_n': ('force p50 N', '{:.0f}'),
    'force_p95_n': ('p95 N', '{:.0f}'),
    'abort_rate': ('aborts', '{:.3f}'),
}


def row(seed: int, overrides: list[str]) -> dict:
    """One seed's report; the run is made when it is not there yet."""
    name = f'seeds-peg_rlpd-{seed}'
    report = ROOT / 'runs' / name / 'report.json'
    if not report.exists():
        command = [
            ROOT / '.venv/bin/user',
            'run',
            'peg_rlpd',
            f'seed={seed}',
            f'run={name}',
            *overrides,
        ]
        print(f'seed {seed}: running, log in runs/{name}/logs', file=sys.stderr, flush=True)
        subprocess.run(
            [str(word) for word in command], cwd=ROOT, stdout=subprocess.DEVNULL, check=False
        )
    numbers = json.loads(report.read_text())
    return numbers | {'wall_minutes': sum(numbers['phase_wall_s'].values()) / 60}


def table(rows: list[dict]) -> str:
    """The rows as Markdown."""
    heads = [head for head, _ in COLUMNS.values()]
    lines = ['| ' + ' | '.join(heads) + ' |', '|' + ' --- |' * len(heads)]
    for numbers in rows:
        cells = [
            'n/a' if numbers[k] is None else form.format(numbers[k])
            for k, (_, form) in COLUMNS.items()
        ]
        lines.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def main() -> None:
    """Runs the seeds one after the other."""
    words = dict(word.split('=', 1) for word in sys.argv[1:])
    seeds = [int(s) for s in words.pop('seeds', '0,1,2,3,4').split(',')]
    rows = [row(seed, [f'{k}={v}' for k, v in words.items()]) for seed in seeds]
    page = PAGE.read_text()
    inside = f'{BEGIN}\n{table(rows)}\n{END}'
    PAGE.write_text(re.sub(f'{BEGIN}.*?{END}', lambda _: inside, page, flags=re.S))
    solved = sum(r['consecutive_successes'] >= r['consecutive_wanted'] for r in rows)
    print(
        json.dumps(
            {
                'seeds': seeds,
                'solved': solved,
                'train_env_steps': [r['train_env_steps'] for r in rows],
                'fresh_success_rate': [r['fresh_success_rate'] for r in rows],
            }
        )
    )


if __name__ == '__main__':
    main()
