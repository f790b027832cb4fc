"""Laws of the whole network: precision, recentring, gradients, warnings, construction."""

import copy
import dataclasses

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
)
from flashgatr.testing import assert_equivariant, point_clouds

from .networks import SMALL, TEN_BLOCKS, make_data, make_net


def _from_points_to_points(net):
    return lambda points: extract_point(net(embed_point(points).unsqueeze(-2))[0][..., 0, :])


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
    net = make_net()
    mv, s = (torch.zeros_like(x).requires_grad_() for x in make_data(2))
    out, t = net(mv, s)
    (out.square().sum() + t.square().sum()).backward()
    assert mv.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


def test_recentring_changes_nothing_but_rounding():
    mv, s = make_data(3)
    net = make_net()
    expected = net(mv, s)
    net.config = dataclasses.replace(net.config, recenter=False)
    torch.testing.assert_close(net(mv, s), expected, rtol=1e-12, atol=1e-12)
    center = torch.randn(3, 3, dtype=torch.float64)
    torch.testing.assert_close(net(mv, s, center=center), expected, rtol=1e-12, atol=1e-12)
    assert net(mv, s, center=center[0])[0].shape == expected[0].shape


def test_a_length_scale_is_a_change_of_units():
    net = make_net(in_mv_channels=1, in_s_channels=0)
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


def test_checkpointing_gives_the_same_gradients():
    net, (mv, s) = make_net(), make_data(2)
    gradients = []
    for checkpoint in (False, True):
        net.config = dataclasses.replace(net.config, checkpoint=checkpoint)
        net.zero_grad()
        net(mv, s)[0].square().sum().backward()
        gradients.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients)


def test_dropout_acts_in_training_only_and_is_equivariant_for_a_fixed_mask():
    net, (mv, s) = make_net(dropout=0.5), make_data(2)
    assert not torch.equal(net(mv, s)[0], net(mv, s)[0])
    net.eval()
    assert torch.equal(net(mv, s)[0], net(mv, s)[0])
    net.train()

    def same_mask(mv, s):
        torch.manual_seed(5)
        return net(mv, s)

    assert_equivariant(same_mask, mv, s, tolerance=1e-12)


def test_input_without_points_warns_of_the_dead_join_once():
    net = make_net(in_mv_channels=1, in_s_channels=0)
    arrows = embed_direction(torch.randn(5, 1, 3, dtype=torch.float64))
    with pytest.warns(
        UserWarning, match="the input has no e123.*join_reference='canonical'"
    ) as caught:
        net(arrows)
    assert caught[0].filename == __file__  # it points at the call, not into the package
    net(arrows)
    out, _ = make_net(in_mv_channels=1, in_s_channels=0)(arrows, join_reference="canonical")
    assert extract_direction(out).isfinite().all()


def test_the_dead_join_is_seen_whatever_the_signs_of_the_other_components():
    mv = -embed_direction(torch.rand(5, 1, 3, dtype=torch.float64))
    for x in (mv, -mv):
        with pytest.warns(UserWarning, match="the input has no e123"):
            make_net(in_mv_channels=1, in_s_channels=0)(x)


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
    for net, x in ((make_net(in_mv_channels=1, in_s_channels=0), mv), (axial, mv.unsqueeze(1))):
        with pytest.warns(UserWarning, match=text) as caught:
            net(x)
        assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of attention, on a CPU
def test_vmap_works_at_the_first_call():
    net, (mv, s) = make_net(), make_data(3)
    constants._cache.clear()
    torch.testing.assert_close(torch.vmap(net)(mv, s), net(mv, s))


def test_a_network_without_memory_gives_shapes():
    with torch.device("meta"):
        net, (mv, s) = GATr(**SMALL), make_data(2, dtype=torch.float32)
    out, t = net(mv, s, mask=torch.ones(2, 6, dtype=torch.bool, device="meta"))
    assert out.is_meta
    assert out.shape == (2, 6, 2, 16)
    assert t.shape == (2, 6, 3)


def test_forces_can_be_trained_with_the_plain_attention():
    """Second derivatives: fused attention has none, the plain one does."""
    net = make_net(in_mv_channels=1, in_s_channels=0)
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
    net, (mv, s) = make_net(reinsert_mv_channels=(0,), rotary=True), make_data(2)
    with torch.inference_mode():
        net(mv, s)
    net(mv, s)[0].sum().backward()
    assert all(p.grad is not None for n, p in net.named_parameters() if "blocks.0" in n)


def test_a_bfloat16_network_works_with_a_float32_stream():
    net, (mv, s) = GATr(**SMALL), make_data(2, dtype=torch.float32)
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
    net, (mv, s) = make_net(reinsert_mv_channels=(0,), learned_weights="all"), make_data(2)
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
