"""One process or many (torchrun): ranks and devices, wrapping a model, gathering its tensors.

Every process computes the same order of the data and takes its share of each batch. The number of
processes therefore affects only rounding and the random numbers within a step (dropout,
augmentation).
"""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class World:
    """This process's rank, the number of processes, and this process's device."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, indices: Tensor) -> Tensor:
        """This process's part of a batch."""
        return indices[self.rank :: self.size]

    def sum(self, values: Tensor) -> Tensor:
        """Sum of a small tensor over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def max(self, number: int) -> int:
        """Largest of the processes' numbers."""
        if self.size == 1:
            return number
        value = torch.tensor(number, device=self.device)
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return int(value.item())

    def wait(self) -> None:
        """Wait until all processes are here, such as for a file that one of them writes."""
        self.max(0)


def join(device: str = "auto") -> World:
    """Join the process group if torchrun started this process; otherwise the world has size 1."""
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    _require_gpu(device)
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        _require_gpu(device)
        torch.cuda.set_device(device)
    place = torch.device(device)
    if size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    return World(rank, size, place)


def _require_gpu(device: str) -> None:
    """Refuse a GPU that is not there."""
    place = torch.device(device)
    if place.type == "cpu":
        return
    is_cuda = place.type == "cuda"
    found = torch.cuda.device_count() if is_cuda else int(torch.backends.mps.is_available())
    if not found:
        raise ValueError(f"device = {device}, but torch finds no GPU; use device = cpu or auto")
    if (place.index or 0) >= found:
        there = f"cuda:0 to cuda:{found - 1}" if found > 1 else "cuda:0"
        raise ValueError(f"device = {device}, but torch finds {there} only; use one of these")


def leave() -> None:
    """Leave the process group. Nothing should refer to a trainer or a wrapped model any more.

    They hold the group, and one that lives until the process ends can abort it (seen with gloo,
    torch 2.13, in 3 of 14 runs). Trainers are parts of cycles, so garbage is collected first.
    """
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def wrap(model: nn.Module, strategy: str, world: World) -> nn.Module:
    """The model for the forward pass: itself, or with DDP or FSDP2 (blocks, then the rest)."""
    if world.size == 1:
        return model
    if strategy == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(world.device.type, (world.size,))
        for module in reversed(list(model.modules())):  # inner ones first
            if isinstance(module, nn.ModuleList):
                for block in module:
                    fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    devices = [world.device] if world.device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(model, device_ids=devices)


def whole(x: Tensor) -> Tensor:
    """A full copy of a tensor on the CPU; if it is sharded, every process must call this."""
    from torch.distributed.tensor import DTensor

    x = x.detach()
    if isinstance(x, DTensor):
        x = x.full_tensor()
    return x.to("cpu", copy=True)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Full copies of parameters and buffers on the CPU, in every process."""
    return {name: whole(x) for name, x in model.state_dict().items()}


def moments_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Full copies of the optimiser's state on the CPU, named KIND.PARAMETER, in every process."""
    return {
        f"{kind}.{name}": whole(x)
        for name, p in model.named_parameters()
        for kind, x in optimizer.state.get(p, {}).items()
    }


def put_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy tensors into the model, sharded like its own."""
    with torch.no_grad():
        own = model.state_dict()
        if own.keys() != weights.keys():
            odd = sorted(own.keys() ^ weights.keys())
            raise ValueError(f"the checkpoint belongs to another model: {odd[:4]} differ")
        for name, x in own.items():
            if x.shape != weights[name].shape:
                raise ValueError(
                    f"the checkpoint belongs to another model: {name} has shape "
                    f"{tuple(weights[name].shape)}, expected {tuple(x.shape)}"
                )
            x.copy_(like(weights[name], x))


def put_moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]
) -> None:
    """Restore the optimiser's state, sharded like the parameters.

    Step counts go to the device that Adam expects them on.
    """
    group, parameters = optimizer.param_groups[0], dict(model.named_parameters())
    on_device = group.get("fused") or group.get("capturable")
    for key, x in sorted(moments.items()):  # the same order in all processes, which shard together
        kind, _, name = key.partition(".")
        if name not in parameters:
            raise ValueError(f"the checkpoint belongs to another model: it has a parameter {name}")
        p = parameters[name]
        if kind == "step":
            optimizer.state[p][kind] = x.to(p.device if on_device else "cpu", copy=True)
        else:
            optimizer.state[p][kind] = like(x, p)


def like(x: Tensor, target: Any) -> Tensor:
    """A copy of a full tensor on the device of `target`, sharded like it."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(target, DTensor):
        return distribute_tensor(x.to(target.device), target.device_mesh, target.placements)
    return x.to(target.device, copy=True)
