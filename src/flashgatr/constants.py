"""Small constant tensors, made once per dtype and device.

Some tensors must not be cached: those made in inference mode (they cannot enter autograd later),
fake tensors of a tracer, wrapped tensors of torch.func, tensors of a compiled graph. A constant
is therefore cached only if it is an ordinary tensor and made for an ordinary input. A tracer gets
a new tensor, which it folds into its graph.
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
    """Decorator: compilers call the function once and keep the result.

    torch's own decorator would import the compiler immediately.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def is_wrapped(x: Tensor) -> bool:
    """Whether x is inside a transform of torch.func (vmap, grad), where its values cannot be read.

    True if torch cannot tell: callers then take the path that is always correct.
    """
    if torch.compiler.is_compiling():
        return False  # compilers trace through the transform
    try:
        return torch._C._functorch.is_functorch_wrapped_tensor(x)
    except AttributeError:  # a private name that another torch may lack
        return True


def is_transformed() -> bool:
    """Whether any transform of torch.func is active; True if torch cannot tell."""
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
