"""Symmetry of the whole network, in all variants."""

import pytest
import torch

from flashgatr import (
    AxialGATr,
    GATr,
    embed_direction,
    embed_plane,
    embed_point,
    embed_translation,
    extract_point,
    padded_to_packed,
    readout,
    versors,
)
from flashgatr.testing import (
    assert_batch_independent,
    assert_equivariant,
    assert_padding_invariant,
    assert_permutation_equivariant,
    equivariance_error,
    point_equivariance_error,
)

from .networks import SMALL, TEN_BLOCKS, make_data, make_net

VARIANTS = {
    "default": {},
    "multi-head": dict(multi_query=False),
    "width 1": dict(attention_width=1),
    "not distance-aware": dict(distance_aware=False),
    "paper's weights": dict(learned_weights="all"),
    "no weights": dict(learned_weights=False),
    "re-insertion": dict(reinsert_mv_channels=(1,), reinsert_s_channels=(0,)),
    "re-insertion, multi-head": dict(reinsert_mv_channels=(1,), multi_query=False),
    "not recentred": dict(recenter=False),
    "length scale": dict(length_scale=7.0),
    "no hidden scalars": dict(hidden_s_channels=0),
    "relu": dict(activation="relu"),
    "checkpointed": dict(checkpoint=True),
    "dropout": dict(dropout=0.2),
}


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_is_equivariant_under_all_of_e3(variant):
    mv, s = make_data(2)
    assert_equivariant(make_net(**VARIANTS[variant]), mv, s, distance=3.0, tolerance=1e-12)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_ignores_order_batch_and_padding(variant):
    net, (mv, s) = make_net(**VARIANTS[variant]), make_data(3)
    assert_permutation_equivariant(net, mv, s, tolerance=1e-12)
    assert_batch_independent(net, mv, s, tolerance=1e-12)
    assert_padding_invariant(net, mv, s, tolerance=1e-12)


@pytest.mark.parametrize(
    ("group", "reference"), [("E(3)", "data"), ("SE(3)", "canonical"), ("E(3)", "given")]
)
def test_ten_blocks_are_equivariant_to_rounding(group, reference):
    net, (mv, s) = GATr(**TEN_BLOCKS), make_data()
    if reference == "given":
        reference = torch.randn(16, dtype=torch.float64)
    check = dict(group=group, join_reference=reference, draws=100)
    assert equivariance_error(net, mv, s, **check) <= 1e-12
    assert equivariance_error(net, mv, s, dtype=torch.float32, **check) <= 2e-5


def test_the_canonical_reference_breaks_mirrors():
    net, (mv, s) = make_net(), make_data()
    assert equivariance_error(net, mv, s, group="reflection", join_reference="canonical") > 1e-3


def test_points_to_points_are_equivariant_under_se3_but_not_under_mirrors():
    net = make_net(in_s_channels=0)

    def f(points):  # a point, and a plane through it that faces away from the centre
        planes = embed_plane(points - points.mean(-2, keepdim=True), points)
        mv = torch.stack([embed_point(points), planes], dim=-2)
        return extract_point(net(mv)[0][..., 0, :])

    points = torch.randn(6, 3, dtype=torch.float64)
    assert point_equivariance_error(f, points, group="SE(3)") <= 1e-10
    # A mirror turns an embedded point into minus the mirrored one: the counterexample.
    assert point_equivariance_error(f, points, group="reflection") > 1e-3


def test_rotary_positions_tell_items_apart_and_keep_the_symmetry():
    net, (mv, s) = make_net(rotary=True), make_data(2)
    assert_equivariant(net, mv, s, tolerance=1e-12)
    order = torch.tensor([1, 0, 2, 3, 4, 5])
    moved = net(mv[:, order], s[:, order])[0][:, order]
    assert not torch.allclose(moved, net(mv, s)[0])
    packed = net(mv.flatten(0, 1), s.flatten(0, 1), offsets=torch.tensor([0, 6, 12]))[0]
    torch.testing.assert_close(packed.unflatten(0, (2, 6)), net(mv, s)[0])
    holes = torch.tensor([[False, True, True, False, True, True], [True, False] * 3])
    packed, offsets = padded_to_packed(mv, holes)
    expected, _ = net(packed, s[holes], offsets=offsets)
    torch.testing.assert_close(net(mv, s, mask=holes)[0][holes], expected)


def test_gravity_and_a_floor_break_the_symmetry_as_far_as_they_do():
    """A gravity direction as a channel: rotations about it remain a symmetry, others do not."""
    net = make_net(in_mv_channels=3, in_s_channels=0)
    down = torch.tensor([0.0, 0.0, -1.0], dtype=torch.float64)
    floor = embed_plane(-down, torch.zeros(3, dtype=torch.float64))

    def f(points):
        items = points.shape[:-1]
        channels = [
            embed_point(points),
            embed_direction(down).expand(*items, 16),
            floor.expand(*items, 16),
        ]
        return extract_point(net(torch.stack(channels, dim=-2))[0][..., 0, :])

    points = torch.randn(6, 3, dtype=torch.float64)

    def error(versor):
        m = versors.to_matrix(versor)
        move = lambda x: x @ m[:3, :3].mT + m[:3, 3]  # noqa: E731
        return (f(move(points)) - move(f(points))).abs().max()

    about_z = torch.tensor([0.0, 0.0, 0.6, 0.8], dtype=torch.float64)
    about_x = torch.tensor([0.6, 0.0, 0.0, 0.8], dtype=torch.float64)
    from flashgatr import embed_rotation

    assert error(embed_rotation(about_z)) <= 1e-10
    assert error(embed_translation(torch.tensor([3.0, -2.0, 0.0]).double())) <= 1e-10
    assert error(embed_rotation(about_x)) > 1e-4
    assert error(embed_translation(torch.tensor([0.0, 0.0, 1.0]).double())) > 1e-4


def test_readouts_are_equivariant_and_ignore_padding():
    net, (mv, s) = make_net(), make_data(2)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    for reduce in ("mean", "sum"):

        def pooled(mv, s, reduce=reduce):
            return readout(*net(mv, s, mask=mask), reduce=reduce, mask=mask)

        assert pooled(mv, s)[0].shape == (2, 2, 16)
        assert_equivariant(pooled, mv, s, tolerance=1e-12)
        alone = readout(*net(mv[1, :4], s[1, :4]), reduce=reduce)
        torch.testing.assert_close(pooled(mv, s)[0][1], alone[0])
        packed, offsets = mv[mask], torch.tensor([0, 6, 10])
        out = readout(*net(packed, s[mask], offsets=offsets), reduce=reduce, offsets=offsets)
        torch.testing.assert_close(out, pooled(mv, s))


@pytest.mark.parametrize("rotary", [False, True, (True, False), (False, True)])
def test_axial_networks_have_the_same_symmetries(rotary):
    net = AxialGATr(**SMALL, rotary=rotary, reinsert_mv_channels=(0,)).double()
    mv, s = (torch.randn(2, 3, 4, *last).double() for last in ((2, 16), (1,)))
    assert_equivariant(net, mv, s, tolerance=1e-12)
    assert_batch_independent(net, mv, s, tolerance=1e-12)
    if rotary is not False and rotary != (True, False):
        return
    order = torch.tensor([2, 0, 3, 1])  # the second axis has no positions
    torch.testing.assert_close(net(mv[:, :, order], s[:, :, order])[0], net(mv, s)[0][:, :, order])


def test_two_motions_in_a_row_are_one():
    net, (mv, s) = make_net(), make_data()
    u, v = versors.sample(2)
    twice = versors.apply(u, versors.apply(v, net(mv, s)[0]))
    once = net(versors.apply(versors.compose(u, v), mv), s)[0]
    torch.testing.assert_close(once, twice)
