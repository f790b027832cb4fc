"""Layers whose output or hidden layer is wider or narrower than their input."""

import itertools

import pytest
import torch

from flashgatr import GATr
from flashgatr.nn import CrossAttention, GeoMLP, SelfAttention
from flashgatr.testing import assert_equivariant

LAYERS = {"self": SelfAttention, "cross": CrossAttention, "mlp": GeoMLP}
SCALARS = [(0, 0), (0, 2), (3, 0), (3, 2)]


def _layer(kind, *sizes, **options):
    heads = () if kind == "mlp" else (2,)
    return LAYERS[kind](*sizes, *heads, **options).double()


def _call(layer, mv, s, reference=0.7):
    """The layer; as context, cross-attention gets its own input."""
    if isinstance(layer, GeoMLP):
        return layer(mv, s, torch.as_tensor(reference, dtype=mv.dtype))
    return layer(mv, s, mv, s) if isinstance(layer, CrossAttention) else layer(mv, s)


def _data(mv, s):
    return torch.randn(2, 5, mv, 16).double(), torch.randn(2, 5, s).double()


@pytest.mark.parametrize(("before", "after"), SCALARS)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_have_the_widths_that_were_asked_for(kind, before, after):
    for mv, out in itertools.product((1, 4), (1, 3)):
        layer = _layer(kind, mv, before, out_mv_channels=out, out_s_channels=after)
        found = _call(layer, *_data(mv, before))
        assert [x.shape for x in found] == [(2, 5, out, 16), (2, 5, after)]
        sum(x.square().sum() for x in found).backward()
        assert all(p.grad.isfinite().all() for p in layer.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("multi_query", [True, False])
def test_layers_of_other_widths_are_equivariant(kind, multi_query):
    options = dict(hidden_mv_channels=5) if kind == "mlp" else dict(multi_query=multi_query)
    layer = _layer(kind, 4, 3, out_mv_channels=7, out_s_channels=2, **options)

    def f(mv, s, join_reference):
        return _call(layer, mv, s, join_reference[..., 14].expand(mv.shape[:-2]))

    assert_equivariant(f, *_data(4, 3), join_reference=torch.randn(2, 1, 16).double())


@pytest.mark.parametrize(("hidden", "scalars"), [(1, 0), (2, 5), (5, 1), (12, 8)])
def test_the_hidden_layer_of_the_mlp_has_its_own_widths(hidden, scalars):
    layer = _layer("mlp", 4, 3, hidden_mv_channels=hidden, hidden_s_channels=scalars)
    assert (layer.linear.in_mv_channels, layer.linear.in_s_channels) == (hidden, scalars)
    assert layer.bilinear.inputs.out_mv_channels == 4 * max(hidden // 2, 1)
    assert [x.shape for x in _call(layer, *_data(4, 3))] == [(2, 5, 4, 16), (2, 5, 3)]


@pytest.mark.parametrize("kind", LAYERS)
def test_the_default_widths_written_out_give_the_same_parameters(kind):
    hidden = dict(hidden_mv_channels=8, hidden_s_channels=6) if kind == "mlp" else {}
    states = []
    for options in ({}, dict(out_mv_channels=4, out_s_channels=3, **hidden)):
        torch.manual_seed(5)
        states.append(_layer(kind, 4, 3, **options).state_dict())
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_heads_are_as_wide_as_the_input_demands():
    for layer in (SelfAttention, CrossAttention):
        wide = layer(8, 16, 4, out_mv_channels=1, out_s_channels=1)
        assert wide.widths == layer(8, 16, 4).widths == (4, 8)
        assert wide.output.in_mv_channels == 4 * 4
    other = CrossAttention(8, 16, 4, context_mv_channels=2, context_s_channels=0)
    assert other.widths == (4, 8)  # those of the queries' input, not the context's


def test_a_block_keeps_its_widths():
    net = GATr(in_mv_channels=1, out_mv_channels=3, hidden_mv_channels=4, num_blocks=1)
    block = net.blocks[0]
    assert block.attention.output.out_mv_channels == block.mlp.linear.out_mv_channels == 4
