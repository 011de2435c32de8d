# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The peg scene: franky-sim's FR3 holding a square peg over a block with a square hole.

World = the arm's base frame. The block is a mocap body, so that its pose is data, not model.
"""

from __future__ import annotations

from importlib.util import find_spec
import math
from pathlib import Path
import time
import xml.etree.ElementTree as ET

import mujoco
import numpy as np
from scipy.spatial.transform import Rotation

from user_core.arm_config import PegScene
from user_core.errors import UserError
from user_core.geometry import Array, Pose
from user_sim.snapshot import Snapshot

HOLE_DEPTH_M = 0.04
PEG_LENGTH_M = 0.06
WALL_M = 0.03
HOLE_XY_M = (0.5, 0.0)
RIM_Z_M = 0.12
TCP_TO_TIP_M = 0.04
HOME_Q_RAD = (0.0, -0.3, 0.0, -2.2, 0.0, 1.9, 0.785)

_TCP_Z = 0.1034  # Franka hand: flange of the hand to the TCP
_PALM_TO_FINGER_M = 0.0584
_SHELL = '.85 .85 .87 1'


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


def peg_scene(scene: PegScene, drawn: bool = False) -> str:
    """MJCF of the scene.

    Args:
        scene: peg, block, contact and joint friction.
        drawn: keep the links' coarse meshes, touching nothing, and add floor and lights: what a
            camera sees.
    """
    path = fr3_path()
    root = ET.parse(path).getroot()
    _element(root, 'compiler').set('meshdir', str(path.parent / 'meshes'))
    for section in ('actuator', 'tendon', 'equality', 'keyframe'):
        for element in root.findall(section):
            root.remove(element)
    for joint in root.iter('joint'):
        if 'frictionloss' in joint.attrib:
            friction = min(float(joint.attrib['frictionloss']), scene.joint_friction_nm)
            joint.set('frictionloss', f'{friction}')
    _strip(root, drawn, scene.peg_half_width_m)
    contact = {
        'friction': f'{scene.contact_friction} 0.005 0.0001',
        'condim': '4',
        'solref': f'{scene.contact_time_s} 1',
        'solimp': '0.95 0.99 0.0005',
    }
    _add_peg(root, scene.peg_half_width_m, scene.peg_edge_m, contact)
    hole = scene.peg_half_width_m + scene.clearance_m
    _add_block(_element(root, 'worldbody'), hole, contact)
    _add_cameras(root)
    if drawn:
        _add_lights(root)
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


def _strip(root: ET.Element, drawn: bool, peg_half_width_m: float) -> None:
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
            if (link and not drawn) or kind == 'visual':
                body.remove(geom)
                continue
            if link:
                geom.attrib.update(contype='0', conaffinity='0', rgba=_SHELL)
            if 'mesh' in geom.attrib:
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


def _add_cameras(root: ET.Element) -> None:
    """`wrist` looks from the hand at the peg's tip, so that tip and hole are in view at any
    height; the block fills `side`'s picture.
    """
    hand, world = _element(root, ".//body[@name='hand']"), _element(root, 'worldbody')
    x, y = HOLE_XY_M
    ET.SubElement(
        hand, 'camera', name='wrist', pos='0.07 0 0', xyaxes='0 1 0 0.957 0 0.29', fovy='40'
    )
    ET.SubElement(
        world, 'camera', name='side', pos=f'{x + 0.3} {y - 0.3} 0.45',
        xyaxes='0.7071 0.7071 0 -0.4215 0.4215 0.8029', fovy='22',
    )  # fmt: skip


def _add_lights(root: ET.Element) -> None:
    world = _element(root, 'worldbody')
    _geom(world, {'contype': '0', 'conaffinity': '0'}, type='plane', size='2 2 0.1',
          rgba='.45 .5 .55 1')  # fmt: skip
    for where in ('2 -1.5 3', '-2 1.5 2.5'):
        ET.SubElement(
            world, 'light', pos=where, dir=' '.join(str(-float(v)) for v in where.split()),
            directional='true', diffuse='.5 .5 .5', castshadow='false',
        )  # fmt: skip


def place_block(data: mujoco.MjData, errors: PegScene, rng: np.random.Generator) -> None:
    """Puts the block where it is up to the errors that nobody observes."""
    x, y = rng.uniform(-errors.hole_error_m, errors.hole_error_m, 2)
    yaw = rng.uniform(-errors.hole_error_rad, errors.hole_error_rad)
    data.mocap_pos[0] = HOLE_XY_M[0] + x, HOLE_XY_M[1] + y, RIM_Z_M
    data.mocap_quat[0] = math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)


def place_peg(
    model: mujoco.MjModel, centred: Array, errors: PegScene, rng: np.random.Generator
) -> None:
    """Puts the peg between the fingers: they centre it, but it may have slid and turned in their
    plane. `centred` (3,) is its body's position in the hand without an error.
    """
    slide = rng.uniform(-errors.grasp_error_m, errors.grasp_error_m, 2)
    turn = rng.uniform(-errors.grasp_error_rad, errors.grasp_error_rad)
    peg = model.body('peg').id
    model.body_pos[peg] = centred + np.array([slide[0], 0.0, slide[1]])
    model.body_quat[peg] = math.cos(turn / 2), 0.0, math.sin(turn / 2), 0.0


def take_snapshot(
    model: mujoco.MjModel, data: mujoco.MjData, gripper_m: float, time_s: float
) -> Snapshot:
    """The scene's present look; `time_s` is simulated time."""
    peg = model.body('peg').id
    return Snapshot(
        q=data.qpos,
        block=np.concatenate([data.mocap_pos[0], data.mocap_quat[0]]),
        peg=np.concatenate([model.body_pos[peg], model.body_quat[peg]]),
        gripper_m=gripper_m,
        time_s=time_s,
        stamp_s=time.time(),
    )


def solve_ik(model: mujoco.MjModel, data: mujoco.MjData, site: int, pose: Pose) -> None:
    """Writes joint angles that put the site at the pose into qpos.

    Damped least squares from home to 1e-9; the law's null space keeps near home too.

    Raises:
        UserError: no joint angles reach it.
    """
    data.qpos[:] = HOME_Q_RAD
    goal, jac, error = pose.rotation, np.zeros((6, 7)), np.zeros(6)
    for _ in range(50):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        error[:3] = pose.position - data.site_xpos[site]
        now = Rotation.from_matrix(data.site_xmat[site].reshape(3, 3))
        error[3:] = (goal * now.inv()).as_rotvec()
        if np.abs(error).max() < 1e-9:
            return
        mujoco.mj_jacSite(model, data, jac[:3], jac[3:], site)
        data.qpos[:] += jac.T @ np.linalg.solve(jac @ jac.T + 1e-9 * np.eye(6), error)
    raise UserError(
        'the simulated arm cannot start there',
        f'no joint angles reach {np.round(pose.position, 3).tolist()} m',
        'choose a start within the workspace of the task',
    )
