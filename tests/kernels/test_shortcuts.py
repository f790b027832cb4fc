"""A shortcut that is broken gives way to the public way, and the results stay the same."""

import contextlib

import pytest
import torch

from flashgatr import GATr, shortcuts
from flashgatr.functional import attention
from flashgatr.kernels import block_node
from flashgatr.shortcuts import Shortcut


def results(net, mv, s):
    """Outputs and gradients."""
    mv = mv.clone().requires_grad_()
    out, out_s = net(mv, s)
    loss = out.square().sum() + out_s.square().sum()
    return [out, out_s, *torch.autograd.grad(loss, [mv, *net.parameters()], allow_unused=True)]


@pytest.fixture
def case():
    net = GATr(
        in_mv_channels=1, in_s_channels=1, out_mv_channels=1, out_s_channels=1, num_blocks=2,
        hidden_mv_channels=4, hidden_s_channels=8, num_heads=2,
    )  # fmt: skip
    mv, s = torch.randn(3, 5, 1, 16), torch.randn(3, 5, 1)
    if net.obstacle(mv):
        pytest.skip(net.obstacle(mv))
    return net, mv, s


def assert_same(found, expected):
    for x, y in zip(found, expected, strict=True):
        assert (x is None) == (y is None)
        assert x is None or torch.equal(x, y)


@pytest.mark.parametrize("shortcut", shortcuts.EVERY, ids=lambda x: x.name)
def test_without_a_shortcut_results_are_the_same_bit_for_bit(case, shortcut):
    expected = results(*case)
    with shortcut.off():
        assert not shortcut.is_on
        assert_same(results(*case), expected)


BROKEN = {
    "_len_torch_dispatch_stack": (torch._C, shortcuts.DIRECT_CALLS, shortcuts.is_followed),
    "flatten_dense_tensors": (torch._C._nn, shortcuts.FLAT_TENSORS, shortcuts._try_flat_tensors),
    "unflatten_dense_tensors": (torch._C._nn, shortcuts.FLAT_TENSORS, shortcuts._try_flat_tensors),
    "_foreach_mul_": (torch, shortcuts.MANY_TENSORS, shortcuts._try_many_tensors),
    "_foreach_lerp_": (torch, shortcuts.MANY_TENSORS, shortcuts._try_many_tensors),
}
"""Private names: where each is, which shortcut needs it, and the probe that finds it missing."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_private_name_that_is_gone_switches_its_shortcut_off(case, name, monkeypatch):
    place, shortcut, probe = BROKEN[name]
    expected = results(*case)
    monkeypatch.setattr(shortcut, "problem", "")
    monkeypatch.delattr(place, name)
    shortcut.check_with(probe)
    assert_same(results(*case), expected)
    assert not shortcut.is_on
    assert name in shortcut.problem
    monkeypatch.undo()
    shortcut.check_with(probe)
    assert shortcut.is_on


def test_a_private_function_that_does_something_else_is_not_used(case, monkeypatch):
    expected = results(*case)
    with monkeypatch.context() as patch:
        patch.setattr(torch._C._nn, "flatten_dense_tensors", lambda given: torch.zeros(5))
        shortcuts.FLAT_TENSORS.check_with(shortcuts._try_flat_tensors)
        assert_same(results(*case), expected)
        assert "does not concatenate" in shortcuts.FLAT_TENSORS.problem
    shortcuts.FLAT_TENSORS.check_with(shortcuts._try_flat_tensors)


@pytest.mark.parametrize("name", ["peek_interpreter_stack", "is_functorch_wrapped_tensor"])
def test_a_torch_that_does_not_tell_of_transforms_runs_the_plain_layers(case, name, monkeypatch):
    net, mv, s = case
    expected = results(net, mv, s)
    monkeypatch.delattr(torch._C._functorch, name)
    found = results(net, mv, s)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_second_derivatives_do_not_need_a_private_name(case, monkeypatch):
    net, mv, s = (x.double() for x in case)
    mv.requires_grad_()

    def second():
        (first,) = torch.autograd.grad(net(mv, s)[0].square().sum(), mv, create_graph=True)
        return torch.autograd.grad(first.square().sum(), mv)

    expected = second()
    monkeypatch.delattr(torch._C._functorch, "is_legacy_batchedtensor")
    torch.testing.assert_close(second(), expected)


@pytest.mark.parametrize("check", [attention._check_cudnn, attention._check_packed])
def test_attention_operators_of_this_torch_take_the_arguments_we_give(check):
    check()


def test_an_attention_operator_with_other_arguments_is_not_used():
    with pytest.raises(TypeError, match="takes"):
        attention._require_arguments("_flash_attention_forward", "keys_first")


def test_lists_of_tensors_are_scaled_and_averaged_the_same_without_the_shortcut():
    start = [torch.randn(3), torch.randn(2, 4)]
    targets = [torch.randn_like(x) for x in start]
    found = []
    for way in (contextlib.nullcontext(), shortcuts.MANY_TENSORS.off()):
        x = [y.clone() for y in start]
        with way:
            shortcuts.scale_all(x, torch.tensor(0.3))
            shortcuts.move_all(x, targets, 0.25)
        found.append(x)
    assert_same(*found)


def test_the_probe_runs_once_when_first_asked():
    calls = []
    shortcut = Shortcut("example", lambda: calls.append(1))
    assert not calls
    assert shortcut.is_on
    assert shortcut.is_on
    assert calls == [1]
    shortcut.fail(TypeError("other arguments"))
    assert not shortcut.is_on
    assert shortcut.problem == "TypeError: other arguments"


def test_a_block_is_one_node_only_with_its_shortcut(case, monkeypatch):
    net, mv, s = case
    called = []
    forward = block_node.BlockNode.forward
    watched = staticmethod(lambda *given: called.append(1) or forward(*given))
    monkeypatch.setattr(block_node.BlockNode, "forward", watched)
    net(mv, s)
    assert len(called) == len(net.blocks)
    with shortcuts.BLOCK_NODE.off():
        net(mv, s)
    assert len(called) == len(net.blocks)
