"""Rounding of anchored networks, and of weights in attention."""

import copy

import pytest
import torch

from flashgatr import functional
from flashgatr.kernels.paths import plain_kernels

from .networks import VARIANTS, gap, make_data, make_net


@pytest.mark.parametrize("name", ["default", "reinsert multi-head"])
def test_the_kernels_round_at_most_twice_as_much_as_the_modules(name):
    exact = make_net(**VARIANTS[name], num_blocks=4)
    net = copy.deepcopy(exact).float()
    (mv, s), (query, query_s) = make_data(30), make_data(100)
    weights = torch.rand(30).double() + 0.5

    def results(net, dtype):
        state = net.encode(mv.to(dtype), s.to(dtype), weights=weights.to(dtype))
        return net.decode(state, query.to(dtype), query_s.to(dtype), tile=50)

    expected = results(exact, torch.float64)
    assert net.obstacle(mv.float()) is None
    fused = gap([x.double() for x in results(net, torch.float32)], expected)
    with plain_kernels():
        plain = gap([x.double() for x in results(net, torch.float32)], expected)
    assert 0 < fused <= 2 * plain


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
