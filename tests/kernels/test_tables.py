"""The tables of the kernels are the linear layers and the terms of the algebra."""

import random

import pytest
import torch

from flashgatr.algebra import BLADES, PGA
from flashgatr.fast import parameters_of
from flashgatr.kernels import rows
from flashgatr.kernels.codegen import sums
from flashgatr.kernels.linear import linear
from flashgatr.kernels.weights import Weights
from flashgatr.nn import EquiLinear

from .networks import make_layer

pytestmark = pytest.mark.usefixtures("compiler")
SIZES = [(2, 3, 4, 5), (1, 1, 0, 0), (3, 2, 0, 1), (2, 1, 3, 0), (0, 2, 3, 1), (2, 0, 1, 3)]


def _shuffled(columns):
    order = random.Random(0).sample(range(len(columns)), len(columns))
    blade, channel = ([x[i] for i in order] for x in (columns.blade, columns.channel))
    return rows.Columns(tuple(blade), tuple(channel)), order


def _theta(layer):
    found = [p.detach().flatten() for p in parameters_of(layer)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)


def _gathered(table, theta):
    """The matrix that a table describes."""
    factor = torch.tensor(rows.FACTORS, dtype=theta.dtype)[table.long() % 16]
    return torch.where(
        factor != 0, factor * theta[(table.long() // 16).clamp(max=len(theta) - 1)], 0
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_dense_table_is_the_linear_layer_in_any_order_of_columns(sizes, bias):
    layer = make_layer(*sizes, bias)
    plan = rows.linear_plan(*sizes, bias=bias)
    inputs, order_in = _shuffled(plan.inputs)
    outputs, order_out = _shuffled(plan.outputs)
    matrix = _gathered(
        rows.dense_table(
            rows.linear_plan(*sizes, bias=bias, inputs=inputs, outputs=outputs + rows.nothing(3))
        ),
        _theta(layer),
    )
    mv, s = torch.randn(7, sizes[0], BLADES).double(), torch.randn(7, sizes[2]).double()
    x = rows.to_rows(mv, s)[:, order_in]
    expected = rows.to_rows(*layer(mv, s))[:, order_out]
    found = x @ matrix[:-1] + matrix[-1]
    torch.testing.assert_close(found[:, :-3], expected, rtol=1e-13, atol=1e-13)
    assert (found[:, -3:] == 0).all()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_an_inverse_table_is_the_transpose_of_the_dense_one(sizes, bias):
    plan = rows.linear_plan(
        *sizes, bias=bias, outputs=_shuffled(rows.linear_plan(*sizes).outputs)[0]
    )
    theta = torch.randn(plan.parameters, dtype=torch.float64, requires_grad=True)
    matrix = _gathered(rows.dense_table(plan), theta)
    outer = torch.randn_like(matrix)
    (expected,) = torch.autograd.grad(matrix, theta, outer)
    table = rows.inverse_table(plan).long()
    found = torch.where(table >= 0, outer.flatten()[table.clamp(min=0)], 0).sum(1)
    found = found * rows.parameter_factors(plan)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # the factors are float32


@pytest.mark.parametrize("sizes", [(5, 4, 3, 2), (40, 37, 5, 3), (3, 40, 0, 0), (0, 2, 3, 0)])
def test_a_map_with_types_is_the_masked_layer(sizes):
    """The table of CUDA and the C kernels; parameters between unlike types get no gradient."""
    types = tuple(("oe" * 20 + "eeo")[:n] for n in sizes[:2])
    layer = EquiLinear(*sizes, in_parity=types[0], out_parity=types[1]).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_()
    plan, parameters = rows.linear_plan(*sizes, types=types), parameters_of(layer)
    mv = torch.randn(7, sizes[0], BLADES, dtype=torch.float64, requires_grad=True)
    s = torch.randn(7, sizes[2], dtype=torch.float64, requires_grad=True)
    x, expected = rows.to_rows(mv, s), rows.to_rows(*layer(mv, s))
    matrix = _gathered(rows.dense_table(plan), _theta(layer))
    torch.testing.assert_close(x @ matrix[:-1] + matrix[-1], expected, rtol=1e-13, atol=1e-12)
    (prepared,) = Weights().get(parameters, plan, torch.float64)
    found = linear(x, prepared, parameters, plan)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-12)
    outer, leaves = torch.randn_like(expected), [mv, s, *parameters]
    options = dict(allow_unused=True, materialize_grads=True)
    gradients = [torch.autograd.grad(x, leaves, outer, **options) for x in (found, expected)]
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
        assert torch.equal(x == 0, y == 0)
    nowhere = (rows.inverse_table(plan) < 0).all(1)
    assert nowhere.sum() == layer.unused_parameters


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_come_back_as_they_were(sizes):
    mv, s = torch.randn(2, 3, sizes[0], BLADES), torch.randn(2, 3, sizes[2])
    back = rows.from_rows(rows.to_rows(mv, s), (2, 3), (sizes[0], sizes[2]))
    assert torch.equal(back[0], mv)
    assert torch.equal(back[1], s)


@pytest.mark.parametrize("items", [1, 37, 64])
@pytest.mark.parametrize("sizes", [*SIZES, (130, 3, 200, 2), (5, 200, 3, 130)])
def test_a_map_by_itself_is_the_linear_layer(sizes, items):
    """Also where a sum is longer than the kernels' panels (256)."""
    layer = make_layer(*sizes, bias=True)
    plan, parameters = rows.linear_plan(*sizes), parameters_of(layer)
    (prepared,) = Weights().get(parameters, plan, torch.float64)
    mv = torch.randn(items, sizes[0], BLADES, dtype=torch.float64, requires_grad=True)
    s = torch.randn(items, sizes[2], dtype=torch.float64, requires_grad=True)
    found = linear(rows.to_rows(mv, s), prepared, parameters, plan)
    expected = rows.to_rows(*layer(mv, s))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-12)
    outer, leaves = torch.randn_like(expected), [mv, s, *parameters]
    options = dict(allow_unused=True, materialize_grads=True)
    gradients = (torch.autograd.grad(x, leaves, outer, **options) for x in (found, expected))
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["product", "join"])
def test_generated_sums_are_the_terms_of_the_algebra(form):
    """Integers are not rounded: generated source and tables agree exactly, in all three slots."""
    draw = random.Random(0)
    x, y, z = ([float(draw.randint(-9, 9)) for _ in range(BLADES)] for _ in range(3))
    expected = [[0.0] * BLADES for _ in range(3)]
    terms = PGA.product_terms if form == "product" else PGA.join_terms
    for k, i, j, sign in terms:
        expected[0][i] += sign * y[j] * z[k]
        expected[1][j] += sign * x[i] * z[k]
        expected[2][k] += sign * x[i] * y[j]
    place = {blade: p for p, blade in enumerate(rows.ORDER)}
    for slot, (left, right) in enumerate([(y, z), (x, z), (x, y)]):
        names = {f"a{place[i]}": value for i, value in enumerate(left)}
        names |= {f"b{place[i]}": value for i, value in enumerate(right)}
        found = [eval(text, {}, names) for text in sums(form, slot, "a", "b")]
        assert [found[place[i]] for i in range(BLADES)] == expected[slot]
