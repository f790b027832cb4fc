"""The fused operators equal the plain layers: outputs, first and second derivatives, all variants.

Networks are small and have random parameters, because the biases and logarithms of a new network
are zero, which would hide mistakes. Every comparison first asserts that the fused path runs.
test_gpu.py tests the CUDA kernels.
"""

import contextlib
import copy
import functools
import io
import math
import os
import pickle
import random
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from flashgatr import AxialGATr, GATr, fast
from flashgatr.algebra import BLADES, PGA
from flashgatr.fast import parameters_of, plan_of
from flashgatr.kernels import block as row_block
from flashgatr.kernels import block_node, cpu, paths, rows
from flashgatr.kernels.backend import linear_plans
from flashgatr.kernels.codegen import sums
from flashgatr.kernels.cpu import library as c_kernels
from flashgatr.kernels.linear import linear
from flashgatr.kernels.paths import plain_kernels
from flashgatr.kernels.plan import Sizes
from flashgatr.kernels.queries import queries
from flashgatr.kernels.small_sets import small_attention
from flashgatr.kernels.update import update
from flashgatr.kernels.weights import Weights
from flashgatr.nn import EquiLinear

ops = torch.ops.flashgatr
OPTIONS = dict(
    in_mv_channels=2, in_s_channels=1, out_mv_channels=1, out_s_channels=2, hidden_mv_channels=4,
    hidden_s_channels=6, num_blocks=2, num_heads=2,
)  # fmt: skip
NO_SCALARS = dict(in_s_channels=0, out_s_channels=0, hidden_s_channels=0)
ODD = dict(in_mv_channels=3, hidden_mv_channels=3, hidden_s_channels=5, num_heads=3)
REINSERT = dict(reinsert_mv_channels=(1,), reinsert_s_channels=(0,))
VARIANTS = {
    "default": {},
    "multi-head": dict(multi_query=False),
    "narrow": dict(attention_width=1),
    "narrow multi-head": dict(attention_width=1, multi_query=False),
    "blind to distance": dict(distance_aware=False),
    "blind multi-head": dict(distance_aware=False, multi_query=False),
    "no learned weights": dict(learned_weights="none"),
    "all learned weights": dict(learned_weights="all"),
    "all learned weights multi-head": dict(learned_weights="all", multi_query=False),
    "all learned weights blind": dict(learned_weights="all", distance_aware=False),
    "all learned weights no scalars": dict(learned_weights="all", **NO_SCALARS),
    "reinsert mv": dict(reinsert_mv_channels=(1,)),
    "reinsert mv both": dict(reinsert_mv_channels=(1, 0)),
    "reinsert mv multi-head": dict(reinsert_mv_channels=(1,), multi_query=False),
    "reinsert s": dict(reinsert_s_channels=(0,)),
    "reinsert s multi-head": dict(reinsert_s_channels=(0,), multi_query=False),
    "reinsert mv and s": REINSERT,
    "reinsert mv and s multi-head": dict(REINSERT, multi_query=False, learned_weights="all"),
    "reinsert blind": dict(REINSERT, distance_aware=False),
    "reinsert without scalars": dict(NO_SCALARS, reinsert_mv_channels=(1,)),
    "reinsert s into no scalars": dict(hidden_s_channels=0, reinsert_s_channels=(0,)),
    "relu": dict(activation="relu"),
    "sigmoid": dict(activation="sigmoid"),
    "no scalars": NO_SCALARS,
    "no scalars blind": dict(NO_SCALARS, distance_aware=False),
    "scalars at the ends only": dict(hidden_s_channels=0),
    "scalars inside only": dict(in_s_channels=0, out_s_channels=0),
    "scalars in alone": dict(in_mv_channels=0, in_s_channels=3),
    "scalars out alone": dict(out_mv_channels=0),
    "odd channels": ODD,
    "odd channels multi-head": dict(ODD, multi_query=False, learned_weights="all", num_heads=2),
    "one head": dict(num_heads=1),
    "one head of its own": dict(num_heads=1, multi_query=False),
    "more heads than channels": dict(num_heads=7),
    "one channel": dict(hidden_mv_channels=1, hidden_s_channels=1, num_heads=1),
    "checkpoint": dict(checkpoint=True),
    "checkpoint reinsert": dict(REINSERT, checkpoint=True),
    "no recentring": dict(recenter=False),
    "length scale": dict(length_scale=3.0),
    "other epsilons": dict(norm_epsilon=2.0, distance_epsilon=0.5),
    "always clamped": dict(norm_epsilon=1e3),
    "eval with dropout": dict(dropout=0.5),
}


@pytest.fixture(scope="module", autouse=True)
def _compiler():
    if c_kernels.library() is None:
        pytest.skip("no C compiler")


def _net(cls=GATr, dtype=torch.float64, **options):
    net = cls(**{**OPTIONS, **options}).to(dtype).eval()
    with torch.no_grad():
        for p in net.parameters():
            p += 0.2 * torch.randn_like(p)
    return net


def _data(net, *items, dtype=torch.float64):
    c = net.config
    mv = torch.randn(*items, c.in_mv_channels, BLADES, dtype=dtype)
    return mv.requires_grad_(), torch.randn(*items, c.in_s_channels, dtype=dtype).requires_grad_()


def _results(net, mv, s, plain=False, seed=1, **given):
    """Outputs, and all gradients of a random projection of them, by name."""
    with plain_kernels() if plain else contextlib.nullcontext():
        assert (net.obstacle(mv) is None) != plain
        out_mv, out_s = net(mv, s, **given)
    generator = torch.Generator().manual_seed(seed)
    outputs = [x for x in (out_mv, out_s) if x.requires_grad]  # no channels, no gradient
    outer = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in outputs]
    leaves = dict(mv=mv, s=s, **dict(net.named_parameters()))
    leaves |= {k: x for k, x in given.items() if isinstance(x, torch.Tensor) and x.requires_grad}
    found = torch.autograd.grad(
        outputs, list(leaves.values()), outer, allow_unused=True, materialize_grads=True
    )
    results = dict(out_mv=out_mv.detach(), out_s=out_s.detach())
    return results | {f"gradient of {k}": g for k, g in zip(leaves, found, strict=True)}


def _largest(x):
    return x.abs().max().item() if x.numel() else 0.0


def _assert_equal(found, expected, tolerance=1e-12):
    """Compare tensor by tensor; errors of zero tensors are relative to the largest of all."""
    assert found.keys() == expected.keys()
    everything = max(map(_largest, expected.values()))
    for name, x in expected.items():
        assert found[name].shape == x.shape
        assert found[name].dtype == x.dtype
        limit = tolerance * max(_largest(x), 0.1 * everything)
        assert _largest(found[name] - x) <= limit, name


def _assert_fused_is_plain(net, mv, s, **given):
    _assert_equal(_results(net, mv, s, **given), _results(net, mv, s, plain=True, **given))


# ---- fused = plain ----


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_of_the_network_equals_its_plain_layers(name):
    net = _net(**VARIANTS[name])
    _assert_fused_is_plain(net, *_data(net, 3, 5))


@pytest.mark.parametrize(
    "options", [{}, dict(multi_query=False)], ids=["multi-query", "multi-head"]
)
@pytest.mark.parametrize("items", [0, 1, 7, 17, 32, 33, 40, 129])
def test_every_size_of_set_equals_the_plain_layers(items, options):
    """Up to 32 items our kernel for small sets computes attention, beyond that torch."""
    net = _net(**options, **REINSERT)
    _assert_fused_is_plain(net, *_data(net, 2, items))


@pytest.mark.parametrize(
    "shape", [(0, 5), (0, 40), (4,), (40,), (1, 1), (2, 3, 5), (2, 0, 5), (70, 3)]
)
def test_every_batch_shape_equals_the_plain_layers(shape):
    net = _net()
    _assert_fused_is_plain(net, *_data(net, *shape))


def _boolean(*shape):
    return torch.rand(shape) < 0.7


def _additive(*shape):
    return torch.randn(shape, dtype=torch.float64)


MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
GIVEN = {
    "padded": lambda: dict(mask=MASK),
    "boolean mask": lambda: dict(attention_mask=_boolean(5, 5)),
    "boolean mask per sample": lambda: dict(attention_mask=_boolean(3, 5, 5)),
    "boolean mask per head": lambda: dict(attention_mask=_boolean(3, 2, 5, 5)),
    "additive mask": lambda: dict(attention_mask=_additive(5, 5)),
    "additive mask per head": lambda: dict(attention_mask=_additive(3, 2, 5, 5).requires_grad_()),
    "rows without keys": lambda: dict(attention_mask=torch.eye(5).bool() & (torch.arange(5) > 1)),
    "padded, with a mask": lambda: dict(mask=MASK, attention_mask=_boolean(3, 5, 5)),
    "padded, with an additive mask": lambda: dict(mask=MASK, attention_mask=_additive(3, 2, 5, 5)),
    "canonical reference": lambda: dict(join_reference="canonical"),
    "a reference": lambda: dict(join_reference=_additive(16).requires_grad_()),
    "references": lambda: dict(join_reference=_additive(3, 16).requires_grad_()),
    "a centre": lambda: dict(center=_additive(3).requires_grad_()),
    "centres": lambda: dict(center=_additive(3, 3), mask=MASK),
}


@pytest.mark.parametrize("name", GIVEN)
def test_every_argument_of_a_call_means_the_same(name):
    net = _net(**REINSERT)
    _assert_fused_is_plain(net, *_data(net, 3, 5), **GIVEN[name]())


@pytest.mark.parametrize("offsets", [[0, 5, 12], [0, 0, 3, 3, 12], [0, 12], [0, 1, 2, 12]])
@pytest.mark.parametrize("known", [True, False], ids=["max_items", ""])
def test_packed_sets_equal_the_plain_layers(offsets, known):
    net = _net(multi_query=not known, **REINSERT)
    given = dict(offsets=torch.tensor(offsets), max_items=12 if known else None)
    _assert_fused_is_plain(net, *_data(net, 12), **given)


@pytest.mark.parametrize("items", [5, 40])
def test_memory_order_of_the_inputs_does_not_matter(items):
    net = _net(**REINSERT)
    mv = torch.randn(BLADES, items, 2, 6, dtype=torch.float64).permute(3, 1, 2, 0)[::2]
    s = torch.randn(1, 3, 2 * items, dtype=torch.float64).permute(1, 2, 0)[:, ::2]
    assert not mv.is_contiguous()
    assert not s.is_contiguous()
    _assert_fused_is_plain(net, mv.requires_grad_(), s.requires_grad_())
    contiguous = net(mv.contiguous(), s.contiguous())
    for found, expected in zip(net(mv, s), contiguous, strict=True):
        assert torch.equal(found, expected)


def test_inputs_without_gradient_leave_the_parameters_theirs():
    net = _net(**REINSERT)
    mv, s = (x.detach() for x in _data(net, 3, 5))
    results = []
    for path in (contextlib.nullcontext, plain_kernels):
        with path():
            loss = sum(x.square().sum() for x in net(mv, s))
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        results.append(dict(zip(dict(net.named_parameters()), gradients, strict=True)))
    _assert_equal(*results)


@pytest.mark.parametrize("kind", ["mv", "s"])
def test_one_output_alone_can_be_differentiated(kind):
    net = _net(learned_weights="all")
    mv, s = _data(net, 3, 5)
    results = []
    for path in (contextlib.nullcontext, plain_kernels):
        with path():
            out = dict(zip(("mv", "s"), net(mv, s), strict=True))[kind]
        leaves = dict(mv=mv, s=s, **dict(net.named_parameters()))
        found = torch.autograd.grad(
            out.sin().sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        results.append(dict(zip(leaves, found, strict=True)))
    _assert_equal(*results)


AXIAL_OPTIONS = {
    "default": {},
    "multi-head": dict(multi_query=False, learned_weights="all"),
    "reinsert": REINSERT,
    "checkpoint": dict(checkpoint=True),
    "blind": dict(distance_aware=False, attention_width=1),
}
AXIAL_GIVEN = {
    "": lambda: {},
    "padded": lambda: dict(mask=_boolean(2, 3, 4)),
    "masks": lambda: dict(attention_mask=(_boolean(3, 3), None)),
    "additive masks": lambda: dict(attention_mask=(None, _additive(4, 4))),
    "references": lambda: dict(join_reference=_additive(2, 16).requires_grad_()),
}


@pytest.mark.parametrize("given", AXIAL_GIVEN)
@pytest.mark.parametrize("name", AXIAL_OPTIONS)
def test_axial_networks_equal_their_plain_layers(name, given):
    net = _net(AxialGATr, num_blocks=3, **AXIAL_OPTIONS[name])
    _assert_fused_is_plain(net, *_data(net, 2, 3, 4), **AXIAL_GIVEN[given]())


@pytest.mark.parametrize("shape", [(40, 3), (3, 40), (0, 3), (3, 0), (1, 1)])
def test_axial_sets_of_every_size_equal_the_plain_layers(shape):
    net = _net(AxialGATr)
    _assert_fused_is_plain(net, *_data(net, *shape))


# ---- rounding ----


@pytest.mark.parametrize("items", [5, 40])
@pytest.mark.parametrize("name", ["default", "reinsert mv and s multi-head", "odd channels"])
def test_float32_rounds_at_most_twice_as_much_as_the_plain_layers(name, items):
    """Compare the largest errors of all outputs, and of the whole gradient.

    A single entry, or even a whole tensor, may be exact by chance, because its terms cancel in one
    order of summation and not in another; so the errors of some draws are averaged. Points with
    weights near zero would let a few distances dominate the error, hence the large epsilon.
    """
    logs = []
    for draw in range(3):
        torch.manual_seed(draw)
        net = _net(**VARIANTS[name], distance_epsilon=0.3)
        mv, s = (x.detach().float().requires_grad_() for x in _data(net, 8, items))
        exact = _results(net, mv.double(), s.double(), plain=True)
        net = net.float()
        for plain in (False, True):
            found = _results(net, mv, s, plain=plain)
            assert all(x.dtype == torch.float32 for x in found.values())
            logs += [math.log(_error(found, exact, kind)) for kind in ("out_", "gradient")]
    ours, theirs = torch.tensor(logs).view(3, 2, 2).mean(0).exp()
    assert (ours <= 2 * theirs + torch.finfo(torch.float32).eps).all()


def _error(found, exact, kind):
    """Largest error of the tensors whose names begin with `kind`, relative to the largest value."""
    names = [name for name in exact if name.startswith(kind)]
    error = max(_largest(found[name].double() - exact[name]) for name in names)
    return error / max(_largest(exact[name]) for name in names)


@pytest.mark.parametrize("name", ["default", "reinsert mv and s multi-head"])
def test_what_is_computed_again_is_the_same(name, monkeypatch):
    """With many items, the backward pass computes queries, keys and values again."""
    net = _net(**VARIANTS[name])
    mv, s = _data(net, 3, 5)
    expected = _results(net, mv, s)
    monkeypatch.setattr(cpu, "RECOMPUTE", 4)
    found = _results(net, mv, s)
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
        ("other epsilons", (2, 4), {}),
        ("always clamped", (2, 4), {}),
        ("default", (3, 5), dict(mask=MASK)),
        ("default", (7,), dict(offsets=torch.tensor([0, 3, 7]))),
        ("default", (40,), {}),
        ("multi-head", (1, 40), {}),
        ("default", (2, 1), {}),
        ("default", (2, 0), {}),
    ],
)
def test_force_matching_equals_the_plain_layers(name, shape, given):
    net = _net(**VARIANTS[name])
    mv, s = _data(net, *shape)
    with sdpa_kernel(SDPBackend.MATH):  # torch's fused attention has no second derivative
        assert net.obstacle(mv) is None
        found = _force_matching(net, mv, s, **given)
        with plain_kernels():
            expected = _force_matching(net, mv, s, **given)
    _assert_equal(found, expected, tolerance=1e-11)


def test_a_hessian_is_symmetric_and_equals_the_plain_one():
    net = _net(num_blocks=1)
    mv, s = (x.detach() for x in _data(net, 1))

    def energy(mv):
        return net(mv, s)[1].sin().sum()

    found = torch.autograd.functional.hessian(energy, mv).flatten(0, 2).flatten(1)
    torch.testing.assert_close(found, found.mT, rtol=1e-10, atol=1e-12)
    with plain_kernels(), sdpa_kernel(SDPBackend.MATH):
        expected = torch.autograd.functional.hessian(energy, mv).flatten(0, 2).flatten(1)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


# ---- the operators, one by one ----


class _Parts:
    """One block's operators with everything they take, as functions of tensors alone."""

    def __init__(self, items=3, dtype=torch.float64, **options):
        block = _net(num_blocks=1, **options).to(dtype).blocks[0]
        attention, mlp = block.attention, block.mlp
        inputs = mlp.bilinear.inputs
        layers = [attention.output, attention.qkv, inputs, mlp.bilinear.output, mlp.linear]
        if attention.reinsert is not None:
            layers.append(attention.reinsert)
        self.plan, self.dtype, self.scale = plan_of(block), dtype, attention.attention.scale
        self.heads = self.plan.heads
        self.groups = [[p.detach() for p in parameters_of(layer)] for layer in layers]
        weights = attention.attention.log_alpha, attention.attention.log_beta
        logs = zip("abg", (*weights, attention.attention.log_gamma), strict=True)
        logs = {name: log.detach() for name, log in logs if log is not None}
        self.terms, self.logs = "".join(logs), list(logs.values())
        plan = self.plan
        self.x, self.delta = (self.random(items, plan.sizes.width) for _ in range(2))
        self.attended = self.random(items, self.heads.queries * self.heads.values)
        self.reference = self.random(items)
        extra = Sizes(plan.reinsert_mv, plan.reinsert_s).width
        self.extra = self.random(items, extra) if extra else None

    def random(self, *shape):
        return torch.randn(shape, dtype=self.dtype)

    def prepared(self, groups):
        """As the network makes them: one tensor per map, without a gradient."""
        flat = [p.detach() for group in groups for p in group]
        return Weights().get(flat, self.plan, self.dtype)

    def with_parameters(self, which, function):
        """function(groups, prepared, *tensors) as a function of tensors, `which` groups last."""
        sizes = [len(self.groups[i]) for i in which]

        def call(*tensors):
            cut = len(tensors) - sum(sizes)
            given, groups = list(tensors[cut:]), list(self.groups)
            for i, size in zip(which, sizes, strict=True):
                groups[i], given = given[:size], given[size:]
            return function(groups, self.prepared(groups), *tensors[:cut])

        return call, [p for i in which for p in self.groups[i]]

    def queries(self, keep=(0, 3, 4, 5)):
        """The residual stream, queries, keys and values, or the outputs that `keep` lists."""
        logs = len(self.logs)
        reinserts = self.extra is not None

        def call(groups, prepared, x, delta, *rest):
            extra = rest[logs] if reinserts else None
            used = [1, 5] if reinserts else [1]
            parameters = [p for i in used for p in groups[i]]
            maps = [prepared[i] for i in used]
            given = x, delta, extra, maps, parameters, list(rest[:logs]), self.terms, self.plan
            found = queries(*given)
            return tuple(found[i] for i in keep)

        call, parameters = self.with_parameters([1, 5] if reinserts else [1], call)
        extra = [self.extra] if reinserts else []
        return call, [self.x, self.delta, *self.logs, *extra, *parameters]

    def queries_with_rows(self):
        return self.queries(keep=range(6))

    def linear(self):
        def call(groups, prepared, x):
            return linear(x, prepared[0], groups[0], linear_plans(self.plan, x.device.type).output)

        call, parameters = self.with_parameters([0], call)
        return call, [self.attended, *parameters]

    def update(self, keep=(0, 3)):
        """The residual stream and what the MLP adds to it, or the outputs that `keep` lists."""
        used = [0, 2, 3, 4]

        def call(groups, prepared, x, attended, reference):
            parameters = [p for i in used for p in groups[i]]
            maps = [prepared[i] for i in used]
            found = update(x, attended, reference, maps, parameters, self.plan, False)
            return tuple(found[i] for i in keep)

        call, parameters = self.with_parameters(used, call)
        return call, [self.x, self.attended, self.reference, *parameters]

    def update_with_rows(self):
        return self.update(keep=range(4))

    def small_attention(self, sets=1):
        heads, total = self.heads, self.x.shape[0]
        q = self.random(total, heads.queries, heads.features)
        k = self.random(total, heads.keys, heads.features)
        v = self.random(total, heads.keys, heads.values)
        items = total // sets
        return lambda q, k, v: small_attention(q, k, v, items, self.scale), [q, k, v]


TINY = dict(hidden_mv_channels=2, hidden_s_channels=3, attention_width=1, learned_weights="all")
OPERATORS = [
    "queries", "queries_with_rows", "linear", "update", "update_with_rows", "small_attention",
]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [{}, dict(multi_query=False, **REINSERT), dict(distance_aware=False, norm_epsilon=1e3)],
    ids=["multi-query", "multi-head", "blind and clamped"],
)
@pytest.mark.parametrize("name", OPERATORS)
def test_first_and_second_derivatives_of_an_operator(name, options):
    call, tensors = getattr(_Parts(**{**TINY, **options}), name)()
    tensors = [x.clone().requires_grad_() for x in tensors]
    assert gradcheck(call, tensors, fast_mode=True)
    assert gradgradcheck(call, tensors, fast_mode=True)


@pytest.mark.parametrize(("name", "outputs"), [("queries", 6), ("update", 4)])
def test_any_output_of_an_operator_may_be_left_out_of_a_loss(name, outputs):
    for keep in range(outputs):
        call, tensors = getattr(_Parts(**TINY), name)(keep=(keep,))
        tensors = [x.requires_grad_() for x in tensors]
        used = [x for x in torch.autograd.grad(
            call(*tensors)[0].sum(), tensors, allow_unused=True
        ) if x is not None]  # fmt: skip
        assert used
        assert gradcheck(lambda *x, call=call: call(*x)[0], tensors, fast_mode=True)


def _operator_calls():
    """Every operator that runs on a CPU, with arguments."""
    parts = _Parts(items=4, dtype=torch.float32, **{**TINY, **REINSERT})
    heads, plan, text, dtype = parts.heads, parts.plan, parts.plan.text, parts.dtype
    prepared = parts.prepared(parts.groups)
    groups = [[p.clone().requires_grad_() for p in group] for group in parts.groups]
    flat = [p for group in parts.groups for p in group]
    x, delta, attended, reference, extra = (
        x.clone().requires_grad_()
        for x in (parts.x, parts.delta, parts.attended, parts.reference, parts.extra)
    )
    logs = [x.clone().requires_grad_() for x in parts.logs]
    first, second = [1, 5], [0, 2, 3, 4]
    theirs = extra, [prepared[i] for i in first], [p for i in first for p in groups[i]], logs
    given = [prepared[i] for i in second], [p for i in second for p in groups[i]]
    with torch.no_grad():
        _, y, stat, q, k, v, raw = queries(x, delta, *theirs, parts.terms, plan)
        _, _, _, _, projected, wide = update(x, attended, reference, *given, plan, False)
    layer = _layer(3, 2, 4, 5, bias=True)
    own = [p.detach().float().requires_grad_() for p in parameters_of(layer)]
    one = rows.linear_plan(3, 2, 4, 5)
    (matrix,) = Weights().get([p.detach() for p in own], one, dtype)
    x_in, g_out = torch.randn(4, 4 + 3 * BLADES), torch.randn(4, 5 + 2 * BLADES)
    q_grown, k_grown, v_grown = (x.clone().requires_grad_() for x in (q, k, v))
    g, g_x, g_y = torch.randn_like(delta), torch.randn_like(x), torch.randn_like(y)
    extra_0, logs_0 = extra.detach(), [x.detach() for x in logs]
    outer = torch.randn(4, heads.queries, heads.values)
    found = attended.detach(), reference.detach(), y, stat, projected, wide
    return {
        "prepare": (flat, text, dtype),
        "queries": (x, delta, *theirs, parts.terms, text),
        "queries_backward": (
            g_x, g_y, *map(torch.randn_like, (q, k, v)), y, stat, extra_0, raw, theirs[1], logs_0,
            parts.terms, text,
        ),
        "small_attention": (q_grown, k_grown, v_grown, 2, 0.3),
        "small_attention_backward": (q, k, v, outer, 2, 0.3),
        "linear": (x_in.clone().requires_grad_(), matrix, own, one.text),
        "linear_backward": (g_out, x_in, matrix, one.text),
        "update": (x, attended, reference, *given, text, False),
        "update_backward": (g_x, g_y, g, *found, given[0], text, True),
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "prepare", "queries", "queries_backward", "small_attention", "small_attention_backward",
        "linear", "linear_backward", "update", "update_backward",
    ],
)  # fmt: skip
def test_an_operator_is_registered_correctly(name):
    torch.library.opcheck(getattr(ops, name).default, _operator_calls()[name])


def test_no_operator_is_left_out_above():
    names = torch._C._dispatch_get_all_op_names()
    ours = {name.removeprefix("flashgatr::") for name in names if name.startswith("flashgatr::")}
    ours = {name for name in ours if not name.startswith("test_")}  # of test_registered.py
    needs_cuda, tested_elsewhere = {"enter", "leave", "leave_backward"}, {"trilinear"}
    assert ours == {*_operator_calls(), *needs_cuda, *tested_elsewhere}


@pytest.mark.parametrize("given", [True, False])
def test_operators_do_not_write_to_what_they_get(given):
    for name, arguments in _operator_calls().items():
        tensors = [x for x in _flat(arguments) if isinstance(x, torch.Tensor)]
        before = [x.detach().clone() for x in tensors]
        with torch.set_grad_enabled(given):
            getattr(ops, name)(*arguments)
        assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True)), name


def _flat(values):
    for value in values:
        yield from _flat(value) if isinstance(value, (list, tuple)) else (value,)


# ---- numbers that are none ----


@pytest.mark.parametrize("items", [5, 40])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("options", [{}, dict(activation="relu"), dict(recenter=False)])
def test_what_is_not_finite_stays_in_its_sample_and_is_seen(items, value, options):
    net = _net(**options)
    mv, s = _data(net, 3, items)
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
    net = _net()
    mv, s = (x.detach() for x in _data(net, 3, 5))
    s[1, 2, 0] = float("nan")
    out_mv, out_s = net(mv, s)
    assert out_mv[1].isnan().any()
    assert out_s[1].isnan().any()
    assert out_mv[::2].isfinite().all()
    assert out_s[::2].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-3])
def test_gradients_are_finite_where_the_norm_is_clamped(scale, dtype):
    net = _net(dtype=dtype)
    with torch.no_grad():
        for p in net.linear_in.parameters():
            p *= scale
    mv, s = (torch.zeros_like(x).requires_grad_() for x in _data(net, 2, 5, dtype=dtype))
    given = dict(join_reference="canonical")
    found, expected = (_results(net, mv, s, plain=plain, **given) for plain in (False, True))
    assert all(x.isfinite().all() for x in found.values())
    _assert_equal(found, expected, 1e-12 if dtype == torch.float64 else 1e-4)


# ---- a block as one node ----


def _nodes(result):
    """How many nodes of its graph are whole blocks."""
    seen, left = set(), [result.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [following for following, _ in node.next_functions]
    return sum("BlockNode" in type(node).__name__ for node in seen)


@pytest.mark.parametrize("name", ["default", "all learned weights", "reinsert mv and s multi-head"])
@pytest.mark.parametrize("shape", [(7, 5), (70, 4), (20, 16)], ids=str)
def test_a_block_on_small_sets_is_one_node_and_gives_the_same_bits(name, shape, monkeypatch):
    net = _net(dtype=torch.float32, **VARIANTS[name])
    mv, s = _data(net, *shape, dtype=torch.float32)
    found = _results(net, mv, s)
    assert _nodes(net(mv, s)[0]) == len(net.blocks)
    _assert_equal(found, _results(net, mv, s, plain=True), 1e-4)
    monkeypatch.setattr(row_block, "MOST_ROWS", 34)
    apart = _results(net, mv, s)
    assert _nodes(net(mv, s)[0]) == 0
    assert all(torch.equal(x, apart[k]) for k, x in found.items())


def test_who_watches_the_backward_pass_sees_finished_numbers():
    """A dispatch mode may copy what operators return, so deferred kernels must have run by then."""

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **kwargs or {})
            if function.namespace != "flashgatr":
                return found
            return tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, found)

    net = _net(num_blocks=2)
    mv, s = _data(net, 8, 4)
    gradients = []
    for mode in (contextlib.nullcontext(), Copies()):
        out, out_s = net(mv, s)
        with mode:
            loss = (out**2).sum() + out_s.sum()
            gradients.append(torch.autograd.grad(loss, net.blocks[0].parameters()))
    assert all(torch.equal(x, y) for x, y in zip(*gradients, strict=True))


def test_weights_are_prepared_for_one_pass_only(monkeypatch):
    """All together before the first block; none is left for later, even if the pass fails."""
    net, calls = _net(), []
    mv, s = _data(net, 3, 4)
    prepare = cpu.prepare
    monkeypatch.setattr(cpu, "prepare", lambda *given: calls.append(1) or prepare(*given))
    net(mv, s)
    assert len(calls) == 3  # both ends, and all blocks

    def fail(*given):
        raise RuntimeError("on the way")

    with monkeypatch.context() as patch:
        patch.setattr(net._fast.blocks[1], "run", fail)
        with pytest.raises(RuntimeError, match="on the way"):
            net(mv, s)
    before = net(mv, s)[0]
    with torch.no_grad():
        for p in net.blocks[1].parameters():
            p.mul_(1.5)
    after = net(mv, s)[0]
    assert not torch.allclose(before, after)
    with plain_kernels():
        torch.testing.assert_close(after, net(mv, s)[0])


def test_one_output_of_a_block_may_be_left_out_of_a_loss(monkeypatch):
    net = _net(num_blocks=1)
    rows_of = {}

    def watched(*given):
        rows_of["x"], rows_of["delta"] = found = row_block.run_block(*given)
        return found

    monkeypatch.setattr(fast, "run_block", watched)
    mv, s = _data(net, 3, 4)
    for name in ("x", "delta"):
        gradients = []
        for most in (block_node.MOST_ROWS, 0):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(row_block, "MOST_ROWS", most)
                net(mv, s)
                (found,) = torch.autograd.grad(rows_of[name].square().sum(), mv)
                gradients.append(found)
        assert torch.equal(*gradients)


def test_what_a_block_saved_is_let_go_after_the_backward_pass():
    net, alive = _net(), []
    prepare = block_node.BlockNode.forward
    mv, s = _data(net, 3, 4)
    with pytest.MonkeyPatch.context() as patch:

        def watched(ctx, *given):
            alive.extend(weakref.ref(x) for x in given[5:17] if not x.requires_grad)
            return prepare(ctx, *given)

        patch.setattr(block_node.BlockNode, "forward", staticmethod(watched))
        loss = net(mv, s)[0].sum()
    assert any(x() is not None for x in alive)
    loss.backward()
    assert loss.grad_fn is not None  # the caller keeps the loss
    assert all(x() is None for x in alive)


def test_blocks_of_which_nothing_is_learned_pass_gradients_on():
    net = _net()
    for p in net.parameters():
        p.requires_grad_(False)
    mv, s = _data(net, 3, 4)
    fused_mv, plain_mv = (
        torch.autograd.grad(_forward(net, mv, s, plain), mv)[0] for plain in (False, True)
    )
    torch.testing.assert_close(fused_mv, plain_mv)


def _forward(net, mv, s, plain):
    with plain_kernels() if plain else contextlib.nullcontext():
        return net(mv, s)[0].square().sum()


def test_weights_are_kept_whichever_way_torch_was_told_of_tf32():
    code = """
import torch
from flashgatr import GATr
torch.backends.cuda.matmul.fp32_precision = "tf32"
small = dict(hidden_mv_channels=4, hidden_s_channels=4, num_blocks=1)
net = GATr(in_mv_channels=1, out_mv_channels=1, **small)
with net.frozen():
    net(torch.randn(3, 1, 16))
from flashgatr.kernels.cuda.products import in_tf32
assert in_tf32()
"""
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this torch has the older settings only")
    subprocess.run([sys.executable, "-c", code], check=True)


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
    net = _net(dtype=torch.float32, **REINSERT, learned_weights="all")
    mv, s = _data(net, *shape, dtype=torch.float32)
    with _threads(threads):
        first, second = _results(net, mv, s), _results(net, mv, s)
    assert all(torch.equal(x, second[name]) for name, x in first.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(60, 5), (301, 1), (20, 17)])
def test_the_number_of_threads_changes_no_bit_of_the_outputs(shape, dtype):
    """The result of an item does not depend on the thread that computes it.

    Sums over items may be rounded differently.
    """
    net = _net(dtype=dtype, hidden_mv_channels=8, hidden_s_channels=16)
    mv, s = _data(net, *shape, dtype=dtype)
    found = []
    for threads in (1, 2, 3):
        with _threads(threads):
            found.append(_results(net, mv, s))
    for other in found[1:]:
        assert torch.equal(other["out_mv"], found[0]["out_mv"])
        assert torch.equal(other["out_s"], found[0]["out_s"])
        _assert_equal(other, found[0], 1e-12 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("items", [5, 17])
def test_a_sample_does_not_depend_on_the_others(items):
    net = _net(dtype=torch.float32)
    mv, s = _data(net, 9, items, dtype=torch.float32)
    together, alone = net(mv, s), net(mv[4], s[4])
    for x, y in zip(together, alone, strict=True):
        torch.testing.assert_close(x[4], y, rtol=1e-5, atol=1e-6)


# ---- weights that are kept ----


class _Counter(TorchDispatchMode):
    """How often weights were prepared."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is ops.prepare.default
        return func(*args, **(kwargs or {}))


def _prepared_by(net, mv, s):
    with torch.no_grad(), _Counter() as counter:
        net(mv, s)
    return counter.count


def _plain_outputs(net, mv, s):
    with plain_kernels(), torch.no_grad():
        return net(mv, s)


def _assert_right(net, mv, s):
    """The fused outputs are those of the current parameters."""
    with torch.no_grad():
        assert net.obstacle(mv) is None
        found = net(mv, s)
    for x, expected in zip(found, _plain_outputs(net, mv, s), strict=True):
        limit = 1e-12 if x.dtype == torch.float64 else 1e-4
        torch.testing.assert_close(x, expected, rtol=limit, atol=limit)


def _change(net):
    with torch.no_grad():
        for p in net.parameters():
            p *= 1.1


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
def test_frozen_changes_no_bit(context):
    net = _net()
    mv, s = _data(net, 3, 5)
    expected = net(mv, s)
    with net.frozen() as same, context():
        assert same is net
        for _ in range(2):
            assert all(torch.equal(x, y) for x, y in zip(net(mv, s), expected, strict=True))


def test_gradients_are_the_same_while_frozen():
    net = _net()
    mv, s = _data(net, 3, 5)
    expected = _results(net, mv, s)
    with torch.inference_mode(), net.frozen():
        net(mv, s)
    with net.frozen():
        with torch.inference_mode():
            net(mv.detach(), s.detach())  # what is kept must not be an inference tensor
        _assert_equal(_results(net, mv, s), expected)


def test_frozen_prepares_weights_once():
    net = _net()
    mv, s = _data(net, 3, 5)
    every = net.config.num_blocks + 2
    assert [_prepared_by(net, mv, s) for _ in range(2)] == [every, every]
    with net.frozen():
        assert [_prepared_by(net, mv, s) for _ in range(3)] == [every, 0, 0]
    assert _prepared_by(net, mv, s) == every
    with net.frozen():
        assert _prepared_by(net, mv, s) == every


def test_changes_are_seen_after_frozen():
    net = _net()
    mv, s = _data(net, 3, 5)
    with net.frozen():
        net(mv, s)
        _change(net)
    _assert_right(net, mv, s)
    with pytest.raises(TypeError), net.frozen():
        net("not a tensor")
    _change(net)
    _assert_right(net, mv, s)
    with net.frozen():
        _assert_right(net, mv, s)


def _deepcopied(net):
    return copy.deepcopy(net)


def _pickled(net):
    return pickle.loads(pickle.dumps(net))


def _saved(net):
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _loaded(net):
    other = type(net)(net.config).to(net.linear_in.weight.dtype).eval()
    other(*(x.to(net.linear_in.weight) for x in _data(net, 3, 5)))
    other.load_state_dict(net.state_dict())
    return other


COPIES = [_deepcopied, _pickled, _saved, _loaded]


@pytest.mark.parametrize("made", COPIES)
def test_a_copy_of_a_used_network_is_a_network_of_its_own(made):
    net = _net()
    mv, s = _data(net, 3, 5)
    expected = net(mv, s)
    other = made(net)
    assert all(torch.equal(x, y) for x, y in zip(other(mv, s), expected, strict=True))
    _change(other)
    _assert_right(other, mv, s)
    assert all(torch.equal(x, y) for x, y in zip(net(mv, s), expected, strict=True))


@pytest.mark.parametrize("made", [*COPIES[:3], _loaded])
def test_a_copy_of_a_frozen_network_is_not_frozen(made):
    net = _net()
    mv, s = _data(net, 3, 5)
    with net.frozen():
        net(mv, s)
        other = made(net)
    _change(other)
    _assert_right(other, mv, s)


def test_frozen_within_frozen_keeps_the_weights():
    net = _net()
    mv, s = _data(net, 3, 5)
    with net.frozen():
        net(mv, s)
        with net.frozen():
            net(mv, s)
        net(mv, s)
        assert _prepared_by(net, mv, s) == 0
    _change(net)
    _assert_right(net, mv, s)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_network_follows_its_dtype(frozen):
    net = _net(dtype=torch.float32)
    mv, s = (x.detach() for x in _data(net, 3, 5, dtype=torch.float32))
    with net.frozen() if frozen else contextlib.nullcontext():
        _assert_right(net, mv, s)
        net.double()
        _assert_right(net, mv.double(), s.double())
        net.to(torch.float32)
        _assert_right(net, mv, s)


def test_a_network_follows_its_parameters():
    net = _net()
    mv, s = _data(net, 3, 5)
    _assert_right(net, mv, s)
    net.load_state_dict(_net().state_dict())
    _assert_right(net, mv, s)
    net.load_state_dict(_net().state_dict(), assign=True)
    _assert_right(net, mv, s)
    for p in net.parameters():
        p.data = torch.randn_like(p)
    _assert_right(net, mv, s)


@pytest.mark.parametrize("neighbours", [True, False])
def test_parameters_that_are_views_of_one_tensor_are_read_rightly(neighbours):
    """A flat optimiser stores parameters one after another; elsewhere they may be anywhere."""
    net = _net()
    mv, s = _data(net, 3, 5)
    gap = 0 if neighbours else 3
    flat = torch.randn(sum(p.numel() + gap for p in net.parameters()), dtype=torch.float64)
    start = 0
    for p in net.parameters():
        p.data = flat[start : start + p.numel()].view_as(p).copy_(p.data)
        start += p.numel() + gap
    _assert_right(net, mv, s)
    _assert_fused_is_plain(net, mv, s)
    flat *= 1.1
    _assert_right(net, mv, s)


@pytest.mark.parametrize("fused_adam", [True, False])
def test_evaluation_sees_what_training_changed(fused_adam):
    """A fused optimiser does not change the parameters' versions: cached weights would be old."""
    net = _net(dtype=torch.float32)
    mv, s = (x.detach() for x in _data(net, 3, 5, dtype=torch.float32))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05, fused=fused_adam)
    _assert_right(net, mv, s)
    for _ in range(3):
        before = _plain_outputs(net, mv, s)[0]
        optimizer.zero_grad()
        sum(x.square().sum() for x in net(mv, s)).backward()
        optimizer.step()
        assert not torch.allclose(before, _plain_outputs(net, mv, s)[0])
        _assert_right(net, mv, s)


# ---- where the plain layers serve ----


def _assert_served(net, why, *items, context=contextlib.nullcontext, dtype=torch.float32):
    """The network says why it is not fused, works, and has gradients."""
    mv, s = _data(net, *items, dtype=dtype)
    with context():
        assert why in net.obstacle(mv)
        loss = sum(x.float().square().sum() for x in net(mv, s))
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())
    assert net.linear_in.weight.grad.abs().sum() > 0


def test_rotary_positions_are_an_obstacle():
    _assert_served(_net(rotary=True, dtype=torch.float32), "rotary", 3, 5)
    _assert_served(_net(AxialGATr, rotary=(True, False), dtype=torch.float32), "rotary", 3, 5)
    net = _net(AxialGATr, rotary=(False, False), dtype=torch.float32)
    assert net.obstacle(torch.zeros(1)) is None


def test_dropout_is_an_obstacle_to_training_alone():
    net = _net(dropout=0.3, dtype=torch.float32)
    assert net.obstacle(torch.zeros(1)) is None
    _assert_served(net.train(), "dropout", 3, 5)
    assert _net(dtype=torch.float32).train().obstacle(torch.zeros(1)) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_of_16_bits_are_an_obstacle_on_a_cpu(dtype):
    _assert_served(_net(dtype=dtype), f"do not compute in {dtype}", 3, 5)


def test_autocast_is_an_obstacle_on_a_cpu():
    context = functools.partial(torch.autocast, "cpu", torch.bfloat16)
    _assert_served(
        _net(dtype=torch.float32), "do not compute in torch.bfloat16", 3, 5, context=context
    )


def test_plain_kernels_are_an_obstacle_until_they_end():
    net = _net(dtype=torch.float32)
    _assert_served(net, "plain kernels were asked for", 3, 5, context=plain_kernels)
    with plain_kernels():
        with plain_kernels():
            pass
        assert "asked for" in net.obstacle(torch.zeros(1))
    with pytest.raises(KeyboardInterrupt), plain_kernels():
        raise KeyboardInterrupt
    assert net.obstacle(torch.zeros(1)) is None


def test_hooks_of_a_block_are_an_obstacle_while_they_last():
    net, seen = _net(dtype=torch.float32), []
    hook = lambda module, given, out: seen.append([x.shape for x in out])  # noqa: E731
    handle = net.blocks[1].register_forward_hook(hook)
    _assert_served(net, "hooks", 3, 5)
    assert seen
    assert all(shapes == [(3, 5, 4, BLADES), (3, 5, 6)] for shapes in seen)
    handle.remove()
    assert net.obstacle(torch.zeros(1)) is None
    handle = net.blocks[0].register_forward_pre_hook(lambda module, given: None)
    assert "hooks" in net.obstacle(torch.zeros(1))
    handle.remove()
    net.blocks[0] = torch.compile(net.blocks[0], backend="eager")
    assert net.obstacle(torch.zeros(1)) is None
    net.blocks[0].register_forward_hook(hook)
    assert "hooks" in net.obstacle(torch.zeros(1))


def test_other_modules_in_place_of_blocks_or_maps_are_an_obstacle():
    net = _net(dtype=torch.float32)
    net.blocks[0], net.blocks[1] = net.blocks[1], net.blocks[0]
    _assert_served(net, "replaced by another module", 3, 5)
    net = _net(dtype=torch.float32)
    del net.blocks[1]
    _assert_served(net, "added or removed", 3, 5)
    for owner, name in ((lambda net: net, "linear_out"), (lambda net: net.blocks[0].mlp, "linear")):
        net = _net(dtype=torch.float32)
        setattr(owner(net), name, torch.nn.Identity())
        assert net.obstacle(torch.zeros(1)).endswith("EquiLinear as linear map, not Identity")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")
def test_a_sharded_network_stays_on_the_fast_path(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = _net()
    mv, s = (x.detach() for x in _data(net, 3, 5))
    expected = net(mv, s)
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for module in (*net.blocks, net):
            fully_shard(module, mesh=mesh)
        for _ in range(3):  # sharding registers hooks of its own
            assert net.obstacle(mv) is None
            found = net(mv, s)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
            found[0].sum().backward()
        assert net.blocks[0].mlp.linear.weight.grad is not None
        net.blocks[0].register_forward_hook(lambda module, given, out: None)
        assert "hooks" in net.obstacle(mv)
    finally:
        torch.distributed.destroy_process_group()


def _one_head(features):
    """A network whose queries have this many features: twelve per multivector, and scalars."""
    mv = (features - 4) // 12
    sizes = dict(hidden_mv_channels=mv, hidden_s_channels=features - 12 * mv)
    net = _net(num_heads=1, attention_width=1, num_blocks=1, **sizes)
    assert plan_of(net.blocks[0]).heads.features == features
    return net


def test_queries_wider_than_the_kernels_are_an_obstacle():
    net = _one_head(c_kernels.MOST_FEATURES + 8).float()
    _assert_served(net, "wider than", 2, 3)


def test_the_widest_query_that_the_kernels_take_equals_the_plain_layers():
    net = _one_head(c_kernels.MOST_FEATURES)
    _assert_fused_is_plain(net, *_data(net, 2, 3))


def test_other_devices_have_no_kernels():
    net = _net(dtype=torch.float32).to("meta")
    mv, s = (x.to("meta") for x in _data(net, 3, 5, dtype=torch.float32))
    assert net.obstacle(mv) == "there are no kernels for meta"
    assert net(mv, s)[0].shape == (3, 5, 1, 16)


@pytest.mark.slow
def test_the_environment_asks_for_plain_kernels():
    code = (
        "import torch; from flashgatr import GATr; "
        "print(GATr(in_mv_channels=1, out_mv_channels=1).obstacle(torch.zeros(1)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "FLASHGATR_KERNELS": "plain"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "plain kernels were asked for"


def test_without_a_compiler_the_plain_layers_serve(monkeypatch):
    net = _net()
    mv, s = _data(net, 3, 5)
    expected = net(mv, s)
    monkeypatch.setattr(paths, "library", lambda: None)
    assert net.obstacle(mv) == "no C compiler was found"
    for found, x in zip(net(mv, s), expected, strict=True):
        torch.testing.assert_close(found, x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "true", "false"])
def test_a_compiler_that_fails_is_none(compiler, monkeypatch):
    monkeypatch.setenv("CC", compiler)
    assert c_kernels.library.__wrapped__() is None


# ---- transforms ----

_exact_attention = functools.partial(sdpa_kernel, SDPBackend.MATH)
"""torch's fused attention can be neither mapped nor differentiated twice."""


@_exact_attention()
def test_a_network_can_be_mapped_over_a_batch():
    net = _net(**REINSERT)
    mv, s = (x.detach() for x in _data(net, 3, 5))
    reasons = []

    def call(mv, s):
        reasons.append(net.obstacle(mv))
        return net(mv, s)

    mapped = torch.func.vmap(call)(mv, s)
    assert "torch.func" in reasons[0]
    for found, expected in zip(mapped, net(mv, s), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def _mapped_over(name, net, mv, s):
    """A function of one argument, two values of it, and the loop that mapping must equal."""
    values = dict(
        s=s.expand(2, *s.shape) * torch.tensor([1.0, 2.0], dtype=s.dtype)[:, None, None, None],
        join_reference=_additive(2, 3, 16),
        center=_additive(2, 3, 3),
        attention_mask=_additive(2, 5, 5),
    )
    if name in values:
        given = values[name]
        if name == "s":
            return lambda x: net(mv, x)[0], given
        return lambda x: net(mv, s, **{name: x})[0], given
    p = dict(net.named_parameters())[name].detach()
    given = torch.stack([p, p + 0.1])
    return lambda x: torch.func.functional_call(net, {name: x}, (mv, s))[0], given


PIECES = [
    "center", "s", "join_reference", "attention_mask", "blocks.0.attention.qkv.weight",
    "blocks.1.attention.attention.log_beta", "linear_out.weight",
]  # fmt: skip


@pytest.mark.parametrize("name", PIECES)
@_exact_attention()
def test_a_network_can_be_mapped_over_any_one_of_its_inputs(name):
    net = _net()
    mv, s = (x.detach() for x in _data(net, 3, 5))
    call, values = _mapped_over(name, net, mv, s)
    found = torch.func.vmap(call)(values)
    torch.testing.assert_close(
        found, torch.stack([call(x) for x in values]), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("name", PIECES)
@pytest.mark.parametrize("recenter", [True, False])
@_exact_attention()
def test_a_functional_gradient_by_any_one_input_equals_the_ordinary_one(name, recenter):
    net = _net(recenter=recenter)
    mv, s = (x.detach() for x in _data(net, 3, 5))
    call, (value, _) = _mapped_over(name, net, mv, s)

    def loss(x):
        return call(x).sin().sum()

    found = torch.func.grad(loss)(value)
    value = value.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(value), value)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@_exact_attention()
def test_functional_gradients_per_sample_equal_a_loop():
    net = _net()
    mv, s = (x.detach() for x in _data(net, 3, 5))
    parameters = {k: p.detach() for k, p in net.named_parameters()}

    def loss(parameters, mv, s):
        return torch.func.functional_call(net, parameters, (mv, s))[1].sin().sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, mv, s)
    for i in range(3):
        net.zero_grad()
        net(mv[i], s[i])[1].sin().sum().backward()
        for name, p in net.named_parameters():
            expected = torch.zeros_like(p) if p.grad is None else p.grad
            torch.testing.assert_close(found[name][i], expected, rtol=1e-10, atol=1e-10)


@_exact_attention()
def test_a_vectorised_jacobian_equals_the_loop():
    net = _net()
    mv, s = (x.detach() for x in _data(net, 2, 3))

    def call(mv):
        return net(mv, s)[1].sum((0, 1))

    expected = torch.autograd.functional.jacobian(call, mv)
    found = torch.autograd.functional.jacobian(call, mv, vectorize=True)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


# ---- tables ----

SIZES = [(2, 3, 4, 5), (1, 1, 0, 0), (3, 2, 0, 1), (2, 1, 3, 0), (0, 2, 3, 1), (2, 0, 1, 3)]


def _shuffled(columns):
    order = random.Random(0).sample(range(len(columns)), len(columns))
    blade, channel = ([x[i] for i in order] for x in (columns.blade, columns.channel))
    return rows.Columns(tuple(blade), tuple(channel)), order


def _layer(in_mv, out_mv, in_s, out_s, bias):
    layer = EquiLinear(in_mv, out_mv, in_s, out_s, bias=bias).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_()
    return layer


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
    layer = _layer(*sizes, bias)
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
    layer = _layer(*sizes, bias=True)
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


# ---- Triton's kernels, interpreted ----

INTERPRETED = """
import sys, torch
sys.path.insert(0, {folder!r})
from tests.kernels import test_fused as laws
from flashgatr.batch import Sets
from flashgatr.kernels import backend, cuda, plan
from flashgatr.kernels.rows import from_rows, to_rows
from flashgatr.versors import translate, working_center

backend.BACKENDS["cpu"] = cuda
variants = (
    {{}},
    dict(laws.REINSERT, multi_query=False, learned_weights="all"),
    dict(laws.ODD, distance_aware=False, activation="sigmoid"),
    dict(laws.NO_SCALARS, activation="relu"),
)
for options in variants:
    torch.manual_seed(0)
    net = laws._net(dtype=torch.float32, **options)
    for items in (5, 11):  # attended to within a kernel, and by torch
        mv, s = laws._data(net, 2, items, dtype=torch.float32)
        found, expected = (laws._results(net, mv, s, plain=plain) for plain in (False, True))
        laws._assert_equal(found, expected, 1e-4)

for c, channels in ((2, 1), (3, 0), (1, 7)):  # the ends of a network, which run on CUDA alone
    mv, s = torch.randn(4, 5, c, 16), torch.randn(4, 5, channels)
    sets = Sets((4, 5))
    center, mean = cuda.survey(mv)
    torch.testing.assert_close(center, working_center(mv, sets), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mean, sets.mean(mv[..., 14].mean(-1, keepdim=True))[:, 0])
    shift = sets.spread(center).unsqueeze(-2)
    rows = cuda.enter(mv, s, center)
    torch.testing.assert_close(rows, to_rows(translate(mv, -shift), s), rtol=1e-4, atol=1e-5)
    sizes = plan.Sizes(c, channels)
    rows.requires_grad_()
    inner, expected_s = from_rows(rows, (4, 5), (c, channels))
    expected = translate(inner, shift).flatten(0, 1)
    found, found_s = cuda.leave(rows, center, sizes)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found_s, expected_s.flatten(0, 1))
    g, g_s = torch.randn_like(found), torch.randn_like(found_s)
    (expected,) = torch.autograd.grad([expected, expected_s.flatten(0, 1)], rows, [g, g_s])
    torch.testing.assert_close(cuda.leave_backward(g, g_s, center, sizes), expected)
print("equal")
"""


@pytest.mark.slow
def test_the_triton_kernels_equal_the_plain_layers_when_interpreted():
    pytest.importorskip("triton")
    code = INTERPRETED.format(folder=str(Path(__file__).parents[2]))
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "equal", done.stderr[-3000:]
