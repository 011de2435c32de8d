# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""What a resumed run may change, and why: one table. Everything else is fixed with the run.

May change: what does not alter what was learned or counted. The kind of an arm may not: the store
would hold the rows, and the report the minutes, of two robots (`user eval` judges on
another one).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from user_core.errors import UserError

if TYPE_CHECKING:
    from user_core.config import RunConfig

MAY_CHANGE = {
    'runs': 'the folder was found already',
    'tensorboard_port': 'a view of the run',
    'machines': 'who computes does not say what',
    'cells.*.machine': 'placement',
    'cells.*.arm.address': 'the same robot behind another address',
    'cells.*.arm.interface': 'the same robot behind another adapter',
    'cells.*.arm.namespace': 'the same robot under other topics',
    'cells.*.arm.realtime': 'what the computer has to be, not what the arm does',
    'cells.*.arm.min_success_rate': 'when an arm is let go, not how it moves',
    'cells.*.arm.max_age_s': 'when an arm counts as lost',
    'cells.*.arm.park': 'what comes after the run',
    'cells.*.arm.park_up_m': 'what comes after the run',
    'cells.*.arm.joint_speed_rad_s': 'between episodes',
    'cells.*.arm.joint_reset_every': 'between episodes',
    'cells.*.arm.collision_force_n': 'a limit: a person may make it safer at any time',
    'cells.*.arm.collision_torque_nm': 'a limit',
    'cells.*.safety': 'limits; a row says which action was executed under them',
    'cells.*.ready': 'between episodes',
    'cells.*.ready_within_s': 'between episodes',
    'cells.*.cameras.*.machine': 'placement',
    'cells.*.cameras.*.serial': 'a camera that was replaced',
    'cells.*.cameras.*.device': 'a camera that was plugged elsewhere',
    'cells.*.cameras.*.topic': 'a camera that was renamed',
    'cells.*.cameras.*.max_age_s': 'when a camera counts as lost',
    'cells.*.cameras.*.open_gap_s': 'how it is opened',
    'cells.*.cameras.*.resets': 'how it is brought back',
    'policy.machine': 'placement',
    'policy.device': 'what it computes on',
    'replay.machine': 'placement; the folder goes along',
    'replay.memory_gb': 'where pictures lie, not which are drawn',
    'replay.disk_gb': 'rows that the learner draws from are kept whatever it says',
    'learner.machine': 'placement; the folder goes along',
    'learner.device': 'what it computes on',
    'learner.threads': 'what it computes on',
    'learner.publish_every_s': 'how often others hear of it',
    'learner.checkpoint_every_s': 'how much is computed again after a kill',
    'learner.max_backlog_updates': 'who waits for whom',
    'learner.max_policy_lag': 'when a policy holds',
    'learner.max_stale_s': 'when a policy holds',
    'budget': 'what may be spent from now on',
    'evaluation': 'how versions are judged from now on',
}
"""A key, or a section with all below it; `*` stands for a chosen name. The reason beside it."""


def may_change(key: str) -> bool:
    """Whether the table lists the dotted key, or a section above it."""
    parts = key.split('.')
    return any(
        len(rule) <= len(parts) and all(r in ('*', p) for r, p in zip(rule, parts, strict=False))
        for rule in (pattern.split('.') for pattern in MAY_CHANGE)
    )


def leaves(content: Any, key: str = '') -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a configuration's dump."""
    if isinstance(content, Mapping) and content:
        for name, inner in content.items():
            yield from leaves(inner, f'{key}.{name}' if key else name)
    else:
        yield key, content


def fixed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration's dump that a resumed run may not change."""
    return {key: value for key, value in leaves(content) if not may_change(key)}


def differences(one: Any, other: Any, key: str = '') -> Iterator[tuple[str, Any, Any]]:
    """Dotted keys whose values differ, with both; of a part of another kind the kind alone."""
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        if one != other:
            yield key, one, other
        return
    at = f'{key}.' if key else ''
    if one.get('kind') != other.get('kind'):
        yield f'{at}kind', one.get('kind'), other.get('kind')
        return
    for name in dict.fromkeys((*one, *other)):
        if name in one and name in other:
            yield from differences(one[name], other[name], f'{at}{name}')
        else:
            yield f'{at}{name}', one.get(name), other.get(name)


def refuse_changes(run: RunConfig, asked: RunConfig) -> None:
    """Raises UserError: what is asked for is not all in the table; names every difference."""
    found = differences(run.model_dump(mode='json'), asked.model_dump(mode='json'))
    wrong = [f'{k}: the run has {_short(a)}, asked for {_short(b)}' for k, a, b in found
             if not may_change(k)]  # fmt: skip
    if wrong:
        raise UserError(
            'A resumed run cannot change what was learned or counted under it',
            '; '.join(wrong),
            'Leave that out, or start a new run',
        )


def kept(run: RunConfig, page: RunConfig) -> list[str]:
    """A line for each thing that the page says otherwise and nobody asked for."""
    found = differences(page.model_dump(mode='json'), run.model_dump(mode='json'))
    return [
        f'{key}: the page now says {_short(said)}, the run keeps {_short(has)}'
        for key, said, has in found
        if key not in ('runs', 'evaluate')
    ]


def _short(value: Any) -> str:
    """A section is only named: its own keys would fill a screen."""
    if isinstance(value, Mapping):
        return 'one'
    return 'none' if value is None else str(value)
