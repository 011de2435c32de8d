# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Encoders: shapes, beginnings, pretrained trunks, and what a pool means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file
from squares import VIEWS, squares
import torch

from user_core.config import CnnPolicy
from user_core.errors import UserError
from user_learning.encoder import Embedding, Encoders, Flatten, Keypoints, Sight


def make(views=VIEWS, seed: int = 0, **fields: object) -> Encoders:
    sight = Sight(views, CnnPolicy.model_validate(fields))
    return Encoders(sight, torch.Generator().manual_seed(seed))


def pictures(views=VIEWS, rows: int = 3) -> dict[str, torch.Tensor]:
    return squares(np.random.default_rng(0).uniform(-1, 1, (rows, 2)), views)


@pytest.mark.parametrize('pool', ['flatten', 'keypoints', 'embedding'])
@pytest.mark.parametrize('features', [6, None])
@pytest.mark.parametrize(
    ('encoder', 'size'),
    [('small', (32, 32)), ('small', (256, 256)), ('resnet10', (33, 70))],
)
def test_every_encoder_takes_any_view(encoder: str, size, pool: str, features) -> None:
    views = {'a': size, 'b': size}
    net = make(views, encoder=encoder, pool=pool, features=features)
    sight = Sight(views, CnnPolicy(encoder=encoder, pool=pool, features=features))
    with torch.no_grad():
        out = net(pictures(views, 2))
    assert out.shape == (2, sight.features_n)
    assert out.isfinite().all()
    assert features is None or sight.features_n == 2 * features


def test_the_same_generator_gives_the_same_weights_and_cameras_begin_different() -> None:
    torch.manual_seed(1)
    a = make(encoder='resnet10', pool='embedding')
    torch.manual_seed(2)
    b = make(encoder='resnet10', pool='embedding')
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    first, second = a.members
    assert not torch.equal(first.trunk.conv1.weight, second.trunk.conv1.weight)


def test_a_shared_encoder_is_one_and_sees_every_camera() -> None:
    views = {'a': (32, 32), 'b': (32, 32)}
    net = make(views, shared=True)
    assert len(net.members) == 1
    same = {'a': pictures(views)['a'], 'b': pictures(views)['a']}
    left, right = net(same).chunk(2, -1)
    assert torch.equal(left, right)


def test_pictures_are_channels_last_already_and_only_their_numbers_are_converted() -> None:
    net = make(channels=(8,), kernels=(3,), strides=(2,))
    seen = []
    net.members[0].trunk.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    net(pictures())
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    expected = pictures()['side'].double().permute(0, 3, 1, 2) / 127.5 - 1
    assert torch.allclose(seen[0].double(), expected, atol=1e-5)


def test_a_keypoint_is_where_its_channel_is_bright() -> None:
    pool = Keypoints(2, 5, 9)
    x = torch.zeros(1, 2, 5, 9)
    x[0, 0, 0, 8] = x[0, 1, 4, 2] = 100.0
    assert pool(x)[0].tolist() == pytest.approx([-1, 1, 1, -0.5], abs=1e-5)


def test_an_embedding_is_the_weighted_sum_over_places() -> None:
    pool = Embedding(3, 2, 4)
    with torch.no_grad():
        pool.weight.normal_()
    x = torch.randn(5, 3, 2, 4)
    expected = torch.einsum('bcn,cnf->bcf', x.clamp_min(0).flatten(2), pool.weight).flatten(1)
    assert torch.allclose(pool(x), expected, atol=1e-6)


def test_a_flattened_map_keeps_every_value() -> None:
    x = torch.randn(5, 3, 2, 4)
    assert torch.equal(Flatten(3, 2, 4)(x).sort(1)[0], x.clamp_min(0).flatten(1).sort(1)[0])


# ---------------------------------------------------------------- pretrained trunks


def pretrained(path: Path) -> dict[str, torch.Tensor]:
    """A file as torchvision names a ResNet-10 with its classifier."""
    tensors = dict(make(seed=9, encoder='resnet10').members[0].trunk.state_dict())
    names = {'conv1.weight', 'bn1.bias', 'layer1.0.conv1.weight', 'layer4.0.downsample.1.weight'}
    assert names <= set(tensors)
    tensors |= {'fc.weight': torch.zeros(1000, 512), 'fc.bias': torch.zeros(1000)}
    save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    return tensors


def test_pretrained_weights_come_into_every_trunk_without_the_classifier(tmp_path: Path) -> None:
    tensors = pretrained(tmp_path / 'trunk.safetensors')
    net = make(encoder='resnet10')
    net.load_trunk(tmp_path / 'trunk.safetensors')
    for member in net.members:
        assert all(torch.equal(v, tensors[k]) for k, v in member.trunk.state_dict().items())


def test_pretrained_weights_of_another_network_are_refused_by_the_name_of_a_tensor(
    tmp_path: Path,
) -> None:
    pretrained(tmp_path / 'trunk.safetensors')
    with pytest.raises(UserError, match=r'another network.*0\.weight'):
        make().load_trunk(tmp_path / 'trunk.safetensors')


@pytest.mark.parametrize('content', [None, b'no safetensors'])
def test_pretrained_weights_that_cannot_be_read_are_named(tmp_path: Path, content) -> None:
    path = tmp_path / 'trunk.safetensors'
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r'trunk\.safetensors cannot be read'):
        make(encoder='resnet10').load_trunk(path)


def test_a_frozen_trunk_learns_nothing_and_what_stands_behind_it_does() -> None:
    net = make(frozen=True)
    net(pictures()).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert (parameter.grad is None) == ('.trunk.' in name), name
