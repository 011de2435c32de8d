# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures go into messages, files and back under NumPy 2 and under NumPy 1, ROS 2 Jazzy's own."""

import os
from pathlib import Path
import subprocess
import sys

import pytest

NUMPY1 = Path(__file__).parents[2] / '.venv' / 'numpy1'
ROUND_TRIP = """
import sys
sys.path[:0] = sys.argv[2:]
import numpy as np
assert np.__version__.startswith(sys.argv[1]), np.__version__
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from user_core import jpeg
from user_core.config import V4l2Config
from user_core.messages import image, image_msg, numbers, octets, stamp
from user_robot.camera.foreign import picture
from user_robot.camera.node import camera_info, compressed, image as raw
from user_robot.camera.framing import Framing

color = np.tile(np.linspace(0, 255, 640).astype(np.uint8)[None, :, None], (480, 1, 3))
assert (picture(raw(Header(), color)) == color).all()
depth = np.arange(480 * 640, dtype=np.uint32).astype(np.uint16).reshape(480, 640)
sent = raw(Header(), depth)
assert (numbers(sent.data).view(np.uint16).reshape(480, 640) == depth).all()
assert sent.encoding == '16UC1'
view = Framing(V4l2Config()).of(color)
near = np.abs(picture(compressed(Header(), view, 95)).astype(int) - view)
assert near.max() < 12
assert (image(image_msg('wrist', view, stamp(7))) == view).all()
file = jpeg.encode(view, 95)
assert jpeg.size(file) == (128, 128)
assert image(image_msg('wrist', file, stamp(7), (128, 128))).shape == view.shape
camera_info(Header(), 480, 640, None)
print('good')
"""


@pytest.mark.parametrize('major', ['1', '2'])
def test_a_picture_comes_back_as_it_was_under_both_numpys(major):
    if major == '1' and not NUMPY1.exists():
        pytest.skip('set-up installs NumPy 1 beside ours only up to Python 3.12')
    folders = [str(NUMPY1)] if major == '1' else []
    done = subprocess.run(
        [sys.executable, '-c', ROUND_TRIP, major, *folders],
        capture_output=True, text=True, timeout=60, env=os.environ | {'OMP_NUM_THREADS': '1'},
    )  # fmt: skip
    assert done.stdout.strip() == 'good', done.stderr[-2000:]
