"""Why modules do not fit the kernels: they were replaced, or have hooks.

A plan describes the modules that a network had when its fast path was made. If some of them are
replaced later and no longer fit, the plain modules run, and these sentences say why.
"""

from __future__ import annotations

from torch import nn

from .kernels.rows import LinearPlan
from .nn import EquiLinear


def inside(module: nn.Module) -> list[nn.Module]:
    """All modules inside this one, as `modules` yields them, but in a fraction of the time."""
    found = []
    for child in module._modules.values():
        if child is not None:
            found += [child, *inside(child)]
    return found


def has_hooks(module: nn.Module) -> bool:
    """Whether forward hooks are registered, other than those by which torch shards a module."""
    if not (module._forward_hooks or module._forward_pre_hooks):
        return False
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return any(not str(hook.__module__).startswith("torch.distributed.") for hook in hooks)


def misfit(layer: EquiLinear, plan: LinearPlan) -> str | None:
    """Why this map is not the one that its plan describes; None if it is."""
    found = layer.in_mv_channels, layer.in_s_channels, layer.out_mv_channels, layer.out_s_channels
    if found != (plan.in_mv, plan.in_s, plan.out_mv, plan.out_s):
        return (
            f"a linear map was replaced by one of other widths: expected {plan.in_mv} mv + "
            f"{plan.in_s} s -> {plan.out_mv} mv + {plan.out_s} s, got {layer.extra_repr()}"
        )
    if layer.types != plan.types:
        return f"a linear map was replaced by one of other types: {layer.types}, not {plan.types}"
    has_bias = layer.bias_mv is not None or layer.bias_s is not None
    if has_bias != (plan.bias and plan.out_mv + plan.out_s > 0):
        return f"a linear map was replaced by one {'with' if has_bias else 'without'} a bias"
    return None


def unknown_kind(layer: nn.Module) -> str:
    """What to say of a linear map that is no EquiLinear."""
    return f"the fused kernels support EquiLinear as linear map, not {type(layer).__name__}"
