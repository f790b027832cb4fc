"""Laws of the SE(3)-Transformer: symmetries, formulas, and the same meaning of sets as GATr's."""

import copy
import math

import pytest
import torch
from torch.autograd import gradcheck

from flashgatr.batch import pack, pad
from flashgatr.experiments.baselines import FusedSE3Transformer, SE3Transformer
from flashgatr.experiments.baselines.se3_transformer import AttentionBlock, ConcatenatedMix
from flashgatr.experiments.baselines.tensor_field import (
    Basis,
    Convolution,
    Fiber,
    FusedRadial,
    NormBias,
    NormLayerNorm,
    Pairs,
    PairwiseRadial,
)
from flashgatr.experiments.baselines.wigner import SphericalHarmonics, wigner_3j
from flashgatr.experiments.nbody import EXPERIMENT
from flashgatr.experiments.nbody.models import fits

from .test_wigner import rotation, rotation_of_degree

VECTOR, TWO_VECTORS = Fiber(1, 1, 1), Fiber(2, 1, 1)
NETS = {
    "original": lambda: SE3Transformer(VECTOR, TWO_VECTORS, 4, 3, 2, div=2),
    "heads": lambda: SE3Transformer(Fiber(2, 0, 1), Fiber(2, 0, 2), 8, 2, 2, 2, div=2),
    "fused": lambda: FusedSE3Transformer(VECTOR, Fiber(2, 0, 1), 8, 2, 2, 2, div=2),
}


def _net(name):
    torch.manual_seed(0)
    return NETS[name]().double()


def _data(net, *items):
    fiber = net.fiber_in
    features = torch.randn(*items, fiber.channels, fiber.components, dtype=torch.float64)
    return features, torch.randn(*items, 3).double(), torch.rand(*items, 1).double()


def _turn(x, turn, fiber):
    blocks = [rotation_of_degree(turn, degree) for degree in fiber.degrees]
    return x @ torch.block_diag(*blocks).T


def _out_fiber(net, out):
    return next(f for f in (TWO_VECTORS, Fiber(2, 0, 1), Fiber(2, 0, 2)) if f.components == out)


def _relative(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


def _parameters(build):
    with torch.device("meta"):
        return sum(p.numel() for p in build().parameters())


def test_sizes_are_those_of_the_authors():
    """291,720 with linear maps only, and 2,200 more for the attentive mix at the end."""
    assert _parameters(lambda: SE3Transformer(VECTOR, TWO_VECTORS)) == 291_720 + 2_200
    with torch.device("meta"):
        mix = ConcatenatedMix(TWO_VECTORS, Fiber(8, 0, 3), TWO_VECTORS)
        attentive = SE3Transformer(VECTOR, TWO_VECTORS).last.mix
    assert sum(p.numel() for p in attentive.parameters()) == 2_220
    assert sum(p.numel() for p in mix.parameters()) == 20


@pytest.mark.parametrize("name", NETS)
def test_it_commutes_with_rotations_translations_and_permutations(name):
    net = _net(name).float().double()  # conversions leave the constants exact
    features, position, charges = _data(net, 3, 5)
    out = net(features, position, charges)
    turn, shift, order = rotation(), torch.randn(3, 1, 3).double(), torch.randperm(5)
    fiber = _out_fiber(net, out.shape[-1])
    moved = net(_turn(features, turn, net.fiber_in), position @ turn.T + shift, charges)
    assert _relative(moved, _turn(out, turn, fiber)) < 1e-12
    shuffled = net(features[:, order], position[:, order], charges[:, order])
    assert _relative(shuffled, out[:, order]) < 1e-12
    assert _relative(net(_turn(features, turn, net.fiber_in), position, charges), out) > 1e-2


def test_it_does_not_commute_with_mirrors():
    """Vectors change sign under a point reflection; the network's do not follow."""
    for name in ("original", "fused"):
        net = _net(name)
        features, position, charges = _data(net, 3, 5)
        out = net(features, position, charges)[..., -3:]
        assert _relative(net(-features, -position, charges)[..., -3:], -out) > 0.1


def _pairs(vectors, invariants, highest):
    valid = ~torch.eye(vectors.shape[-2], dtype=torch.bool)
    valid = valid.expand(vectors.shape[:-1])
    return Pairs(valid, vectors, invariants, Basis(highest).double()(vectors))


def _expected_messages(x, vectors, fiber, output, weights):
    """Σ_k Σ_J φ (C Y) f, term by term; weights[ℓ] is (E, channels, C, F)."""
    harmonics = SphericalHarmonics(6).double()(vectors)
    parts = []
    for degree in output.degrees:
        total, column = 0, 0
        for k in fiber.degrees:
            f = x[..., fiber.place(Fiber(1, k, k))]
            for j in range(abs(k - degree), k + degree + 1):
                y = harmonics[..., j**2 : (j + 1) ** 2]
                message = torch.einsum("abm,eca,eb->ecm", wigner_3j(k, j, degree), f, y)
                total = total + torch.einsum("eoc,ecm->eom", weights[degree][..., column], message)
                column += 1
        parts.append(total)
    return torch.cat(parts, dim=-1)


CONVOLUTIONS = [
    (Fiber(3, 0, 3), Fiber(2, 0, 3), Fiber(2, 0, 3)),
    (VECTOR, Fiber(2, 0, 3), Fiber(2, 1, 1)),
    (Fiber(3, 1, 2), Fiber(2, 0, 1), Fiber(2, 1, 1)),
]


@pytest.mark.parametrize("radial", [PairwiseRadial, FusedRadial])
@pytest.mark.parametrize(("fiber", "values", "keys"), CONVOLUTIONS, ids=["all", "first", "some"])
def test_the_convolution_is_the_formula(radial, fiber, values, keys):
    layer = Convolution(fiber, (values, keys), radial, edge_channels=1).double()
    x = torch.randn(4, fiber.channels, fiber.components).double()
    vectors, invariants = torch.randn(4, 4, 3).double(), torch.randn(4, 4, 2).double()
    found = layer(x, _pairs(vectors, invariants, 3))
    weights = dict(zip(layer.roles, layer.radial(invariants.flatten(0, 1)), strict=True))
    senders = x.expand(4, 4, -1, -1).flatten(0, 1)
    for role, (output, messages) in enumerate(zip((values, keys), found, strict=True)):
        own = {
            degree: weights[degree].unflatten(1, (-1, 2))[:, role].unflatten(-1, (x.shape[1], -1))
            for degree in output.degrees
        }
        expected = _expected_messages(senders, vectors.flatten(0, 1), fiber, output, own)
        torch.testing.assert_close(messages.flatten(0, 1), expected, rtol=0, atol=1e-12)


@pytest.fixture
def double():
    """e3nn keeps its constants in the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("radial", [PairwiseRadial, FusedRadial])
def test_the_convolution_is_the_tensor_product_of_e3nn(radial, double):
    o3 = pytest.importorskip("e3nn.o3")
    fiber, output = Fiber(3, 0, 3), Fiber(2, 0, 3)
    layer = Convolution(fiber, (output,), radial, edge_channels=1).double()
    x, vectors = torch.randn(4, 3, 16).double(), torch.randn(4, 4, 3).double()
    invariants = torch.randn(4, 4, 2).double()
    (found,) = layer(x, _pairs(vectors, invariants, 3))
    phi = layer.radial(invariants.flatten(0, 1))
    couples = [
        (degree, k, j)
        for degree in range(4)
        for k in range(4)
        for j in range(abs(k - degree), k + degree + 1)
    ]
    product = o3.TensorProduct(
        [(3, (k, 1)) for k in range(4)],  # all even: every couple (k, J) exists
        [(1, (j, 1)) for j in range(7)],
        [(2, (degree, 1)) for degree in range(4)],
        [(k, j, degree, "uvw", True) for degree, k, j in couples],
        irrep_normalization="none",
        path_normalization="none",
        shared_weights=False,
    ).double()
    columns = torch.cat([w.unflatten(-1, (3, -1)) for w in phi], dim=-1)  # (E, 2, 3, couples)
    weight = columns.permute(0, 3, 2, 1).flatten(1)
    senders = x.expand(4, 4, -1, -1).flatten(0, 1)
    ordered = torch.cat([senders[..., d**2 : (d + 1) ** 2].flatten(1) for d in range(4)], dim=-1)
    harmonics = SphericalHarmonics(6).double()(vectors).flatten(0, 1)
    expected = product(ordered, harmonics, weight)
    found = found.flatten(0, 1)
    found = torch.cat([found[..., d**2 : (d + 1) ** 2].flatten(1) for d in range(4)], dim=-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_every_degree_and_role_has_a_radial_network_of_its_own():
    """The batch of networks is what nn.Sequential computes, one network after the other."""
    fiber, roles = Fiber(3, 0, 2), {0: 2, 1: 1, 2: 1}
    radial, e = PairwiseRadial(2, fiber, 4, roles).double(), torch.randn(6, 2).double()
    network, slot = 0, 0
    for (degree, count), found in zip(roles.items(), radial(e), strict=True):
        found = found.unflatten(1, (count, 4)).unflatten(-1, (3, -1))
        for role in range(count):
            column = 0
            for k in fiber.degrees:
                h = e
                for linear, norm in (("first", "first_norm"), ("second", "second_norm")):
                    linear, norm = getattr(radial, linear), getattr(radial, norm)
                    h = h @ linear.weight[network] + linear.bias[network]
                    h = torch.nn.functional.layer_norm(h, (32,))
                    h = (h * norm.weight[network] + norm.bias[network]).relu()
                for _ in range(2 * min(k, degree) + 1):
                    expected = h @ radial.last.weight[slot] + radial.last.bias[slot]
                    torch.testing.assert_close(
                        found[:, role, ..., column].flatten(1), expected, rtol=0, atol=1e-12
                    )
                    slot, column = slot + 1, column + 1
                network += 1
    assert (network, slot) == (len(radial.first.bias), len(radial.last.bias)) == (12, 22)


def test_attention_is_the_formula():
    fiber, heads = Fiber(4, 0, 1), 2
    block = AttentionBlock(
        fiber,
        fiber,
        PairwiseRadial,
        ConcatenatedMix,
        div=1,
        num_heads=heads,
        edge_channels=1,
        add_position=True,
        checkpoint=False,
    ).double()
    x, vectors = torch.randn(4, 4, 4).double(), torch.randn(4, 4, 3).double()
    pairs = _pairs(vectors, torch.randn(4, 4, 2).double(), 1)
    senders = x.expand(4, 4, -1, -1).clone()
    senders[..., 0, 1:] += vectors  # the relative position, in channel 0 of degree 1
    plain = copy.deepcopy(block.convolution)
    plain.add_position = False
    edges = [plain(senders[i], pairs) for i in range(4)]
    values, keys = (torch.stack([edges[i][role][i] for i in range(4)]) for role in range(2))
    queries = torch.stack([block.query(x[i]) for i in range(4)])
    expected = torch.zeros(4, 4, 4).double()
    for i in range(4):
        for head in range(heads):
            own, others = slice(2 * head, 2 * head + 2), [j for j in range(4) if j != i]
            logits = (queries[i, own] * keys[i, others, own]).sum((-2, -1)) / math.sqrt(4 * 4)
            weights = logits.softmax(0)
            expected[i, own] = torch.einsum("j,jcs->cs", weights, values[i, others, own])
    found = block._attend(x, pairs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    both = torch.cat([found, x], dim=-2)
    weight = torch.cat([block.mix.from_attended.weight, block.mix.from_features.weight], dim=-1)
    mixed = torch.stack([weight[0] @ both[i, :, :1] for i in range(4)])
    torch.testing.assert_close(block(x, pairs)[..., :1], mixed, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [NormBias, NormLayerNorm])
def test_nonlinearities_change_norms_and_keep_directions(kind):
    """Dividing the norm by the feature, a mistake in a published version, is not equivariant."""
    fiber = Fiber(5, 0, 2)
    layer, x = kind(fiber).double(), torch.randn(6, 5, 9).double()
    torch.nn.init.normal_(layer.bias)
    out, turn = layer(x), rotation()
    norms = torch.stack([x[..., d**2 : (d + 1) ** 2].norm(dim=-1) for d in range(3)], dim=-1)
    new = layer.new_norms(norms)
    one_hot = torch.tensor(fiber.one_hot()).double()
    torch.testing.assert_close(out, x / (norms @ one_hot.T) * (new @ one_hot.T))

    def mistaken(x):
        squared = x.square() @ one_hot
        return layer.new_norms(squared.sqrt()) @ one_hot.T / x * (squared.sqrt() @ one_hot.T)

    assert _relative(layer(_turn(x, turn, fiber)), _turn(out, turn, fiber)) < 1e-12
    assert _relative(mistaken(_turn(x, turn, fiber)), _turn(mistaken(x), turn, fiber)) > 0.1


def test_layer_norm_is_over_the_channels_of_a_degree():
    layer, norms = NormLayerNorm(Fiber(5, 0, 1)).double(), torch.rand(3, 5, 2).double()
    expected = torch.nn.functional.group_norm(norms.mT.flatten(1), 2, eps=1e-5)
    torch.testing.assert_close(layer.new_norms(norms).mT.flatten(1), expected.relu())


@pytest.mark.parametrize("name", NETS)
def test_coincident_and_resting_bodies_have_finite_gradients(name):
    net = _net(name)
    features, position, charges = _data(net, 2, 4)
    features[0], position[0], position[1, :2] = 0, 1, 1
    features.requires_grad_(), position.requires_grad_()
    net(features, position, charges).square().sum().backward()
    for x in (features, position, *net.parameters()):
        assert x.grad.isfinite().all()
    assert position.grad[1].any()


@pytest.mark.parametrize("name", NETS)
def test_a_sample_alone_padded_packed_or_in_a_batch_is_the_same(name):
    net = _net(name)
    samples = [_data(net, n) for n in (4, 1, 0, 6)]
    parts = list(zip(*samples, strict=True))
    padded, mask = zip(*map(pad, parts), strict=True)
    packed, offsets = zip(*map(pack, parts), strict=True)
    junk = [
        torch.where(mask[0].reshape(*mask[0].shape, *[1] * (x.dim() - 2)), x, torch.nan)
        for x in padded
    ]
    from_padded = net(*junk, mask=mask[0])
    from_packed = net(*packed, offsets=offsets[0])
    assert not from_padded[~mask[0]].any()

    def assert_same(found, expected):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)

    assert_same(from_padded[mask[0]], from_packed)
    assert_same(from_packed, net(*packed, offsets=offsets[0], max_items=9))
    assert_same(from_packed, torch.cat([net(*sample) for sample in samples]))
    grid = [x.reshape(2, 2, *x.shape[1:]) for x in padded]
    assert_same(net(*grid, mask=mask[0].reshape(2, 2, 6)).flatten(0, 1), from_padded)
    assert net(*(x[:0] for x in padded)).shape[0] == 0


def test_not_a_number_in_padding_reaches_no_gradient():
    for name in NETS:
        net = _net(name)
        mask = torch.tensor([[True, True, True, False], [False] * 4])
        given = _data(net, 2, 4)
        for x in given:
            x[~mask] = torch.nan
            x.requires_grad_()
        net(*given, mask=mask).square().sum().backward()
        assert not any(x.grad[~mask].any() for x in given)
        assert all(p.grad.isfinite().all() for p in net.parameters())


def test_gradients_are_the_derivatives():
    for build in (
        lambda: SE3Transformer(VECTOR, TWO_VECTORS, 2, 1, 1, div=1),
        lambda: FusedSE3Transformer(VECTOR, VECTOR, 2, 1, 1, div=1),
    ):
        torch.manual_seed(1)
        net = build().double()
        features, position, charges = (x.requires_grad_() for x in _data(net, 3))
        assert gradcheck(net, (features, position, charges))


@pytest.mark.parametrize("name", ["original", "fused"])
def test_checkpointing_changes_no_gradient(name):
    net = _net(name)
    again = copy.deepcopy(net)
    for module in again.modules():
        if hasattr(module, "checkpoint"):
            module.checkpoint = True
    data, gradients = _data(net, 2, 4), []
    for f in (net, again):
        f(*data).square().sum().backward()
        gradients.append([p.grad for p in f.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-11)


def test_parameters_in_bfloat16_return_the_residual_streams_dtype():
    for name in ("original", "fused"):
        net = _net(name).float()
        data = [x.float() for x in _data(net, 2, 3)]
        plain = net(*data)
        with torch.autocast("cpu", torch.bfloat16):
            assert _relative(net(*data), plain) < 0.3
        assert net.bfloat16()(*(x.bfloat16() for x in data)).dtype == torch.float32


def test_the_model_of_the_experiment_moves_with_the_bodies():
    options = dict(hidden_channels=4, num_layers=2, max_degree=2)
    model = EXPERIMENT.build("se3_transformer", options).double()
    assert fits(model, 4)
    assert fits(model, 6)
    mass, position, velocity = torch.rand(3, 6).double(), *torch.randn(2, 3, 6, 3).double()
    turn, shift = rotation(), 100 * torch.randn(3, 1, 3).double()
    out, regulariser = model(mass, position, velocity)
    moved, _ = model(mass, position @ turn.T + shift, velocity @ turn.T)
    torch.testing.assert_close(moved, out @ turn.T + shift, rtol=0, atol=1e-11)
    assert regulariser == 0
    assert (model(2 * mass, position, velocity)[0] - out).abs().max() > 1e-4


def test_representations_say_what_it_is():
    assert repr(SE3Transformer(VECTOR, TWO_VECTORS)) == (
        "SE3Transformer(4 layers of degrees 0 to 3, 293,920 parameters)"
    )


CONFIGS = {
    "no layers": (dict(num_layers=0), "num_layers .* at least 1, got 0"),
    "negative degree": (dict(max_degree=-1), "max_degree .* at least 0"),
    "degree too low": (dict(max_degree=0), "fiber_in must have degrees between 0 and max_degree=0"),
    "few channels": (dict(hidden_channels=2), "got 2 / 4; use at least 4"),
    "heads that do not divide": (dict(num_heads=3), "2 channels of values .* 3 heads"),
    "no vectors": (dict(fiber_in=Fiber(0, 1, 1)), "fiber_in.channels .* got 0"),
    "upside down": (dict(fiber_out=Fiber(1, 2, 1)), "fiber_out .* got 2 to 1"),
}


@pytest.mark.parametrize("case", CONFIGS, ids=str)
def test_a_wrong_option_is_refused_in_one_sentence(case):
    options, text = CONFIGS[case]
    with pytest.raises(ValueError, match=text) as caught:
        SE3Transformer(**{**dict(fiber_in=VECTOR, fiber_out=TWO_VECTORS), **options})
    assert "\n" not in str(caught.value)


F, X, Q = torch.randn(2, 5, 1, 3), torch.randn(2, 5, 3), torch.rand(2, 5, 1)
CALLS = {
    "wrong channels": (
        (F.expand(2, 5, 2, 3), X, Q),
        ValueError,
        r"features must be \(2, 5, 1, 3\)",
    ),
    "wrong components": ((F[..., :2], X, Q), ValueError, r"\(..., N, 1, 3\), got \(2, 5, 1, 2\)"),
    "other items": ((F[:, :4], X, Q), ValueError, r"got \(2, 4, 1, 3\)"),
    "no charges": ((F, X), ValueError, r"\(..., N, 1\), got \(2, 5, 0\)"),
    "double input": ((F, X.double(), Q), TypeError, r"x\.to\(torch\.float32\)"),
    "not a tensor": ((F, X.tolist(), Q), TypeError, "got list"),
}


@pytest.mark.parametrize("case", CALLS, ids=str)
def test_a_wrong_call_is_refused_in_one_sentence(case):
    given, error, text = CALLS[case]
    with pytest.raises(error, match=text) as caught:
        SE3Transformer(VECTOR, TWO_VECTORS, 4, 1, 1)(*given)
    assert "\n" not in str(caught.value)
