"""The fused operators, one by one: derivatives and registration."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from flashgatr.algebra import BLADES
from flashgatr.fast import parameters_of, plan_of
from flashgatr.functional.rotary import rotary_table
from flashgatr.kernels import rows
from flashgatr.kernels.backend import linear_plans
from flashgatr.kernels.linear import linear
from flashgatr.kernels.plan import Sizes
from flashgatr.kernels.queries import queries
from flashgatr.kernels.small_sets import small_attention
from flashgatr.kernels.update import update
from flashgatr.kernels.weights import Weights

from .networks import REINSERT, make_layer, make_net

pytestmark = pytest.mark.usefixtures("compiler")
ops = torch.ops.flashgatr


class _Parts:
    """One block's operators with everything they take, as functions of tensors alone."""

    def __init__(self, items=3, dtype=torch.float64, **options):
        block = make_net(num_blocks=1, **options).to(dtype).blocks[0]
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
        self.rotary = None
        if plan.rotary_base:
            channels = self.heads.s
            self.rotary = rotary_table(torch.arange(items), channels, plan.rotary_base, dtype)

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
            given = maps, parameters, list(rest[:logs]), self.terms, self.plan
            found = queries(x, delta, extra, self.rotary, *given)
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
        return lambda q, k, v: small_attention(q, k, v, items, 1, self.scale), [q, k, v]


TINY = dict(hidden_mv_channels=2, hidden_s_channels=3, attention_width=1, learned_weights="all")
BLIND = dict(distance_aware=False, learned_weights="none")
"""Queries and keys are linear in the projected rows."""
OPERATORS = [
    "queries", "queries_with_rows", "linear", "update", "update_with_rows", "small_attention",
]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {}, dict(multi_query=False, **REINSERT), dict(distance_aware=False, norm_epsilon=1e3),
        dict(rotary=True), dict(rotary=True, multi_query=False, **BLIND),
    ],
    ids=["multi-query", "multi-head", "blind and clamped", "rotary", "rotary and blind"],
)  # fmt: skip
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


def test_projected_rows_are_kept_only_if_the_backward_pass_reads_them():
    for options, kept in (({}, 3), (dict(distance_aware=False), 3), (BLIND, 0)):
        call, tensors = _Parts(**{**TINY, **options}).queries(keep=(6,))
        assert len(call(*tensors)[0]) == kept, options


def _operator_calls():
    """Every operator that runs on a CPU, with arguments."""
    parts = _Parts(items=4, dtype=torch.float32, **{**TINY, **REINSERT}, rotary=True)
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
    maps, own = [prepared[i] for i in first], [p for i in first for p in groups[i]]
    theirs = extra, parts.rotary, maps, own, logs
    given = [prepared[i] for i in second], [p for i in second for p in groups[i]]
    with torch.no_grad():
        _, y, stat, q, k, v, raw = queries(x, delta, *theirs, parts.terms, plan)
        _, _, _, _, projected, wide = update(x, attended, reference, *given, plan, False)
    layer = make_layer(3, 2, 4, 5, bias=True)
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
            g_x, g_y, *map(torch.randn_like, (q, k, v)), y, stat, extra_0, parts.rotary, raw,
            maps, logs_0, parts.terms, text,
        ),
        "small_attention": (q_grown, k_grown, v_grown, 2, 1, 0.3),
        "small_attention_backward": (q, k, v, outer, 2, 2, 0.3),
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
