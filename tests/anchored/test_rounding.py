"""Rounding of anchored networks, and of weights in attention."""

import copy

import pytest
import torch

from flashgatr import functional
from flashgatr.kernels.paths import plain_kernels

from .networks import VARIANTS, gap, make_data, make_net


@pytest.mark.parametrize("name", ["default", "reinsert multi-head", "types"])
def test_the_kernels_round_at_most_twice_as_much_as_the_modules(name):
    """Outputs, and the gradients of a projection of them."""
    exact = make_net(**VARIANTS[name], num_blocks=4)
    net = copy.deepcopy(exact).float()
    data = *make_data(30), torch.rand(30).double() + 0.5, *make_data(100)

    def results(net, dtype):
        mv, s, weights, query, query_s = (x.to(dtype).requires_grad_() for x in data)
        assert dtype == torch.float64 or (net.obstacle(mv) is None) == is_fused
        out = net.decode(net.encode(mv, s, weights=weights), query, query_s, tile=50)
        outer = [torch.linspace(-1, 1, x.numel(), dtype=dtype).cos().reshape(x.shape) for x in out]
        leaves = [mv, s, weights, query, query_s, *net.parameters()]
        return out, torch.autograd.grad(out, leaves, outer)

    def errors():
        pairs = zip(results(net, torch.float32), expected, strict=True)
        return [gap([x.double() for x in found], right) for found, right in pairs]

    expected = results(exact, torch.float64)
    is_fused = True
    fused = errors()
    with plain_kernels():
        is_fused = False
        plain = errors()
    for ours, theirs in zip(fused, plain, strict=True):
        assert 0 < ours <= 2 * theirs


def test_weights_in_16_bits_are_as_exact_as_the_other_features():
    """One lane of 16 bits would round a logarithm of 12 by up to 0.03."""
    torch.manual_seed(0)
    values = torch.eye(6).unsqueeze(1)  # so that attention's weights are its result
    q, k = torch.zeros(1, 1, 8), torch.zeros(6, 1, 8)
    weights = torch.tensor([1.0, 3.0, 1e3, 7e3, 1.1e5, 2e5])
    given = [x.bfloat16() for x in (q, k, values)]
    found = functional.attend(
        *given, scale=0.2, sets=None, context_sets=None, attention_mask=None,
        log_weights=weights.log(),
    )  # fmt: skip
    expected = weights / weights.sum()
    assert float((found[0, 0].float() - expected).abs().max()) < 2**-8 * float(expected.max())
