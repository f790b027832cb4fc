"""Networks with types are equivariant under mirrors, from coordinates to coordinates."""

import json

import pytest
import torch

from flashgatr import GATr, GATrConfig, embed_point, extract_point, versors
from flashgatr.kernels.cpu import library as c_kernels
from flashgatr.kernels.paths import plain_kernels
from flashgatr.nn import EquiLinear
from flashgatr.testing import (
    assert_equivariant,
    equivariance_error,
    padding_error,
    permutation_error,
    point_equivariance_error,
)

from .networks import MOTIONS, SMALL, VARIANTS, changed, masked_entries, network, scene

TYPES = ("oee", "oeo")
BITS = {
    "float64": (torch.float64, [6, 40]),
    "float32": (torch.float32, [6, 40, 300]),
    "bfloat16": (torch.bfloat16, [6, 40]),
    "bfloat16 autocast": (torch.float32, [6, 40]),
}
"""Precisions, and the sizes of the sets in which mirrors are exact bit for bit."""


@pytest.fixture(params=["fused", "plain"])
def path(request):
    """Run the test with the fused kernels and with the plain layers."""
    if request.param == "plain":
        with plain_kernels():
            yield
    elif c_kernels.library() is None:
        pytest.skip("no C compiler")
    else:
        yield


@pytest.mark.parametrize(("group", "distance"), MOTIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_networks_with_types_are_equivariant_under_all_of_e3(name, group, distance, path):
    motions = dict(group=group, distance=distance)
    assert_equivariant(changed(network(name)), *scene(name), **motions, parity=TYPES)


@pytest.mark.parametrize("kind", ["planes", "translations"])
def test_without_points_odd_outputs_come_from_the_constant(kind, path):
    """Products of even channels are even, and the joins of these objects (almost) vanish."""
    types = dict(in_mv_channels=1, out_mv_channels=1, in_mv_parity="e", out_mv_parity="o")
    net = network(**types, in_s_channels=0)
    x = scene()[0][..., [1 if kind == "planes" else 2], :]
    size = net(x)[0].abs().max()
    assert size > 1e-3
    with torch.no_grad():
        net.linear_in.weight[:, -1] = 0
    assert net(x)[0].abs().max() < 1e-6 * size


def test_a_frame_made_without_types_has_no_effect_on_joins():
    """Its reference, the mean weight of the points, is another number than one."""
    net, (mv, s) = network(), scene()
    untyped = GATr(**{**SMALL, "in_mv_parity": None, "out_mv_parity": None}).double()
    frame = untyped.frame(6 * mv)
    assert (frame.reference - 1).abs().min() > 1e-3
    torch.testing.assert_close(net(mv, s, frame=frame), net(mv, s), rtol=1e-12, atol=1e-12)


def test_checks_take_the_types_of_the_network():
    net, (mv, s) = network(), scene()
    assert_equivariant(net, mv, s)
    assert equivariance_error(net, mv, s, parity=("eee", "eee")) > 1e-6
    for wrong in ("oeo", ("oee",), 3):
        with pytest.raises(ValueError, match=r'must be a pair.*such as \("oe", "o"\)'):
            assert_equivariant(net, mv, s, parity=wrong)


def test_other_types_of_the_input_are_noticed():
    assert equivariance_error(network(), *scene(), group="reflection", parity=("eee", "oeo")) > 1e-6


def test_packed_padded_and_reordered_sets():
    net, (mv, s) = network(), scene()
    assert padding_error(net, mv, s) < 1e-10
    assert permutation_error(net, mv, s) < 1e-10
    packed = dict(offsets=torch.tensor([0, 4, 12]))
    assert_equivariant(net, mv.flatten(0, 1), s.flatten(0, 1), parity=TYPES, **packed)


def test_queries_and_anchors():
    net, (mv, s) = network("anchored"), scene()
    anchors = torch.tensor([[0, 2, 3], [1, 2, 5]])
    assert_equivariant(net, mv, s, parity=TYPES, anchors=anchors)

    def decoded(mv, s):
        return net.decode(net.encode(mv[:, :3], s[:, :3]), mv, s, tile=4)

    assert_equivariant(decoded, mv, s, parity=TYPES)


def test_from_points_to_points_under_mirrors():
    types = dict(in_mv_parity="o", out_mv_parity="o", in_mv_channels=1, out_mv_channels=1)
    typed, untyped = (
        network(**{**types, **more}, in_s_channels=0, out_s_channels=0)
        for more in ({}, dict(in_mv_parity=None, out_mv_parity=None))
    )
    points = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def displacement(net):  # relative to itself; the position alone would hide a violation
        def f(x):
            out = extract_point(net(embed_point(x)[:, None])[0][:, 0])
            return x + 10 * (out - out.mean(0))

        return f

    error = [
        point_equivariance_error(displacement(changed(net)), points, group="E(3)")
        for net in (typed, untyped)
    ]
    assert error[0] < 1e-10
    assert error[1] > 1e-6


@pytest.mark.parametrize(("precision", "items"), [(p, n) for p in BITS for n in BITS[p][1]])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_mirror_of_an_axis_changes_signs_only(name, precision, items, path):
    """x → -x is exact: outputs are equal bit for bit."""
    dtype = BITS[precision][0]
    net, (mv, s) = changed(network(name)).to(dtype), scene(name, dtype, items)
    mirror = torch.zeros(16, dtype=dtype)
    mirror[2] = 1  # e1
    with torch.no_grad(), torch.autocast("cpu", enabled="autocast" in precision):
        out, scalars = net(mv, s)
        moved, same = net(versors.apply(mirror, mv, TYPES[0]), s)
    assert torch.equal(moved, versors.apply(mirror, out, TYPES[1]))
    assert torch.equal(same, scalars)
    assert out.abs().amin((0, 1)).isfinite().all()


def test_masked_parameters_are_zero_and_stay_zero(path):
    net, (mv, s) = network("reinserted"), scene()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    layers = [layer for layer in net.modules() if isinstance(layer, EquiLinear)]
    for step in range(11):
        for layer in layers:
            for parameter, where in masked_entries(layer):
                assert not parameter[where].any()
                if step:
                    assert not parameter.grad[where].any()
        optimizer.zero_grad()
        out, scalars = net(mv, s)
        (out.square().mean() + scalars.square().mean()).backward()
        optimizer.step()


def test_the_number_of_parameters_leaves_out_the_masked_ones():
    net = network("reinserted")
    layers = [layer for layer in net.modules() if isinstance(layer, EquiLinear)]
    unused = sum(p[where].numel() for x in layers for p, where in masked_entries(x))
    assert unused == sum(layer.unused_parameters for layer in layers)
    used = sum(p.numel() for p in net.parameters()) - unused
    assert f"{used:,} parameters, types oee -> oeo)" in repr(net)


def test_files_keep_the_types(tmp_path):
    net, inputs = network(dtype=torch.float32), scene(dtype=torch.float32)
    net.save_pretrained(tmp_path)
    again = GATr.from_pretrained(tmp_path)
    assert again.config == net.config
    assert torch.equal(again(*inputs)[0], net(*inputs)[0])


def test_files_of_networks_without_types_do_not_mention_them(tmp_path):
    plain = {k: v for k, v in SMALL.items() if "parity" not in k}
    GATr(**plain).save_pretrained(tmp_path)
    assert "parity" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))
    assert GATrConfig.from_dict(plain).to_dict().keys() >= plain.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(in_mv_parity=None), "belong together"),
        (dict(out_mv_parity=None), "give both, or neither"),
        (dict(in_mv_parity="oex"), "in_mv_parity must be a string of the letters"),
        (dict(out_mv_parity=("o", "e", "o")), "out_mv_parity must be a string"),
        (dict(in_mv_parity="oe"), "one letter for each of 3 multivector channels"),
        (dict(hidden_mv_channels=5), "must be a multiple of 2"),
        (dict(hidden_mv_channels=4, num_heads=8), "needs an even and an odd channel"),
    ],
)
def test_wrong_types_are_a_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        GATrConfig(**{**SMALL, **change})


def test_a_join_reference_is_refused():
    mv, s = scene()
    with pytest.raises(ValueError, match="need no reference"):
        network()(mv, s, join_reference="canonical")


def test_points_that_are_declared_even_are_noticed_once():
    net, (mv, s) = network(), scene()
    with pytest.warns(UserWarning, match=r"channels \[1\] even, but they have an e123"):
        net(mv[:, :, [1, 0, 2]], s)
    net(mv[:, :, [1, 0, 2]], s)
