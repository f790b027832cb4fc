"""Prepared weights: the parameters of linear maps in a backend's layout, and back for gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import shortcuts
from .backend import backend, linear_plans, prepared_sizes
from .cuda.products import in_tf32
from .cuda.side_stream import SideStream
from .operator import Arguments, is_watched, operator
from .plan import BlockMaps, BlockPlan, Plan
from .rows import LinearPlan


@operator("prepare")
def prepare(parameters: Sequence[Tensor], plan: Plan, dtype: torch.dtype) -> Tensor:
    """The weights of a block's maps, or of one map, in the backend's layout, concatenated."""
    first = parameters[0]
    plans = (plan,) if isinstance(plan, LinearPlan) else linear_plans(plan, first.device.type).every
    return backend(first).prepare(parameters, (plans,), dtype)


@prepare.register_fake
def _(a: Arguments) -> Tensor:
    first = a.parameters[0]
    size = sum(prepared_sizes(a.plan.text, first.device.type))
    return first.new_empty(size, dtype=a.dtype)  # type: ignore[no-any-return]


class Weights:
    """Prepared weights of one block or map: prepared for every pass, or kept while frozen.

    Changes of parameters cannot be detected reliably (fused optimisers and CUDA graphs leave no
    trace), so weights are kept only while the caller guarantees that there are none.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._kept: dict[tuple[object, ...], Tensor] = {}
        self._ahead: tuple[Tensor, torch.cuda.Event, SideStream] | None = None

    def prepare_ahead(self, side: SideStream, *request: Any) -> None:
        """Prepare the weights for the next `get` on the side stream, in parallel to other work."""
        with side.running():
            self._ahead = self._prepared(*request), torch.cuda.Event(), side
            self._ahead[1].record()
            side.kept.append(self._ahead[0])

    @property
    def is_frozen(self) -> bool:
        return self._depth > 0

    def freeze(self, frozen: bool) -> None:
        """Begin or end a frozen period; periods may be nested. The last end drops the weights."""
        self._depth += 1 if frozen else -1
        if not self._depth:
            self._kept.clear()

    def __reduce__(self) -> tuple[type[Weights], tuple[()]]:
        """A copy of a network has its own parameters, so it starts without kept weights."""
        return Weights, ()

    def get(self, parameters: list[Tensor], plan: Plan, dtype: torch.dtype) -> list[Tensor]:
        """The prepared weights, one tensor per linear map."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[2] is SideStream.active:
            flat, made, _ = ahead
            torch.cuda.current_stream().wait_event(made)
        else:  # also if weights are left over from an interrupted pass
            flat = self._prepared(parameters, plan, dtype)
        return list(flat.split(prepared_sizes(plan.text, parameters[0].device.type)))

    def _prepared(self, parameters: list[Tensor], plan: Plan, dtype: torch.dtype) -> Tensor:
        with torch.no_grad():
            if not self._depth or torch.compiler.is_compiling():
                return prepare(parameters, plan, dtype)  # type: ignore[no-any-return]
            device = parameters[0].device
            key = (plan.text, dtype, device, device.type == "cuda" and in_tf32())
            if key not in self._kept:
                with torch.inference_mode(False):
                    self._kept[key] = prepare(parameters, plan, dtype)
            return self._kept[key]


Groups = BlockMaps[list[Tensor]]
"""The parameters of each of a block's linear maps."""


def prepare_together(
    blocks: Sequence[Groups], plans: Sequence[BlockPlan], dtype: torch.dtype
) -> list[list[Tensor]] | None:
    """Prepare the weights of several blocks in one call: one list per block.

    None if the call is watched (see `operator`): each block must then call `prepare` itself.
    """
    flat = [p for block in blocks for group in block.every for p in group]
    if not flat or is_watched(flat):
        return None
    be, device = backend(flat[0]), flat[0].device.type
    with torch.no_grad():
        everything = be.prepare(flat, tuple(linear_plans(p, device).every for p in plans), dtype)
    sizes = [prepared_sizes(plan.text, device) for plan in plans]
    parts = iter(everything.split([size for own in sizes for size in own]))
    return [[next(parts) for _ in own] for own in sizes]


def per_parameter(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split the gradient of concatenated parameters into one gradient per parameter."""
    pairs = zip(shortcuts.unflatten(flat, list(like)), like, strict=True)
    return [part if part.dtype == p.dtype else part.to(p.dtype) for part, p in pairs]
