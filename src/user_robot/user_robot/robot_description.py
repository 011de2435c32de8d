# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The URDF of an arm as viewers need it: our joint names, `base` as root, meshes by full path."""

from __future__ import annotations

from importlib.util import find_spec
import math
from pathlib import Path
import xml.etree.ElementTree as ElementTree

from user_core.errors import UserError

_FR3 = ('franky_sim', 'assets/fr3.urdf')
_ARX = {model: ('arx5_interface', f'models/{model}.urdf') for model in ('L5', 'X5')} | {
    f'X7{side}': ('arx5_interface', f'models/X7_{side.lower()}.urdf') for side in ('Left', 'Right')
}
MODELS = {
    'sim': _FR3,
    'franka': _FR3,
    'franka_sim': _FR3,
    'arx': _ARX['L5'],
    'arx_sim': _ARX['L5'],
    **_ARX,
}
"""Package and file of a model, by an arm's kind or an ARX arm's model."""
_RADIUS_M = 0.025


def robot_description(name: str) -> str:
    """The URDF of an arm, a key of MODELS.

    The joints are joint1, joint2, ... as in our joint_states; fingers are fixed; a mesh whose
    file is not installed is replaced by a cylinder to the next joint.

    Raises:
        UserError: no such model, or its package is not installed.
    """
    if name not in MODELS:
        raise UserError(
            f'There is no robot description for {name!r}',
            f'there is one for {", ".join(MODELS)}; another arm brings its own',
        )
    package, file = MODELS[name]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(f'The robot description of {name} is in {package}, which is not installed')
    path = Path(spec.origin).parent / file
    robot = ElementTree.parse(path).getroot()
    _name(robot)
    bare = [link for link in robot.findall('link') if not _show(link, path.parent)]
    for link in bare:
        _draw(link, robot)
    return ElementTree.tostring(robot, encoding='unicode')


def _name(robot: ElementTree.Element) -> None:
    """Names joints and root; what our joint_states do not tell is fixed."""
    joints, number = robot.findall('joint'), 0
    for joint in joints:
        if joint.get('type') == 'revolute':
            number += 1
            joint.set('name', f'joint{number}')
        else:
            joint.set('type', 'fixed')
    children = {joint.find('child').get('link') for joint in joints}  # type: ignore[union-attr]
    for link in robot.findall('link'):
        root = link.get('name')
        if root not in children:
            link.set('name', 'base')
            for joint in joints:
                parent = joint.find('parent')
                if parent is not None and parent.get('link') == root:
                    parent.set('link', 'base')


def _show(link: ElementTree.Element, folder: Path) -> bool:
    """Points a link's meshes to their files; drops those without, and is False if any was."""
    whole = True
    for part in (*link.findall('visual'), *link.findall('collision')):
        mesh = part.find('geometry/mesh')
        if mesh is None:
            continue
        file = folder / mesh.get('filename', '').removeprefix('package://')
        if file.is_file():
            mesh.set('filename', file.as_uri())
        else:
            link.remove(part)
            whole = False
    return whole


def _draw(link: ElementTree.Element, robot: ElementTree.Element) -> None:
    """A cylinder from the link's origin to every joint on it."""
    for joint in robot.findall('joint'):
        parent, origin = joint.find('parent'), joint.find('origin')
        if parent is None or origin is None or parent.get('link') != link.get('name'):
            continue
        x, y, z = map(float, origin.get('xyz', '0 0 0').split())
        length = math.hypot(x, y, z)
        if length < _RADIUS_M:
            continue
        pitch, yaw = math.atan2(math.hypot(x, y), z), math.atan2(y, x)
        visual = ElementTree.SubElement(link, 'visual')
        middle = f'{x / 2} {y / 2} {z / 2}'
        ElementTree.SubElement(visual, 'origin', xyz=middle, rpy=f'0 {pitch} {yaw}')
        geometry = ElementTree.SubElement(visual, 'geometry')
        ElementTree.SubElement(geometry, 'cylinder', length=f'{length}', radius=f'{_RADIUS_M}')
