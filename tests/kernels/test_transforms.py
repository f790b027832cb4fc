"""Networks under the transforms of torch.func."""

import functools

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .networks import REINSERT, additive, make_data, make_net

pytestmark = pytest.mark.usefixtures("compiler")
_exact_attention = functools.partial(sdpa_kernel, SDPBackend.MATH)
"""torch's fused attention can be neither mapped nor differentiated twice."""


@_exact_attention()
def test_a_network_can_be_mapped_over_a_batch():
    net = make_net(**REINSERT)
    mv, s = (x.detach() for x in make_data(net, 3, 5))
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
        join_reference=additive(2, 3, 16),
        center=additive(2, 3, 3),
        attention_mask=additive(2, 5, 5),
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
    net = make_net()
    mv, s = (x.detach() for x in make_data(net, 3, 5))
    call, values = _mapped_over(name, net, mv, s)
    found = torch.func.vmap(call)(values)
    torch.testing.assert_close(
        found, torch.stack([call(x) for x in values]), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("name", PIECES)
@pytest.mark.parametrize("recenter", [True, False])
@_exact_attention()
def test_a_functional_gradient_by_any_one_input_equals_the_ordinary_one(name, recenter):
    net = make_net(recenter=recenter)
    mv, s = (x.detach() for x in make_data(net, 3, 5))
    call, (value, _) = _mapped_over(name, net, mv, s)

    def loss(x):
        return call(x).sin().sum()

    found = torch.func.grad(loss)(value)
    value = value.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(value), value)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@_exact_attention()
def test_functional_gradients_per_sample_equal_a_loop():
    net = make_net()
    mv, s = (x.detach() for x in make_data(net, 3, 5))
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
    net = make_net()
    mv, s = (x.detach() for x in make_data(net, 2, 3))

    def call(mv):
        return net(mv, s)[1].sum((0, 1))

    expected = torch.autograd.functional.jacobian(call, mv)
    found = torch.autograd.functional.jacobian(call, mv, vectorize=True)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
