"""PointNet++: its size, its symmetries, and its layers against their formulas."""

import pytest
import torch
from torch import nn

from flashgatr.experiments.baselines.pointnet2 import BatchNorm, PointNet2, hierarchy
from flashgatr.experiments.baselines.surfaces.levels import PackedLevels

from .walls import motion, wall

SCALES = hierarchy(radii=(0.3, 0.5, 0.8, 1.5, 2.0), ratios=(0.4, 0.4, 0.5, 0.5, 0.5), most=12)
CPU = torch.device("cpu")


def net(training=False):
    """A network whose averages fit its input, as after training."""
    torch.manual_seed(0)
    made = PointNet2(4, 3, SCALES, widths=(6, 8, 10, 12, 14)).double()
    norms = [m for m in made.modules() if isinstance(m, BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
        nn.init.uniform_(norm.weight, 0.5, 2.0)
        nn.init.uniform_(norm.bias)
    x, position, offsets = inputs(3, 4)
    made(x, position, SCALES.batch(position, offsets))
    return made.train(training)


def inputs(*seeds, nodes=150):
    """Features and positions of packed surfaces, and where each begins."""
    position = torch.cat([torch.from_numpy(wall(k, nodes)[0]) for k in seeds])
    torch.manual_seed(1)
    offsets = torch.arange(0, nodes * len(seeds) + 1, nodes)
    return torch.randn(len(position), 4, dtype=torch.float64), position, offsets


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def test_it_has_as_many_parameters_as_the_network_of_the_datas_authors():
    assert sum(p.numel() for p in PointNet2(4, 3, hierarchy()).parameters()) == 1_028_975


@pytest.mark.parametrize("training", [False, True])
def test_moving_the_nodes_changes_nothing_and_turning_them_does(training):
    x, position, _ = inputs(0)
    matrix, shift = (torch.from_numpy(m) for m in motion(0))
    made = net(training)
    levels = SCALES.batch(position)
    before = made(x, position, levels)
    moved = position + shift
    same(made(x, moved, SCALES.batch(moved)), before)
    turned = made(x, position @ matrix.T, levels)
    assert (turned - before).norm() > 1e-2 * before.norm()


def test_renumbering_the_nodes_renumbers_the_result():
    x, position, _ = inputs(0)
    order = torch.randperm(len(x))
    made = net()
    found = made(x[order], position[order], SCALES.batch(position[order]))
    same(found, made(x, position, SCALES.batch(position))[order])


def test_surfaces_of_a_batch_do_not_mix():
    x, position, offsets = inputs(0, 1, 2)
    made = net()
    packed = made(x, position, SCALES.batch(position, offsets))
    alone = [
        made(own, place, SCALES.batch(place))
        for own, place in zip(x.split(150), position.split(150), strict=True)
    ]
    same(packed, torch.cat(alone))


@pytest.mark.parametrize("training", [False, True])
def test_longer_lists_change_nothing(training):
    """A surface beside one with longer lists is padded further; the padding has no influence."""
    x, position, _ = inputs(0)
    built = SCALES.build(position.numpy())
    padded = PackedLevels([built, SCALES.build(wall(1, 600)[0])], CPU).batch([0])
    plain = PackedLevels([built], CPU).batch([0])
    assert padded[0].pooled.shape[1] >= plain[0].pooled.shape[1]
    wider = tuple(
        level._replace(pooled=nn.functional.pad(level.pooled, (0, 5), value=-1)) for level in padded
    )
    same(net(training)(x, position, wider), net(training)(x, position, plain))


def test_a_scale_takes_the_largest_features_in_each_ball():
    x, position, _ = inputs(0)
    level = SCALES.batch(position)[0]
    layer = net().down[0]
    found = layer(x, position, level)
    for row, own in enumerate(level.pooled):
        own = own[own >= 0].long()
        offset = position[own] - position[level.kept[row]]
        h = torch.cat([x[own], offset], dim=-1)
        for linear, norm in zip(layer.linears, layer.norms, strict=True):
            h = torch.relu(norm(linear(h)))
        same(found[row], h.amax(0))


def test_coarse_features_are_interpolated_by_inverse_square_distances():
    x, position, _ = inputs(0)
    level = SCALES.batch(position)[0]
    layer, kept = net().up[0], level.kept.long()
    coarse = torch.randn(len(kept), 10, dtype=torch.float64)
    found = layer(coarse, x, position, position[kept], level)
    squares = (position[:, None] - position[kept][level.near.long()]).square().sum(-1)
    weights = 1 / squares.clamp(min=1e-16)
    between = torch.einsum("lk,lkc->lc", weights / weights.sum(1, True), coarse[level.near.long()])
    same(between[kept], coarse)  # a kept node has its own features
    expected = torch.cat([between, x], dim=-1)
    for linear, norm in zip(layer.linears, layer.norms, strict=True):
        expected = torch.relu(norm(linear(expected)))
    same(found, expected)


def test_statistics_are_those_of_the_valid_entries():
    torch.manual_seed(0)
    x = torch.randn(7, 5, 3, dtype=torch.float64)
    valid = torch.rand(7, 5) < 0.6
    ours, theirs = BatchNorm(3).double(), nn.BatchNorm1d(3).double()
    same(ours(x, valid)[valid], theirs(x[valid]))
    for name, buffer in theirs.named_buffers():
        same(ours.get_buffer(name), buffer)
    same(ours(x), theirs(x.flatten(0, 1)).view_as(x))
    same(ours.eval()(x, valid), theirs.eval()(x.flatten(0, 1)).view_as(x))
    single = BatchNorm(3)
    assert torch.equal(single(torch.ones(1, 3)), torch.zeros(1, 3))


def test_nodes_that_coincide_have_finite_gradients():
    x, position, _ = inputs(0)
    position[10:20] = position[10]
    x.requires_grad_()
    made = net(True)
    made(x, position, SCALES.batch(position)).square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in made.parameters())


@pytest.mark.parametrize("nodes", [1, 2, 7])
def test_a_few_nodes_are_enough(nodes):
    x, position, _ = inputs(0, nodes=nodes)
    assert net(True)(x, position, SCALES.batch(position)).isfinite().all()


def test_under_autocast_the_output_has_the_streams_precision():
    x, position, _ = inputs(0)
    x, position, made = x.float(), position.float(), net(True).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = made(x, position, SCALES.batch(position))
    assert found.dtype == torch.float32
    found.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in made.parameters())


def test_wrong_widths_are_refused():
    with pytest.raises(ValueError, match="has 5 scales; got 2 widths"):
        PointNet2(4, 3, SCALES, widths=(3, 4))
    with pytest.raises(ValueError, match=r"expected features \(\.\.\., 4\)"):
        net()(torch.zeros(5, 7, dtype=torch.float64), torch.zeros(5, 3), ())
