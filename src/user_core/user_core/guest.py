# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A ROS node for whoever is no node of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import os

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions


class Guest:
    """A node of its own, in a context of its own, for whoever is no node of a plan: a check, a
    command, a driver whose arm is on a ROS graph. No signal handlers, no global arguments.

    Beside a discovery server (ROS_DISCOVERY_SERVER) it is a super client: a plain client is told
    of those alone whose topics it has.

    Attributes:
        node: for publishers, subscriptions and clients.
        executor: holds the node; whoever made the guest spins it.
    """

    def __init__(self, name: str, namespace: str = '/') -> None:
        self.context = rclpy.Context()
        rclpy.init(args=[], context=self.context, signal_handler_options=SignalHandlerOptions.NO)
        with _sees_all():
            self.node = Node(
                name,
                namespace=namespace,
                context=self.context,
                enable_rosout=False,
                start_parameter_services=False,
            )
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the graph."""
        self.executor.shutdown(timeout_sec=1.0)
        self.node.destroy_node()
        with suppress(Exception):  # somebody ended the context
            rclpy.shutdown(context=self.context)


@contextmanager
def _sees_all() -> Iterator[None]:
    """Participants that are made meanwhile are super clients of the discovery server, if there is
    one and nobody has decided that already.
    """
    key = 'ROS_SUPER_CLIENT'
    mine = bool(os.environ.get('ROS_DISCOVERY_SERVER')) and key not in os.environ
    if mine:
        os.environ[key] = 'TRUE'
    try:
        yield
    finally:
        if mine:
            del os.environ[key]
