# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""An arm and its drawn cameras over real DDS, commanded as an episode would."""

import os
from pathlib import Path

from cells import Graph
from geometry_msgs.msg import Pose as PoseMsg
from rclpy.action import ActionClient
from sensor_msgs.msg import Image
from user_msgs.action import MoveTo
from user_msgs.msg import RobotState, Target

from user_core import topics
from user_core.messages import nanoseconds, pose_msg
from user_robot.task import make_task

CAMERAS = 'cells.arm0.cameras={wrist: {width: 64, height: 64}, side: {width: 64, height: 64}}'
MOVING = 'cells.arm0.arm.hole_error_m=0.02'


class SeenCell:
    """An arm and its drawn cameras; the test commands the arm as an episode would.

    Attributes:
        graph: the processes.
        views: of each camera, (stamp in ns, bytes) as they came.
        samples: stamps of the arm's samples, ns.
    """

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.graph = Graph(folder, CAMERAS, *overrides, run=f'seen-{os.getpid()}')
        self.views: dict[str, list[tuple[int, bytes]]] = {'wrist': [], 'side': []}
        self.samples: list[RobotState] = []
        self.task = make_task(self.graph.config.task)
        self.episode = self.step = 0
        for name in self.views:
            self.hear('view', name, lambda m, n=name: self.on_view(n, m))
        self.graph._sub('robot_state', 'arm0', self.samples.append)
        self.mover = ActionClient(self.graph.node, MoveTo, '/arm0/move_to')
        self.target_pub = self.graph._pub('target', 'arm0')

    def hear(self, key: str, camera: str, callback) -> None:
        topic = topics.TOPICS[key]
        name = topics.name(key, 'arm0', camera)
        self.graph.node.create_subscription(topic.type, name, callback, topic.reader)

    def on_view(self, name: str, message: Image) -> None:
        assert (message.encoding, message.height, message.width) == ('rgb8', 64, 64)
        assert message.header.frame_id == f'arm0_{name}'
        self.views[name].append((nanoseconds(message.header.stamp), bytes(message.data)))

    def reset(self, seed: int) -> bytes:
        """Puts the arm above the block, the errors drawn anew; the pictures."""
        self.episode, self.step = self.episode + 1, 0
        goal = MoveTo.Goal(waypoints=[pose_msg(self.task.home)], speed=0.1, angular_speed=0.5)
        goal.seed, goal.id.episode = seed, self.episode
        self.graph.until(self.mover.server_is_ready)
        ended = self.mover.send_goal_async(goal)
        self.graph.until(ended.done)
        ended = ended.result().get_result_async()
        self.graph.until(ended.done)
        assert not ended.result().result.error
        self.graph.until(lambda: self.samples and self.samples[-1].id.episode == self.episode)
        return self.seen()

    def act(self, down_m: float) -> bytes:
        """One command, which moves the arm down from where it is; the pictures after it."""
        self.step += 1
        target = Target(pose=self.lower(self.samples[-1].pose, down_m), gripper=float('nan'))
        target.id.run, target.id.episode, target.id.step = self.graph.run, self.episode, self.step
        self.target_pub.publish(target)
        self.graph.until(lambda: self.samples[-1].id.step == self.step)
        return self.seen()

    @staticmethod
    def lower(pose: PoseMsg, down_m: float) -> PoseMsg:
        pose.position.z -= down_m
        return pose

    def seen(self) -> bytes:
        """Both pictures of the newest sample, as soon as they are there."""
        stamp = nanoseconds(self.samples[-1].stamp)
        self.graph.until(lambda: all(stamp in dict(v) for v in self.views.values()))
        return b''.join(dict(v)[stamp] for v in self.views.values())
