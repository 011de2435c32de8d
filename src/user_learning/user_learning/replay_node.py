# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Replay: rows of all cells to disk, then the acknowledgement; videos of evaluations."""

from __future__ import annotations

from user_msgs.msg import Ack, Transition
from user_msgs.msg import Label as LabelMsg

from user_core.footprint import GB, segment_bytes
from user_core.node import Shell, run_node
from user_learning.row_message import label_of, row_of
from user_learning.store import Store
from user_learning.video import Videos

ACK_EVERY_N = 4
"""Rows of a cell that share an acknowledgement; a quarter of what may be in flight."""

ACK_WITHIN_S = 0.1


class ReplayNode:
    """Thin shell of `Store`: a row is written in its callback and acknowledged once it is on its
    way to disk.
    """

    def __init__(self, shell: Shell) -> None:
        self.shell, config = shell, shell.config
        self.store = Store(
            shell.folder / 'store',
            segment_bytes=segment_bytes(config),
            disk_bytes=config.replay.disk_gb * GB,
            window_rows=config.replay.window_rows,
        )
        hz = next(iter(config.cells.values())).control_hz
        self.videos = Videos(shell.folder / 'videos', hz, self.warn)
        if self.store.torn or self.store.bad:
            shell.get_logger().warning(
                f'the store had a torn tail of {self.store.torn} bytes and '
                f'{self.store.bad} bad records; they are set aside'
            )
        self.waiting: dict[tuple[str, int], int] = {}
        self.acks = shell.create_pub('ack')
        for cell in config.cells:
            shell.create_sub('transition', self.on_row, cell)
        shell.create_sub('label', self.on_label)
        shell.create_timer(ACK_WITHIN_S, self.acknowledge)
        shell.create_timer(1.0, self.tell)
        self.tell()

    def on_row(self, msg: Transition) -> None:
        """Rows of other runs are none of ours."""
        if msg.id.run != self.shell.run:
            return
        row = row_of(msg)
        if self.store.write([row]):
            self.videos.add(row)
        key = (msg.id.cell, msg.incarnation)
        self.waiting[key] = self.waiting.get(key, 0) + 1
        if self.waiting[key] >= ACK_EVERY_N:
            self.acknowledge()

    def on_label(self, msg: LabelMsg) -> None:
        """A judgement is a record of its own."""
        if msg.id.run == self.shell.run:
            self.store.write([label_of(msg)])

    def acknowledge(self) -> None:
        """Cumulative, for every cell that sent something since; nothing while the disk takes no
        rows.
        """
        if self.store.refused:
            return
        for cell, incarnation in self.waiting:
            next_seq = self.store.next_seq(cell, incarnation)
            self.acks.publish(Ack(cell=cell, incarnation=incarnation, next_seq=next_seq))
        self.waiting.clear()

    def tell(self) -> None:
        """State and counters once a second."""
        store = self.store
        self.shell.metrics(
            'DISK_FULL' if store.refused else 'STORING',
            store.refused,
            rows=float(store.rows),
            bytes=float(store.size),
            duplicates=float(store.duplicates),
            lost=float(store.lost),
            bad=float(store.bad),
        )

    def warn(self, text: str) -> None:
        """From whichever thread."""
        self.shell.call_soon(lambda: self.shell.get_logger().warning(text))

    def close(self) -> None:
        """Syncs what was written, then ends the videos."""
        self.store.close()
        self.videos.close()


def main() -> None:
    """Entry point."""
    run_node(ReplayNode, 'replay')


if __name__ == '__main__':
    main()
