# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The MuJoCo arm behind the emulated CAN bus, made from the URDF that the ARX SDK ships.

Masses and inertias are the URDF's. It has no meshes: links are capsules that touch the table
(z = 0) and nothing else. Rotor inertia and friction are estimates for such gear motors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
import re
from typing import Any

import mujoco

from user_core.errors import UserError

STEP_S = 0.001
NM_PER_UNIT = {'DM_J4340': 1.0, 'DM_J4310': 0.424}
"""Torque of one unit in a motor's frames, as the SDK takes it."""
ARMATURE = {'DM_J4340': 0.02, 'DM_J4310': 0.004}
"""Rotor inertia at the joint, kg m^2."""
FRICTION_NM = {'DM_J4340': 0.15, 'DM_J4310': 0.05}
DAMPING_NMS = {'DM_J4340': 0.1, 'DM_J4310': 0.02}
TOOL_RADIUS_M = 0.02


@dataclass(frozen=True)
class Motor:
    """One motor on the bus: its CAN id, its type's name, and the most it gives, in Nm."""

    can_id: int
    kind: str
    torque_max_nm: float

    @property
    def nm_per_unit(self) -> float:
        """Torque of one unit in its frames."""
        return NM_PER_UNIT[self.kind]


def motors(robot: Any) -> list[Motor]:
    """The motors of an SDK `RobotConfig`, joints first, then the gripper.

    Raises:
        UserError: a motor of a type whose protocol is not known.
    """
    kinds = [kind.name for kind in (*robot.motor_type, robot.gripper_motor_type)]
    strange = sorted({kind for kind in kinds if kind not in NM_PER_UNIT})
    if strange:
        raise UserError(
            f'the emulated CAN bus cannot play an ARX {robot.robot_model}',
            f'the protocol of its motors {", ".join(strange)} is not public',
            'choose L5, whose motors it knows; on a real bus the model works',
        )
    ids = [*robot.motor_id, robot.gripper_motor_id]
    torques = [*map(float, robot.joint_torque_max), float(robot.gripper_torque_max)]
    return [Motor(*three) for three in zip(ids, kinds, torques, strict=True)]


def arx_scene(robot: Any, object_m: float = 0.0) -> mujoco.MjModel:
    """The arm of an SDK `RobotConfig` on a table; joint i is actuator i, the gripper is the last.

    Actuators do as motors in MIT mode: torque = bias[0] + bias[1] q + bias[2] dq, where the bus
    writes `actuator_biasprm`.

    Args:
        robot: what `RobotConfigFactory` gives.
        object_m: width of a thing between the fingers, which stop at it; 0: none.
    """
    urdf = Path(robot.urdf_path).read_text()
    urdf = re.sub(r'<(visual|collision)>.*?</\1>', '', urdf, flags=re.DOTALL)
    spec = mujoco.MjSpec.from_string(urdf)
    spec.option.timestep = STEP_S
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.worldbody.add_geom(
        name='table', type=mujoco.mjtGeom.mjGEOM_PLANE, size=[1, 1, 0.1],
        contype=2, conaffinity=1, friction=[0.3, 0.005, 0.0001],
    )  # fmt: skip
    joints = spec.joints
    for i, joint in enumerate(joints):
        joint.range = [robot.joint_pos_min[i], robot.joint_pos_max[i]]
        joint.limited = mujoco.mjtLimited.mjLIMITED_TRUE
        body = joint.parent
        end = joints[i + 1].parent.pos if i + 1 < len(joints) else [0.155 - TOOL_RADIUS_M, 0, 0]
        if i > 0:
            _capsule(body, end, TOOL_RADIUS_M if i + 1 == len(joints) else 0.025)
    _add_gripper(spec, robot, object_m)
    for joint, motor in zip(spec.joints, motors(robot), strict=True):
        joint.armature = ARMATURE[motor.kind]
        joint.frictionloss = FRICTION_NM[motor.kind]
        joint.damping = [DAMPING_NMS[motor.kind], 0, 0]
        torque = motor.torque_max_nm
        actuator = spec.add_actuator(
            name=f'motor{motor.can_id}', target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT,
            gaintype=mujoco.mjtGain.mjGAIN_FIXED, biastype=mujoco.mjtBias.mjBIAS_AFFINE,
            forcelimited=True, forcerange=[-torque, torque],
        )  # fmt: skip
        actuator.gainprm[0] = 0.0
    return spec.compile()


def _capsule(body: Any, end: Any, radius: float) -> None:
    body.add_geom(
        type=mujoco.mjtGeom.mjGEOM_CAPSULE, fromto=[0, 0, 0, *end], size=[radius, 0, 0],
        mass=0, contype=1, conaffinity=2, friction=[0.3, 0.005, 0.0001],
    )  # fmt: skip


def _add_gripper(spec: Any, robot: Any, object_m: float) -> None:
    """The gripper's motor, turning by itself; 0 is closed."""
    body = spec.worldbody.add_body(name='gripper', pos=[0, 0, -1])
    body.mass, body.inertia, body.explicitinertial = 0.1, [0.001] * 3, True
    open_rad = float(robot.gripper_open_readout)
    stop = open_rad * object_m / float(robot.gripper_width)
    body.add_joint(
        name='gripper', axis=[0, 0, 1], limited=mujoco.mjtLimited.mjLIMITED_TRUE,
        range=sorted((stop, open_rad)),
    )  # fmt: skip
