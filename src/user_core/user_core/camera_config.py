# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Configuration of the cameras. Registry: `Camera` lists what can be chosen by `kind`.

Every camera, of whatever kind, ends in one view: the cropped, resized picture that policies see.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from user_core.schema import NonNegative, Positive, Section

Pixels = Annotated[int, Field(ge=8, le=4096)]
Share = Annotated[float, Field(ge=0, le=1)]


class View(Section):
    """What every camera has: the picture that it gives, and when it counts as lost."""

    machine: str | None = None
    """Where it is plugged in: a key of `machines`; null: where its cell stands."""
    width: Pixels = 128
    """Width of the view."""
    height: Pixels = 128
    """Height of the view."""
    crop: tuple[Share, Share, Share, Share] | None = None
    """Left, top, right and bottom edge of the part that becomes the view, as shares of what was
    captured; null: the largest part in the middle that has the view's shape."""
    fps: Positive = 30.0
    """Pictures a second."""
    max_age_s: Positive = 0.3
    """A picture older than this is not used: the arm holds and the episode ends."""
    jpeg_quality: Annotated[int, Field(ge=50, le=100)] = 90
    """Quality of pictures that travel to another machine."""

    @model_validator(mode='after')
    def _may_wait_for_the_next(self) -> View:
        if self.max_age_s <= 1 / self.fps:
            raise ValueError(
                f'max_age_s must be above 1 / fps = {1 / self.fps:.3f}: between two pictures'
                ' the camera would count as lost'
            )
        return self

    @model_validator(mode='after')
    def _crop_has_room(self) -> View:
        if self.crop is not None:
            left, top, right, bottom = self.crop
            if left >= right or top >= bottom:
                raise ValueError('crop must be left, top, right, bottom with left < right and'
                                 ' top < bottom')  # fmt: skip
        return self


class Captured(View):
    """What a camera has that is a device on a machine."""

    capture_width: Pixels = 640
    """Width of the captured picture."""
    capture_height: Pixels = 480
    """Height of the captured picture."""


class RealsenseConfig(Captured):
    """A RealSense camera, or a recording of one, through pyrealsense2."""

    kind: Literal['realsense'] = 'realsense'
    serial: str = ''
    """Serial number, in quotes: it is no number. Needless for a recording."""
    recording: str | None = None
    """A .db3 file that is played in a loop instead of a device."""
    depth: bool = False
    """Publishes depth, too, aligned to the colour picture."""
    exposure_us: Positive | None = None
    """Exposure time; null: automatic."""
    open_gap_s: NonNegative = 0.5
    """Cameras of one machine are opened one after the other with this pause between them."""
    resets: Annotated[int, Field(ge=0)] = 3
    """Hardware resets in a row, at most, of a camera that does not come back."""


class V4l2Config(Captured):
    """A camera that the kernel knows (UVC, V4L2), or a video file, through OpenCV."""

    kind: Literal['v4l2'] = 'v4l2'
    device: str = '/dev/video0'
    """Device or file; a name under /dev/v4l/by-id stays the same when cameras are plugged anew."""
    fourcc: Annotated[str, Field(pattern=r'^[A-Z0-9]{4}$')] = 'MJPG'
    """Format asked of the device."""


class TopicsCameraConfig(View):
    """A foreign camera: any node that publishes sensor_msgs/Image."""

    kind: Literal['topics'] = 'topics'
    topic: str = '/camera/color/image_raw'
    """Its topic; one that ends in /compressed is read as sensor_msgs/CompressedImage."""


class SimCameraConfig(View):
    """A camera of the simulated scene, drawn without a GPU in milliseconds, where its cell stands:
    its `machine` is of no account.
    """

    kind: Literal['sim'] = 'sim'
    scene: Literal['wrist', 'side'] | None = None
    """Which of the scene's cameras; null: the one of the camera's own name."""

    @field_validator('machine', mode='before')
    @classmethod
    def _stands_with_its_cell(cls, machine: object) -> None:
        """So that `cameras=sim` goes with any page."""


Camera = Annotated[
    RealsenseConfig | V4l2Config | TopicsCameraConfig | SimCameraConfig,
    Field(discriminator='kind'),
]
