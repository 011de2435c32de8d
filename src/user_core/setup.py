# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Build of user_core; `make build` runs it through colcon."""

from setuptools import find_packages, setup

NAME = 'user_core'

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
    description=(
        'The words that every part of USER shares: '
        'configuration, plan, topics, runner and the user command.'
    ),
    license='Apache-2.0',
    entry_points={
        'console_scripts': [
            'user = user_core.cli:main',
            'run = user_core.run_node:main',
        ],
    },
)
