"""Operators: registered with torch.library, but called directly unless the call is watched.

A call is watched by compilers, exporters, tracers and dispatch modes; they get the registered
operator. Ordinary eager calls run the same function and the same backward pass through an
autograd.Function, because on small networks the dispatcher's Python costs more than the kernels
(`flashgatr bench shortcuts` measures it).

Plans (see `plan`) are typed arguments of the function; torch.library gets them as text.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import NoneType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .. import shortcuts
from .plan import BlockPlan, Plan, read_plan
from .rows import LinearPlan

Implementation = Callable[..., Any]
Arguments = SimpleNamespace
"""The arguments of an operator, by the names of its parameters."""
_PLANS = (BlockPlan, LinearPlan, Plan)
_ORDINARY = {
    Tensor, Parameter, str, int, float, bool, NoneType, torch.dtype, BlockPlan, LinearPlan,
}  # fmt: skip
"""Exact types for direct calls; calls with others, such as subclasses of Tensor, are dispatched."""


class Operator:
    """The operator `flashgatr::NAME`. All arguments are positional; lists may hold only tensors."""

    def __init__(self, name: str, function: Implementation) -> None:
        self.function = function
        self._signature = inspect.signature(function, eval_str=True)
        kinds = [p.annotation for p in self._signature.parameters.values()]
        self._plans = [i for i, kind in enumerate(kinds) if kind in _PLANS]
        self.registered = torch.library.custom_op(f"flashgatr::{name}", mutates_args=())(
            self._of_texts(function)
        )
        self._differentiable: type[torch.autograd.Function] | None = None
        self.__doc__ = function.__doc__

    def register_fake(self, function: Callable[[Arguments], Any]) -> None:
        """Decorator: this function of the arguments by name gives empty outputs in their shapes."""

        def fake(*given: Any) -> Any:
            return function(SimpleNamespace(**dict(zip(names, given, strict=True))))

        names = list(self._signature.parameters)
        self.registered.register_fake(self._of_texts(fake))

    def register_autograd(self, backward: Implementation, *, setup_context: Implementation) -> None:
        def setup(ctx: Any, inputs: Any, output: Any) -> None:
            setup_context(ctx, self._read(inputs), output)

        self.registered.register_autograd(backward, setup_context=setup)
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
            return self.registered(
                *(x.text if isinstance(x, (BlockPlan, LinearPlan)) else x for x in given)
            )
        if self._differentiable is None or not torch.is_grad_enabled():
            return self.function(*given)
        return self._differentiable.apply(*flat, counts)

    def _read(self, given: Sequence[Any]) -> list[Any]:
        """The arguments with texts converted to plans."""
        found = list(given)
        for i in self._plans:
            found[i] = read_plan(found[i])
        return found

    def _of_texts(self, function: Implementation) -> Implementation:
        """The function with texts in place of plans, and the signature that torch.library reads."""

        @functools.wraps(function)
        def called(*given: Any) -> Any:
            return function(*self._read(given))

        parameters = [
            p.replace(annotation=str) if p.annotation in _PLANS else p
            for p in self._signature.parameters.values()
        ]
        called.__signature__ = self._signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return called


def operator(name: str) -> Callable[[Implementation], Operator]:
    """Decorator: make a function of tensors the operator `flashgatr::NAME`."""
    return lambda function: Operator(name, function)


def is_watched(given: Sequence[Any]) -> bool:
    """Whether a mode, transform or tracer is active, or an argument is not of an ordinary type."""
    if not shortcuts.DIRECT_CALLS.is_on or shortcuts.is_followed():
        return True
    return not _ORDINARY.issuperset(map(type, given))


def _differentiable(
    function: Implementation, setup: Implementation, backward: Implementation
) -> type[torch.autograd.Function]:
    class Differentiable(torch.autograd.Function):
        """The function on flattened arguments; the last one holds the lengths of the lists."""

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
