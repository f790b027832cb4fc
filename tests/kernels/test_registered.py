"""Tracers and modes see the operators; other calls reach them directly; kernels are found once."""

import contextlib
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from flashgatr import GATr
from flashgatr.functional.attention import _mask_by_features
from flashgatr.kernels import cpu
from flashgatr.kernels.cpu.deferred import settle
from flashgatr.kernels.cpu.library import library
from flashgatr.kernels.cuda import compiled, launch
from flashgatr.kernels.operator import Operator
from flashgatr.kernels.paths import plain_kernels
from flashgatr.shortcuts import TRITON_LAUNCH


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def _net():
    torch.manual_seed(0)
    return GATr(in_mv_channels=1, out_mv_channels=1, hidden_mv_channels=4, hidden_s_channels=8,
                num_blocks=2, num_heads=2)  # fmt: skip


def test_whoever_watches_operators_sees_them_and_the_same_numbers():
    net = _net()
    mv = torch.randn(3, 5, 1, 16, requires_grad=True)
    if net.obstacle(mv):
        pytest.skip(net.obstacle(mv))
    out, _ = net(mv)
    (expected,) = torch.autograd.grad(out.square().sum(), mv)
    with Watch() as watch:
        watched, _ = net(mv)
        (found,) = torch.autograd.grad(watched.square().sum(), mv)
    assert torch.equal(watched, out)
    assert torch.equal(found, expected)
    for name in ("queries", "update", "queries_backward", "update_backward"):
        assert f"flashgatr.{name}.default" in watch.seen


def test_a_traced_network_takes_other_inputs():
    net = _net()

    class Only(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, mv):
            return self.net(mv)[0]

    first, second = torch.randn(3, 5, 1, 16), torch.randn(3, 5, 1, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, about shapes, and about itself
        traced = torch.jit.trace(Only(), (first,), check_trace=False)
    torch.testing.assert_close(traced(second), net(second)[0])


def test_parameters_may_be_tensors_of_another_kind():
    from torch.testing._internal.two_tensor import TwoTensor

    net = _net()
    mv = torch.randn(3, 5, 1, 16)
    expected, _ = net(mv)
    for module in net.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            pair = TwoTensor(p.detach().clone(), p.detach().clone())
            setattr(module, name, torch.nn.Parameter(pair))
    out, _ = net(mv)
    found = out.a if isinstance(out, TwoTensor) else out
    torch.testing.assert_close(found, expected)


def test_the_default_device_does_not_matter():
    """In a process of its own, where nothing is cached yet."""
    script = (
        "import torch; from flashgatr import GATr; x = torch.randn(3, 5, 1, 16)\n"
        "net = GATr(in_mv_channels=1, out_mv_channels=1, num_blocks=1)\n"
        "with torch.device('meta'): out = net(x)[0]\n"
        "assert out.device.type == 'cpu' and out.isfinite().all()"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


def test_some_parameters_alone_have_second_derivatives():
    net = _net().double()
    names = [name for name, _ in net.named_parameters() if ".mlp." in name]
    for name, p in net.named_parameters():
        p.requires_grad_(name in names)
    mv = torch.randn(2, 3, 1, 16, dtype=torch.float64)
    found = []
    for plain in (False, True):
        with plain_kernels() if plain else contextlib.nullcontext(), sdpa_kernel(SDPBackend.MATH):
            parameters = [p for p in net.parameters() if p.requires_grad]
            loss = net(mv)[0].square().sum()
            first = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
            squared = sum(g.square().sum() for g in first if g is not None)
            found.append(torch.autograd.grad(squared, parameters, allow_unused=True))
    for x, y in zip(*found, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            torch.testing.assert_close(x, y)


def test_an_operator_takes_lists_and_gives_gradients_to_what_is_in_them():
    def function(x: torch.Tensor, others: list[torch.Tensor], factor: float) -> torch.Tensor:
        return factor * x * sum(others)

    operator = Operator("test_of_lists", function)
    operator.register_fake(lambda given: torch.empty_like(given.x))

    def setup(ctx, inputs, output):
        x, others, ctx.factor = inputs
        ctx.save_for_backward(x, *others)

    def backward(ctx, g):
        x, *others = ctx.saved_tensors
        return ctx.factor * g * sum(others), [ctx.factor * g * x for _ in others], None

    operator.register_autograd(backward, setup_context=setup)
    x, a, b = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(lambda x, a, b: operator(x, [a, b], 2.0), (x, a, b))
    with Watch():
        watched = operator(x, [a, b], 2.0)
    assert torch.equal(watched, operator(x, [a, b], 2.0))
    with torch.no_grad():
        assert not operator(x, [a, b], 2.0).requires_grad


class _Compiled:
    """Stands in for a kernel that Triton has compiled."""

    function, packed_metadata = 5, (4, 1, 0)

    def __init__(self, calls):
        self.calls = calls

    def run(self, x, y, z, stream, function, packed, metadata, before, after, *given):
        assert (function, packed) == (self.function, self.packed_metadata)
        assert metadata is before is after is None
        self.calls.append(("direct", (x, y, z), given, stream))

    def __getitem__(self, grid):
        return lambda *given, stream: self.calls.append(("watched", grid, given, stream))


class _Jitted:
    """Stands in for a function under triton.jit."""

    arg_names = ("x", "n", "SIZE")

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        def call(*given, **constants):
            self.calls.append(("found", grid, given, constants))
            return _Compiled(self.calls)

        return call


def test_a_kernel_is_looked_for_once_for_every_kind_of_arguments(monkeypatch):
    monkeypatch.setattr(launch, "_stream", lambda device: 77)
    nobody = SimpleNamespace(calls=[])
    hooks = SimpleNamespace(launch_enter_hook=SimpleNamespace(calls=[]), launch_exit_hook=nobody)
    monkeypatch.setattr(launch, "_runtime", lambda: hooks)
    monkeypatch.setattr(launch, "_takes_constants", lambda: True)
    jitted = _Jitted()
    kernel, x = launch.Kernel(jitted), torch.zeros(64)
    kernel[2, 3](x, 5, SIZE=8, num_warps=4)
    other = x + 1
    kernel[4,](other, 7, SIZE=8, num_warps=4)
    assert [call[0] for call in jitted.calls] == ["found", "direct"]
    # three numbers of programs, an address for the tensor, constants in their places
    assert jitted.calls[1][1:] == ((4, 1, 1), (other.data_ptr(), 7, 8), 77)
    hooks.launch_enter_hook.calls.append(print)
    kernel[4,](other, 7, SIZE=8, num_warps=4)
    assert jitted.calls[2] == ("watched", *jitted.calls[1][1:])
    hooks.launch_enter_hook.calls.clear()
    others = [(x, 16, 8), (x, 1, 8), (x, 5, 4), (x.double(), 5, 8), (x[1:], 5, 8), (x, 1 << 40, 8)]
    for given, n, size in others:
        kernel[2, 3](given, n, SIZE=size, num_warps=4)
        assert jitted.calls[-1][0] == "found"


def test_a_triton_that_wants_other_arguments_looks_for_its_kernels_itself(monkeypatch):
    monkeypatch.setattr(launch, "_takes_constants", lambda: False)
    jitted = _Jitted()
    kernel, x = launch.Kernel(jitted), torch.zeros(64)
    for _ in range(2):
        kernel[2, 3](x, 5, SIZE=8, num_warps=4)
    assert [call[0] for call in jitted.calls] == ["found", "found"]


@pytest.mark.parametrize("error", [TypeError("other arguments"), AttributeError("packed_metadata")])
def test_a_launch_that_triton_refuses_is_made_the_public_way_from_then_on(monkeypatch, error):
    def refuse(self, *given):
        raise error

    monkeypatch.setattr(launch, "_stream", lambda device: 77)
    monkeypatch.setattr(launch, "_is_watched", lambda: False)
    monkeypatch.setattr(launch, "_takes_constants", lambda: True)
    monkeypatch.setattr(_Compiled, "run", refuse)
    monkeypatch.setattr(TRITON_LAUNCH, "problem", "")
    jitted = _Jitted()
    kernel, x = launch.Kernel(jitted), torch.zeros(64)
    for n in (5, 7, 9):
        kernel[2, 3](x, n, SIZE=8, num_warps=4)
    expected = [("found", (2, 3, 1), (x, n), dict(SIZE=8, num_warps=4)) for n in (5, 7, 9)]
    assert jitted.calls == expected  # every launch once
    assert str(error) in TRITON_LAUNCH.problem


def test_a_torch_without_the_private_stream_is_asked_the_public_way(monkeypatch):
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", raising=False)
    stream = SimpleNamespace(cuda_stream=5)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    assert launch._stream(0) == 5


def test_a_triton_whose_hooks_cannot_be_read_is_told_of_every_launch(monkeypatch):
    monkeypatch.setattr(launch, "_runtime", lambda: SimpleNamespace())
    assert launch._is_watched()


def test_without_triton_there_are_no_kernels(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "flashgatr.kernels.cuda.triton_kernels", raising=False)
    with pytest.raises(AttributeError, match="no kernel norm_forward: Triton is not installed"):
        _ = compiled.Kernels().norm_forward


def test_an_interpreted_kernel_is_called_as_it_is():
    seen = []

    class Interpreted:
        def __getitem__(self, grid):
            return lambda *given, **constants: seen.append(given)

    kernel = launch.Kernel(Interpreted())
    for _ in range(2):
        kernel[1,](torch.zeros(3), 1)
    assert len(seen) == 2


def test_kernels_that_wait_are_dropped_when_something_fails():
    if library() is None:
        pytest.skip("no C compiler was found")
    x, y = torch.ones(4, 3), torch.ones(4, 3)
    with cpu.one_pass():
        cpu.add_scalars(y, x, 2)
        assert torch.equal(y, torch.ones(4, 3))  # not yet
        settle()
        assert y[:, :2].eq(2).all()
        cpu.add_scalars(y, x, 2)
    assert torch.equal(y, torch.tensor([3.0, 3.0, 1.0]).expand(4, 3))

    def accident():
        with cpu.one_pass():
            cpu.add_scalars(y, x, 2)
            raise RuntimeError("accident")

    with pytest.raises(RuntimeError, match="accident"):
        accident()
    cpu.add_scalars(y, x, 1)
    assert torch.equal(y, torch.tensor([4.0, 3.0, 1.0]).expand(4, 3))


def test_kernels_wait_for_the_outermost_end():
    if library() is None:
        pytest.skip("no C compiler was found")
    x, y = torch.ones(4, 3), torch.ones(4, 3)

    def nested(fails):
        with cpu.one_pass():
            with cpu.one_pass():
                cpu.add_scalars(y, x, 3)
            assert torch.equal(y, torch.ones(4, 3))  # not yet
            if fails:
                raise RuntimeError("accident")

    with pytest.raises(RuntimeError, match="accident"):
        nested(fails=True)
    nested(fails=False)
    assert y.eq(2).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [8, 13])
def test_a_spare_feature_switches_keys_off(dtype, width):
    """Logits and softmax in float32, as in cuDNN."""
    q, k = (torch.randn(2, 6, heads, width).to(dtype) for heads in (3, 1))
    mask = torch.rand(2, 6) > 0.4
    mask[:, 0] = True
    more_q, more_k = _mask_by_features(q, k, mask)
    assert more_q.shape[-1] % 8 == 0
    found = torch.einsum("bnhd,bmd->bhnm", more_q.float(), more_k[:, :, 0].float())
    logits = torch.einsum("bnhd,bmd->bhnm", q.float(), k[:, :, 0].float())
    expected = logits.masked_fill(~mask[:, None, None], -torch.inf)
    torch.testing.assert_close((0.3 * found).softmax(-1), (0.3 * expected).softmax(-1))
    assert not (0.3 * found).softmax(-1).mT[:, :, ~mask[0]][0].any()
