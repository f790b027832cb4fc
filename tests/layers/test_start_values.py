"""Start values of every tensor of a network: uniform, within bounds that are reached.

A bound from above alone would accept zeros, or a factor that is too small.
"""

import math

import pytest
import torch

from flashgatr import GATr, embed_point
from flashgatr.nn import EquiLinear, SelfAttention

VARIANCES = (1.0, 4.0, 6.0, 2.0, 0.5, 0.5, 1.5, 1.5, 0.5)
"""Variance times fan-in of the nine maps: five projections, four products with e0."""
FACTORS = {
    "default": (1.0, 1.0),
    "small": (0.1, 0.1),
    "unit_scalar": (0.1, 1.0),
    "almost_unit_scalar": (0.5, 1.0),
}
"""Factors on the weights of multivector outputs and of scalar outputs, as in the authors' code."""
MV, S, HEADS, IN_MV, IN_S = 24, 96, 4, 6, 5


def _bounds(fan_mv, fan_s, factor, scalar_factor):
    """Bounds of the tensors of a linear map: a number, or one per map for the weight."""
    half = math.sqrt(0.5) if fan_s else 1.0
    used = (fan_mv > 0) + (fan_s > 0)
    weight = factor * (torch.tensor(VARIANCES) / max(fan_mv, 1)).sqrt()
    weight[0] *= half
    bias = 1 / math.sqrt(fan_mv + fan_s)
    return {
        "weight": weight,
        "s2mv": factor * half / math.sqrt(max(fan_s, 1)),
        "mv2s": scalar_factor / math.sqrt(max(fan_mv, 1) * used),
        "s2s": scalar_factor / math.sqrt(max(fan_s, 1) * used),
        "bias_mv": factor * bias if fan_s else 0.0,
        "bias_s": scalar_factor * bias,
    }


def _assert_uniform(x, bound, what):
    """Largest magnitude and standard deviation are those of numbers uniform in ± bound."""
    bound = torch.as_tensor(bound)
    largest = x.abs().flatten(0, -2).amax(0) if bound.dim() else x.abs().max()
    assert (largest <= bound * (1 + 1e-6)).all(), what
    assert (largest >= 0.9 * bound).all(), what
    spread = x.flatten(0, -2).square().mean(0) if bound.dim() else x.square().mean()
    torch.testing.assert_close(
        spread.sqrt(), bound / math.sqrt(3), rtol=0.2, atol=1e-12, msg=f"spread of {what}"
    )


def _assert_start(
    layer, fan, factor=1.0, scalar_factor=None, *, what="", rows=slice(None), one=0.0
):
    expected = _bounds(*fan, factor, factor if scalar_factor is None else scalar_factor)
    for name, x in ((name, x) for name, x in layer.named_parameters() if x.numel()):
        if name in ("weight", "s2mv", "bias_mv"):
            x = x[rows] - one if name == "bias_mv" else x[rows]
        _assert_uniform(x.detach(), expected[name], f"{what}.{name}")


@pytest.mark.parametrize("scalars", [(96, 64), (0, 64), (96, 0), (0, 0)])
@pytest.mark.parametrize(("scheme", "factors"), FACTORS.items())
def test_a_linear_map_starts_within_its_bounds_and_reaches_them(scheme, factors, scalars):
    inputs, outputs = scalars
    layer = EquiLinear(24, 64, inputs, outputs, initialization=scheme)
    present = {name for name, _ in layer.named_parameters()}
    assert present == {"weight", "bias_mv"} | ({"s2mv"} if inputs else set()) | (
        {"mv2s", "bias_s"} if outputs else set()
    ) | ({"s2s"} if inputs and outputs else set())
    one = 1.0 if scheme.endswith("unit_scalar") else 0.0
    _assert_start(layer, (24, inputs), *factors, what=scheme, one=one)


def test_a_map_with_types_starts_as_one_of_the_channels_that_it_sums():
    """Unlike types are not summed: 8 even channels of 32 have the weights of 8, not of 32."""
    inputs, outputs, scalars = "e" * 8 + "o" * 24, "e" * 64 + "o" * 64, 40
    layer = EquiLinear(32, 128, scalars, 64, in_parity=inputs, out_parity=outputs)
    weight, mv2s = layer.weight.detach(), layer.mv2s.detach()
    for channels, rows, count in ((slice(8), slice(64), 8), (slice(8, 32), slice(64, 128), 24)):
        bound = _bounds(count, scalars, 1.0, 1.0)["weight"]
        _assert_uniform(weight[rows, channels], bound, f"{count} channels")
    assert not weight[:64, 8:].any()
    assert not weight[64:, :8].any()
    _assert_uniform(mv2s[:, :8], _bounds(8, scalars, 1.0, 1.0)["mv2s"], "mv2s")
    assert not mv2s[:, 8:].any()


def test_unit_scalar_outputs_have_the_variance_of_the_authors_code():
    torch.manual_seed(0)
    mv, s = torch.randn(4000, 16, 16), torch.randn(4000, 32)
    _, out = EquiLinear(16, 16, 32, 256, initialization="unit_scalar")(mv, s)
    assert 0.3 < out.var() < 0.38  # theirs: 0.34


def test_a_linear_map_of_scalars_alone_starts_within_its_bounds():
    _assert_start(EquiLinear(0, 64, 96, 64), (0, 96), what="no multivectors")


@pytest.mark.parametrize("multi_query", [True, False])
def test_every_tensor_of_a_network_starts_within_its_bounds(multi_query):
    net = GATr(
        in_mv_channels=IN_MV, in_s_channels=IN_S, out_mv_channels=64, out_s_channels=64,
        hidden_mv_channels=MV, hidden_s_channels=S, num_blocks=1, num_heads=HEADS,
        reinsert_mv_channels=(0, 2, 3), reinsert_s_channels=(1, 4), multi_query=multi_query,
    )  # fmt: skip
    (block,) = net.blocks
    attention, mlp = block.attention, block.mlp
    more = MV + 3, S + 2  # hidden and re-inserted channels are one input
    _assert_start(net.linear_in, (IN_MV, IN_S), what="linear_in")
    _assert_start(attention.qkv, more, what="qkv")
    _assert_start(attention.reinsert, more, what="reinsert")
    heads = tuple(HEADS * width for width in attention.widths)
    _assert_start(attention.output, heads, 0.1, what="attention.output")
    inputs = mlp.bilinear.inputs
    for quarter, name in enumerate(("left", "right", "join left", "join right")):
        rows = slice(quarter * MV, (quarter + 1) * MV)
        how = (0.5, 1.0) if name == "right" else (1.0, 0.0)
        _assert_start(inputs, (MV, S), how[0], rows=rows, one=how[1], what=f"bilinear {name}")
    _assert_start(mlp.bilinear.output, (2 * MV, S), what="bilinear.output")
    _assert_start(mlp.linear, (2 * MV, 2 * S), what="mlp.linear")
    _assert_start(net.linear_out, (MV, S), what="linear_out")
    checked = {net.linear_in, attention.qkv, attention.reinsert, attention.output, inputs}
    checked |= {mlp.bilinear.output, mlp.linear, net.linear_out}
    assert checked == {x for x in net.modules() if isinstance(x, EquiLinear)}


def test_the_weights_of_the_logits_start_at_one():
    layer = SelfAttention(4, 3, 2, learned_weights="all")
    for logarithm in layer.attention.parameters():
        assert not logarithm.any()
    assert len(list(layer.attention.parameters())) == 3


def _points_net(blocks=4, **options):
    torch.manual_seed(0)
    return GATr(
        in_mv_channels=1, out_mv_channels=1, out_s_channels=1, hidden_mv_channels=8,
        hidden_s_channels=16, num_blocks=blocks, num_heads=2, **options,
    ).double()  # fmt: skip


def test_geometric_start_values_differ_in_the_output_of_attention_and_the_factors_of_joins():
    default, geometric = _points_net(), _points_net(initialization="geometric")
    for (name, a), (_, b) in zip(
        default.named_parameters(), geometric.named_parameters(), strict=True
    ):
        gain = torch.ones(())
        if "attention.output" in name:
            gain = torch.tensor(3.0)
        elif name.endswith("bilinear.inputs.weight"):
            gain = torch.where(torch.arange(len(a)) < len(a) // 2, 1.0, 3.0)[:, None, None]
        torch.testing.assert_close(b, gain * a, msg=name)


@pytest.mark.parametrize("blocks", [2, 4])
def test_with_geometric_start_values_the_scalar_output_depends_on_positions(blocks):
    points = torch.randn(16, 5, 3).double()

    def size_of_forces(net):
        x = points.clone().requires_grad_()
        _, energy = net(embed_point(x).unsqueeze(-2))
        return torch.autograd.grad(energy.sum(), x)[0].square().mean().sqrt()

    default = size_of_forces(_points_net(blocks))
    geometric = size_of_forces(_points_net(blocks, initialization="geometric"))
    assert default < 1e-6
    assert geometric > 100 * default


def test_unknown_start_values_are_an_error():
    with pytest.raises(ValueError, match="initialization must be one of default, geometric"):
        _points_net(initialization="geometrical")


def test_new_values_of_some_rows_leave_the_others_and_the_scalar_outputs():
    layer = EquiLinear(4, 6, 3, 5)
    before = {name: x.detach().clone() for name, x in layer.named_parameters()}
    layer.reset_parameters("unit_scalar", rows=slice(2, 4))
    others = [0, 1, 4, 5]
    for name, x in layer.named_parameters():
        if name in ("weight", "s2mv", "bias_mv"):
            assert torch.equal(x[others], before[name][others])
            assert not torch.equal(x[2:4], before[name][2:4])
        else:
            assert torch.equal(x, before[name]), name
