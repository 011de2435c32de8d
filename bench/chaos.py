# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What is lost when everything may be killed at any time? A training run, and kill -9.

    .venv/bin/python bench/chaos.py [kills=60] [seed=0] [holds=10] [wall_s=1500]
    .venv/bin/python bench/chaos.py rooms=yes [kills=20] [loss=0.01] [delay_ms=50] [seed=0]

`parts=train` or `parts=hold` chooses one of the first line's two; any key of the page may be set,
too. As root it gives itself an empty /dev/shm and can build two rooms (network namespaces with a
lossy, slow link). Progress goes to stderr, one JSON line to stdout, and the exit code is 1 when a
bound is broken.

train   `user run peg_rlpd` in lockstep to its goal. Kills come in pairs: a node that works, then
        its successor while it starts up. Now and then everything is killed at once, or the
        supervisor alone, and the run goes on by `resume=latest`.
hold    the same page in realtime, policy and episode killed while it trains. `hold_max_s` is the
        arm's own number: last valid command to the hold that its absence caused, steady clock.
        `hold_heard_max_s` is the same from outside, give or take the two messages' transport;
        `hold_arm_behind_s` is what the arm's thread lost because it did not get a core in time.
rooms   arm, episode, expert and policy in one room, replay, learner and run in the other.

Bounds: no acknowledged row lost, none twice, no episode mixed (test/graph/ledger.py says what
that means), no hold above 0.2 s, the goal reached, nothing left in a spool, memory, descriptors
and shared memory flat (ALLOWED_*).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
import json
import os
from pathlib import Path
import random
import signal
import sys
import tempfile
import time

GRAPH = Path(__file__).parents[1] / 'test' / 'graph'
sys.path.insert(0, str(GRAPH))

from campaign import ROLES, Campaign, say  # noqa: E402
import ledger  # noqa: E402
import rooms  # noqa: E402
from running import Running  # noqa: E402

from user_core.shared_memory import clean  # noqa: E402

WORDS = {'kills': '', 'seed': '0', 'holds': '10', 'wall_s': '1500', 'rooms': 'no', 'loss': '0.01',
         'delay_ms': '50', 'parts': 'train,hold', 'roles': ','.join(ROLES)}  # fmt: skip
SHORT = ('budget.demos=4', 'learner.warmup_updates=100', 'learner.clone_updates=50')
WHOLE_EVERY = 20
"""One kill in so many is of the run as a whole: everything, the supervisor, everything, ..."""
ROOM_STEPS = SPREAD_STEPS = 3000
HOLD_S = 0.2
ALLOWED_MB, ALLOWED_FDS, ALLOWED_SHM_MB = 64.0, 8, 8.0


def shared_memory() -> tuple[float, int]:
    """Megabytes and files in /dev/shm."""
    files = [f for f in Path('/dev/shm').iterdir() if f.is_file()]
    return sum(f.stat().st_blocks for f in files) * 512 / 2**20, len(files)


def due(status: dict) -> float:
    """Share of the kills that may be used up by now, so that every phase gets some."""
    phase = status.get('phase', 'START')
    if phase in ('TRAINING', 'RESTORING'):
        return min(0.35 + 0.45 * status['env_steps'] / SPREAD_STEPS, 0.8)
    return 0.2 if phase in ('START', 'DEMONSTRATIONS') else 1.0


def due_in_rooms(status: dict) -> float:
    """The same for a run that ends with its training."""
    begun = status.get('env_steps', 0) / ROOM_STEPS
    return min(0.2 + 1.2 * begun, 1.0)


# ---------------------------------------------------------------------- the parts


def train(kills: int, seed: int, wall_s: float, settings: list[str], roles: tuple) -> dict:
    """The main part."""
    with tempfile.TemporaryDirectory(prefix='chaos') as folder:
        runs = Path(folder)
        overrides = [f'seed={seed}', *settings]
        before = shared_memory()
        with ledger.listener(runs / 'heard.jsonl'):
            campaign = Campaign(
                {'here': lambda *more: Running(runs, *overrides, *more)}, roles, seed
            )
            begun = time.monotonic()
            try:
                campaign.go(kills, kills // WHOLE_EVERY, due, wall_s)
            finally:
                code = campaign.end()
        numbers = told(campaign, runs / 'heard.jsonl', code, ledger.PERIOD_NS)
        after = shared_memory()
        clean()  # as the next `user run` does
        cleaned = shared_memory()
        numbers |= {
            'wall_s': round(time.monotonic() - begun),
            'shm_mb': [round(mb, 1) for mb, _ in (before, after, cleaned)],
            'shm_files': [files for _, files in (before, after, cleaned)],
            'reached_goal': code == 0,
        }
        return numbers


def told(campaign: Campaign, heard: Path, code: int | None, period_ns: int | None) -> dict:
    """What came of a campaign."""
    acked, _ = ledger.heard(heard)
    folder = campaign.lead.folder
    spools = [f for run in campaign.runs.values() for f in run.folder.glob('spool/*/*.spool')]
    report = folder / 'report.json'
    said = json.loads(report.read_text()) if report.exists() else {}
    if code not in (0, 3):
        say(f'exit code {code}; the end of the log:\n{campaign.lead.log.read_text()[-4000:]}')
    return {
        'kills': campaign.kills.total(),
        **ledger.judge(folder / 'store', acked, period_ns),
        'demos_reported': said.get('demos'),
        'env_steps_reported': said.get('train_env_steps'),
        'streak': said.get('consecutive_successes'),
        'exit_code': code,
        'kills_by_role': dict(campaign.kills),
        'kills_by_phase': dict(campaign.phases),
        'kills_while_starting': campaign.young,
        'resumes': campaign.resumes,
        'spool_files': len(spools),
        'sizes_mb_fds': campaign.sizes.of_like_age(),
        'supervisor_mb_fds_s': campaign.sizes.supervisor(),
    }


def hold(kills: int, seed: int, settings: list[str]) -> dict:
    """Realtime: how long an arm goes on without commands."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix='chaos') as folder:
        runs, heard = Path(folder), Path(folder, 'heard.jsonl')
        run = Running(runs, f'seed={seed}', *SHORT, 'pace=realtime', *settings)
        silent: Counter[str] = Counter()
        with ExitStack() as stack:
            stack.callback(run.close)
            stack.enter_context(ledger.listener(heard))
            run.until(lambda s: s['phase'] == 'TRAINING' and s['env_steps'] > 0, 400)
            for number in range(kills):
                role = ('learning/policy', 'arm0/episode')[number % 2]
                moved = run.status()['env_steps']
                run.until(lambda s, n=moved: s['env_steps'] > n + 5, 120)
                time.sleep(dice.uniform(0.0, 2.0))
                say(f'hold {number + 1}: kill of {role}')
                os.kill(run.nodes()[f'/{role}'], signal.SIGKILL)
                silent[role] += 1
            moved = run.status()['env_steps']
            status = run.until(lambda s: s['env_steps'] > moved + 5, 120)
            arm = status['nodes']['/arm0/arm']
        acked, holds = ledger.heard(heard)
        judged = ledger.judge(run.folder / 'store', acked, None)
    return {
        'hold_max_s': round(arm['hold_max_s'], 3),
        'hold_arm_behind_s': round(arm['behind_s'], 3),
        'hold_arm_period_p99_ms': round(arm['period_p99_ms'], 1),
        'hold_heard_max_s': round(max(holds, default=0.0), 3),
        'hold_heard_p50_s': round(sorted(holds)[len(holds) // 2], 3) if holds else None,
        'hold_heard_n': len(holds),
        'hold_kills': dict(silent),
        **{f'hold_{key}': judged[key] for key in ledger.WRONG},
        'hold_mixed': judged['mixed'],
    }


FRAGMENT = {
    'machines': {'robot': {}, 'learning': {}},
    'cells': {'arm0': {'machine': 'robot'}},
    'policy': {'machine': 'robot'},
    'replay': {'machine': 'learning'},
    'learner': {'machine': 'learning'},
}


def two_rooms(kills: int, seed: int, wall_s: float, loss: float, delay_s: float,
              settings: list[str], roles: tuple) -> dict:  # fmt: skip
    """The run of two machines over a bad link."""
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'SUBNET'
    with tempfile.TemporaryDirectory(prefix='chaos') as folder:
        runs = Path(folder)
        page = runs / 'rooms.yaml'
        page.write_text(json.dumps(FRAGMENT))
        budget = f'budget.env_steps={ROOM_STEPS}'
        overrides = [f'with={page}', f'seed={seed}', *SHORT, budget, *settings]
        with rooms.Rooms(loss=loss, delay_s=delay_s, seed=seed) as link:

            def side(room: str, machine: str) -> Callable[..., Running]:
                (runs / machine).mkdir()
                words = ('ip', 'netns', 'exec', link.names[room])
                return lambda *more: Running(
                    runs / machine, *overrides, f'machine={machine}', *more, inside=words
                )

            heard = runs / 'heard.jsonl'
            with ledger.listener(heard, ('ip', 'netns', 'exec', link.names['left'])):
                sides = {'robot': side('left', 'robot'), 'learning': side('right', 'learning')}
                campaign = Campaign(sides, roles, seed)
                begun = time.monotonic()
                try:
                    campaign.go(kills, 0, due_in_rooms, wall_s)
                finally:
                    code = campaign.end()
        numbers = told(campaign, heard, code, ledger.PERIOD_NS)
        return numbers | {
            'loss': loss,
            'delay_ms': round(1e3 * delay_s),
            'wall_s': round(time.monotonic() - begun),
            'reached_goal': code in (0, 3) and (numbers['env_steps_reported'] or 0) >= ROOM_STEPS,
        }


def broken(numbers: dict) -> list[str]:
    """The bounds that do not hold."""
    zero = [k for k in numbers if k.removeprefix('hold_') in (*ledger.WRONG, 'spool_files')]
    wrong = [f'{key} is {numbers[key]}' for key in zero if numbers[key]]
    if not numbers.get('reached_goal', True):
        wrong.append('the goal was not reached')
    if numbers.get('hold_max_s', 0.0) > HOLD_S:
        wrong.append(f'hold_max_s is {numbers["hold_max_s"]}')
    if 'kills' in numbers and numbers['kills'] < numbers['kills_asked']:
        wrong.append(f'only {numbers["kills"]} of {numbers["kills_asked"]} kills before the end')
    if 'shm_mb' in numbers and numbers['shm_mb'][-1] - numbers['shm_mb'][0] > ALLOWED_SHM_MB:
        wrong.append(f'shared memory before, after and cleaned: {numbers["shm_mb"]} MB')
    pairs = {**numbers.get('sizes_mb_fds', {})}
    if numbers.get('supervisor_mb_fds_s'):
        pairs['the supervisor, old and young'] = numbers['supervisor_mb_fds_s']
    for name, (mb, mb_end, fds, fds_end, _) in pairs.items():
        if mb_end - mb > ALLOWED_MB or fds_end - fds > ALLOWED_FDS:
            wrong.append(f'{name} grew from {mb} MB, {fds} fds to {mb_end} MB, {fds_end} fds')
    return wrong


def main() -> int:
    """The parts asked for, one line."""
    pairs = [word.partition('=') for word in sys.argv[1:]]
    words = WORDS | {key: value for key, _, value in pairs if key in WORDS}
    settings = [''.join(pair) for pair in pairs if pair[0] not in WORDS]
    os.environ.setdefault('ROS_DOMAIN_ID', '94')
    os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    seed, wall_s = int(words['seed']), float(words['wall_s'])
    roles = tuple(words['roles'].split(','))
    in_rooms = words['rooms'] == 'yes'
    kills = int(words['kills'] or (20 if in_rooms else 60))
    numbers: dict = {'seed': seed, 'kills_asked': kills}
    if in_rooms:
        loss, delay_s = float(words['loss']), float(words['delay_ms']) / 1e3
        numbers |= two_rooms(kills, seed, wall_s, loss, delay_s, settings, roles)
    else:
        if 'train' in words['parts']:
            numbers |= train(kills, seed, wall_s, settings, roles)
        if 'hold' in words['parts']:
            numbers |= hold(int(words['holds']), seed, settings)
    numbers['broken'] = broken(numbers)
    print(json.dumps(numbers))
    return int(bool(numbers['broken']))


if __name__ == '__main__':
    if os.geteuid() == 0 and 'CHAOS_SHM' not in os.environ:
        inner = 'mount -t tmpfs shm /dev/shm && exec "$@"'
        os.environ['CHAOS_SHM'] = 'own'
        os.execvp('unshare', ['unshare', '-m', 'sh', '-c', inner, 'sh', sys.executable, *sys.argv])
    sys.exit(main())
