# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Messages carry arrays as memory, not element by element."""

from array import array
import time

from builtin_interfaces.msg import Time
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.serialization import deserialize_message, serialize_message
from user_msgs.msg import Image, Observation, RobotState

from user_core import jpeg, messages
from user_core.geometry import Pose, angle

finite = st.floats(-10.0, 10.0)


@given(st.tuples(*[finite] * 3), st.tuples(*[st.floats(-1.7, 1.7)] * 3))
def test_a_pose_survives_the_wire(position, rotvec):
    pose = Pose.from_rotvec(position, rotvec)
    state = RobotState(pose=messages.pose_msg(pose))
    back = messages.pose(deserialize_message(serialize_message(state), RobotState).pose)
    assert np.array_equal(back.position, pose.position)
    assert angle(back, pose) < 1e-7


@given(hnp.arrays(np.float64, st.integers(0, 40), elements=st.floats(-1e6, 1e6)))
def test_numbers_survive_the_wire(values):
    message = Observation(state=messages.floats(values))
    assert message.state.typecode == 'f'
    back = messages.numbers(deserialize_message(serialize_message(message), Observation).state)
    assert np.array_equal(back, values.astype(np.float32))


def test_matrices_slices_and_lists_become_rows_of_numbers():
    matrix = np.arange(12.0).reshape(3, 4)
    assert messages.floats(matrix[:, ::2]).tolist() == [0, 2, 4, 6, 8, 10]
    assert messages.doubles([1, 2]).typecode == 'd'
    assert messages.octets(np.arange(4, dtype=np.uint8)[::2]).tolist() == [0, 2]
    assert messages.octets(b'\x01\x02').tolist() == [1, 2]
    assert messages.octets(memoryview(b'\x03')).tolist() == [3]


def test_fixed_arrays_are_read_as_they_are():
    state = RobotState(twist=np.arange(6.0))
    assert messages.numbers(state.twist).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize('shape', [(480, 640, 3), (12, 16, 3), (128, 128, 3)])
def test_a_picture_survives_the_wire(shape):
    picture = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    message = messages.image_msg('wrist', picture, Time(sec=3))
    assert type(message.data) is array
    assert message.data.typecode == 'B'
    back = deserialize_message(serialize_message(message), Image)
    assert np.array_equal(messages.image(back), picture)
    assert (back.name, back.stamp.sec) == ('wrist', 3)


def test_a_picture_is_copied_as_memory_not_checked_byte_by_byte():
    """The slow way takes about 100 times as long; ten times is its kind, not this machine's."""
    picture = np.zeros((480, 640, 3), np.uint8)

    def shortest(function):
        times = []
        for _ in range(7):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        return min(times)

    fast = shortest(lambda: messages.image_msg('wrist', picture, Time()))
    floor = shortest(lambda: array('B', picture.tobytes()))
    assert fast < 10 * floor + 1e-3


def test_publishing_a_picture_never_goes_element_by_element(ros_domain):
    """640 x 480 pictures through a real publisher to a real subscription, beside the slow way of
    the same machine, a list: about 1 ms and 18 ms of thread time.
    """
    context = rclpy.Context()
    context.init()
    node = rclpy.create_node('camera', context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    got, took, slowly = [], [], []
    node.create_subscription(Image, 'pictures', got.append, 5)
    publisher = node.create_publisher(Image, 'pictures', 5)
    rng = np.random.default_rng(0)
    try:
        for k in range(15):
            picture = rng.integers(0, 256, (480, 640, 3), np.uint8)
            start = time.thread_time()
            publisher.publish(messages.image_msg('wrist', picture, Time(sec=k)))
            took.append(time.thread_time() - start)
            executor.spin_once(timeout_sec=0.05)
        for _ in range(5):
            start = time.thread_time()
            publisher.publish(Image(name='slow', data=picture.ravel().tolist()))
            slowly.append(time.thread_time() - start)
        end = time.monotonic() + 20
        while not (got and got[-1].name == 'wrist') and time.monotonic() < end:
            publisher.publish(messages.image_msg('wrist', picture, Time(sec=k)))
            executor.spin_once(timeout_sec=0.1)
    finally:
        executor.shutdown()
        node.destroy_node()
        context.shutdown()
    assert messages.image(got[-1]).shape == (480, 640, 3)
    assert np.median(took) < np.median(slowly) / 4


def test_a_jpeg_keeps_its_bytes_and_is_read_like_a_raw_picture():
    picture = np.full((24, 32, 3), (200, 40, 90), np.uint8)
    file = jpeg.encode(picture)
    message = messages.image_msg('wrist', file, Time(), size=(24, 32))
    assert (message.encoding, message.height, message.width) == ('jpeg', 24, 32)
    assert message.data.tobytes() == file
    assert np.abs(messages.image(message).astype(int) - picture).max() < 6


@pytest.mark.parametrize(
    'changes', [{'encoding': 'bgr8'}, {'height': 23}, {'data': array('B', b'1234')}], ids=str
)
@pytest.mark.parametrize('raw', [True, False])
def test_a_picture_that_is_not_what_it_says_is_refused_by_name(raw, changes):
    picture = np.zeros((24, 32, 3), np.uint8)
    message = messages.image_msg(
        'wrist', picture if raw else jpeg.encode(picture), Time(), size=(24, 32)
    )
    for key, value in changes.items():
        setattr(message, key, value)
    with pytest.raises(ValueError, match='image wrist is no'):
        messages.image(message)


@given(st.integers(0, 2**31 * 10**9 - 1))
def test_stamps_keep_every_nanosecond(nanoseconds):
    assert messages.nanoseconds(messages.stamp(nanoseconds)) == nanoseconds


def test_simulated_time_becomes_a_stamp():
    stamp = messages.stamp_s(12.3)
    assert (stamp.sec, stamp.nanosec) == (12, 300_000_000)
