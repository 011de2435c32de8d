# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Shows a cell in rviz: markers and frames. Joins and leaves a run at any time.

`view --urdf KIND` prints the robot description of an arm instead.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
import sys
import time
from typing import Any

from geometry_msgs.msg import TransformStamped
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.utilities import remove_ros_args
from user_msgs.msg import RobotState, RunConfig

from user_core import topics
from user_core.config import from_json
from user_core.errors import UserError
from user_core.geometry import Pose
from user_core.messages import pose, pose_msg
from user_robot.robot_description import robot_description
from user_robot.task import make_task

PERIOD_S = 0.1
"""At most one picture in this time (steady clock)."""


class View(Node):
    """Publishes `<cell>/markers`, and where tf2_msgs is installed the frames task and tcp.

    Box and goal come from the run's own configuration, which is latched on the graph: nothing to
    configure, and a new run is shown as it is.

    Raises:
        UserError: the node is in no cell's namespace, or visualization_msgs is not installed.
    """

    def __init__(self) -> None:
        super().__init__('view', start_parameter_services=False)
        self.cell = self.get_namespace().strip('/')
        if not self.cell:
            raise UserError(
                'The view shows no cell',
                'its namespace is /',
                'Start it in the namespace of a cell: --ros-args -r __ns:=/arm0',
            )
        drawing, array = _drawing()
        self.draw: Any = None
        self.markers, self.new_markers = self.create_publisher(array, 'markers', 1), drawing
        self.task_frame = Pose.identity()
        self.tf = self._tf_publisher()
        self.drawn_s = 0.0
        # A viewer that is slow never makes the arm's writer wait.
        newest = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        name = topics.name('robot_state', self.cell)
        self.create_subscription(RobotState, name, self.on_state, newest)
        run = topics.TOPICS['run_config']
        self.create_subscription(run.type, topics.name('run_config'), self.on_config, run.reader)

    def _tf_publisher(self) -> Any:
        """The publisher of frames, None without tf2_msgs."""
        try:
            kind = import_module('tf2_msgs.msg').TFMessage
        except ModuleNotFoundError:
            self.get_logger().warning(
                'Frames are not published: tf2_msgs is not installed. A ROS 2 installation has it.'
            )
            return None
        return self.create_publisher(kind, '/tf', 10)

    def on_config(self, message: RunConfig) -> None:
        """A run begins, or tells a late viewer; only one with this cell counts."""
        try:
            config = from_json(message.config, 'the run_config topic')
        except UserError as error:
            self.get_logger().warning(str(error))
            return
        if self.cell in config.cells:
            self.task_frame = make_task(config.task).frame
            safety = config.cells[self.cell].safety
            self.draw = self.new_markers(self.cell, safety, self.task_frame).draw

    def on_state(self, message: RobotState) -> None:
        """Draws, when it is time to and the run is known."""
        now = time.monotonic()
        if self.draw is None or now - self.drawn_s < PERIOD_S:
            return
        self.drawn_s = now
        self.markers.publish(self.draw(message))
        if self.tf is not None:
            frames = {'task': self.task_frame, 'tcp': pose(message.pose)}
            transforms = [self.transform(message, *frame) for frame in frames.items()]
            self.tf.publish(self.tf.msg_type(transforms=transforms))

    def transform(self, state: RobotState, name: str, frame: Pose) -> TransformStamped:
        """A frame of the cell, seen from the arm's base at the state's time."""
        out, seen = TransformStamped(child_frame_id=f'{self.cell}/{name}'), pose_msg(frame)
        out.header.frame_id, out.header.stamp = f'{self.cell}/base', state.stamp
        move, at = out.transform.translation, seen.position
        move.x, move.y, move.z = at.x, at.y, at.z
        out.transform.rotation = seen.orientation
        return out


def _drawing() -> tuple[Any, Any]:
    """The class that draws, and the type of what it draws."""
    try:
        from user_robot.markers import MarkerArray, Markers
    except ModuleNotFoundError as error:
        if (error.name or '').split('.')[0] != 'visualization_msgs':
            raise
        raise UserError(
            'There is nothing to draw with',
            'visualization_msgs is not installed',
            'Source a ROS 2 installation that has rviz2 and run `make setup`',
        ) from error
    return Markers, MarkerArray


def main() -> None:
    """Entry point."""
    arguments = remove_ros_args(sys.argv)[1:]
    try:
        if arguments[:1] == ['--urdf']:
            print(robot_description(' '.join(arguments[1:])))
            return
        rclpy.init(args=sys.argv)
        with suppress(KeyboardInterrupt, ExternalShutdownException):
            rclpy.spin(View())
        rclpy.try_shutdown()
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == '__main__':
    main()
