"""Attention on a GPU: every kernel that may run, on tensors of every layout in memory."""

import pytest
import torch

from flashgatr.experiments.baselines import AxialTransformer, Transformer
from flashgatr.functional import attend
from flashgatr.kernels.paths import plain_kernels

from .networks import ON_GPU

pytestmark = ON_GPU
BATCH, HEADS = 3, 4
WIDTHS = [(24, 40), (20, 36), (16, 24), (64, 64), (18, 18)]
LAYOUTS = {
    "contiguous": lambda x: x,
    "across rows": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "heads first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "a slice of wider rows": lambda x: torch.nn.functional.pad(x, (8, 8))[..., 8:-8],
    "an odd slice of wider rows": lambda x: torch.nn.functional.pad(x, (3, 2))[..., 3:-2],
}


def _results(q, k, v, g):
    given = [x.detach().requires_grad_() for x in (q, k, v)]
    none = dict(sets=None, context_sets=None, attention_mask=None)
    out = attend(*given, scale=q.shape[-1] ** -0.5, **none)
    return [out, *torch.autograd.grad(out, given, g)]


@pytest.mark.parametrize("items", [2, 3, 20, 128])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_in_16_bits_is_exact_in_every_layout(layout, widths, items):
    """Against float64 on the same rounded numbers; gradients included."""
    torch.manual_seed(0)
    sizes = widths[0], widths[0], widths[1], widths[1]
    exact = [torch.randn(BATCH, items, HEADS, n, device="cuda").bfloat16().double() for n in sizes]
    q, k, v, g = (LAYOUTS[layout](x.bfloat16()) for x in exact)
    for found, right in zip(_results(q, k, v, g), _results(*exact), strict=True):
        assert (found.double() - right).norm() <= 0.01 * right.norm()


@pytest.mark.parametrize("items", [6, 40, 400])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_negated_values_give_the_negated_result(dtype, items):
    """Bit for bit: that mirrors are exact rests on rounding that treats both signs alike."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, items, HEADS, 24, device="cuda", dtype=dtype) for _ in range(3))
    none = dict(sets=None, context_sets=None, attention_mask=None)
    found, negated = (attend(q, k, x, scale=0.2, **none) for x in (v, -v))
    torch.testing.assert_close(negated, -found, rtol=0, atol=0)
    turned = attend(-q, -k, v, scale=0.2, **none)
    torch.testing.assert_close(turned, found, rtol=0, atol=0)


def _transformer(kind):
    if kind == "axial":
        return AxialTransformer(9, 9, 144, 2, 8, rotary=(True, False)), (3, 16, 5, 9)
    return Transformer(9, 9, 48, 2, 4, multi_query=kind == "multi-query"), (7, 4, 9)


def _outputs(net, x):
    x = x.detach().requires_grad_()
    y = net(x)
    return [y, *torch.autograd.grad(y.double().square().sum(), [x, *net.parameters()])]


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("kind", ["axial", "multi-head", "multi-query"])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_transformer_in_small_sets_is_that_of_other_sets(kind, compiled):
    """GATr's kernel for small sets and the general attention agree, gradients included."""
    net, shape = _transformer(kind)
    net, x = net.cuda(), torch.randn(shape, device="cuda")
    with plain_kernels():
        exact = [y.float() for y in _outputs(net.double(), x.double())]
        usual = _outputs(net.float(), x)
    if compiled:
        for block in net.blocks:
            block.compile()
    for found, plain, right in zip(_outputs(net, x), usual, exact, strict=True):
        assert (found - right).norm() <= 2 * (plain - right).norm() + 1e-6 * right.norm()
