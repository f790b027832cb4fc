"""Every layer with types commutes with mirrors, rotoreflections and motions."""

import pytest
import torch

from flashgatr.functional.linear import halves
from flashgatr.nn import (
    CrossAttention,
    EquiLayerNorm,
    EquiLinear,
    GeometricBilinear,
    GeoMLP,
    ScalarGate,
    SelfAttention,
)
from flashgatr.testing import equivariance_error

from .networks import MOTIONS

IN, OUT, ITEMS = "oeeooe", "eoooe", 5
WIDTHS = dict(parity=IN, out_parity=OUT, out_mv_channels=len(OUT), out_s_channels=3)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def linear():
    return EquiLinear(6, 5, 4, 3, in_parity=IN, out_parity=OUT)


def bilinear():
    layer = GeometricBilinear(6, 10, 4, 3, in_parity=IN, out_parity=OUT * 2).double()
    return lambda mv, s: layer(mv, s, torch.ones(()).double())


def mlp():
    layer = GeoMLP(6, 4, hidden_mv_channels=10, **WIDTHS).double()
    return lambda mv, s: layer(mv, s, torch.ones(()).double())


def attention(**options):
    return SelfAttention(6, 4, 2, **WIDTHS, **options)


def reinserting_attention():
    layer = attention(reinsert_mv_channels=2, reinsert_parity="oe", multi_query=False).double()
    return lambda mv, s: layer(mv, s, (mv[..., :2, :], s[..., :0]))


def cross_attention():
    layer = CrossAttention(6, 4, 2, context_mv_channels=3, context_parity=IN[:3], **WIDTHS).double()
    return lambda mv, s: layer(mv, s, mv[:3, :3], s[:3])


LAYERS = {
    "linear": (linear, (IN, OUT)),
    "bilinear": (bilinear, (IN, OUT * 2)),
    "mlp": (mlp, (IN, OUT)),
    "norm": (EquiLayerNorm, (IN, IN)),
    "gate": (lambda: ScalarGate(is_typed=True), (halves(6), halves(6))),
    "attention": (attention, (IN, OUT)),
    "attention_without_distances": (lambda: attention(distance_aware=False), (IN, OUT)),
    "attention_with_reinserted_channels": (reinserting_attention, (IN, OUT)),
    "cross_attention": (cross_attention, (IN, OUT)),
}


@pytest.mark.parametrize(("group", "distance"), MOTIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_commute_with_every_motion(name, group, distance):
    torch.manual_seed(0)
    make, types = LAYERS[name]
    layer, mv, s = make(), random(ITEMS, 6, 16), random(ITEMS, 4)
    motions = dict(group=group, distance=distance)
    assert equivariance_error(layer, mv, s, **motions, parity=types) < 1e-12
    if group in ("reflection", "inversion", "rotoreflection"):
        other = types[0].translate(str.maketrans("eo", "oe"))
        assert equivariance_error(layer, mv, s, **motions, parity=(other, types[1])) > 1e-3


def test_types_of_a_map_are_checked():
    with pytest.raises(ValueError, match="out_parity must be a string"):
        EquiLinear(1, 1, in_parity="o")
    with pytest.raises(ValueError, match="hidden_mv_channels must be a multiple of 2"):
        GeoMLP(2, 0, hidden_mv_channels=3, parity="oe")
    for channels in (1, 3):  # one channel would get no gate at all, and vanish
        with pytest.raises(ValueError, match=f"as many even as odd channels, got {channels}"):
            ScalarGate(is_typed=True)(random(ITEMS, channels, 16), random(ITEMS, 2))


def test_the_variance_of_even_and_odd_outputs_is_that_of_maps_without_types():
    torch.manual_seed(0)
    types = dict(in_parity="e" * 10 + "o" * 30, out_parity=halves(200))
    typed, plain = EquiLinear(40, 200, **types).double(), EquiLinear(40, 200).double()
    mv = random(200, 40, 16)
    even, odd = typed(mv)[0].chunk(2, -2)
    expected = plain(mv)[0].std()
    for half in (even, odd):
        assert abs(half.std() / expected - 1) < 0.1
