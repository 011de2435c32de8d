# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""A cell in rviz, beside a run or another launch: cell:=arm0 arm:=franka_sim (or L5, X5, ...)."""

import os
from pathlib import Path
import subprocess
import tempfile

from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue as Value

from launch import LaunchDescription

ARGUMENTS = {'cell': 'arm0', 'arm': 'franka_sim'}
RVIZ = Path(__file__).resolve().parents[1] / 'config' / 'user.rviz'


def nodes(context):
    cell, arm = (LaunchConfiguration(name).perform(context) for name in ARGUMENTS)
    prefixes = os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep)
    installed = (path for p in prefixes if os.path.exists(path := f'{p}/lib/user_robot/view'))
    command = [next(installed, 'view'), '--urdf', arm]
    urdf = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    with tempfile.NamedTemporaryFile('w', suffix='.rviz', delete=False) as page:
        page.write(RVIZ.read_text().replace('arm0', cell))
    model = {'robot_description': Value(urdf, value_type=str), 'frame_prefix': f'{cell}/'}
    state = 'robot_state_publisher'
    return [
        Node(package=state, executable=state, namespace=cell, parameters=[model]),
        Node(package='user_robot', executable='view', namespace=cell, output='screen'),
        Node(package='rviz2', executable='rviz2', arguments=['-d', page.name]),
    ]


def generate_launch_description():
    arguments = [DeclareLaunchArgument(k, default_value=v) for k, v in ARGUMENTS.items()]
    return LaunchDescription([*arguments, OpaqueFunction(function=nodes)])
