"""Adam over one flat tensor, for steps that are captured as a CUDA graph.

An optimiser that loops over hundreds of small tensors takes longer than the network's own small
kernels. Here parameters and moments become views of flat tensors: the model, the optimiser's state
and its checkpoints keep their form, and the whole update is one kernel (in Triton, or torch's fused
Adam if Triton is missing), or one per group of parameters with a learning rate of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import paths
from ..kernels.cuda.compiled import kernels


class FlatAdam:
    """Replaces the step of an Adam whose state exists, because it made or skipped a step."""

    def __init__(self, optimizer: torch.optim.Adam) -> None:
        self.optimizer = optimizer
        self.parameters: list[Tensor] = []
        self.parts: list[tuple[dict[str, Any], slice]] = []
        """The groups, and where their parameters are in the flat tensors."""
        end = 0
        for group in optimizer.param_groups:
            some = [p for p in group["params"] if p.grad is not None]
            begin, end = end, end + sum(p.numel() for p in some)
            self.parameters += some
            self.parts += [(group, slice(begin, end))] * bool(some)
        state = [optimizer.state[p] for p in self.parameters]
        with torch.no_grad():
            self.flat = _flatten([p.data for p in self.parameters])
            self.first = _flatten([s["exp_avg"] for s in state])
            self.second = _flatten([s["exp_avg_sq"] for s in state])
            self.steps = state[0]["step"].clone()
            sizes = [p.numel() for p in self.parameters]
            views = zip(
                *(x.split(sizes) for x in (self.flat, self.first, self.second)), strict=True
            )
            for p, s, (weight, first, second) in zip(self.parameters, state, views, strict=True):
                p.data = weight.view_as(p)
                s["exp_avg"], s["exp_avg_sq"] = first.view_as(p), second.view_as(p)
                s["step"] = self.steps
        betas = optimizer.defaults["betas"]  # groups differ in their learning rates only
        self.betas = torch.tensor(betas, dtype=torch.float64, device=self.flat.device)

    def forget(self) -> None:
        """Free the parameters' gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def gradient(self) -> Tensor:
        """The gradients of all parameters, concatenated."""
        return _flatten([p.grad for p in self.parameters if p.grad is not None])

    def step(
        self, clip: float, forbidden: Tensor, loss: Tensor, gradient: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Clip and update, unless the loss or gradient is not finite or `forbidden` is 1.

        Returns the gradient's norm, and 1.0 if something was not finite.
        """
        norm = torch.linalg.vector_norm(gradient)
        bad = 1.0 - (loss.isfinite() & norm.isfinite()).float()
        skip = torch.maximum(bad, forbidden)
        self.steps += 1 - skip
        divisor = ((norm + 1e-6) / clip).clamp(min=1.0) if clip else torch.ones_like(norm)
        corrections = 1 - self.betas**self.steps  # float64: the second is near zero at first
        for group, part in self.parts:
            now = Moments(self.flat[part], self.first[part], self.second[part])
            _update(group, now, gradient[part], divisor, skip, corrections)
        return norm, bad


class Moments(NamedTuple):
    """Flat parameters and the moments of their gradients."""

    flat: Tensor
    first: Tensor
    second: Tensor


def _update(
    group: dict[str, Any],
    now: Moments,
    gradient: Tensor,
    divisor: Tensor,
    skip: Tensor,
    corrections: Tensor,
) -> None:
    """Adam's update in place, of one group; nothing changes if `skip` is 1."""
    if not paths.has_triton():
        _plain_update(group, now, gradient / divisor, skip > 0, *corrections.unbind())
        return
    size = now.flat.numel()
    kernels.adam[(-(-size // 1024),)](
        now.flat, gradient, now.first, now.second, group["lr"], divisor, skip, corrections,
        size, *group["betas"], group["eps"], group["weight_decay"], BLOCK=1024,
    )  # fmt: skip


def _plain_update(
    group: dict[str, Any], now: Moments, g: Tensor, skip: Tensor, first: Tensor, second: Tensor
) -> None:
    """The same update without Triton; first, second: the corrections of the moments."""
    beta1, beta2 = group["betas"]
    g = g + group["weight_decay"] * now.flat
    mean = now.first + (1 - beta1) * (g - now.first)
    square = beta2 * now.second + (1 - beta2) * g * g
    spread = (square / second.to(square.dtype)).sqrt() + group["eps"]
    new = now.flat - group["lr"] / first.to(mean.dtype) * mean / spread
    for x, value in ((now.first, mean), (now.second, square), (now.flat, new)):
        x.copy_(torch.where(skip, x, value))


def _flatten(tensors: list[Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tensors])
