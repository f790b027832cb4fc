"""Small constant tensors, made once per dtype and device.

A cache of tensors can be poisoned: by inference mode (such tensors cannot enter autograd later), by fake tensors
of a tracer, by the wrapped tensors of torch.func, by a compiled graph. Constants are therefore cached only when they are ordinary tensors for
ordinary inputs; a tracer gets a fresh one, which it folds into its graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

Function = TypeVar("Function", bound=Callable[..., Any])
_cache: dict[tuple[object, torch.dtype, torch.device], Tensor] = {}


def constant(values: object, like: Tensor) -> Tensor:
    """The numbers `values` (nested tuples) as a tensor of the dtype and device of `like`."""
    return _make(values, like.dtype, like)


def indices(values: tuple[int, ...], like: Tensor) -> Tensor:
    """Integers for index_select on the device of `like`."""
    return _make(values, torch.int64, like)


def traced_as_constant(function: Function) -> Function:
    """Compilers call the function once and keep the result. (torch's own decorator would import the compiler at once.)"""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def is_wrapped(x: Tensor) -> bool:
    """Whether x lives inside a transform of torch.func (vmap, grad), where its numbers cannot be read.

    True where torch does not tell: whoever asks then takes the way that is always right.
    """
    if torch.compiler.is_compiling():
        return False  # a compiler sees through the transform
    try:
        return torch._C._functorch.is_functorch_wrapped_tensor(x)
    except AttributeError:  # a private name that another torch may lack
        return True


def is_transformed() -> bool:
    """Whether a transform of torch.func is under way, whatever it transforms; True where torch does not tell."""
    if torch.compiler.is_compiling():
        return False
    try:
        return torch._C._functorch.peek_interpreter_stack() is not None
    except AttributeError:
        return True


def _make(values: Any, dtype: torch.dtype, like: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or type(like) not in (Tensor, Parameter):
        return torch.tensor(values, dtype=dtype, device=like.device)
    key = (values, dtype, like.device)
    found = _cache.get(key)
    if found is None:
        with torch.inference_mode(False):
            found = torch.tensor(values, dtype=dtype, device=like.device)
        if type(found) is Tensor and not is_wrapped(found):
            _cache[key] = found
    return found
