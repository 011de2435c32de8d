# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a live run this machine sees, and how its clock stands to theirs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
import os
import time

from user_msgs.msg import Metrics

from user_core import topics
from user_core.config import RunConfig
from user_core.finding import Finding
from user_core.guest import Guest
from user_core.messages import NS, nanoseconds
from user_core.plan import machine_of
from user_core.status import speaking

DISCOVERY_S = 3.0
"""Time in which a live node answers discovery: 0.1 s, or 2 s on a busy machine."""
LISTEN_S = 3.0
"""Each node speaks two or more times in this."""
AHEAD_S, LATE_S = 0.005, 0.1


@dataclass
class Presence:
    """What was seen.

    Attributes:
        there: paths of all nodes of the graph.
        late_s: of each node of the run that spoke, the smallest time from its stamp to our
            hearing it: its way takes some of it, so its clock is at most that far behind ours,
            and ahead of ours if it is negative.
    """

    there: set[str] = field(default_factory=set)
    late_s: dict[str, float] = field(default_factory=dict)


def look(config: RunConfig, run: str, listen_s: float = LISTEN_S) -> Presence:
    """Joins the graph for some seconds. Raises what rclpy raises when that fails."""
    seen, expected = Presence(), set(speaking(config))

    def heard(message: Metrics) -> None:
        if message.id.run == run:
            late_s = (time.time_ns() - nanoseconds(message.stamp)) / NS
            seen.late_s[message.node] = min(late_s, seen.late_s.get(message.node, late_s))

    with Guest(f'doctor_{os.getpid()}') as guest:
        topic = topics.TOPICS['metrics']
        guest.node.create_subscription(topic.type, topics.name('metrics'), heard, topic.reader)
        begun = time.monotonic()
        while True:
            guest.executor.spin_once(0.05)
            found = guest.node.get_node_names_and_namespaces()
            seen.there |= {f'{space.rstrip("/")}/{name}' for name, space in found}
            passed_s = time.monotonic() - begun
            if passed_s > DISCOVERY_S + listen_s:
                return seen
            if passed_s > listen_s and expected <= seen.there and expected <= set(seen.late_s):
                return seen


def nodes(config: RunConfig, run: str, seen: Presence) -> Iterator[Finding]:
    """Every node of the run's page, on whichever machine, or the names of those that lack."""
    expected = speaking(config)
    missing = [path for path in expected if path not in seen.there]
    text = f'{len(expected) - len(missing)} of {len(expected)} nodes of {run} are seen'
    if not missing:
        mute = [path for path in expected if path not in seen.late_s]
        if mute:
            mend = 'the firewall lets discovery through, and no data: open UDP 7400 to 65535'
            yield Finding('bad', 'nodes', f'{text}, not heard: {", ".join(mute)}', mend)
        else:
            yield Finding('ok', 'nodes', f'{text}: {", ".join(expected)}')
        return
    mend = 'start its machine with the same run=NAME, or see its log in the run folder'
    if len(missing) == len(expected):
        number = os.environ.get('ROS_DOMAIN_ID') or '0'
        mend = f'set ROS_DOMAIN_ID as the run has it, here it is {number}'
    yield Finding('bad', 'nodes', f'{text}, missing: {", ".join(missing)}', mend)


def clocks(config: RunConfig, seen: Presence) -> Iterator[Finding]:
    """How far each machine's clock may be from ours, from one side: the way takes time, too."""
    if len(config.machines) == 1:
        return
    late_s: dict[str, float] = {}
    for path, least_s in seen.late_s.items():
        machine = machine_of(config, path)
        late_s[machine] = min(least_s, late_s.get(machine, least_s))
    mend = 'sudo apt-get install -y chrony on both machines'
    for machine, least_s in sorted(late_s.items()):
        what, ms = f'clock of {machine}', 1e3 * abs(least_s)
        if least_s < -AHEAD_S:
            yield Finding('warn', what, f'ahead of this one by {ms:.0f} ms or more', mend)
        elif least_s > LATE_S:
            text = f'behind this one by up to {ms:.0f} ms, or its messages take that long'
            yield Finding('warn', what, text, mend)
        else:
            yield Finding('ok', what, f'behind this one by {max(1e3 * least_s, 0):.1f} ms at most')
