"""Start values of every tensor of a network: uniform, within bounds that are reached.

A bound from above alone would accept zeros, or a factor that is too small.
"""

import math

import pytest
import torch

from flashgatr import GATr
from flashgatr.nn import EquiLinear, SelfAttention

VARIANCES = (1.0, 4.0, 6.0, 2.0, 0.5, 0.5, 1.5, 1.5, 0.5)
"""Variance times fan-in of the nine maps: five projections, four products with e0."""
MV, S, HEADS, IN_MV, IN_S = 24, 96, 4, 6, 5


def _bounds(fan_mv, fan_s, factor):
    """Bounds of the tensors of a linear map: a number, or one per map for the weight."""
    half = math.sqrt(0.5) if fan_s else 1.0
    used = (fan_mv > 0) + (fan_s > 0)
    weight = factor * (torch.tensor(VARIANCES) / max(fan_mv, 1)).sqrt()
    weight[0] *= half
    bias = factor / math.sqrt(fan_mv + fan_s)
    return {
        "weight": weight,
        "s2mv": factor * half / math.sqrt(max(fan_s, 1)),
        "mv2s": factor / math.sqrt(max(fan_mv, 1) * used),
        "s2s": factor / math.sqrt(max(fan_s, 1) * used),
        "bias_mv": bias if fan_s else 0.0,
        "bias_s": bias,
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


def _assert_start(layer, fan, factor=1.0, *, what="", rows=slice(None), one=0.0):
    expected = _bounds(*fan, factor)
    for name, x in ((name, x) for name, x in layer.named_parameters() if x.numel()):
        if name in ("weight", "s2mv", "bias_mv"):
            x = x[rows] - one if name == "bias_mv" else x[rows]
        _assert_uniform(x.detach(), expected[name], f"{what}.{name}")


@pytest.mark.parametrize("scalars", [(96, 64), (0, 64), (96, 0), (0, 0)])
@pytest.mark.parametrize(("scheme", "factor"), [("default", 1.0), ("small", 0.1)])
def test_a_linear_map_starts_within_its_bounds_and_reaches_them(scheme, factor, scalars):
    inputs, outputs = scalars
    layer = EquiLinear(24, 64, inputs, outputs, initialization=scheme)
    present = {name for name, _ in layer.named_parameters()}
    assert present == {"weight", "bias_mv"} | ({"s2mv"} if inputs else set()) | (
        {"mv2s", "bias_s"} if outputs else set()
    ) | ({"s2s"} if inputs and outputs else set())
    _assert_start(layer, (24, inputs), factor, what=scheme)


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
