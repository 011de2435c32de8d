# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Build of user_learning; `make build` runs it through colcon."""

from setuptools import find_packages, setup

NAME = 'user_learning'

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
    description=('The learning computer: networks, algorithms, replay, weights and their nodes.'),
    license='Apache-2.0',
    entry_points={
        'console_scripts': [
            'policy = user_learning.policy_node:main',
            'replay = user_learning.replay_node:main',
            'learner = user_learning.learner_node:main',
        ],
    },
)
