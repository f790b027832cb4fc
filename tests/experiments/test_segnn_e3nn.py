"""SEGNN has the numbers of the same formula in e3nn's operations."""

import pytest
import torch

from flashgatr.experiments.baselines import steerable
from flashgatr.experiments.baselines.segnn import PairLinear
from flashgatr.experiments.baselines.steerable import (
    Couplings,
    SteerableLinear,
    gate,
    gated_channels,
)

from .segnn_nets import assert_same, random_bodies, small_net


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
    assert_same(_flat(found), mapped, 1e-10)
    assert_same(_flat(gate(found)), _e3nn_gate(6, degree)(mapped), 1e-10)


def _pair_weights(linear: PairLinear):
    """The weights of f_i ⊕ f_j ⊕ scalars, one matrix per degree."""
    rows = [torch.cat(weight.chunk(2, dim=1)) for weight in linear.weights]
    return [torch.cat([rows[0], linear.scalar_weight]), *rows[1:]]


@pytest.mark.usefixtures("_scales_of_e3nn")
@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("n", [1, 5])
def test_the_network_is_the_formula_in_e3nns_operations(degree, n):
    o3 = pytest.importorskip("e3nn.o3")
    net = small_net(degree=degree, attribute_degree=degree)
    position, velocity, charge = random_bodies(n)
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
    assert_same(net(position, velocity, charge), expected, 1e-10)
