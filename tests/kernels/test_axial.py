"""Networks with two item axes, and rotary positions, on the fused path."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from flashgatr import AxialGATr
from flashgatr.fast import plan_of
from flashgatr.kernels.plan import read_plan
from flashgatr.kernels.small_sets import small_attention
from flashgatr.shortcuts import DIRECT_CALLS

from .networks import (
    MASK,
    REINSERT,
    TYPED,
    additive,
    assert_equal,
    assert_fused_is_plain,
    boolean,
    make_data,
    make_net,
    results_of,
)

pytestmark = pytest.mark.usefixtures("compiler")

# ---- two item axes ----

OPTIONS = {
    "default": {},
    "multi-head": dict(multi_query=False, learned_weights="all"),
    "reinsert": REINSERT,
    "checkpoint": dict(checkpoint=True),
    "blind": dict(distance_aware=False, attention_width=1),
    "rotary times": dict(rotary=(True, False), multi_query=False),
    "rotary objects": dict(rotary=(False, True), **REINSERT),
    "rotary": dict(rotary=(True, True), learned_weights="all", checkpoint=True),
}
TYPES = dict(TYPED, **REINSERT, rotary=(True, False), multi_query=False)
GIVEN = {
    "": lambda: {},
    "padded": lambda: dict(mask=boolean(2, 3, 4)),
    "masks": lambda: dict(attention_mask=(boolean(3, 3), None)),
    "additive masks": lambda: dict(attention_mask=(None, additive(4, 4))),
    "masks per head": lambda: dict(attention_mask=(additive(2, 4, 2, 3, 3), boolean(2, 3, 4, 4))),
    "references": lambda: dict(join_reference=additive(2, 16).requires_grad_()),
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", OPTIONS)
def test_axial_networks_equal_their_plain_layers(name, given):
    net = make_net(AxialGATr, num_blocks=3, **OPTIONS[name])
    assert_fused_is_plain(net, *make_data(net, 2, 3, 4), **GIVEN[given]())


@pytest.mark.parametrize(
    "shape",
    [(40, 3), (3, 40), (1, 99), (99, 1), (0, 3), (3, 0), (1, 1), (2, 40, 3), (2, 35, 36),
     (2, 2, 7, 4)],
)  # fmt: skip
@pytest.mark.parametrize(
    "options", [{}, OPTIONS["rotary times"], TYPES], ids=["", "rotary", "types"]
)
def test_axial_sets_of_every_size_equal_the_plain_layers(options, shape):
    net = make_net(AxialGATr, **options)
    assert_fused_is_plain(net, *make_data(net, *shape))


def test_the_axes_of_an_axial_network_may_have_heads_of_different_width():
    net = make_net(AxialGATr, rotary=(True, False), attention_width=1)
    even, odd = (plan_of(block).heads.s for block in net.blocks)
    assert (even, odd) == (4, 8)


@pytest.mark.parametrize("keys", [1, 2])
@pytest.mark.parametrize(("items", "step"), [(4, 8), (4, 3), (3, 40), (32, 2), (1, 5), (16, 2)])
def test_attention_across_rows_equals_attention_of_moved_rows(items, step, keys):
    """To the bit, in the forward and in the backward pass."""

    def moved(x):
        return x.unflatten(0, (-1, items, step)).transpose(1, 2).flatten(0, 2)

    total = 3 * items * step
    given = [torch.randn(total, heads, width) for heads, width in ((2, 8), (keys, 8), (keys, 11))]
    g, results = torch.randn(total, 2, 11), []
    for across in (True, False):
        own = [(x if across else moved(x)).clone().requires_grad_() for x in given]
        out = small_attention(*own, items, step if across else 1, 0.3)
        found = [out, *torch.autograd.grad(out, own, g if across else moved(g))]
        results.append([moved(x) if across else x for x in found])
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_second_derivatives_of_attention_across_rows():
    given = [torch.randn(12, h, w).double().requires_grad_() for h, w in ((2, 8), (1, 8), (1, 5))]

    def attention(q, k, v):
        return small_attention(q, k, v, 3, 2, 0.3)

    assert gradcheck(attention, given, fast_mode=True)
    assert gradgradcheck(attention, given, fast_mode=True)


# ---- rotary positions ----


@pytest.mark.parametrize("options", [{}, dict(multi_query=False, **REINSERT)], ids=str)
@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ((2, 17), {}),
        ((2, 40), {}),
        ((99, 1), {}),
        ((2, 3, 4), {}),
        ((0, 5), {}),
        ((3, 5), dict(mask=MASK)),
        ((3, 5), dict(mask=MASK, attention_mask=boolean(3, 5, 5))),
        ((12,), dict(offsets=torch.tensor([0, 0, 3, 3, 12]))),
        ((50,), dict(offsets=torch.tensor([0, 1, 50]))),
    ],
)
def test_rotary_positions_equal_those_of_the_plain_layers(shape, given, options):
    torch.manual_seed(1)  # with seed 0, one last bit of the inputs changes gradients by 2e-12
    net = make_net(rotary=True, **options)
    assert_fused_is_plain(net, *make_data(net, *shape), **given)


def test_rotary_positions_restart_in_every_packed_set():
    net = make_net(rotary=True)
    mv, s = (x.detach() for x in make_data(net, 12))
    together = net(mv, s, offsets=torch.tensor([0, 5, 12]))
    for found, first, second in zip(together, net(mv[:5], s[:5]), net(mv[5:], s[5:]), strict=True):
        torch.testing.assert_close(found, torch.cat([first, second]), rtol=1e-10, atol=1e-12)


def test_inference_with_rotary_positions_is_the_same():
    net = make_net(AxialGATr, rotary=(True, False))
    mv, s = make_data(net, 2, 3, 4)
    expected = net(mv, s)
    with torch.inference_mode(), net.frozen():
        for _ in range(2):
            found = net(mv, s)
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y)


def test_the_plan_of_a_rotary_block_survives_as_text():
    net = make_net(rotary=True, rotary_base=1234.5)
    plan = plan_of(net.blocks[0])
    assert plan.rotary_base == 1234.5
    assert read_plan(plan.text) is plan
    assert plan_of(make_net().blocks[0]).rotary_base == 0


def test_registered_operators_know_rotary_positions():
    """What compilers and dispatch modes see equals the direct calls."""
    net = make_net(rotary=True, multi_query=False)
    mv, s = make_data(net, 3, 5)
    expected = results_of(net, mv, s)
    with DIRECT_CALLS.off():
        assert_equal(results_of(net, mv, s), expected)
