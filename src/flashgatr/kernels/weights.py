"""Weights of a block's linear maps as the backends want them, and the way back for their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..constants import traced_as_constant
from . import gpu
from .plan import BACKENDS, backend, layers_of, linear_plans
from .registered import is_watched, operator
from .rows import parameters_of

if TYPE_CHECKING:
    from ..model import GATrBlock


@operator("prepare")
def prepare(parameters: Sequence[Tensor], plan: str, dtype: torch.dtype) -> Tensor:
    """The weights of a block's linear maps as the backend wants them, one after another."""
    plans = linear_plans(plan, parameters[0].device.type)
    return backend(parameters[0]).prepare(parameters, (plans,), dtype)  # type: ignore[no-any-return]


@prepare.register_fake
def _(parameters: Sequence[Tensor], plan: str, dtype: torch.dtype) -> Tensor:
    first = parameters[0]
    return first.new_empty(sum(prepared_sizes(plan, first.device.type)), dtype=dtype)


@traced_as_constant
def prepared_sizes(plan: str, device: str) -> list[int]:
    return [BACKENDS[device].prepared_size(p) for p in linear_plans(plan, device)]


class Weights:
    """Prepared weights of one block: made anew for every pass, or kept while frozen.

    Nothing tells reliably that parameters changed (fused optimisers and CUDA graphs leave no trace), so weights are kept
    only where somebody said that they stay as they are.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._kept: dict[tuple[object, ...], Tensor] = {}
        self._ahead: tuple[Tensor, torch.cuda.Event, gpu.SideStream] | None = None

    def prepare_ahead(self, side: gpu.SideStream, *request: Any) -> None:
        """Make what the next `get` will ask for, beside what the current stream does until then."""
        with side.running():
            self._ahead = self._prepared(*request), torch.cuda.Event(), side
            self._ahead[1].record()
            side.kept.append(self._ahead[0])

    @property
    def is_frozen(self) -> bool:
        return self._depth > 0

    def freeze(self, frozen: bool) -> None:
        """May be nested; the outermost end lets go."""
        self._depth += 1 if frozen else -1
        if not self._depth:
            self._kept.clear()

    def __reduce__(self) -> tuple[type[Weights], tuple[()]]:
        """A copy of a network has its own parameters: it starts with nothing kept."""
        return Weights, ()

    def get(self, parameters: list[Tensor], plan: str, dtype: torch.dtype) -> list[Tensor]:
        """One tensor per linear map."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[2] is gpu.SideStream.active:
            flat, made, _ = ahead
            torch.cuda.current_stream().wait_event(made)
        else:  # also if a pass was broken off, and what it had prepared is old
            flat = self._prepared(parameters, plan, dtype)
        return list(flat.split(prepared_sizes(plan, parameters[0].device.type)))

    def _prepared(self, parameters: list[Tensor], plan: str, dtype: torch.dtype) -> Tensor:
        with torch.no_grad():
            if not self._depth or torch.compiler.is_compiling():
                return prepare(parameters, plan, dtype)  # type: ignore[no-any-return]
            device = parameters[0].device
            key = (plan, dtype, device, device.type == "cuda" and gpu.in_tf32())
            if key not in self._kept:
                with torch.inference_mode(False):
                    self._kept[key] = prepare(parameters, plan, dtype)
            return self._kept[key]


class Ready(NamedTuple):
    """What a pass has prepared of a block: its parameters by linear map, and what was made of each."""

    parameters: list[list[Tensor]]
    prepared: list[Tensor]


def prepare_together(blocks: Sequence[GATrBlock], dtype: torch.dtype) -> dict[int, Ready] | None:
    """The weights of all blocks at once, by the block's id, for one pass; None if they have to be prepared one by one."""
    groups = [[parameters_of(layer) for layer in layers_of(block)] for block in blocks]
    flat = [p for block in groups for group in block for p in group]
    if not flat or is_watched(flat) or any(block.weights.is_frozen for block in blocks):
        return None
    be, device = backend(flat[0]), flat[0].device.type
    plans = tuple(linear_plans(block.plan_text, device) for block in blocks)
    with torch.no_grad():
        everything = be.prepare(flat, plans, dtype)
    sizes = [size for block in blocks for size in prepared_sizes(block.plan_text, device)]
    parts = iter(everything.split(sizes))
    return {
        id(block): Ready(own, [next(parts) for _ in own])
        for block, own in zip(blocks, groups, strict=True)
    }


def per_parameter(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of concatenated parameters, one by one."""
    if type(flat) is Tensor and not torch.compiler.is_compiling():
        parts = torch._C._nn.unflatten_dense_tensors(flat, list(like))
    else:  # the same for tracers
        split = flat.split([p.numel() for p in like])
        parts = [part.view(p.shape) for part, p in zip(split, like, strict=True)]
    pairs = zip(parts, like, strict=True)
    return [part if part.dtype == p.dtype else part.to(p.dtype) for part, p in pairs]


def prepare_ahead(blocks: Sequence[GATrBlock], dtype: torch.dtype) -> None:
    """Prepare the weights of all blocks beside the first ones' work, if there is a stream for it."""
    side = gpu.SideStream.active
    if side is not None:
        for block in blocks:
            parameters = [p for layer in layers_of(block) for p in parameters_of(layer)]
            block.weights.prepare_ahead(side, parameters, block.plan_text, dtype)
