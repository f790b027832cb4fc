"""Adam over one flat tensor, for steps that are captured as a CUDA graph.

An optimiser that loops over hundreds of small tensors takes longer than the network's own small
kernels. Here parameters and moments become views of flat tensors: the model, the optimiser's state
and its checkpoints keep their form, and the whole update is one kernel (in Triton, or torch's fused
Adam if Triton is missing).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import paths
from ..kernels.cuda.compiled import kernels


class FlatAdam:
    """Replaces the step of an Adam whose state exists, because it made or skipped a step."""

    def __init__(self, optimizer: torch.optim.Adam) -> None:
        self.optimizer = optimizer
        (self.group,) = optimizer.param_groups
        self.parameters = [p for p in self.group["params"] if p.grad is not None]
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
        self.betas = torch.tensor(self.group["betas"], dtype=torch.float64, device=self.flat.device)

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
        self._update(gradient, divisor, skip)
        return norm, bad

    def _update(self, gradient: Tensor, divisor: Tensor, skip: Tensor) -> None:
        group = self.group
        corrections = 1 - self.betas**self.steps  # float64: the second is near zero at first
        if not paths.has_triton():
            self._plain_update(gradient / divisor, skip > 0, *corrections.unbind())
            return
        kernels.adam[(-(-self.flat.numel() // 1024),)](
            self.flat, gradient, self.first, self.second, group["lr"], divisor, skip, corrections,
            self.flat.numel(), *group["betas"], group["eps"], group["weight_decay"], BLOCK=1024,
        )  # fmt: skip

    def _plain_update(self, g: Tensor, skip: Tensor, first: Tensor, second: Tensor) -> None:
        """The same update without Triton; first, second: the corrections of the moments."""
        group, (beta1, beta2) = self.group, self.group["betas"]
        g = g + group["weight_decay"] * self.flat
        mean = self.first + (1 - beta1) * (g - self.first)
        square = beta2 * self.second + (1 - beta2) * g * g
        spread = (square / second.to(square.dtype)).sqrt() + group["eps"]
        new = self.flat - group["lr"] / first.to(mean.dtype) * mean / spread
        for x, value in ((self.first, mean), (self.second, square), (self.flat, new)):
            x.copy_(torch.where(skip, x, value))


def _flatten(tensors: list[Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tensors])
