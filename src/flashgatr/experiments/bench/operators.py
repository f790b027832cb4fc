"""Parts of a block, forward and backward: the fused operators and the plain layers they replace.

    queries   residual addition, norm, q, k, v and attention's features
    update    attention's output map, residual addition, norm, the geometric MLP
    block     all of it, with attention and the preparation of weights

On a GPU each part is replayed as a CUDA graph, so that kernels are compared rather than launches.
The arguments of each part are recorded from a network with one block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ... import GATr, fast, functional
from ...config import preset
from ...kernels import block as kernels_block
from ...kernels.paths import plain_kernels
from ...model import GATrBlock
from ...shortcuts import BLOCK_NODE
from . import timing, workload
from .timing import CaseReport, Found, Step

PIECES = ("queries", "update", "block")
Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""


def shapes(cuda: bool) -> list[tuple[str, str, tuple[int, int], str]]:
    """Name, preset, sets and items, precision."""
    small, large = "tf32" if cuda else "float32", "bfloat16" if cuda else "float32"
    return [
        ("n-body", "nbody", (64, 4), small),
        ("artery", "arteries", (8, 7000) if cuda else (2, 1000), large),
    ]


def one_block(name: str, device: torch.device) -> tuple[GATr, GATrBlock]:
    config = preset(name, num_blocks=1, reinsert_mv_channels=())
    net = GATr(config).to(device)
    block = net.blocks[0]
    assert isinstance(block, GATrBlock)
    return net, block


def plain_calls(net: GATr, block: GATrBlock, inputs: tuple[Tensor, ...]) -> dict[str, Call]:
    """The parts as plain layers, with their arguments."""
    attention = block.attention
    heads = [attention.num_heads, attention.kv_heads, attention.kv_heads]

    def queries(mv: Tensor, s: Tensor, more_mv: Tensor, more_s: Tensor) -> Any:
        mv, s = mv + more_mv, s + more_s
        q, k, v = attention.split_heads(attention.qkv(*block.norm(mv, s)), heads)
        logits = attention.attention
        how = logits.distance_aware, logits.epsilon
        values = torch.cat([v.mv.flatten(-2), v.s], dim=-1)
        query = functional.query_features(q.mv, q.s, *how, logits.weights)
        return mv, s, query, functional.key_features(k.mv, k.s, *how), values

    def update(mv: Tensor, s: Tensor, attended_mv: Tensor, attended_s: Tensor, *rest: Any) -> Any:
        more_mv, more_s = attention.output(attended_mv, attended_s)
        mv, s = mv + more_mv, s + more_s
        return mv, s, block.mlp(*block.norm(mv, s), *rest)

    layers: dict[str, nn.Module] = {
        "norm": block.norm,
        "output": attention.output,
        "mlp": block.mlp,
        "block": block,
    }
    seen: dict[str, tuple[Any, ...]] = {}
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, given, name=name: seen.update({name: tree_map(_cut, given)})
        )
        for name, layer in layers.items()
    ]
    with plain_kernels():
        net(*inputs)
    for hook in hooks:
        hook.remove()
    rows = seen["norm"]
    return {
        "queries": (queries, (*rows, *rows)),
        "update": (update, (*rows, *seen["output"], *seen["mlp"][2:])),
        "block": (block, seen["block"]),
    }


def fused_calls(net: GATr, block: GATrBlock, inputs: tuple[Tensor, ...]) -> dict[str, Call]:
    """The parts as fused operators, with their arguments."""
    with _recorded(fast, "run_block") as seen:
        net(*inputs)
    if "run_block" not in seen:
        obstacle = net.obstacle(inputs[0])
        raise RuntimeError(f"the fused operators do not run here: {obstacle}")
    function, arguments = seen["run_block"]
    with _recorded(kernels_block, "queries", "update") as seen, BLOCK_NODE.off():
        function(*arguments)
    used = {"queries": (0, 3, 4, 5), "update": (0, 3)}
    calls: dict[str, Call] = {
        name: (partial(_some, operator, used[name]), given)
        for name, (operator, given) in seen.items()
    }
    return {**calls, "block": (function, arguments)}


def _some(function: Callable[..., Any], outputs: tuple[int, ...], *given: Any) -> Any:
    """The outputs that a block uses; the other outputs are for the backward pass."""
    found = function(*given)
    return [found[i] for i in outputs]


def _cut(x: Any) -> Any:
    """A tensor detached from its graph, which was recorded on another stream; a captured step must
    not depend on that.
    """
    if not isinstance(x, Tensor) or isinstance(x, nn.Parameter):
        return x
    return x.detach().requires_grad_(x.requires_grad)


@contextlib.contextmanager
def _recorded(module: ModuleType, *names: str) -> Iterator[dict[str, Call]]:
    """A context that records the last call of each of these functions of a module."""
    seen: dict[str, Call] = {}

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            seen[name] = function, tree_map(_cut, arguments)
            return function(*arguments)

        return call

    with contextlib.ExitStack() as stack:
        for name in names:
            wrapper = watched(name, getattr(module, name))
            stack.enter_context(mock.patch.object(module, name, wrapper))
        yield seen


def gradient_step(call: Call, parameters: list[Tensor]) -> Step:
    """The call and its backward pass, with fixed random gradients of the outputs."""
    function, given = call
    leaves: list[Tensor] = []

    def own(x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, nn.Parameter) or not x.requires_grad:
            return x
        leaves.append(x.detach().clone().requires_grad_())
        return leaves[-1]

    arguments = tree_map(own, given)

    def outputs() -> list[Tensor]:
        found = tree_leaves(function(*arguments))
        return [x for x in found if isinstance(x, Tensor) and x.requires_grad]

    gradients = [torch.randn_like(x) for x in outputs()]
    wanted = [*leaves, *parameters]
    return lambda: torch.autograd.grad(outputs(), wanted, gradients, allow_unused=True)


def measure(
    piece: str, path: str, name: str, items: tuple[int, int], precision: str, device: torch.device
) -> Found:
    net, block = one_block(name, device)
    work = workload.multivector_work(
        net, net.config.in_mv_channels, net.config.in_s_channels, device, precision
    )
    inputs = work.sample(*items).inputs
    with timing.precision(precision), workload.autocast(device, precision):
        calls = (plain_calls if path == "plain" else fused_calls)(net, block, inputs)
        with plain_kernels() if path == "plain" else contextlib.nullcontext():
            step = gradient_step(calls[piece], list(block.parameters()))
            return timing.measure(step, device, graph=device.type == "cuda")


def run() -> None:
    device = timing.pick_device()
    cuda = device.type == "cuda"
    report = CaseReport("operators", keep=cuda, cuda_graph=cuda)
    for shape, name, items, precision in shapes(cuda):
        for piece in PIECES:
            for path in ("plain", "fused"):
                settings = {
                    "operator": piece,
                    "shape": shape,
                    "items": items[0] * items[1],
                    "precision": precision,
                    "path": path,
                }
                todo = partial(measure, piece, path, name, items, precision, device)
                report.run("gatr", settings, todo)
    report.show()
