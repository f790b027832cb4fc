"""Laws of the layers: symmetry, gradients, initialisation, reference values."""

import pytest
import torch
from torch.autograd import gradcheck

from flashgatr import functional, versors
from flashgatr.batch import Sets
from flashgatr.functional.linear import basis
from flashgatr.nn import (
    CrossAttention,
    EquiLayerNorm,
    EquiLinear,
    GeometricAttention,
    GeometricBilinear,
    GeoMLP,
    GradeDropout,
    Heads,
    ScalarGate,
    SelfAttention,
)
from flashgatr.testing import assert_equivariant

REFERENCE = torch.tensor(0.7, dtype=torch.float64)


def _x(*shape, channels=4, scalars=3):
    mv = torch.randn(*shape, channels, 16, dtype=torch.float64)
    return mv, torch.randn(*shape, scalars, dtype=torch.float64)


def _jiggle(module):
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return module.double()


def _mirrored(layer):
    """A layer with a join: the reference must change sign with odd motions, as e123 does."""

    def f(mv, s, join_reference):
        return layer(mv, s, join_reference[..., 14].expand(mv.shape[:-2]))

    return f


class _Bound(torch.nn.Module):
    """A layer whose other arguments are made from (mv, s), as a function of (mv, s) alone."""

    def __init__(self, layer, more):
        super().__init__()
        self.layer, self.more = layer, more

    def forward(self, mv, s):
        return self.layer(mv, s, *self.more(mv, s))


def _first_channels(mv, s):
    return ((mv[..., :2, :], s[..., :1]),)


LAYERS = {
    "linear": lambda: EquiLinear(4, 5, 3, 2),
    "linear without scalars": lambda: EquiLinear(4, 5),
    "linear without bias": lambda: EquiLinear(4, 5, 3, 2, bias=False),
    "norm": EquiLayerNorm,
    "gate": ScalarGate,
    "dropout": lambda: GradeDropout(0.5).eval(),
    "attention": lambda: SelfAttention(4, 3, 2),
    "multi-head attention": lambda: SelfAttention(
        4, 3, 2, multi_query=False, learned_weights="all"
    ),
    "rotary attention": lambda: SelfAttention(4, 3, 2, rotary=True),
    "attention without distances": lambda: SelfAttention(4, 3, 2, distance_aware=False),
    "re-insertion": lambda: _Bound(
        SelfAttention(4, 3, 2, reinsert_mv_channels=2, reinsert_s_channels=1), _first_channels
    ),
    "cross-attention": lambda: _Bound(
        CrossAttention(4, 3, 2, context_mv_channels=2, context_s_channels=1),
        lambda mv, s: (mv[..., 1:, :2, :], s[..., 1:, :1]),
    ),
}


@pytest.mark.parametrize("name", LAYERS, ids=str)
def test_layers_are_equivariant_under_e3(name):
    mv, s = _x(2, 5)
    s = s[..., :0] if name == "linear without scalars" else s
    assert_equivariant(_jiggle(LAYERS[name]()), mv, s, distance=3.0, tolerance=1e-12)


@pytest.mark.parametrize("make", [lambda: GeometricBilinear(4, 6, 3, 2), lambda: GeoMLP(4, 3)])
def test_layers_with_a_join_are_equivariant_with_their_reference(make):
    mv, s = _x(2, 5)
    reference = torch.randn(16, dtype=torch.float64)
    f = _mirrored(_jiggle(make()))
    assert_equivariant(f, mv, s, join_reference=reference, tolerance=1e-12)


@pytest.mark.parametrize("name", LAYERS, ids=str)
def test_layers_pass_gradcheck(name):
    layer = _jiggle(LAYERS[name]())
    mv, s = _x(3)
    s = s[..., :0] if name == "linear without scalars" else s
    parameters = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    names = [n for n, _ in layer.named_parameters()]

    def f(mv, s, *values):
        out = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (mv, s))
        return tuple(x for x in out if x.numel())

    assert gradcheck(
        f, (mv.requires_grad_(), s.requires_grad_(s.numel() > 0), *parameters), fast_mode=True
    )


@pytest.mark.parametrize("make", [lambda: GeometricBilinear(2, 4, 3, 2), lambda: GeoMLP(2, 3)])
def test_bilinear_layers_pass_gradcheck(make):
    layer = _jiggle(make())
    mv, s = _x(3, channels=2)
    reference = torch.rand(3, dtype=torch.float64)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    parameters = [p.detach().clone() for p in parameters]

    def f(mv, s, reference, *values):
        state = dict(zip(names, values, strict=True))
        return torch.func.functional_call(layer, state, (mv, s, reference))

    inputs = tuple(x.requires_grad_() for x in (mv, s, reference, *parameters))
    assert gradcheck(f, inputs, fast_mode=True)


def test_dropout_passes_gradcheck_in_training():
    def f(mv, s):
        torch.manual_seed(3)
        return GradeDropout(0.5)(mv, s)

    assert gradcheck(f, tuple(x.requires_grad_() for x in _x(3)), fast_mode=True)


def test_the_linear_layer_is_the_sum_of_nine_maps():
    layer = _jiggle(EquiLinear(3, 2, bias=False))
    x = torch.randn(5, 3, 16, dtype=torch.float64)
    expected = torch.einsum("oib,bxy,...iy->...ox", layer.weight, basis(), x)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-12, atol=1e-12)


def test_scalars_mix_with_the_scalar_part_alone():
    layer = _jiggle(EquiLinear(3, 2, 4, 5))
    mv, s = _x(6, channels=3, scalars=4)
    out, t = layer(mv, s)
    moved, u = layer(mv, s + 1)
    assert torch.equal(out[..., 1:], moved[..., 1:])
    torch.testing.assert_close(moved[..., 0] - out[..., 0], layer.s2mv.sum(-1).expand(6, 2))
    torch.testing.assert_close(u - t, layer.s2s.sum(-1).expand(6, 5))


def test_default_initialisation_keeps_the_variance_of_every_grade():
    x = torch.randn(2000, 64, 16)
    out, _ = EquiLinear(64, 64)(x)
    per_blade = out.var((0, 1))
    assert (per_blade > 0.1).all()
    assert (per_blade < 1.0).all()


def test_the_product_starts_near_the_identity():
    layer = GeometricBilinear(8, 16, 4)
    right = slice(8, 16)
    assert (layer.inputs.bias_mv[right] - 1).abs().max() <= 0.5
    assert layer.inputs.bias_mv[:8].abs().max() <= 0.5


def test_the_variance_of_small_scalars_is_raised_by_epsilon_before_they_are_divided():
    """PyTorch's own 1e-5: another one would change what weights of the authors' code compute."""
    s = 0.01 * torch.tensor([[1.0, -1.0, 2.0, -2.0]], dtype=torch.float64)  # variance 2.5e-4
    _, found = functional.layer_norm(torch.zeros(1, 1, 16, dtype=torch.float64), s)
    torch.testing.assert_close(found, s / 2.6e-4**0.5)


def test_norm_makes_the_mean_square_one_but_for_small_input():
    mv, s = _x(7)
    out, t = EquiLayerNorm()(mv, s)
    inner = [0, 2, 3, 4, 8, 9, 10, 14]
    torch.testing.assert_close(out[..., inner].square().sum(-1).mean(-1), torch.ones(7).double())
    torch.testing.assert_close(t.mean(-1), torch.zeros(7).double())
    out, _ = EquiLayerNorm(epsilon=0.01)(1e-3 * mv, s)
    torch.testing.assert_close(out, 1e-2 * mv)


def test_gate_multiplies_by_the_activation_of_the_scalar_part():
    mv, s = _x(4)
    out, t = ScalarGate("gelu")(mv, s)
    gate = torch.nn.functional.gelu(mv[..., :1], approximate="tanh")
    torch.testing.assert_close(out, gate * mv)
    torch.testing.assert_close(t, torch.nn.functional.gelu(s))
    torch.testing.assert_close(ScalarGate("sigmoid")(mv, s)[1], s.sigmoid())
    with pytest.raises(ValueError, match="unknown activation 'tanh'"):
        ScalarGate("tanh")


def test_grade_dropout_drops_whole_grades_and_keeps_the_mean():
    mv, s = torch.ones(4000, 2, 16), torch.ones(4000, 3)
    out, t = GradeDropout(0.25)(mv, s)
    assert out.unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
    for grade in ((1, 5), (5, 11), (11, 15)):
        assert (out[..., slice(*grade)] == out[..., grade[0], None]).all()
    assert out.mean() == pytest.approx(1, abs=0.03)
    assert t.mean() == pytest.approx(1, abs=0.03)
    with pytest.raises(ValueError, match=r"1\.5"):
        GradeDropout(1.5)


def test_distance_logits_are_minus_the_squared_distance_of_points():
    from flashgatr import embed_point

    p, r = torch.randn(2, 5, 3).double()
    none = torch.zeros(5, 1, 0).double()
    q, k = (embed_point(x).reshape(5, 1, 1, 16) for x in (p, r))
    queries = functional.query_features(q, none, epsilon=1e-12).squeeze(1)
    logits = queries @ functional.key_features(k, none, epsilon=1e-12).squeeze(1).T
    torch.testing.assert_close(logits, -torch.cdist(p, r).square())


def test_cross_attention_is_equivariant_and_reads_only_valid_context():
    layer = _jiggle(
        CrossAttention(4, 3, 2, context_mv_channels=2, context_s_channels=0, rotary=True)
    )
    (mv, s), (c_mv, c_s) = _x(2, 5), _x(2, 7, channels=2, scalars=0)
    out = layer(mv, s, c_mv, c_s)
    u = versors.sample()
    moved = layer(versors.apply(u, mv), s, versors.apply(u, c_mv), c_s)
    torch.testing.assert_close(moved[0], versors.apply(u, out[0]))
    torch.testing.assert_close(moved[1], out[1])
    mask = torch.arange(7).expand(2, 7) < 4
    short = layer(mv, s, c_mv[:, :4], c_s[:, :4])
    masked = layer(mv, s, c_mv, c_s, context_sets=Sets((2, 7), mask=mask))
    torch.testing.assert_close(masked, short)
    packed = layer(
        mv.flatten(0, 1),
        s.flatten(0, 1),
        c_mv[:, :4].flatten(0, 1),
        c_s[:, :4].flatten(0, 1),
        sets=Sets((10,), offsets=torch.tensor([0, 5, 10])),
        context_sets=Sets((8,), offsets=torch.tensor([0, 4, 8])),
    )
    torch.testing.assert_close(packed[0].unflatten(0, (2, 5)), short[0])
    with pytest.raises(ValueError, match="both be packed"):
        layer(mv[0], s[0], c_mv[0], c_s[0], sets=Sets((5,), offsets=torch.tensor([0, 5])))


def test_layers_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match=r"expected multivectors \(..., 4, 16\), got \(5, 3, 16\)"):
        EquiLinear(4, 2)(torch.zeros(5, 3, 16))
    with pytest.raises(ValueError, match=r"expected scalars \(5, 3\), got \(5, 0\)"):
        EquiLinear(4, 2, 3)(torch.zeros(5, 4, 16))
    with pytest.raises(ValueError, match="unknown initialization"):
        EquiLinear(4, 2, initialization="tiny")
    with pytest.raises(ValueError, match="rotary"):
        SelfAttention(4, 0, 2, rotary=True)
    with pytest.raises(ValueError, match="reinsert="):
        SelfAttention(4, 3, 2, reinsert_mv_channels=1)(*(x.float() for x in _x(5)))
    with pytest.raises(TypeError, match="multi_quary"):
        SelfAttention(4, 3, 2, multi_quary=True)
    with pytest.raises(ValueError, match="re-inserts nothing"):
        SelfAttention(4, 3, 2).double()(*_x(5), reinsert=_x(5))
    with pytest.raises(ValueError, match="num_heads must be at least 1, got 0"):
        SelfAttention(4, 3, 0)
    with pytest.raises(ValueError, match="num_heads must be at least 1, got 0"):
        GeometricAttention(0, 4, 3)
    with pytest.raises(ValueError, match=r"unknown learned_weights 'some'; .* none, distance, all"):
        SelfAttention(4, 3, 2, learned_weights="some")
    for x in _x(5)[0], torch.ones(5, 4, 16).long():
        with pytest.raises(TypeError, match=rf"mv has dtype {x.dtype}, the layer torch\.float32"):
            EquiLinear(4, 2)(x)
    with pytest.raises(TypeError, match=r"s has dtype torch\.float64.*s\.to\(torch\.float32\)"):
        EquiLinear(4, 2, 3)(torch.zeros(5, 4, 16), torch.zeros(5, 3).double())
    assert EquiLinear(4, 2)(torch.zeros(5, 4, 16).bfloat16())[0].dtype == torch.float32
    assert EquiLinear(4, 2).half()(torch.zeros(5, 4, 16))[0].dtype == torch.float16


def test_learned_weights_may_be_true_or_false():
    assert GeometricAttention(2, 4, 3, learned_weights=True).log_beta.shape == (2, 4)
    assert not list(GeometricAttention(2, 4, 3, learned_weights=False).parameters())


def test_a_linear_layer_without_input_gives_its_bias():
    mv = torch.zeros(5, 0, 16)
    layer = EquiLinear(0, 2, 0, 3)
    assert torch.equal(layer(mv)[1], layer.bias_s.expand(5, 3))
    assert torch.equal(EquiLinear(0, 2, 0, 3, bias=False)(mv)[1], torch.zeros(5, 3))


def test_a_reference_per_sample_is_not_taken_for_one_per_item():
    mv, s = _x(3, 3)
    for layer in (GeometricBilinear(4, 6, 3, 2).double(), GeoMLP(4, 3).double()):
        with pytest.raises(ValueError, match=r"items \(3, 3\), got \(3,\)"):
            layer(mv, s, torch.ones(3).double())
        for shape in ((), (1,), (3, 1), (3, 3)):
            assert layer(mv, s, torch.ones(shape).double())[0].shape[:2] == (3, 3)


def test_values_may_be_narrower_than_queries():
    attention = GeometricAttention(2, 4, 3).double()
    (q_mv, q_s), (k_mv, k_s), (v_mv, v_s) = (_x(5, 2, channels=c) for c in (4, 4, 1))
    q, k = Heads(q_mv, q_s), Heads(k_mv, k_s)
    out, s = attention(q, k, Heads(v_mv, v_s))
    wide = torch.cat([v_mv, torch.zeros(5, 2, 3, 16).double()], dim=-2)
    expected, t = attention(q, k, Heads(wide, v_s))
    torch.testing.assert_close(out, expected.unflatten(-2, (2, 4))[..., 0, :])
    torch.testing.assert_close(s, t)


def test_layers_print_their_widths():
    assert "4 mv + 3 s -> 5 mv + 2 s" in repr(EquiLinear(4, 5, 3, 2))
    assert "2 heads of 4 mv + 4 s, multi-query" in repr(SelfAttention(4, 3, 2))
    assert "epsilon=0.01" in repr(EquiLayerNorm())
    assert "gelu" in repr(ScalarGate())
    assert "p=0.1" in repr(GradeDropout(0.1))
