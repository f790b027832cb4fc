"""An operator: known to torch.library, and callable without its detour.

Compilers, exporters, tracers and profilers of operators see the registered one. Ordinary eager calls go to the same function and
the same backward pass through an autograd.Function: on small networks the dispatcher's Python costs more than the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..constants import is_transformed

Implementation = Callable[..., Any]
_ORDINARY = {Tensor, Parameter, str, int, float, bool, NoneType, torch.dtype}
"""Arguments of these very types; anything else, a subclass of Tensor say, is left to the dispatcher."""


class Operator:
    """`flashgatr::NAME`. Arguments are given by position; tensors may come in lists."""

    def __init__(self, name: str, function: Implementation) -> None:
        self.registered = torch.library.custom_op(f"flashgatr::{name}", mutates_args=())(function)
        self.function = function
        self._differentiable: type[torch.autograd.Function] | None = None
        self.__doc__ = function.__doc__

    def register_fake(self, function: Implementation) -> Implementation:
        self.registered.register_fake(function)
        return function

    def register_autograd(self, backward: Implementation, *, setup_context: Implementation) -> None:
        self.registered.register_autograd(backward, setup_context=setup_context)
        self._differentiable = _differentiable(self.function, setup_context, backward)

    def __call__(self, *given: Any) -> Any:
        flat: list[Any] = []
        counts: list[int | None] = []
        for x in given:
            if isinstance(x, (list, tuple)):
                flat += x
                counts.append(len(x))
            else:
                flat.append(x)
                counts.append(None)
        if torch.compiler.is_compiling() or is_watched(flat):
            return self.registered(*given)
        if self._differentiable is None or not torch.is_grad_enabled():
            return self.function(*given)
        return self._differentiable.apply(*flat, counts)


def operator(name: str) -> Callable[[Implementation], Operator]:
    """Decorator: make a function of tensors the operator `flashgatr::NAME`."""
    return lambda function: Operator(name, function)


def is_watched(given: Sequence[Any]) -> bool:
    """Whether somebody follows the operators of this call, or its tensors are not ordinary ones."""
    if torch._C._len_torch_dispatch_stack() or is_transformed():
        return True
    if torch._C._get_tracing_state() is not None:
        return True
    return not _ORDINARY.issuperset(map(type, given))


def _differentiable(
    function: Implementation, setup: Implementation, backward: Implementation
) -> type[torch.autograd.Function]:
    class Differentiable(torch.autograd.Function):
        """The function on arguments without lists, of which `counts` tells the lengths."""

        @staticmethod
        def forward(ctx: Any, *flat: Any) -> Any:
            *tensors, counts = flat
            left = iter(tensors)
            given = [next(left) if n is None else [next(left) for _ in range(n)] for n in counts]
            out = function(*given)
            setup(ctx, given, out)
            return out

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            found: list[Any] = []
            for x in backward(ctx, *gradients):
                if isinstance(x, (list, tuple)):
                    found += x
                else:
                    found.append(x)
            return (*found, None)

    return Differentiable
