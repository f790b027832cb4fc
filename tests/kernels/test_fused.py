"""The fused operators equal the plain layers: outputs, first and second derivatives, all variants.

The folder gpu tests the CUDA kernels.
"""

import contextlib
import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashgatr.algebra import BLADES
from flashgatr.kernels import cpu
from flashgatr.kernels.paths import plain_kernels

from .networks import (
    MASK,
    REINSERT,
    VARIANTS,
    additive,
    assert_equal,
    assert_fused_is_plain,
    boolean,
    largest,
    make_data,
    make_net,
    results_of,
)

pytestmark = pytest.mark.usefixtures("compiler")


# ---- fused = plain ----


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_of_the_network_equals_its_plain_layers(name):
    net = make_net(**VARIANTS[name])
    assert_fused_is_plain(net, *make_data(net, 3, 5))


@pytest.mark.parametrize("activation", ["relu", "gelu", "sigmoid"])
def test_gates_at_zero_have_the_slope_of_the_plain_layers(activation):
    """The layer before the gate gives zero, where ReLU's slope is zero by convention."""
    net = make_net(activation=activation)
    with torch.no_grad():
        for parameter in net.blocks[0].mlp.bilinear.output.parameters():
            parameter.zero_()
    assert_fused_is_plain(net, *make_data(net, 3, 5))


@pytest.mark.parametrize(
    "options", [{}, dict(multi_query=False)], ids=["multi-query", "multi-head"]
)
@pytest.mark.parametrize("items", [0, 1, 7, 17, 32, 33, 40, 129])
def test_every_size_of_set_equals_the_plain_layers(items, options):
    """Up to 32 items our kernel for small sets computes attention, beyond that torch."""
    net = make_net(**options, **REINSERT)
    assert_fused_is_plain(net, *make_data(net, 2, items))


@pytest.mark.parametrize(
    "shape", [(0, 5), (0, 40), (4,), (40,), (1, 1), (2, 3, 5), (2, 0, 5), (70, 3)]
)
def test_every_batch_shape_equals_the_plain_layers(shape):
    net = make_net()
    assert_fused_is_plain(net, *make_data(net, *shape))


GIVEN = {
    "padded": lambda: dict(mask=MASK),
    "boolean mask": lambda: dict(attention_mask=boolean(5, 5)),
    "boolean mask per sample": lambda: dict(attention_mask=boolean(3, 5, 5)),
    "boolean mask per head": lambda: dict(attention_mask=boolean(3, 2, 5, 5)),
    "additive mask": lambda: dict(attention_mask=additive(5, 5)),
    "additive mask per head": lambda: dict(attention_mask=additive(3, 2, 5, 5).requires_grad_()),
    "rows without keys": lambda: dict(attention_mask=torch.eye(5).bool() & (torch.arange(5) > 1)),
    "padded, with a mask": lambda: dict(mask=MASK, attention_mask=boolean(3, 5, 5)),
    "padded, with an additive mask": lambda: dict(mask=MASK, attention_mask=additive(3, 2, 5, 5)),
    "canonical reference": lambda: dict(join_reference="canonical"),
    "a reference": lambda: dict(join_reference=additive(16).requires_grad_()),
    "references": lambda: dict(join_reference=additive(3, 16).requires_grad_()),
    "a centre": lambda: dict(center=additive(3).requires_grad_()),
    "centres": lambda: dict(center=additive(3, 3), mask=MASK),
}


@pytest.mark.parametrize("name", GIVEN)
def test_every_argument_of_a_call_means_the_same(name):
    net = make_net(**REINSERT)
    assert_fused_is_plain(net, *make_data(net, 3, 5), **GIVEN[name]())


@pytest.mark.parametrize("offsets", [[0, 5, 12], [0, 0, 3, 3, 12], [0, 12], [0, 1, 2, 12]])
@pytest.mark.parametrize("known", [True, False], ids=["max_items", ""])
def test_packed_sets_equal_the_plain_layers(offsets, known):
    net = make_net(multi_query=not known, **REINSERT)
    given = dict(offsets=torch.tensor(offsets), max_items=12 if known else None)
    assert_fused_is_plain(net, *make_data(net, 12), **given)


@pytest.mark.parametrize("items", [5, 40])
def test_memory_order_of_the_inputs_does_not_matter(items):
    net = make_net(**REINSERT)
    mv = torch.randn(BLADES, items, 2, 6, dtype=torch.float64).permute(3, 1, 2, 0)[::2]
    s = torch.randn(1, 3, 2 * items, dtype=torch.float64).permute(1, 2, 0)[:, ::2]
    assert not mv.is_contiguous()
    assert not s.is_contiguous()
    assert_fused_is_plain(net, mv.requires_grad_(), s.requires_grad_())
    contiguous = net(mv.contiguous(), s.contiguous())
    for found, expected in zip(net(mv, s), contiguous, strict=True):
        assert torch.equal(found, expected)


def test_inputs_without_gradient_leave_the_parameters_theirs():
    net = make_net(**REINSERT)
    mv, s = (x.detach() for x in make_data(net, 3, 5))
    results = []
    for path in (contextlib.nullcontext, plain_kernels):
        with path():
            loss = sum(x.square().sum() for x in net(mv, s))
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        results.append(dict(zip(dict(net.named_parameters()), gradients, strict=True)))
    assert_equal(*results)


@pytest.mark.parametrize("kind", ["mv", "s"])
def test_one_output_alone_can_be_differentiated(kind):
    net = make_net(learned_weights="all")
    mv, s = make_data(net, 3, 5)
    results = []
    for path in (contextlib.nullcontext, plain_kernels):
        with path():
            out = dict(zip(("mv", "s"), net(mv, s), strict=True))[kind]
        leaves = dict(mv=mv, s=s, **dict(net.named_parameters()))
        found = torch.autograd.grad(
            out.sin().sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        results.append(dict(zip(leaves, found, strict=True)))
    assert_equal(*results)


# ---- rounding ----


@pytest.mark.parametrize("items", [5, 40])
@pytest.mark.parametrize(
    "name", ["default", "reinsert mv and s multi-head", "odd channels", "rotary", "types"]
)
def test_float32_rounds_at_most_twice_as_much_as_the_plain_layers(name, items):
    """Compare the largest errors of all outputs, and of the whole gradient.

    A single entry, or even a whole tensor, may be exact by chance, because its terms cancel in one
    order of summation and not in another; so the errors of some draws are averaged. Points with
    weights near zero would let a few distances dominate the error, hence the large epsilon.
    """
    logs = []
    for draw in range(3):
        torch.manual_seed(draw)
        net = make_net(**VARIANTS[name], distance_epsilon=0.3)
        mv, s = (x.detach().float().requires_grad_() for x in make_data(net, 8, items))
        exact = results_of(net, mv.double(), s.double(), plain=True)
        net = net.float()
        for plain in (False, True):
            found = results_of(net, mv, s, plain=plain)
            assert all(x.dtype == torch.float32 for x in found.values())
            logs += [math.log(_error(found, exact, kind)) for kind in ("out_", "gradient")]
    ours, theirs = torch.tensor(logs).view(3, 2, 2).mean(0).exp()
    assert (ours <= 2 * theirs + torch.finfo(torch.float32).eps).all()


def _error(found, exact, kind):
    """Largest error of the tensors whose names begin with `kind`, relative to the largest value."""
    names = [name for name in exact if name.startswith(kind)]
    error = max(largest(found[name].double() - exact[name]) for name in names)
    return error / max(largest(exact[name]) for name in names)


@pytest.mark.parametrize("name", ["default", "reinsert mv and s multi-head", "rotary multi-head"])
def test_what_is_computed_again_is_the_same(name, monkeypatch):
    """With many items, the backward pass computes queries, keys and values again."""
    net = make_net(**VARIANTS[name])
    mv, s = make_data(net, 3, 5)
    expected = results_of(net, mv, s)
    monkeypatch.setattr(cpu, "RECOMPUTE", 4)
    found = results_of(net, mv, s)
    assert all(torch.equal(x, found[name]) for name, x in expected.items())


# ---- second derivatives ----


def _force_matching(net, mv, s, **given):
    """Gradient of |∂E/∂x - target|² by parameters and inputs, with E a sum of invariants."""
    out_mv, out_s = net(mv, s, **given)
    energy = out_s.sin().sum() + out_mv[..., 0].square().sum()
    (force,) = torch.autograd.grad(energy, mv, create_graph=True)
    loss = (force - torch.linspace(-1, 1, BLADES, dtype=mv.dtype)).square().sum()
    leaves = dict(mv=mv, s=s, **dict(net.named_parameters()))
    found = torch.autograd.grad(
        loss, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return dict(loss=loss.detach(), force=force.detach(), **dict(zip(leaves, found, strict=True)))


@pytest.mark.parametrize(
    ("name", "shape", "given"),
    [
        ("default", (2, 4), {}),
        ("multi-head", (2, 4), {}),
        ("blind to distance", (2, 4), {}),
        ("all learned weights multi-head", (2, 4), {}),
        ("no learned weights", (4,), {}),
        ("reinsert mv and s", (2, 4), {}),
        ("reinsert mv and s multi-head", (2, 4), {}),
        ("no scalars blind", (2, 4), {}),
        ("odd channels", (2, 4), {}),
        ("sigmoid", (2, 4), {}),
        ("checkpoint", (2, 4), {}),
        ("checkpoint attention", (2, 4), {}),
        ("checkpoint mlp", (2, 4), {}),
        ("other epsilons", (2, 4), {}),
        ("always clamped", (2, 4), {}),
        ("rotary", (2, 4), {}),
        ("rotary multi-head", (40,), {}),
        ("types multi-head", (2, 4), {}),
        ("types rotary checkpoint", (2, 4), {}),
        ("rotary odd channels", (7,), dict(offsets=torch.tensor([0, 3, 7]))),
        ("default", (3, 5), dict(mask=MASK)),
        ("default", (7,), dict(offsets=torch.tensor([0, 3, 7]))),
        ("default", (40,), {}),
        ("multi-head", (1, 40), {}),
        ("default", (2, 1), {}),
        ("default", (2, 0), {}),
    ],
)
def test_force_matching_equals_the_plain_layers(name, shape, given):
    net = make_net(**VARIANTS[name])
    mv, s = make_data(net, *shape)
    with sdpa_kernel(SDPBackend.MATH):  # torch's fused attention has no second derivative
        assert net.obstacle(mv) is None
        found = _force_matching(net, mv, s, **given)
        with plain_kernels():
            expected = _force_matching(net, mv, s, **given)
    assert_equal(found, expected, tolerance=1e-11)


def test_a_hessian_is_symmetric_and_equals_the_plain_one():
    net = make_net(num_blocks=1)
    mv, s = (x.detach() for x in make_data(net, 1))

    def energy(mv):
        return net(mv, s)[1].sin().sum()

    found = torch.autograd.functional.hessian(energy, mv).flatten(0, 2).flatten(1)
    torch.testing.assert_close(found, found.mT, rtol=1e-10, atol=1e-12)
    with plain_kernels(), sdpa_kernel(SDPBackend.MATH):
        expected = torch.autograd.functional.hessian(energy, mv).flatten(0, 2).flatten(1)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


# ---- numbers that are none ----


@pytest.mark.parametrize("items", [5, 40])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("options", [{}, dict(activation="relu"), dict(recenter=False)])
def test_what_is_not_finite_stays_in_its_sample_and_is_seen(items, value, options):
    net = make_net(**options)
    mv, s = make_data(net, 3, items)
    clean = net(mv, s)
    broken = mv.detach().clone()
    broken[1, 0, 0, 2] = value
    broken.requires_grad_()
    assert net.obstacle(broken) is None
    out_mv, out_s = net(broken, s)
    for found, expected in zip((out_mv, out_s), clean, strict=True):
        assert torch.equal(found[::2], expected[::2])
        assert not found[1, 0].isfinite().all()
    with plain_kernels():
        plain = net(broken, s)
    for found, expected in zip((out_mv, out_s), plain, strict=True):
        assert torch.equal(found[1].isfinite().all(-1), expected[1].isfinite().all(-1))
    (gradient,) = torch.autograd.grad(out_mv.sum() + out_s.sum(), broken)
    assert gradient[::2].isfinite().all()
    assert not gradient[1].isfinite().all()


def test_a_scalar_that_is_not_finite_is_seen_too():
    net = make_net()
    mv, s = (x.detach() for x in make_data(net, 3, 5))
    s[1, 2, 0] = float("nan")
    out_mv, out_s = net(mv, s)
    assert out_mv[1].isnan().any()
    assert out_s[1].isnan().any()
    assert out_mv[::2].isfinite().all()
    assert out_s[::2].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-3])
def test_gradients_are_finite_where_the_norm_is_clamped(scale, dtype):
    net = make_net(dtype=dtype)
    with torch.no_grad():
        for p in net.linear_in.parameters():
            p *= scale
    mv, s = (torch.zeros_like(x).requires_grad_() for x in make_data(net, 2, 5, dtype=dtype))
    given = dict(join_reference="canonical")
    found, expected = (results_of(net, mv, s, plain=plain, **given) for plain in (False, True))
    assert all(x.isfinite().all() for x in found.values())
    assert_equal(found, expected, 1e-12 if dtype == torch.float64 else 1e-4)


# ---- the same bits ----


@contextlib.contextmanager
def _threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(60, 5), (4, 50)])
def test_the_same_input_gives_the_same_bits(shape, threads):
    net = make_net(dtype=torch.float32, **REINSERT, learned_weights="all")
    mv, s = make_data(net, *shape, dtype=torch.float32)
    with _threads(threads):
        first, second = results_of(net, mv, s), results_of(net, mv, s)
    assert all(torch.equal(x, second[name]) for name, x in first.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(60, 5), (301, 1), (20, 17)])
def test_the_number_of_threads_changes_no_bit_of_the_outputs(shape, dtype):
    """The result of an item does not depend on the thread that computes it.

    Sums over items may be rounded differently.
    """
    net = make_net(dtype=dtype, hidden_mv_channels=8, hidden_s_channels=16)
    mv, s = make_data(net, *shape, dtype=dtype)
    found = []
    for threads in (1, 2, 3):
        with _threads(threads):
            found.append(results_of(net, mv, s))
    for other in found[1:]:
        assert torch.equal(other["out_mv"], found[0]["out_mv"])
        assert torch.equal(other["out_s"], found[0]["out_s"])
        assert_equal(other, found[0], 1e-12 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("items", [5, 17])
def test_a_sample_does_not_depend_on_the_others(items):
    net = make_net(dtype=torch.float32)
    mv, s = make_data(net, 9, items, dtype=torch.float32)
    together, alone = net(mv, s), net(mv[4], s[4])
    for x, y in zip(together, alone, strict=True):
        torch.testing.assert_close(x[4], y, rtol=1e-5, atol=1e-6)
