# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The rows to learn from as tensors, for a checkpoint: training rows, demonstrations, and those of
demonstrations that still go on.

A learner that comes back takes them in at once. Reading a long store again takes half a minute a
million rows; encoding its pictures again takes far longer and gives other bits, as a row's depend
on how many were encoded with it. Pictures stay in the store: a table holds where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from user_core.outcome import Mode
from user_learning.pictures import Pictures
from user_learning.row import Row
from user_learning.rows import Rows
from user_learning.window import Key, Window


class Table(NamedTuple):
    """Rows in the order in which they came; `n` of them.

    `cell` is a place in a list of names; `acts` says whether an action was taken, `bootstrap` is 0
    where the task ended; `place` holds the bytes of pictures' places in the store [n, k].
    """

    cell: np.ndarray
    episode: np.ndarray
    step: np.ndarray
    state: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    bootstrap: np.ndarray
    acts: np.ndarray
    place: np.ndarray

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], name: str) -> Table:
        """The table that `packed` gave under a name."""
        return cls(*(tensors[f'{name}.{column}'].numpy() for column in cls._fields))


def packed(rows: Rows) -> tuple[dict[str, Tensor], list[str]]:
    """All tables, and the names of their cells."""
    cells: dict[str, int] = {}
    tables = {
        'online': _of_window(rows.online, cells),
        'demos': _of_window(rows.demos, cells),
        'begun': _of_begun(rows, cells),
    }
    return {
        f'{name}.{column}': torch.from_numpy(np.ascontiguousarray(values))
        for name, table in tables.items()
        for column, values in table._asdict().items()
    }, list(cells)


def take_in(rows: Rows, tensors: Mapping[str, Tensor], cells: list[str]) -> None:
    """Fills empty windows with what `packed` gave.

    Raises FileNotFoundError: the store has lost a segment that pictures are in.
    """
    for name, window in (('online', rows.online), ('demos', rows.demos)):
        table = Table.of(tensors, name)
        window.fill(
            _keys(table, cells), table.step, {'state': table.state}, table.action, table.reward,
            table.bootstrap, table.acts,
        )  # fmt: skip
        if window.pictures is not None:
            window.pictures.fill(table.place)
    table = Table.of(tensors, 'begun')
    looks = rows.online.pictures
    for k, (cell, episode) in enumerate(_keys(table, cells)):
        row = Row(
            '', cell, episode, int(table.step[k]),
            mode=Mode.DEMO,
            state=table.state[k],
            executed_action=table.action[k],
            reward=float(table.reward[k]),
            terminated=not table.bootstrap[k],
            valid=bool(table.acts[k]),
            images=looks.of_place(table.place[k]) if looks else (),
        )  # fmt: skip
        rows.begin(row)


def _of_window(window: Window, cells: dict[str, int]) -> Table:
    slots = window.slots
    keys = [window.episode[slot].key for slot in slots.tolist()]
    looks = window.pictures
    return Table(
        *_named(keys, cells),
        window.step[slots],
        window.observation['state'][slots],
        window.action[slots],
        window.reward[slots],
        window.bootstrap[slots],
        window.acts[slots],
        looks.places(slots) if looks else np.zeros((len(slots), 0), np.uint8),
    )


def _of_begun(rows: Rows, cells: dict[str, int]) -> Table:
    begun, n = rows.begun, len(rows.begun)
    state, action = (
        np.zeros((n, rows.state_n), np.float32),
        np.zeros((n, rows.action_n), np.float32),
    )
    for k, row in enumerate(begun):
        state[k] = row.state
        if row.valid:
            action[k] = row.executed_action
    return Table(
        *_named([(row.cell, row.episode) for row in begun], cells),
        np.array([row.step for row in begun], np.int64),
        state,
        action,
        np.array([row.reward for row in begun], np.float32),
        np.array([not row.terminated for row in begun], np.float32),
        np.array([row.valid for row in begun], bool),
        _begun_places(rows.online.pictures, begun),
    )


def _begun_places(looks: Pictures | None, begun: list[Row]) -> np.ndarray:
    if looks is None or not begun:
        return np.zeros((len(begun), 0), np.uint8)
    return np.stack([looks.place_of(row.images) for row in begun])


def _named(keys: list[Key], cells: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    cell = np.array([cells.setdefault(key[0], len(cells)) for key in keys], np.int32)
    return cell, np.array([key[1] for key in keys], np.uint64).view(np.int64)


def _keys(table: Table, cells: list[str]) -> list[Key]:
    names = [cells[k] for k in table.cell.tolist()]
    return list(zip(names, table.episode.view(np.uint64).tolist(), strict=True))
