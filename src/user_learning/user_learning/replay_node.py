# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Replay: rows of all cells to disk, then the acknowledgement; videos of evaluations."""

from __future__ import annotations

from functools import partial

from user_msgs.msg import Ack, Transition
from user_msgs.msg import Label as LabelMsg

from user_core.footprint import GB, segment_bytes
from user_core.node import Shell, run_node
from user_learning.checkpoint import held_place
from user_learning.row_message import label_of, row_of
from user_learning.store import Store
from user_learning.video import Videos

AGAIN_S = 0.1
"""A row that comes although it was stored is acknowledged again within this time."""


class ReplayNode:
    """Thin shell of `Store`: a row is written in its callback and acknowledged when it is synced.

    While the disk is full its state is DISK_FULL: nothing is acknowledged, so cells keep their
    rows, and it goes on by itself when there is room. A disk that fails otherwise ends the node.
    """

    def __init__(self, shell: Shell) -> None:
        self.shell, config = shell, shell.config
        self.acks = shell.create_pub('ack')
        self.acked: dict[tuple[str, int], int] = {}
        self.said = ''
        self.store = Store(
            shell.folder / 'store',
            segment_bytes=segment_bytes(config),
            disk_bytes=config.replay.disk_gb * GB,
            window_rows=config.replay.window_rows,
            held=partial(held_place, shell.folder / 'checkpoints'),
            told=lambda: shell.call_soon(self.acknowledge),
        )
        hz = next(iter(config.cells.values())).control_hz
        self.videos = Videos(shell.folder / 'videos', hz, self.warn)
        for cell in config.cells:
            shell.create_sub('transition', self.on_row, cell)
        shell.create_sub('label', self.on_label)
        shell.create_timer(AGAIN_S, self.acknowledge)
        shell.create_timer(1.0, self.tell)
        self.tell()

    def on_row(self, msg: Transition) -> None:
        """Rows of other runs are none of ours."""
        if msg.id.run != self.shell.run:
            return
        row = row_of(msg)
        key = row.cell, row.incarnation
        if self.store.write([row]):
            self.videos.add(row)
            self.acked.setdefault(key, 0)
        else:  # the sender has not heard of it
            self.acked[key] = -1

    def on_label(self, msg: LabelMsg) -> None:
        """A judgement is a record of its own."""
        if msg.id.run == self.shell.run:
            self.store.write([label_of(msg)])

    def acknowledge(self) -> None:
        """Cumulative, to every cell that has more on the disk than it was told."""
        if self.store.failure is not None:
            raise self.store.failure
        for (cell, incarnation), said in self.acked.items():
            next_seq = self.store.next_seq(cell, incarnation)
            if next_seq != said:
                self.acks.publish(Ack(cell=cell, incarnation=incarnation, next_seq=next_seq))
                self.acked[cell, incarnation] = next_seq

    def tell(self) -> None:
        """State and counters once a second; tries again what a full disk refused."""
        store = self.store
        if store.refused:
            store.retry()
        for line in store.damage:
            self.shell.get_logger().warning(f'the store was damaged: {line}')
        store.damage = []
        reason = store.refused or store.crowded
        if bool(reason) != bool(self.said):
            self.shell.get_logger().warning(reason or 'the disk takes rows again')
        self.said = reason
        self.shell.metrics(
            'DISK_FULL' if store.refused else 'STORING',
            reason,
            rows=float(store.rows),
            bytes=float(store.size),
            duplicates=float(store.duplicates),
            lost=float(store.lost),
            dropped=float(store.dropped),
            bad=float(store.bad),
            waiting=float(store.waiting),
            sync_s=store.sync_s,
        )

    def warn(self, text: str) -> None:
        """From whichever thread."""
        self.shell.call_soon(lambda: self.shell.get_logger().warning(text))

    def close(self) -> None:
        """Syncs what was written and acknowledges it, then ends the videos."""
        self.store.close()
        self.acknowledge()
        self.videos.close()


def main() -> None:
    """Entry point."""
    run_node(ReplayNode, 'replay')


if __name__ == '__main__':
    main()
