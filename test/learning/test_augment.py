# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""DrQ's random shift against padding and cropping."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from user_learning.augment import Shift, copied, gathered

side = st.integers(8, 20)
by = st.integers(-7, 7)


@settings(max_examples=200, deadline=None)
@given(side, side, by, by, st.integers(0, 2**32 - 1))
def test_a_shift_is_a_crop_of_the_picture_padded_with_its_border(h, w, dy, dx, seed) -> None:
    picture = np.random.default_rng(seed).integers(0, 256, (h, w, 3), np.uint8)
    padded = F.pad(torch.from_numpy(picture).permute(2, 0, 1)[None].float(), (7,) * 4, 'replicate')
    expected = padded[0, :, 7 + dy : 7 + dy + h, 7 + dx : 7 + dx + w].permute(1, 2, 0).numpy()
    out = np.empty_like(picture)
    copied(out, picture, dy, dx)
    assert np.array_equal(out, expected)
    on_gpu = gathered(torch.from_numpy(picture)[None], torch.tensor([[dy, dx]]))
    assert np.array_equal(on_gpu[0].numpy(), expected)


def ramps(rows: int) -> torch.Tensor:
    """Pictures whose pixel (y, x) holds y and x."""
    y, x = torch.meshgrid(torch.arange(16), torch.arange(24), indexing='ij')
    return torch.stack([y, x, y], -1).to(torch.uint8).expand(rows, 16, 24, 3).contiguous()


def test_every_shift_up_to_the_largest_comes_and_none_beyond() -> None:
    shift = Shift(2, torch.Generator().manual_seed(0))
    middle = shift({'wrist': ramps(400)})['wrist'][:, 8, 12, :2].tolist()
    assert {y - 8 for y, _ in middle} == {x - 12 for _, x in middle} == {-2, -1, 0, 1, 2}
    assert len({tuple(m) for m in middle}) == 25


def test_shifts_repeat_with_their_generator_and_leave_the_pictures_alone() -> None:
    pictures = {'side': ramps(8), 'wrist': ramps(8)}
    a = {c: p.clone() for c, p in Shift(4, torch.Generator().manual_seed(1))(pictures).items()}
    b = Shift(4, torch.Generator().manual_seed(1))(pictures)
    assert all(torch.equal(a[c], b[c]) for c in pictures)
    assert not torch.equal(a['side'], a['wrist'])
    assert all(torch.equal(p, ramps(8)) for p in pictures.values())


def test_no_shift_copies_nothing() -> None:
    pictures = {'wrist': ramps(2)}
    assert Shift(0, torch.Generator())(pictures) is pictures
