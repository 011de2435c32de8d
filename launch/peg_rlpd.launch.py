# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The nodes that `user plan` lists, without our libraries. Settings: set:="seed=1 a.b=c"."""

import json
import os
import subprocess

from launch.actions import DeclareLaunchArgument, OpaqueFunction, Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue as Value

from launch import LaunchDescription

ARGUMENTS = {'config': 'peg_rlpd', 'set': '', 'machine': '', 'arm': '', 'run': '', 'resume': ''}


def nodes(context):
    given = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    own = [f'{k}={v}' for k, v in given.items() if v and k not in ('config', 'set')]
    paths = (f'{p}/lib/user_core/user' for p in os.environ.get('AMENT_PREFIX_PATH', '').split(':'))
    user = next(filter(os.path.exists, paths), 'user')
    command = [user, 'plan', '--create', given['config'], *given['set'].split(), *own]
    return [
        Node(
            **{key: n[key] for key in ('package', 'executable', 'name', 'namespace')},
            additional_env=n['env'], output='screen', sigterm_timeout=f'{5 + n["end_s"]}',
            parameters=[{k: Value(v, value_type=str)} for k, v in n['parameters'].items()],
            prefix=f'nice -n {n["nice"]}' if n['nice'] else None, respawn=True, respawn_delay=1.0,
            on_exit=None if n['respawn'] else lambda e, _: [Shutdown()] * (e.returncode >= 0),
        )
        for n in json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    ]  # fmt: skip


def generate_launch_description():
    arguments = [DeclareLaunchArgument(k, default_value=v) for k, v in ARGUMENTS.items()]
    return LaunchDescription([*arguments, OpaqueFunction(function=nodes)])
