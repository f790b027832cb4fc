"""Laws of the whole network: symmetry, precision, independence of samples, tracing."""

import copy
import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings

from flashgatr import (
    AxialGATr,
    GATr,
    GATrConfig,
    constants,
    embed_direction,
    embed_plane,
    embed_point,
    embed_translation,
    extract_direction,
    extract_point,
    pack,
    packed_to_padded,
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
    point_clouds,
    point_equivariance_error,
)

SMALL = dict(
    in_mv_channels=2, in_s_channels=1, out_mv_channels=2, out_s_channels=3, hidden_mv_channels=4,
    hidden_s_channels=8, num_blocks=2, num_heads=2,
)  # fmt: skip
TEN_BLOCKS = {**SMALL, "num_blocks": 10, "hidden_mv_channels": 8, "hidden_s_channels": 16}
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


def _net(**options):
    net = GATr(**{**SMALL, **options}).double()
    with torch.no_grad():  # make the learned weights and biases take part
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return net


def _data(*batch, items=6, dtype=torch.float64):
    mv = torch.randn(*batch, items, 2, 16, dtype=dtype)
    return mv, torch.randn(*batch, items, 1, dtype=dtype)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_is_equivariant_under_all_of_e3(variant):
    mv, s = _data(2)
    assert_equivariant(_net(**VARIANTS[variant]), mv, s, distance=3.0, tolerance=1e-12)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_ignores_order_batch_and_padding(variant):
    net, (mv, s) = _net(**VARIANTS[variant]), _data(3)
    assert_permutation_equivariant(net, mv, s, tolerance=1e-12)
    assert_batch_independent(net, mv, s, tolerance=1e-12)
    assert_padding_invariant(net, mv, s, tolerance=1e-12)


@pytest.mark.parametrize(
    ("group", "reference"), [("E(3)", "data"), ("SE(3)", "canonical"), ("E(3)", "given")]
)
def test_ten_blocks_are_equivariant_to_rounding(group, reference):
    net, (mv, s) = GATr(**TEN_BLOCKS), _data()
    if reference == "given":
        reference = torch.randn(16, dtype=torch.float64)
    check = dict(group=group, join_reference=reference, draws=100)
    assert equivariance_error(net, mv, s, **check) <= 1e-12
    assert equivariance_error(net, mv, s, dtype=torch.float32, **check) <= 2e-5


def test_the_canonical_reference_breaks_mirrors():
    net, (mv, s) = _net(), _data()
    assert equivariance_error(net, mv, s, group="reflection", join_reference="canonical") > 1e-3


def _from_points_to_points(net):
    return lambda points: extract_point(net(embed_point(points).unsqueeze(-2))[0][..., 0, :])


def test_points_to_points_are_equivariant_under_se3_but_not_under_mirrors():
    net = _net(in_s_channels=0)

    def f(points):  # a point, and a plane through it that faces away from the centre
        planes = embed_plane(points - points.mean(-2, keepdim=True), points)
        mv = torch.stack([embed_point(points), planes], dim=-2)
        return extract_point(net(mv)[0][..., 0, :])

    points = torch.randn(6, 3, dtype=torch.float64)
    assert point_equivariance_error(f, points, group="SE(3)") <= 1e-10
    # A mirror turns an embedded point into minus the mirrored one: the counterexample.
    assert point_equivariance_error(f, points, group="reflection") > 1e-3


@given(point_clouds(items=5))
@settings(max_examples=25, deadline=None)
def test_degenerate_clouds_have_finite_outputs_and_gradients(points):
    net = GATr(**{**SMALL, "in_mv_channels": 1, "in_s_channels": 0}).double()
    points = points.clone().requires_grad_()
    out, s = net(embed_point(points).unsqueeze(-2))
    (extract_point(out).square().sum() + s.square().sum()).backward()
    for gradient in (points.grad, *(p.grad for p in net.parameters())):
        assert gradient is not None
        assert gradient.isfinite().all()


def test_all_zero_input_has_finite_gradients():
    net = _net()
    mv, s = (torch.zeros_like(x).requires_grad_() for x in _data(2))
    out, t = net(mv, s)
    (out.square().sum() + t.square().sum()).backward()
    assert mv.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


def test_recentring_changes_nothing_but_rounding():
    mv, s = _data(3)
    net = _net()
    expected = net(mv, s)
    net.config = dataclasses.replace(net.config, recenter=False)
    torch.testing.assert_close(net(mv, s), expected, rtol=1e-12, atol=1e-12)
    center = torch.randn(3, 3, dtype=torch.float64)
    torch.testing.assert_close(net(mv, s, center=center), expected, rtol=1e-12, atol=1e-12)
    assert net(mv, s, center=center[0])[0].shape == expected[0].shape


def test_a_length_scale_is_a_change_of_units():
    net = _net(in_mv_channels=1, in_s_channels=0)
    points = torch.randn(6, 3, dtype=torch.float64)
    metres = _from_points_to_points(net)(points)
    net.config = dataclasses.replace(net.config, length_scale=100.0)
    centimetres = _from_points_to_points(net)(100 * points)
    torch.testing.assert_close(centimetres, 100 * metres, rtol=1e-9, atol=1e-9)


def _far_scene(distance, dtype=torch.float32):
    """Multivectors of a scene that is moved in float64 and then rounded."""
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(4, 16, 3, generator=generator, dtype=torch.float64)
    velocity = torch.randn(4, 16, 3, generator=generator, dtype=torch.float64)
    shift = distance * torch.tensor([0.6, -0.48, 0.64], dtype=torch.float64)
    mv = torch.stack([embed_point(points + shift), embed_translation(velocity)], dim=-2).to(dtype)
    return mv, torch.randn(4, 16, 1, generator=generator, dtype=torch.float64).to(dtype)


def _far_errors(distance, autocast=False, seed=0):
    """Errors against float64 on the same rounded input: invariants (max/std), all (max/max)."""
    torch.manual_seed(seed)
    net = GATr(**{**TEN_BLOCKS, "hidden_mv_channels": 16, "hidden_s_channels": 32})
    mv, s = _far_scene(distance)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out, t = net(mv, s)
        exact, u = net.double()(mv.double(), s.double())
    assert out.dtype == torch.float32
    invariant = (t - u).abs().max() / u.std()
    return invariant.item(), ((out - exact).abs().max() / exact.abs().max()).item()


def test_far_from_the_origin_nothing_is_lost_in_float32():
    invariant, equivariant = _far_errors(1e4)
    assert invariant <= 1e-4
    assert equivariant <= 4 * 2**-23  # a few ulp of the largest coordinate


def test_bfloat16_is_as_good_far_away_as_at_the_origin():
    near, far = (
        sum(_far_errors(d, autocast=True, seed=seed)[0] for seed in range(3)) for d in (0.0, 1e4)
    )
    assert 0 < near < 1
    assert far <= 1.5 * near


def test_far_away_without_recentring_float32_fails():
    """What recentring is for: the same scene without it (this is the original's behaviour)."""
    torch.manual_seed(0)
    net = GATr(**TEN_BLOCKS, recenter=False)
    mv, s = _far_scene(1e4)
    with torch.no_grad():
        t, u = net(mv, s)[1], net.double()(mv.double(), s.double())[1]
    assert (t - u).abs().max() / u.std() > 1e-3


@pytest.mark.parametrize("weight", [1e-2, 1e-4, 1e-5])
def test_recentring_does_no_harm_where_points_weigh_little(weight):
    """Their centroid is far away, and planes of unit size would be large around it."""
    points, normals = (torch.randn(4, 16, 3, dtype=torch.float64) for _ in range(2))
    nearly_free = embed_direction(points) + weight * embed_point(torch.zeros_like(points))
    mv = torch.stack([nearly_free, embed_plane(normals, points)], dim=-2).float()
    s = torch.randn(4, 16, 1)
    net = GATr(**TEN_BLOCKS)
    errors = []
    for recenter in (True, False):
        net.config = dataclasses.replace(net.config, recenter=recenter)
        with torch.no_grad():
            out, t = net(mv, s)
            exact, u = copy.deepcopy(net).double()(mv.double(), s.double())
        errors.append(((out - exact).abs().max(), (t - u).abs().max()))
    for recentred, plain in zip(*errors, strict=True):
        assert recentred <= 3 * plain


def test_a_sample_is_the_same_alone_batched_padded_packed_and_unbatched():
    net = GATr(**SMALL)
    sets = [_data(items=n, dtype=torch.float32) for n in (3, 7, 1, 5)]
    alone = [net(*x) for x in sets]
    (mv, offsets), (s, _) = pack([x[0] for x in sets]), pack([x[1] for x in sets])
    packed = net(mv, s, offsets=offsets)
    (padded_mv, mask), (padded_s, _) = packed_to_padded(mv, offsets), packed_to_padded(s, offsets)
    padded = net(padded_mv, padded_s, mask=mask)
    two_axes = net(
        padded_mv.unflatten(0, (2, 2)),
        padded_s.unflatten(0, (2, 2)),
        mask=mask.unflatten(0, (2, 2)),
    )
    close = dict(rtol=1e-6, atol=1e-6)
    for b, (out, t) in enumerate(alone):
        items = slice(offsets[b], offsets[b + 1])
        n = len(out)
        torch.testing.assert_close((packed[0][items], packed[1][items]), (out, t), **close)
        torch.testing.assert_close((padded[0][b, :n], padded[1][b, :n]), (out, t), **close)
        torch.testing.assert_close(two_axes[0][b // 2, b % 2, :n], out, **close)
        torch.testing.assert_close(net(sets[b][0][None], sets[b][1][None])[0][0], out, **close)
    assert not padded[0][~mask].any()
    assert not padded[1][~mask].any()


@pytest.mark.parametrize("form", ["padded", "packed"])
def test_the_gradient_across_samples_is_exactly_zero(form):
    net = _net()
    mv, s = _data(3)
    mv.requires_grad_()
    if form == "packed":
        out, t = net(mv.flatten(0, 1), s.flatten(0, 1), offsets=torch.tensor([0, 6, 12, 18]))
        out, t = out.unflatten(0, (3, 6)), t.unflatten(0, (3, 6))
    else:
        out, t = net(mv, s)
    (out[1].sum() + t[1].sum()).backward()
    assert mv.grad[1].any()
    assert not mv.grad[0].any()
    assert not mv.grad[2].any()


def test_empty_and_single_item_sets_are_defined():
    net = GATr(**SMALL)
    for batch, items in (((), 0), ((2,), 0), ((0,), 4), ((2,), 1)):
        out, s = net(*_data(*batch, items=items, dtype=torch.float32))
        assert out.shape == (*batch, items, 2, 16)
        assert out.isfinite().all()
    mv, s = _data(items=4, dtype=torch.float32)
    whole, _ = net(mv, s)
    out, _ = net(mv, s, offsets=torch.tensor([0, 0, 4, 4]))  # an empty sample on either side
    torch.testing.assert_close(out, whole)
    out, _ = net(mv[None].requires_grad_(), s[None], mask=torch.zeros(1, 4, dtype=torch.bool))
    assert not out.any()
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


def test_attention_masks_cut_items_off():
    net, (mv, s) = _net(recenter=False), _data(2)
    allowed = torch.eye(6, dtype=torch.bool)
    reference = torch.ones(16, dtype=torch.float64)
    alone = torch.cat(
        [net(mv[:, [i]], s[:, [i]], join_reference=reference)[0] for i in range(6)], dim=1
    )
    additive = torch.zeros(6, 6, dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    for mask in (allowed, additive, allowed.expand(2, 6, 6), additive.expand(2, 2, 6, 6)):
        out, _ = net(mv, s, attention_mask=mask, join_reference=reference)
        torch.testing.assert_close(out, alone)
    nobody = allowed.clone()
    nobody[2] = False
    out, _ = net(mv.requires_grad_(), s, attention_mask=nobody, join_reference=reference)
    out.sum().backward()
    assert out.isfinite().all()
    assert mv.grad.isfinite().all()
    short, _ = net(mv, s, attention_mask=additive.bfloat16(), join_reference=reference)
    torch.testing.assert_close(short, alone)
    both, _ = net(
        mv,
        s,
        attention_mask=additive,
        mask=torch.ones(2, 6, dtype=torch.bool),
        join_reference=reference,
    )
    torch.testing.assert_close(both, alone)


def test_an_additive_mask_shifts_the_logits():
    net, (mv, s) = _net(), _data(2)
    constant, bias = torch.full((6, 6), 3.0).double(), torch.randn(2, 6, 6).double()
    torch.testing.assert_close(net(mv, s, attention_mask=constant), net(mv, s))
    assert not torch.allclose(net(mv, s, attention_mask=bias)[0], net(mv, s)[0])


def test_rotary_positions_tell_items_apart_and_keep_the_symmetry():
    net, (mv, s) = _net(rotary=True), _data(2)
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
    net = _net(in_mv_channels=3, in_s_channels=0)
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
    net, (mv, s) = _net(), _data(2)
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


def test_axial_masks_and_errors():
    net = AxialGATr(**SMALL).double()
    mv, s = (torch.randn(2, 3, 4, *last).double() for last in ((2, 16), (1,)))
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    mask[..., 2:] = False
    out, _ = net(torch.where(mask[..., None, None], mv, torch.nan), s, mask=mask)
    torch.testing.assert_close(out[..., :2, :, :], net(mv[..., :2, :, :], s[..., :2, :])[0])
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    out, _ = net(mv, s, attention_mask=(causal, None), join_reference="canonical")
    assert out.isfinite().all()
    with pytest.raises(TypeError, match="pair"):
        net(mv, s, attention_mask=causal)
    for packed in (dict(offsets=torch.tensor([0, 3])), dict(max_items=3)):
        with pytest.raises(ValueError, match="packed"):
            net(mv, s, **packed)


def test_checkpointing_gives_the_same_gradients():
    net, (mv, s) = _net(), _data(2)
    gradients = []
    for checkpoint in (False, True):
        net.config = dataclasses.replace(net.config, checkpoint=checkpoint)
        net.zero_grad()
        net(mv, s)[0].square().sum().backward()
        gradients.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients)


def test_dropout_acts_in_training_only_and_is_equivariant_for_a_fixed_mask():
    net, (mv, s) = _net(dropout=0.5), _data(2)
    assert not torch.equal(net(mv, s)[0], net(mv, s)[0])
    net.eval()
    assert torch.equal(net(mv, s)[0], net(mv, s)[0])
    net.train()

    def same_mask(mv, s):
        torch.manual_seed(5)
        return net(mv, s)

    assert_equivariant(same_mask, mv, s, tolerance=1e-12)


def test_input_without_points_warns_of_the_dead_join_once():
    net = _net(in_mv_channels=1, in_s_channels=0)
    arrows = embed_direction(torch.randn(5, 1, 3, dtype=torch.float64))
    with pytest.warns(
        UserWarning, match="the input has no e123.*join_reference='canonical'"
    ) as caught:
        net(arrows)
    assert caught[0].filename == __file__  # it points at the call, not into the package
    net(arrows)
    out, _ = _net(in_mv_channels=1, in_s_channels=0)(arrows, join_reference="canonical")
    assert extract_direction(out).isfinite().all()


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([[1.0, 1.0], [0.0, 0.0]], "some samples have no e123"),
        ([[1.0, -1.0], [2.0, -2.0]], "the input has a mean e123 of zero"),
        ([[1.0, -1.0], [1.0, 1.0]], "some samples have a mean e123 of zero"),
    ],
)
def test_every_way_to_a_dead_join_is_named(weights, text):
    axial = AxialGATr(in_mv_channels=1, out_mv_channels=1, num_blocks=1).double()
    mv = embed_point(torch.randn(2, 2, 1, 3, dtype=torch.float64))
    mv[..., 14] = torch.tensor(weights)[..., None]
    for net, x in ((_net(in_mv_channels=1, in_s_channels=0), mv), (axial, mv.unsqueeze(1))):
        with pytest.warns(UserWarning, match=text) as caught:
            net(x)
        assert caught[0].filename == __file__


def test_samples_without_items_do_not_warn():
    mv, s = _data(items=4)
    _net()(mv, s, offsets=torch.tensor([0, 0, 4]))
    mask = torch.tensor([[True] * 4, [False] * 4])
    _net()(mv.expand(2, 4, 2, 16), s.expand(2, 4, 1), mask=mask)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of attention, on a CPU
def test_vmap_works_at_the_first_call():
    net, (mv, s) = _net(), _data(3)
    constants._cache.clear()
    torch.testing.assert_close(torch.vmap(net)(mv, s), net(mv, s))


def test_a_network_without_memory_gives_shapes():
    with torch.device("meta"):
        net, (mv, s) = GATr(**SMALL), _data(2, dtype=torch.float32)
    out, t = net(mv, s, mask=torch.ones(2, 6, dtype=torch.bool, device="meta"))
    assert out.is_meta
    assert out.shape == (2, 6, 2, 16)
    assert t.shape == (2, 6, 3)


def test_forces_can_be_trained_with_the_plain_attention():
    """Second derivatives: fused attention has none, the plain one does."""
    net = _net(in_mv_channels=1, in_s_channels=0)
    points = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)

    def loss():
        energy = net(embed_point(points).unsqueeze(-2))[1].sum()
        (force,) = torch.autograd.grad(energy, points, create_graph=True)
        return force.square().sum()

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss().backward()
        weight = net.blocks[0].attention.qkv.weight
        gradient, step = weight.grad[0, 0, 0].item(), 1e-5
        with torch.no_grad():
            weight[0, 0, 0] += step
        above = loss().item()
        with torch.no_grad():
            weight[0, 0, 0] -= 2 * step
        below = loss().item()
    assert gradient == pytest.approx((above - below) / (2 * step), rel=1e-5)


def test_a_first_call_in_inference_mode_does_not_spoil_training():
    constants._cache.clear()
    net, (mv, s) = _net(reinsert_mv_channels=(0,), rotary=True), _data(2)
    with torch.inference_mode():
        net(mv, s)
    net(mv, s)[0].sum().backward()
    assert all(p.grad is not None for n, p in net.named_parameters() if "blocks.0" in n)


def test_a_bfloat16_network_works_with_a_float32_stream():
    net, (mv, s) = GATr(**SMALL), _data(2, dtype=torch.float32)
    expected, _ = net(mv, s)
    out, t = net.bfloat16()(mv.bfloat16(), s.bfloat16())
    assert out.dtype == t.dtype == torch.float32
    assert (out - expected).abs().max() <= 0.1 * expected.abs().max()
    out.sum().backward()
    assert net.linear_in.weight.grad.dtype == torch.bfloat16


def test_repr_says_what_the_network_is():
    text = repr(GATr.from_preset("nbody"))
    assert "10 blocks of 16 mv + 128 s, 8 multi-head heads" in text
    assert "3,011,538 parameters" in text


def test_a_config_or_keywords_make_the_same_network():
    assert GATr(GATrConfig(**SMALL)).config == GATr(**SMALL).config
    assert GATr.from_preset("arteries", num_blocks=2).config.num_blocks == 2


def test_every_parameter_of_the_default_network_learns():
    net, (mv, s) = _net(reinsert_mv_channels=(0,), learned_weights="all"), _data(2)
    out, t = net(mv, s)
    (out.square().sum() + t.square().sum()).backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("preset", ["arteries", "scaling"])
def test_every_parameter_learns_from_the_multivectors_alone(preset):
    """These tasks have no scalar target."""
    net = GATr.from_preset(preset, num_blocks=1)
    mv = torch.randn(2, 5, net.config.in_mv_channels, 16)
    net(mv, torch.randn(2, 5, 1))[0].square().sum().backward()
    assert [n for n, p in net.named_parameters() if p.grad is None] == []


def test_two_motions_in_a_row_are_one():
    net, (mv, s) = _net(), _data()
    u, v = versors.sample(2)
    twice = versors.apply(u, versors.apply(v, net(mv, s)[0]))
    once = net(versors.apply(versors.compose(u, v), mv), s)[0]
    torch.testing.assert_close(once, twice)


def test_packed_sets_of_very_unequal_size_are_attended_one_by_one():
    """If padding would cost more than one call per set; also with empty sets."""
    net = _net()
    sizes = [120, 3, 0, 40, 1]
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    mv, s = _data(items=sum(sizes))
    out_mv, out_s = net(mv, s, offsets=offsets)
    for begin, end in itertools.pairwise(offsets.tolist()):
        alone = net(mv[begin:end], s[begin:end])
        torch.testing.assert_close((out_mv[begin:end], out_s[begin:end]), alone)
