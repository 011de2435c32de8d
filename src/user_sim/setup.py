# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Build of user_sim; `make build` runs it through colcon."""

from setuptools import find_packages, setup

NAME = 'user_sim'

setup(
    name=NAME,
    version='0.1.0',
    packages=find_packages(),
    package_data={f'{NAME}.arx': ['canshim.c']},
    data_files=[
        ('share/ament_index/resource_index/packages', [f'resource/{NAME}']),
        (f'share/{NAME}', ['package.xml']),
    ],
    zip_safe=True,
    maintainer='The USER authors',
    maintainer_email='maintainers@example.org',
    description=('Simulated cells: MuJoCo scenes, the in-process arm and the scripted expert.'),
    license='Apache-2.0',
    entry_points={
        'console_scripts': [
            'arx_bus = user_sim.arx.bus:main',
            'cameras = user_sim.camera_node:main',
            'expert = user_sim.expert_node:main',
            'franka_server = user_sim.franka.server:main',
        ],
    },
)
