# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Build of user_robot; `make build` runs it through colcon."""

from setuptools import find_packages, setup

NAME = 'user_robot'

setup(
    name=NAME,
    version='0.1.0',
    packages=find_packages(),
    data_files=[
        ('share/ament_index/resource_index/packages', [f'resource/{NAME}']),
        (f'share/{NAME}', ['package.xml']),
    ],
    zip_safe=True,
    maintainer='The USER authors',
    maintainer_email='maintainers@example.org',
    description=("The robot's computer: arms, safety, tasks and the episode's step machine."),
    license='Apache-2.0',
    entry_points={
        'console_scripts': [
            'arm = user_robot.arm_node:main',
            'arm_check = user_robot.arm_check:main',
            'camera = user_robot.camera.node:main',
            'camera_check = user_robot.camera.check:main',
            'episode = user_robot.episode_node:main',
            'view = user_robot.view_node:main',
            'teach = user_robot.teach.main:main',
        ],
    },
)
