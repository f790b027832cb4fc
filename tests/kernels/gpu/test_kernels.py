"""The kernels against the plain layers, on a GPU."""

import contextlib
import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashgatr.fast import parameters_of
from flashgatr.kernels import linear, rows, small_sets, weights
from flashgatr.kernels.paths import plain_kernels
from flashgatr.nn import EquiLinear

from .. import networks as laws
from .networks import ON_GPU, assert_no_worse, make_inputs, make_net, outputs_and_gradients

pytestmark = ON_GPU
VARIANTS = [
    "default", "multi-head", "narrow multi-head", "blind to distance", "no learned weights",
    "all learned weights multi-head", "reinsert mv", "reinsert s multi-head", "reinsert mv and s",
    "reinsert mv and s multi-head", "relu", "sigmoid", "no scalars", "scalars at the ends only",
    "scalars in alone", "scalars out alone", "odd channels", "one head", "checkpoint",
    "checkpoint attention", "checkpoint mlp", "no recentring", "length scale", "rotary",
    "rotary multi-head", "rotary reinsert", "types", "types multi-head",
    "types, three channels per head", "types no scalars", "types rotary checkpoint",
]  # fmt: skip


@pytest.mark.parametrize("grows", [True, False], ids=["inputs grow", ""])
@pytest.mark.parametrize("name", VARIANTS)
def test_float32_kernels_are_as_exact_as_the_plain_layers(name, grows):
    def make():
        net = make_net(**laws.VARIANTS[name])
        return net, make_inputs(net, 16, 5, grows=grows)

    assert_no_worse(make)


@pytest.mark.parametrize("items", [5, 20])
@pytest.mark.parametrize("name", VARIANTS[::2])
def test_bfloat16_kernels_are_as_exact_as_the_plain_layers(name, items):
    def make():
        net = make_net(**laws.VARIANTS[name])
        return net, make_inputs(net, 16, items, grows=items == 5)

    assert_no_worse(make, dtype=torch.bfloat16)


def test_float16_kernels_are_as_exact_as_the_plain_layers():
    def make():
        net = make_net()
        return net, make_inputs(net, 16, 5)

    assert_no_worse(make, dtype=torch.float16)


@pytest.mark.parametrize("grows", [True, False], ids=["inputs grow", ""])
@pytest.mark.parametrize("items", [1, 7, 8, 9, 17, 129])
def test_sets_of_every_size_are_as_exact(items, grows):
    def make():
        net = make_net()
        return net, make_inputs(net, 5, items, grows=grows)

    assert_no_worse(make)


@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5), (0, 40)])
@pytest.mark.parametrize("options", [{}, laws.REINSERT], ids=["", "reinsert"])
def test_nothing_gives_nothing(shape, grows, options):
    net = make_net(**options)
    mv, s = make_inputs(net, *shape, grows=grows)
    for _ in range(2):
        outputs = net(mv, s)
        assert [x.shape for x in outputs] == [(*shape, 1, 16), (*shape, 2)]
    net.zero_grad()
    sum(x.sum() for x in outputs).backward()
    assert all(p.grad is None or (p.grad == 0).all() for p in net.parameters())


def _given():
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator).cuda()

    valid = torch.ones(4, 6, device="cuda", dtype=torch.bool)
    valid[1, 3:] = valid[2] = False
    return {
        "padded": dict(mask=valid),
        "boolean mask": dict(attention_mask=random(6, 6) > -0.5),
        "boolean mask per head": dict(attention_mask=random(4, 2, 6, 6) > -0.5),
        "additive mask per head": dict(attention_mask=random(4, 2, 6, 6)),
        "padded, with a mask": dict(mask=valid, attention_mask=random(4, 6, 6) > -0.5),
        "canonical reference": dict(join_reference="canonical"),
        "references": dict(join_reference=random(4, 16)),
        "centres": dict(center=random(4, 3)),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name",
    [
        "padded", "boolean mask", "boolean mask per head", "additive mask per head",
        "padded, with a mask", "canonical reference", "references", "centres",
    ],
)  # fmt: skip
def test_every_argument_of_a_call_is_as_exact(name, dtype):
    def make():
        net = make_net(**laws.REINSERT)
        return net, make_inputs(net, 4, 6)

    assert_no_worse(make, dtype=dtype, **_given()[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offsets", [[0, 5, 12], [0, 0, 3, 3, 12]])
def test_packed_sets_are_as_exact(offsets, dtype):
    def make():
        net = make_net()
        return net, make_inputs(net, 12)

    assert_no_worse(make, dtype=dtype, offsets=torch.tensor(offsets, device="cuda"))


def test_memory_order_and_batch_shape_of_the_inputs_do_not_matter():
    net = make_net()
    mv = torch.randn(16, 5, 2, 3, 4, device="cuda").permute(4, 3, 1, 2, 0)
    s = torch.randn(1, 5, 3, 4, device="cuda").permute(3, 2, 1, 0)
    for _ in range(2):
        found = net(mv, s)
        expected = net(mv.reshape(12, 5, 2, 16).contiguous(), s.reshape(12, 5, 1).contiguous())
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x.flatten(0, 1), y, rtol=1e-5, atol=1e-5)


def test_what_is_not_finite_stays_in_its_sample_and_is_seen():
    for options in ({}, dict(activation="relu"), dict(recenter=False)):
        net = make_net(**options)
        mv, s = make_inputs(net, 3, 5, grows=False)
        broken = mv.clone()
        broken[1, 0, 0, 2] = math.nan
        with torch.no_grad():
            for _ in range(2):  # the second call runs the kernels of the network's ends
                clean, found = net(mv, s), net(broken, s)
                for x, y in zip(found, clean, strict=True):
                    torch.testing.assert_close(x[::2], y[::2], rtol=1e-6, atol=1e-6)
                    assert x[1, 0].isnan().any()


def test_gradients_are_finite_where_the_norm_is_clamped():
    net = make_net()
    mv, s = (torch.zeros_like(x).requires_grad_() for x in make_inputs(net, 3, 5))
    found, expected = (
        outputs_and_gradients(net, mv, s, plain=plain, join_reference="canonical")
        for plain in (False, True)
    )
    for x, y in zip(found, expected, strict=True):
        assert x.isfinite().all()
        assert (x - y).norm() <= 1e-4 * y.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_input_gives_the_same_bits(dtype):
    net = make_net(learned_weights="all")
    mv, s = make_inputs(net, 200, 5, grows=False)
    net(mv, s)
    first, second = (outputs_and_gradients(net, mv, s, plain=False, dtype=dtype) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("channels", [(1, 2), (2, 0), (0, 3), (1, 7)])
def test_the_ends_kernels_move_and_copy(channels):
    """Into the frame and out again, by the kernels alone; also if there are only scalar outputs."""
    c, n = channels
    x, center = torch.randn(15, n + 16 * c, device="cuda"), torch.randn(3, 3, device="cuda")
    mv, s = small_sets.leave(x, center, c, n)
    back_mv, back_s = rows.from_rows(x, (15,), (c, n))
    assert torch.equal(s, back_s)
    still = small_sets.leave(x, torch.zeros_like(center), c, n)[0]
    assert torch.equal(still, back_mv)
    there_and_back = small_sets.leave(rows.to_rows(mv, s), -center, c, n)[0]
    torch.testing.assert_close(there_and_back, back_mv, rtol=1e-4, atol=1e-4)


def test_the_ends_operators_are_registered_correctly():
    mv, s = torch.randn(3, 5, 2, 16, device="cuda"), torch.randn(3, 5, 1, device="cuda")
    x = torch.randn(15, 33, device="cuda", requires_grad=True)
    center = torch.randn(3, 3, device="cuda")
    g_mv, g_s = torch.randn(15, 2, 16, device="cuda"), torch.randn(15, 1, device="cuda")
    operators = torch.ops.flashgatr
    torch.library.opcheck(operators.enter.default, (mv, s))
    torch.library.opcheck(operators.leave.default, (x, center, 2, 1))
    torch.library.opcheck(operators.leave_backward.default, (g_mv, g_s, center))


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("items", [1, 7, 16, 17, 100, 512, 513])
def test_products_of_a_few_rows_in_tf32_are_near_enough(items, direction):
    """Ours up to 512 rows, the vendor's beyond."""
    torch.set_float32_matmul_precision("high")
    sizes = 8, 12, 16, 20
    layer = EquiLinear(*sizes).cuda()
    plan = rows.linear_plan(*sizes)
    parameters = parameters_of(layer)
    (prepared,) = weights.Weights().get(parameters, plan, torch.float32)
    mv, s = torch.randn(items, 8, 16, device="cuda"), torch.randn(items, 16, device="cuda")
    x = rows.to_rows(mv, s).requires_grad_()
    found = linear.linear(x, prepared, parameters, plan)
    exact_x = x.detach().double().requires_grad_()
    inner = rows.from_rows(exact_x, (items,), (8, 16))
    exact = rows.to_rows(*layer.double()(*inner))
    if direction == "backward":
        outer = torch.randn_like(exact)
        (found,) = torch.autograd.grad(found, x, outer.float())
        (exact,) = torch.autograd.grad(exact, exact_x, outer)
    assert (found - exact).norm() <= 5e-4 * exact.norm()


@pytest.mark.parametrize("items", [7, 17, 512])
def test_products_of_a_few_rows_in_tf32_are_not_too_small(items):
    """Numbers are rounded, not truncated: for positive ones, all errors would have one sign."""
    torch.set_float32_matmul_precision("high")
    sizes = 1, 1, 255, 1024
    layer = EquiLinear(*sizes).cuda()
    with torch.no_grad():
        for p in layer.parameters():
            p.uniform_(1, 2)
    plan = rows.linear_plan(*sizes)
    parameters = parameters_of(layer)
    (prepared,) = weights.Weights().get(parameters, plan, torch.float32)
    x = torch.rand(items, 16 + 255, device="cuda") + 1
    found = linear.linear(x, prepared, parameters, plan)[:, :1024]
    mv, s = rows.from_rows(x.double(), (items,), (1, 255))
    exact = layer.double()(mv, s)[1]
    assert ((found - exact) / exact).mean().abs() < 2e-5
    x[0, 20] = float("nan")
    assert linear.linear(x, prepared, parameters, plan)[0, :1024].isnan().all()


@pytest.mark.parametrize(("samples", "items"), [(16, 5), (4, 100)])
def test_tf32_networks_are_as_exact_as_the_plain_path(samples, items):
    torch.set_float32_matmul_precision("high")
    net = make_net()
    mv, s = make_inputs(net, samples, items, grows=False)
    net(mv, s)
    found, plain = (outputs_and_gradients(net, mv, s, plain=plain) for plain in (False, True))
    exact = outputs_and_gradients(net.double(), mv.double(), s.double(), plain=True)
    for x, y, z in zip(found, plain, exact, strict=True):
        assert (x - z).norm() <= 2 * (y - z).norm() + 1e-4 * z.norm()


@pytest.mark.parametrize(
    "name",
    ["default", "multi-head", "reinsert mv and s", "no scalars", "rotary", "types multi-head"],
)
@pytest.mark.parametrize("items", [5, 20])
def test_second_derivatives_are_as_exact(name, items):
    net = make_net(**laws.VARIANTS[name])
    mv, s = make_inputs(net, 4, items)
    found = []
    with sdpa_kernel(SDPBackend.MATH):
        for plain in (False, True):
            with plain_kernels() if plain else contextlib.nullcontext():
                assert plain or net.obstacle(mv) is None
                found.append(_forces(net, mv, s))
        wide = [x.detach().double().requires_grad_() for x in (mv, s)]
        exact = _forces(net.double(), *wide)
    ours, theirs = ((x - exact).norm() / exact.norm() for x in found)
    assert ours <= 2 * theirs + 1e-5, (ours.item(), theirs.item())


def _forces(net, mv, s):
    """The gradient of a force-matching loss by everything, in one vector."""
    energy = sum(x.sin().sum() for x in net(mv, s))
    (force,) = torch.autograd.grad(energy, mv, create_graph=True)
    leaves = [mv, s, *net.parameters()]
    found = torch.autograd.grad(
        force.square().sum(), leaves, allow_unused=True, materialize_grads=True
    )
    return torch.cat([x.flatten() for x in found])
