"""A block on small sets is one node of the graph, with the same results."""

import contextlib
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from flashgatr import fast
from flashgatr.kernels import block as row_block
from flashgatr.kernels import block_node, cpu
from flashgatr.kernels.paths import plain_kernels

from .networks import VARIANTS, assert_equal, make_data, make_net, results_of

pytestmark = pytest.mark.usefixtures("compiler")


def _nodes(result):
    """How many nodes of its graph are whole blocks."""
    seen, left = set(), [result.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [following for following, _ in node.next_functions]
    return sum("BlockNode" in type(node).__name__ for node in seen)


@pytest.mark.parametrize("name", ["default", "rotary multi-head", "types multi-head"])
@pytest.mark.parametrize("shape", [(7, 5), (70, 4), (20, 16)], ids=str)
def test_a_block_on_small_sets_is_one_node_and_gives_the_same_bits(name, shape, monkeypatch):
    net = make_net(dtype=torch.float32, **VARIANTS[name])
    mv, s = make_data(net, *shape, dtype=torch.float32)
    found = results_of(net, mv, s)
    assert _nodes(net(mv, s)[0]) == len(net.blocks)
    assert_equal(found, results_of(net, mv, s, plain=True), 1e-4)
    monkeypatch.setattr(row_block, "MOST_ROWS", 34)
    apart = results_of(net, mv, s)
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

    net = make_net(num_blocks=2)
    mv, s = make_data(net, 8, 4)
    gradients = []
    for mode in (contextlib.nullcontext(), Copies()):
        out, out_s = net(mv, s)
        with mode:
            loss = (out**2).sum() + out_s.sum()
            gradients.append(torch.autograd.grad(loss, net.blocks[0].parameters()))
    assert all(torch.equal(x, y) for x, y in zip(*gradients, strict=True))


def test_weights_are_prepared_for_one_pass_only(monkeypatch):
    """All together before the first block; none is left for later, even if the pass fails."""
    net, calls = make_net(), []
    mv, s = make_data(net, 3, 4)
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
    net = make_net(num_blocks=1)
    rows_of = {}

    def watched(*given):
        rows_of["x"], rows_of["delta"] = found = row_block.run_block(*given)
        return found

    monkeypatch.setattr(fast, "run_block", watched)
    mv, s = make_data(net, 3, 4)
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
    net, alive = make_net(), []
    prepare = block_node.BlockNode.forward
    mv, s = make_data(net, 3, 4)
    with pytest.MonkeyPatch.context() as patch:

        def watched(ctx, *given):
            alive.extend(weakref.ref(x) for x in given[6:18] if not x.requires_grad)
            return prepare(ctx, *given)

        patch.setattr(block_node.BlockNode, "forward", staticmethod(watched))
        loss = net(mv, s)[0].sum()
    assert any(x() is not None for x in alive)
    loss.backward()
    assert loss.grad_fn is not None  # the caller keeps the loss
    assert all(x() is None for x in alive)


def test_blocks_of_which_nothing_is_learned_pass_gradients_on():
    net = make_net()
    for p in net.parameters():
        p.requires_grad_(False)
    mv, s = make_data(net, 3, 4)
    fused_mv, plain_mv = (
        torch.autograd.grad(_forward(net, mv, s, plain), mv)[0] for plain in (False, True)
    )
    torch.testing.assert_close(fused_mv, plain_mv)


def _forward(net, mv, s, plain):
    with plain_kernels() if plain else contextlib.nullcontext():
        return net(mv, s)[0].square().sum()
