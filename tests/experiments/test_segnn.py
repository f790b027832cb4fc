"""Laws of SEGNN: symmetries, e3nn's numbers, the same meaning of sets as GATr's."""

import pytest
import torch

from flashgatr.batch import pack, pad
from flashgatr.experiments.baselines import SEGNN, steerable
from flashgatr.experiments.baselines.segnn import PairLinear, balanced_channels
from flashgatr.experiments.baselines.steerable import (
    Couplings,
    SteerableLinear,
    find_paths,
    gate,
    gated_channels,
)
from flashgatr.experiments.nbody import EXPERIMENT as NBODY

VARIANTS = [
    {},
    dict(k=3),
    dict(norm="instance", charge_as_node_scalar=True),
    dict(degree=2, attribute_degree=2, k=3),
    dict(degree=1, attribute_degree=3),
    dict(degree=3, attribute_degree=1, norm="instance"),
]


def _net(**options):
    return SEGNN(12, 2, **options).double()


def _weights(net):
    """The parameters; in some networks a map has no path from the highest degree."""
    return [p for p in net.parameters() if p.numel()]


def _bodies(*shape):
    position, velocity = torch.randn(2, *shape, 3, dtype=torch.float64)
    return position, velocity, torch.randn(*shape, dtype=torch.float64)


def _rotation():
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    return turn * turn.det()


def _assert_same(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def test_sizes_are_the_papers():
    def parameters(**options):
        with torch.device("meta"):
            return sum(p.numel() for p in SEGNN(**options).parameters())

    assert parameters() == 147_424
    assert parameters(charge_as_node_scalar=True) == 147_424 + 2 * 32
    assert parameters(norm="instance") == 147_424 + 4 * 3 * 32
    assert "4 layers of 32 channels" in repr(SEGNN())


@pytest.mark.parametrize("degrees", [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2)], ids=str)
def test_hidden_maps_have_as_many_weights_as_the_linear_map_they_replace(degrees):
    paths = len(find_paths(degrees[0], degrees[1], degrees[0]))
    channels = balanced_channels(64, *degrees)
    assert (channels - 1) ** 2 * paths < 64**2 <= channels**2 * paths


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("sign", [1, -1], ids=["rotation", "reflection"])
def test_vectors_turn_and_mirror_with_the_bodies_and_ignore_translations(options, sign):
    net, (position, velocity, charge) = _net(**options), _bodies(3, 6)
    turn, shift = sign * _rotation(), torch.randn(3, 1, 3, dtype=torch.float64)
    out = net(position, velocity, charge)
    assert out.abs().max() > 1e-2
    _assert_same(net(position @ turn + shift, velocity @ turn, charge), out @ turn)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_bodies_have_no_order(options):
    net, order = _net(**options), torch.randperm(6)
    bodies = _bodies(2, 6)
    _assert_same(net(*(x[:, order] for x in bodies)), net(*bodies)[:, order])


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_sample_alone_padded_packed_or_in_a_batch_is_the_same(options):
    net = _net(**options)
    samples = [_bodies(n) for n in (4, 1, 0, 6)]
    padded = [pad(list(x)) for x in zip(*samples, strict=True)]
    mask = padded[0][1]
    junk = [torch.where(mask.reshape(*mask.shape, *[1] * (x.dim() - 2)), x, torch.nan)
            for x, _ in padded]  # fmt: skip
    packed = [pack(list(x)) for x in zip(*samples, strict=True)]
    offsets, packed = packed[0][1], [x for x, _ in packed]
    from_padded, from_packed = net(*junk, mask=mask), net(*packed, offsets=offsets)
    assert not from_padded[~mask].any()
    _assert_same(from_padded[mask], from_packed)
    _assert_same(from_packed, net(*packed, offsets=offsets, max_items=9))
    _assert_same(from_packed, torch.cat([net(*x) for x in samples]))
    again = [x.reshape(2, 2, *x.shape[1:]) for x in junk]
    _assert_same(net(*again, mask=mask.reshape(2, 2, 6)).flatten(0, 1), from_padded)


def test_predicted_positions_move_with_the_bodies():
    model = NBODY.build("segnn", dict(hidden_channels=12, mass_as_node_scalar=True)).double()
    position, velocity, mass = _bodies(3, 6)
    turn, shift = -_rotation(), 100 * torch.randn(3, 1, 3, dtype=torch.float64)
    out, regulariser = model(mass, position, velocity)
    moved, _ = model(mass, position @ turn + shift, velocity @ turn)
    _assert_same(moved, out @ turn + shift, 1e-11)
    assert regulariser == 0
    _assert_same(out - position, model.net(position, velocity, mass))


def test_neighbours_are_the_nearest_others():
    position = torch.tensor([0.0, 1, 3, 7, 15, 31], dtype=torch.float64)[:, None] * torch.eye(3)[0]
    _, velocity, charge = _bodies(6)
    net = SEGNN(12, 1, k=1).double()  # one layer: a body hears its neighbours and no one else
    # Positions are relative to the mean, so what is changed is the charge.
    out = net(position, velocity, charge)
    for body, nearest in enumerate([1, 0, 1, 2, 3, 4]):
        changed = {
            other
            for other in range(6)
            if other != body
            and (net(position, velocity, charge + 5 * torch.eye(6)[other]) - out)[body].any()
        }
        assert changed == {nearest}
    everyone = SEGNN(12, 1, k=5).double()
    everyone.load_state_dict(net.state_dict())
    dense = SEGNN(12, 1).double()
    dense.load_state_dict(net.state_dict())
    assert torch.equal(everyone(position, velocity, charge), dense(position, velocity, charge))


def test_charges_enter_as_products_unless_bodies_may_see_their_own():
    position, velocity, charge = _bodies(2, 5)
    net = _net()
    assert torch.equal(net(position, velocity, -charge), net(position, velocity, charge))
    seeing = _net(charge_as_node_scalar=True)
    flipped = seeing(position, velocity, -charge) - seeing(position, velocity, charge)
    assert flipped.abs().max() > 1e-3


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_body_alone_at_rest_or_on_top_of_another_is_no_exception(options):
    """An isolated body has no neighbours, and zero vectors have no direction."""
    net = _net(**options)
    alone = net(*_bodies(3, 1))
    assert alone.isfinite().all()
    position, velocity, charge = _bodies(2, 5)
    position[:, 1] = position[:, 0]
    velocity[:, 2] = 0
    inputs = [x.requires_grad_() for x in (position, velocity, charge)]
    out = net(*inputs)
    out.square().sum().backward()
    assert out.isfinite().all()
    for x in (*inputs, *_weights(net)):
        assert x.grad.isfinite().all()
        assert x.grad.abs().max() < 1e6
    turn = -_rotation()
    _assert_same(net(position @ turn, velocity @ turn, charge), out @ turn)


def test_not_a_number_in_padding_reaches_no_gradient():
    for options in VARIANTS:
        net, bodies = _net(**options), _bodies(2, 5)
        mask = torch.tensor([[True, True, True, True, False], [False] * 5])
        for x in bodies:
            x[~mask] = torch.nan
            x.requires_grad_()
        net(*bodies, mask=mask).square().sum().backward()
        assert not any(x.grad[~mask].any() for x in bodies)
        assert all(p.grad.isfinite().all() for p in _weights(net))


def test_gradients_are_the_derivatives():
    for options in ({}, dict(degree=2, attribute_degree=2), dict(norm="instance", k=2)):
        net = SEGNN(4, 1, **options).double()
        bodies = [x.requires_grad_() for x in _bodies(1, 4)]
        assert torch.autograd.gradcheck(net, bodies)


def test_compilers_see_one_graph():
    torch._dynamo.reset()
    bodies, mask = _bodies(2, 5), torch.rand(2, 5) < 0.7
    for options in ({}, dict(k=3, norm="instance")):
        net = SEGNN(8, 1, **options).double()
        compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
        _assert_same(compiled(*bodies, mask=mask), net(*bodies, mask=mask))
    torch._dynamo.reset()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("options", [{}, dict(k=2)], ids=str)
def test_a_captured_pass_gives_the_same_gradients(options):
    net, bodies = SEGNN(**options).cuda(), [x.float().cuda() for x in _bodies(64, 4)]

    def gradients():
        return torch.autograd.grad(net(*bodies).square().mean(), list(net.parameters()))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            expected = gradients()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_residual_stream_has_full_precision():
    net, bodies = SEGNN(12, 2), [x.float() for x in _bodies(2, 4)]
    exact = net(*bodies)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = net(*bodies)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.05 * exact.abs().max()
    halved = net.bfloat16()(*(x.bfloat16() for x in bodies))
    assert halved.dtype == torch.float32
    assert (halved - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0,), (1, 1)], ids=str)
def test_empty_and_single_sets(shape):
    for options in VARIANTS:
        bodies = [x.requires_grad_() for x in _bodies(*shape)]
        out = _net(**options)(*bodies)
        assert out.shape == (*shape, 3)
        out.sum().backward()


# ---- e3nn as an oracle ----


def _irreps(channels):
    return "+".join(f"{c}x{n}{'eo'[n % 2]}" for n, c in enumerate(channels) if c)


def _flat(features):
    """Features (E, 2l + 1, C) in e3nn's order."""
    return torch.cat([x.mT.flatten(1) for x in features], dim=-1)


def _e3nn_map(linear, weights):
    """e3nn's map of the same weights; both take flat features and flat attributes."""
    o3 = pytest.importorskip("e3nn.o3")
    torch.set_default_dtype(torch.float64)  # e3nn rounds its constants to the default dtype
    try:
        found = o3.FullyConnectedTensorProduct(
            _irreps(linear.in_channels),
            o3.Irreps.spherical_harmonics(linear.attribute_degree),
            _irreps(linear.out_channels),
            irrep_normalization="component",
            path_normalization="element",
        )
    finally:
        torch.set_default_dtype(torch.float32)
    blocks = {}
    for degree, weight in enumerate(weights):
        paths = [path for path in linear.paths if path[0] == degree]
        columns = weight.split([linear.out_channels[path[2]] for path in paths], dim=1)
        blocks |= zip(paths, columns, strict=True)
    first = 0 if linear.out_channels[0] else 1  # e3nn has no entry for degrees without channels
    fans = [
        sum(linear.in_channels[path[0]] for path in linear.paths if path[2] == degree)
        for degree in range(len(linear.out_channels))
    ]
    assert len(found.instructions) == len(linear.paths)
    with torch.no_grad():
        for step, view in zip(found.instructions, found.weight_views(), strict=True):
            path = (step.i_in1, step.i_in2, step.i_out + first)
            view[:, 0] = blocks[path] * fans[path[2]] ** 0.5  # e3nn divides by it

    def apply(x, attributes):
        out = found(x, attributes)
        if linear.bias is not None:
            out[:, : len(linear.bias)] += linear.bias
        return out

    return apply


@pytest.fixture
def _scales_of_e3nn(monkeypatch):
    """e3nn estimates the two constants with random numbers; ours are exact."""
    normalize2mom = pytest.importorskip("e3nn.math").normalize2mom
    estimates = [normalize2mom(f).cst for f in (torch.nn.SiLU(), torch.sigmoid)]
    for name, estimate in zip(("SILU_SCALE", "SIGMOID_SCALE"), estimates, strict=True):
        assert abs(getattr(steerable, name) / estimate - 1) < 3e-3
        monkeypatch.setattr(steerable, name, estimate)


def _e3nn_gate(channels, degree):
    nn, o3 = pytest.importorskip("e3nn.nn"), pytest.importorskip("e3nn.o3")
    gated = o3.Irreps(_irreps([0, *[channels] * degree]))
    scalars, gates = f"{channels}x0e", f"{channels * degree}x0e"
    return nn.Gate(scalars, [torch.nn.SiLU()], gates, [torch.sigmoid], gated).double()


@pytest.mark.usefixtures("_scales_of_e3nn")
@pytest.mark.parametrize("degrees", [(1, 1), (1, 2), (2, 1), (2, 2), (3, 3)], ids=str)
def test_a_gated_map_is_e3nns(degrees):
    degree, attribute_degree = degrees
    channels = [5, 4, 3, 2][: degree + 1]
    linear = SteerableLinear(channels, gated_channels(6, degree), attribute_degree).double()
    x = tuple(torch.randn(8, 2 * n + 1, c).double() for n, c in enumerate(channels))
    attributes = torch.randn(8, (attribute_degree + 1) ** 2).double()
    attributes[:, 0] = 0.7
    mapped = _e3nn_map(linear, linear.weights)(_flat(x), attributes)
    found = linear(x, Couplings(*degrees).steer(0.7, attributes[:, 1:]))
    _assert_same(_flat(found), mapped, 1e-10)
    _assert_same(_flat(gate(found)), _e3nn_gate(6, degree)(mapped), 1e-10)


def _pair_weights(linear: PairLinear):
    """The weights of f_i ⊕ f_j ⊕ scalars, one matrix per degree."""
    rows = [torch.cat(weight.chunk(2, dim=1)) for weight in linear.weights]
    return [torch.cat([rows[0], linear.scalar_weight]), *rows[1:]]


@pytest.mark.usefixtures("_scales_of_e3nn")
@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("n", [1, 5])
def test_the_network_is_the_formula_in_e3nns_operations(degree, n):
    o3 = pytest.importorskip("e3nn.o3")
    net = _net(degree=degree, attribute_degree=degree)
    position, velocity, charge = _bodies(n)
    channels = net.linear_in.out_channels[0]
    parts = [channels * (2 * m + 1) for m in range(degree + 1)]
    nonlinear = _e3nn_gate(channels, degree)

    def joined(*features):
        """e3nn's order: all scalars, then all vectors, and so on."""
        pieces = [x.split(parts, dim=-1) for x in features]
        return torch.cat([x for degree_of in zip(*pieces, strict=True) for x in degree_of], dim=-1)

    def attribute(vectors):
        irreps = o3.Irreps.spherical_harmonics(degree)
        return o3.spherical_harmonics(irreps, vectors, True, "integral")

    i, j = (~torch.eye(n).bool()).nonzero().T
    pairs = attribute(position[j] - position[i])
    mean = torch.zeros(n, (degree + 1) ** 2).double().index_add(0, i, pairs) / max(n - 1, 1)
    items = mean + attribute(velocity)
    items[:, 0] = 1
    scalars = torch.stack([(position[j] - position[i]).norm(dim=-1), charge[i] * charge[j]], -1)
    centred = position - position.mean(0)
    x = torch.cat([velocity.norm(dim=-1, keepdim=True), centred, velocity], -1)
    x = _e3nn_map(net.linear_in, net.linear_in.weights)(x, items)
    for layer in net.layers:
        both = joined(x[i], x[j])
        message = torch.cat([both[:, : 2 * channels], scalars, both[:, 2 * channels :]], -1)
        first = _e3nn_map(layer.message_in, _pair_weights(layer.message_in))
        message = nonlinear(first(message, pairs))
        message = nonlinear(_e3nn_map(layer.message_out, layer.message_out.weights)(message, pairs))
        received = torch.zeros_like(x).index_add(0, i, message)
        update = _e3nn_map(layer.update_in, layer.update_in.weights)(joined(x, received), items)
        x = x + _e3nn_map(layer.update_out, layer.update_out.weights)(nonlinear(update), items)
    x = nonlinear(_e3nn_map(net.last, net.last.weights)(x, items))
    expected = _e3nn_map(net.linear_out, net.linear_out.weights)(x, items)
    _assert_same(net(position, velocity, charge), expected, 1e-10)


# ---- errors ----


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (dict(hidden_channels=0), ValueError, "hidden_channels .* at least 1, got 0"),
        (dict(degree=0), ValueError, "degree .* at least 1"),
        (dict(k=0), ValueError, "k must be an integer of at least 1, got 0"),
        (dict(norm="batch"), ValueError, "one of none, instance, got 'batch'"),
        (dict(charge_as_node_scalar=1), TypeError, "charge_as_node_scalar must be True or False"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_in_one_sentence(options, error, text):
    with pytest.raises(error, match=text):
        SEGNN(**options)


def test_a_wrong_call_is_refused_in_one_sentence():
    net, (position, velocity, charge) = SEGNN(12, 1), (x.float() for x in _bodies(2, 5))
    with pytest.raises(ValueError, match=r"velocities of this shape .* got \(2, 4, 3\)"):
        net(position, velocity[:, :4], charge)
    with pytest.raises(ValueError, match=r"charges \(2, 5\), got .* \(2, 5, 1\)"):
        net(position, velocity, charge[..., None])
    with pytest.raises(TypeError, match="float64"):
        net(position.double(), velocity, charge)
    with pytest.raises(ValueError, match="mask must have shape"):
        net(position, velocity, charge, mask=torch.ones(2, 4).bool())


def test_recomputation_changes_neither_results_nor_gradients():
    net, bodies = _net(k=3), _bodies(2, 5)
    net(*bodies).square().sum().backward()
    expected = [p.grad.clone() for p in _weights(net)]
    for layer in net.layers:
        layer.checkpoint = True
    net.zero_grad()
    net(*bodies).square().sum().backward()
    for p, gradient in zip(_weights(net), expected, strict=True):
        _assert_same(p.grad, gradient)
