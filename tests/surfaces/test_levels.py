"""Scales of a surface, and batches of surfaces."""

import numpy as np
import pytest
import torch

from flashgatr.experiments.arteries import EXPERIMENT
from flashgatr.experiments.baselines.surfaces.levels import Hierarchy, PackedLevels, by_length
from flashgatr.experiments.baselines.surfaces.sampling import farthest_points, nearest, within

from .walls import CONVOLVING, POOLING, wall

CPU = torch.device("cpu")


def test_scales_that_pool_take_from_the_finer_one():
    position, *_ = wall(0)
    first, second = POOLING.build(position)
    kept = farthest_points(position, 45)
    np.testing.assert_array_equal(first.kept, kept)
    np.testing.assert_array_equal(first.pooled, within(position, position[kept], 0.3, 16))
    np.testing.assert_array_equal(first.near, nearest(position, position[kept], 3))
    assert (first.rows, second.rows) == (45, 14)  # 30 %, rounded up
    np.testing.assert_array_equal(second.kept, farthest_points(position[kept], 14))


def test_scales_that_convolve_link_their_own_rows():
    position, *_ = wall(0)
    first, second, _ = CONVOLVING.build(position)
    np.testing.assert_array_equal(first.linked, within(position, position, 0.25, 64))
    np.testing.assert_array_equal(first.linked[:, 0], np.arange(len(position)))  # oneself
    coarse = position[second.kept]
    np.testing.assert_array_equal(second.linked, within(coarse, coarse, 0.4, 64))
    for row, own in enumerate(second.members):
        np.testing.assert_array_equal(own[own >= 0], np.flatnonzero(second.near[:, 0] == row))


@pytest.mark.parametrize("hierarchy", [POOLING, CONVOLVING])
def test_a_batch_keeps_the_lists_of_each_surface(hierarchy):
    """Rows of the second surface follow those of the first, and are counted from there."""
    surfaces = [hierarchy.build(wall(k, 60 + 20 * k)[0]) for k in range(3)]
    batch = PackedLevels(surfaces, CPU).batch([2, 0])
    for before, own, found in zip(surfaces[2], surfaces[0], batch, strict=True):
        for name in own._fields:
            lists = [getattr(level, name) for level in (before, own, found)]
            if lists[0] is None:
                assert lists[1:] == [None, None]
                continue
            finer = 0 if before.near is None else len(before.near)
            first, second = np.split(lists[2].numpy(), [len(lists[0])])
            shift = finer if name in ("kept", "pooled", "members") else before.rows
            second = np.where(second < 0, -1, second - shift)
            for expected, x in zip(lists, (first, second), strict=False):
                width = expected.shape[-1]
                np.testing.assert_array_equal(x[..., :width] if x.ndim > 1 else x, expected)
                assert x.ndim == 1 or (x[:, width:] == -1).all()


def test_a_tiny_surface_has_scales_of_one_row():
    for level in Hierarchy((0.2, 0.25), (1.0, 1.0), most=4, convolves=False).build(wall(0, 4)[0]):
        assert level.rows == 1
        assert (level.near[:, 1:] == -1).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(radii=(1.0,)), "one ratio and one radius per scale"),
        (dict(ratios=(0.5, 1.5)), "above 0 and at most 1, got"),
        (dict(ratios=(0.5, 0.5), convolves=True), "at most 1, the first 1, got"),
        (dict(radii=(1.0, float("nan"))), "positive numbers"),
        (dict(most=0), "at least 1"),
    ],
)
def test_wrong_settings_are_refused(changes, message):
    right = dict(ratios=(0.5, 0.5), radii=(1.0, 2.0), most=8, convolves=False)
    with pytest.raises(ValueError, match=message):
        Hierarchy(**right | changes)


@pytest.mark.parametrize("shape", [(0, 3), (5, 2), (5,)])
def test_positions_have_three_coordinates(shape):
    with pytest.raises(ValueError, match=r"expected positions \(N, 3\)"):
        POOLING.build(np.zeros(shape))


def test_rows_by_the_lengths_of_their_lists_are_the_same_rows():
    lists = CONVOLVING.batch(torch.from_numpy(wall(0)[0]))[0].linked
    order, back, found, cuts = by_length(lists)
    assert torch.equal(order[back], torch.arange(len(lists)))
    lengths = (found >= 0).sum(1)
    assert (lengths.diff() >= 0).all()
    assert torch.equal(torch.where(found < 0, -1, order[found.long()])[back], lists)
    start = 0
    for end, width in cuts:
        assert lengths[start:end].max() == width
        start = end
    assert start == len(lists)


def test_a_single_row_is_one_part():
    assert by_length(torch.zeros(1, 1, dtype=torch.int32)).cuts == [(1, 1)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["pointnet2", "gem_cnn"])
def test_on_a_gpu_networks_compute_and_learn_the_same(name):
    """In float64, where rounding leaves no doubt."""
    position, normal, geodesic = (torch.from_numpy(x) for x in wall(0))
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        small = dict(radii=[0.3, 0.5, 0.8, 1.5, 2.0]) if name == "pointnet2" else dict(channels=4)
        model = EXPERIMENT.build(name, small).double().to(device)
        given = [x.to(device) for x in (position, normal, geodesic)]
        output = model(*given)
        output.square().sum().backward()
        found.append([output.detach().cpu(), *(p.grad.cpu() for p in model.parameters())])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-8)
