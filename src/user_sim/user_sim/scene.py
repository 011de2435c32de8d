# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The peg scene: franky-sim's FR3 holding a square peg over a block with a square hole.

World = the arm's base frame. The block is a mocap body, so that its pose is data, not model.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
import xml.etree.ElementTree as ET

from user_core.errors import UserError

HOLE_DEPTH_M = 0.04
PEG_LENGTH_M = 0.06
WALL_M = 0.03
HOLE_XY_M = (0.5, 0.0)
RIM_Z_M = 0.12
TCP_TO_TIP_M = 0.04
HOME_Q_RAD = (0.0, -0.3, 0.0, -2.2, 0.0, 1.9, 0.785)

_TCP_Z = 0.1034  # Franka hand: flange of the hand to the TCP
_PALM_TO_FINGER_M = 0.0584


def fr3_path() -> Path:
    """Path of the FR3 model inside the franky-sim package (found, not imported)."""
    spec = find_spec('franky_sim')
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            'the FR3 model is missing',
            'it ships inside the package franky-sim, which is not installed',
            'run `make setup`',
        )
    return Path(spec.submodule_search_locations[0]) / 'assets' / 'fr3.xml'


def peg_scene(
    peg_half_width_m: float = 0.008,
    clearance_m: float = 0.0005,
    contact_time_s: float = 0.004,
    friction: float = 0.3,
    edge_m: float = 0.0,
    visual: bool = False,
) -> str:
    """MJCF of the scene.

    Args:
        peg_half_width_m: half the side of the peg's square section.
        clearance_m: gap on every side when the peg is centred.
        contact_time_s: time constant of the contacts (MuJoCo's solref); longer is softer.
        friction: sliding friction between peg and block.
        edge_m: radius of the broken edges at the peg's tip; 0 leaves them sharp.
        visual: keep the arm's visual meshes (slow to load and to draw; physics is the same).
    """
    path = fr3_path()
    root = ET.parse(path).getroot()
    _element(root, 'compiler').set('meshdir', str(path.parent / 'meshes'))
    for section in ('actuator', 'tendon', 'equality', 'keyframe'):
        for element in root.findall(section):
            root.remove(element)
    _strip(root, visual, peg_half_width_m)
    contact = {
        'friction': f'{friction} 0.005 0.0001',
        'condim': '4',
        'solref': f'{contact_time_s} 1',
        'solimp': '0.95 0.99 0.0005',
    }
    _add_peg(root, peg_half_width_m, edge_m, contact)
    _add_block(_element(root, 'worldbody'), peg_half_width_m + clearance_m, contact)
    return ET.tostring(root, encoding='unicode')


def _element(root: ET.Element, path: str) -> ET.Element:
    found = root.find(path)
    if found is None:
        raise UserError(
            'the FR3 model cannot be read',
            f'it has no element {path}',
            'install the version of franky-sim named in requirements.txt',
        )
    return found


def _strip(root: ET.Element, visual: bool, peg_half_width_m: float) -> None:
    used: set[str] = set()
    for body in root.iter('body'):
        name = body.get('name', '')
        for joint in body.findall('joint'):
            if 'finger' in joint.get('name', ''):
                body.remove(joint)
        if name in ('left_finger', 'right_finger'):
            side = 1 if name == 'left_finger' else -1
            body.set('pos', f'0 {side * peg_half_width_m} {_PALM_TO_FINGER_M}')
        for geom in body.findall('geom'):
            kind = geom.get('class')
            link = name.startswith('fr3_link') and kind == 'collision'
            if link or (kind == 'visual' and not visual):
                body.remove(geom)
            elif 'mesh' in geom.attrib:
                used.add(geom.attrib['mesh'])
    asset = _element(root, 'asset')
    for mesh in asset.findall('mesh'):
        if mesh.get('name') not in used:
            asset.remove(mesh)


def _geom(body: ET.Element, look: dict[str, str], **attributes: str) -> None:
    ET.SubElement(body, 'geom', {**look, **attributes})


def _add_peg(root: ET.Element, half: float, edge: float, contact: dict[str, str]) -> None:
    hand = _element(root, ".//body[@name='hand']")
    ET.SubElement(hand, 'site', name='tcp', pos=f'0 0 {_TCP_Z}')
    middle = _TCP_Z + TCP_TO_TIP_M - PEG_LENGTH_M / 2
    peg = ET.SubElement(hand, 'body', name='peg', pos=f'0 0 {middle}')
    look = {'rgba': '.9 .6 .1 1', 'mass': '0', **contact}
    tip = PEG_LENGTH_M / 2
    shaft, inner, z = tip - edge / 2, half - edge, tip - edge
    _geom(
        peg, look, name='peg', type='box', mass='0.05',
        size=f'{half} {half} {shaft}', pos=f'0 0 {-edge / 2}',
    )  # fmt: skip
    if edge:
        _geom(
            peg, look, name='tip', type='box',
            size=f'{inner} {inner} {edge}', pos=f'0 0 {z}',
        )  # fmt: skip
        corners = [(inner, inner), (-inner, inner), (-inner, -inner), (inner, -inner)]
        for i, (x, y) in enumerate(corners):
            nx, ny = corners[(i + 1) % 4]
            _geom(
                peg, look, name=f'edge{i}', type='capsule',
                size=f'{edge}', fromto=f'{x} {y} {z} {nx} {ny} {z}',
            )  # fmt: skip
    excludes = _element(root, 'contact')
    for other in ('hand', 'left_finger', 'right_finger'):
        ET.SubElement(excludes, 'exclude', body1='peg', body2=other)


def _add_block(world: ET.Element, hole: float, contact: dict[str, str]) -> None:
    """A block whose body origin is the middle of the hole's mouth, z up."""
    x, y = HOLE_XY_M
    block = ET.SubElement(world, 'body', name='block', mocap='true', pos=f'{x} {y} {RIM_Z_M}')
    look = {'rgba': '.3 .3 .8 1', **contact}
    middle, side, depth = hole + WALL_M, hole + 2 * WALL_M, HOLE_DEPTH_M / 2
    walls = (
        (middle, 0.0, WALL_M, side),
        (-middle, 0.0, WALL_M, side),
        (0.0, middle, hole, WALL_M),
        (0.0, -middle, hole, WALL_M),
    )
    for i, (wx, wy, sx, sy) in enumerate(walls):
        _geom(
            block, look, name=f'wall{i}', type='box',
            size=f'{sx} {sy} {depth}', pos=f'{wx} {wy} {-depth}',
        )  # fmt: skip
    _geom(
        block, look, name='floor', type='box',
        size=f'{side} {side} 0.04', pos=f'0 0 {-HOLE_DEPTH_M - 0.04}',
    )  # fmt: skip
