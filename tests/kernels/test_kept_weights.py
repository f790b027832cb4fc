"""Prepared weights are kept while a network is frozen, and are those of its current parameters."""

import contextlib
import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashgatr.kernels.paths import plain_kernels

from .networks import assert_equal, assert_fused_is_plain, make_data, make_net, results_of

pytestmark = pytest.mark.usefixtures("compiler")
ops = torch.ops.flashgatr


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
    net = make_net()
    mv, s = make_data(net, 3, 5)
    expected = net(mv, s)
    with net.frozen() as same, context():
        assert same is net
        for _ in range(2):
            assert all(torch.equal(x, y) for x, y in zip(net(mv, s), expected, strict=True))


def test_gradients_are_the_same_while_frozen():
    net = make_net()
    mv, s = make_data(net, 3, 5)
    expected = results_of(net, mv, s)
    with torch.inference_mode(), net.frozen():
        net(mv, s)
    with net.frozen():
        with torch.inference_mode():
            net(mv.detach(), s.detach())  # what is kept must not be an inference tensor
        assert_equal(results_of(net, mv, s), expected)


def test_frozen_prepares_weights_once():
    net = make_net()
    mv, s = make_data(net, 3, 5)
    every = net.config.num_blocks + 2
    assert [_prepared_by(net, mv, s) for _ in range(2)] == [every, every]
    with net.frozen():
        assert [_prepared_by(net, mv, s) for _ in range(3)] == [every, 0, 0]
    assert _prepared_by(net, mv, s) == every
    with net.frozen():
        assert _prepared_by(net, mv, s) == every


def test_changes_are_seen_after_frozen():
    net = make_net()
    mv, s = make_data(net, 3, 5)
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
    other(*(x.to(net.linear_in.weight) for x in make_data(net, 3, 5)))
    other.load_state_dict(net.state_dict())
    return other


COPIES = [_deepcopied, _pickled, _saved, _loaded]


@pytest.mark.parametrize("made", COPIES)
def test_a_copy_of_a_used_network_is_a_network_of_its_own(made):
    net = make_net()
    mv, s = make_data(net, 3, 5)
    expected = net(mv, s)
    other = made(net)
    assert all(torch.equal(x, y) for x, y in zip(other(mv, s), expected, strict=True))
    _change(other)
    _assert_right(other, mv, s)
    assert all(torch.equal(x, y) for x, y in zip(net(mv, s), expected, strict=True))


@pytest.mark.parametrize("made", [*COPIES[:3], _loaded])
def test_a_copy_of_a_frozen_network_is_not_frozen(made):
    net = make_net()
    mv, s = make_data(net, 3, 5)
    with net.frozen():
        net(mv, s)
        other = made(net)
    _change(other)
    _assert_right(other, mv, s)


def test_frozen_within_frozen_keeps_the_weights():
    net = make_net()
    mv, s = make_data(net, 3, 5)
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
    net = make_net(dtype=torch.float32)
    mv, s = (x.detach() for x in make_data(net, 3, 5, dtype=torch.float32))
    with net.frozen() if frozen else contextlib.nullcontext():
        _assert_right(net, mv, s)
        net.double()
        _assert_right(net, mv.double(), s.double())
        net.to(torch.float32)
        _assert_right(net, mv, s)


def test_a_network_follows_its_parameters():
    net = make_net()
    mv, s = make_data(net, 3, 5)
    _assert_right(net, mv, s)
    net.load_state_dict(make_net().state_dict())
    _assert_right(net, mv, s)
    net.load_state_dict(make_net().state_dict(), assign=True)
    _assert_right(net, mv, s)
    for p in net.parameters():
        p.data = torch.randn_like(p)
    _assert_right(net, mv, s)


@pytest.mark.parametrize("neighbours", [True, False])
def test_parameters_that_are_views_of_one_tensor_are_read_rightly(neighbours):
    """A flat optimiser stores parameters one after another; elsewhere they may be anywhere."""
    net = make_net()
    mv, s = make_data(net, 3, 5)
    gap = 0 if neighbours else 3
    flat = torch.randn(sum(p.numel() + gap for p in net.parameters()), dtype=torch.float64)
    start = 0
    for p in net.parameters():
        p.data = flat[start : start + p.numel()].view_as(p).copy_(p.data)
        start += p.numel() + gap
    _assert_right(net, mv, s)
    assert_fused_is_plain(net, mv, s)
    flat *= 1.1
    _assert_right(net, mv, s)


@pytest.mark.parametrize("fused_adam", [True, False])
def test_evaluation_sees_what_training_changed(fused_adam):
    """A fused optimiser does not change the parameters' versions: cached weights would be old."""
    net = make_net(dtype=torch.float32)
    mv, s = (x.detach() for x in make_data(net, 3, 5, dtype=torch.float32))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05, fused=fused_adam)
    _assert_right(net, mv, s)
    for _ in range(3):
        before = _plain_outputs(net, mv, s)[0]
        optimizer.zero_grad()
        sum(x.square().sum() for x in net(mv, s)).backward()
        optimizer.step()
        assert not torch.allclose(before, _plain_outputs(net, mv, s)[0])
        _assert_right(net, mv, s)


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
