"""Several processes that share the items of a set, such as one per GPU.

    decode   every process decodes its share of the queries; nothing is exchanged
    train    every process has a share of the items, and gathers the anchors' keys and values

`Gathering` joins rows that the processes have computed. Its gradient goes back to the process that
has the row: the sum of all processes' gradients. Rows keep the order of the processes within each
sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .batch import Sets


class Processes:
    """The processes of a group of `torch.distributed`, and this one among them.

    group: None for all processes. Without `torch.distributed` there is one process.

    >>> Processes().share(10)
    slice(0, 10, None)
    """

    def __init__(self, group: Any = None) -> None:
        is_alone = not (dist.is_available() and dist.is_initialized())
        self.group = group
        self.rank, self.size = (0, 1) if is_alone else (dist.get_rank(group), _size(group))

    def share(self, count: int) -> slice:
        """This process's part of `count` items: consecutive ones, as many in all processes ± 1."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def gather(self, x: Tensor, dim: int = 0) -> Tensor:
        """The processes' tensors, joined along an axis in the order of the processes.

        They may differ in size along this axis only. The gradient of a process's tensor is the sum
        of all processes' gradients.
        """
        if self.size == 1:
            return x
        counts = self.exchange([x.shape[dim]], x.device)[:, 0].tolist()
        rows = x.movedim(dim, 0)
        return self._joined(rows, counts).movedim(0, dim)

    def evaluate(
        self, field: Callable[[Tensor], Any], position: Tensor, *, gather: bool = False
    ) -> Any:
        """A field at this process's share of positions (..., N, 3), or at all of them.

        field: such as `AnchoredGATr.field` returns. It computes the share only. Its result has the
            batch axes of `position` before the items.
        gather: return the values at all positions, in every process.
        """
        axis = position.dim() - 2
        values = field(position[..., self.share(position.shape[-2]), :])
        if not gather:
            return values
        if isinstance(values, Tensor):
            return self.gather(values, axis)
        return tuple(self.gather(x, axis) for x in values)

    def exchange(self, numbers: list[int], device: torch.device) -> Tensor:
        """The numbers of all processes, (processes, numbers)."""
        own = torch.tensor(numbers, device=device)
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own, group=self.group)
        return torch.stack(found).cpu()

    def _joined(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Rows of all processes, which have `counts` of them."""
        return _Joined.apply(rows, counts, self)  # type: ignore[no-any-return, no-untyped-call]


class Gathering:
    """Joins the processes' shares of the same samples.

    sets: the sets that all processes' items form, where this process has the items of `own`.
    """

    def __init__(self, processes: Processes, own: Sets, mv: Tensor, has_weights: bool) -> None:
        """mv: (..., C, 16) of all items of this process. has_weights: whether `own` have them."""
        self.processes = processes
        device, number = mv.device, _sample_numbers(own, mv.device)
        samples = math.prod(own.samples)
        has_gradient = torch.is_grad_enabled() and mv.requires_grad
        facts = [len(number), samples, mv.shape[:-2].numel(), int(has_gradient), int(has_weights)]
        counts, *others = processes.exchange(facts, device).T.tolist()
        _check_shares(counts, *others)
        self.counts = counts
        everyone = processes._joined(number, counts)
        self.order = torch.sort(everyone, stable=True).indices
        if own.offsets is None:
            self.sets = Sets((*own.samples, sum(counts) // max(samples, 1)))
        else:
            ends = torch.arange(samples + 1, device=device)
            offsets = torch.searchsorted(everyone[self.order], ends)
            self.sets = Sets((sum(counts),), offsets=offsets)
        self._axes = len(own.shape)

    def rows(self, x: Tensor) -> Tensor:
        """Rows (items of this process, …) as rows of all processes, ordered by sample."""
        return self.processes._joined(x, self.counts).index_select(0, self.order)

    def items(self, x: Tensor) -> Tensor:
        """A tensor on the items of `own` as one on the items of `sets`."""
        return self.rows(x.flatten(0, self._axes - 1)).unflatten(0, self.sets.shape)  # type: ignore[no-any-return]

    def rows_of_pair(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """`rows` of keys and values, which have as many axes, in one exchange."""
        return _split(self.rows(torch.cat([keys, values], dim=-1)), keys.shape[-1])

    def items_of_pair(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """`items` of keys and values, which have as many axes, in one exchange."""
        return _split(self.items(torch.cat([keys, values], dim=-1)), keys.shape[-1])


class _Joined(torch.autograd.Function):
    """Rows of all processes. Backward: the sum of the processes' gradients of our rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int], processes: Processes) -> Tensor:
        ctx.counts, ctx.processes = counts, processes
        most = max(counts)  # gloo wants equal sizes
        own = F.pad(rows.reshape(len(rows), math.prod(rows.shape[1:])), (0, 0, 0, most - len(rows)))
        found = [torch.empty_like(own) for _ in counts]
        dist.all_gather(found, own.contiguous(), group=processes.group)
        joined = torch.cat([x[:n] for x, n in zip(found, counts, strict=True)])
        return joined.reshape(sum(counts), *rows.shape[1:])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        processes, begin = ctx.processes, sum(ctx.counts[: ctx.processes.rank])
        total = gradient.to(torch.promote_types(gradient.dtype, torch.float32), copy=True)
        total = total.contiguous()
        dist.all_reduce(total, group=processes.group)
        own = total[begin : begin + ctx.counts[processes.rank]]
        return own.to(gradient.dtype), None, None


def _split(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    return x[..., :width].contiguous(), x[..., width:].contiguous()


def _size(group: Any) -> int:
    size: int = dist.get_world_size(group)
    return size


def _sample_numbers(sets: Sets, device: torch.device) -> Tensor:
    """The number of every item's sample."""
    if sets.sample is not None:
        return sets.sample
    return torch.arange(math.prod(sets.samples), device=device).repeat_interleave(sets.shape[-1])


def _check_shares(
    anchors: list[int],
    samples: list[int],
    items: list[int],
    gradients: list[int],
    weights: list[int],
) -> None:
    """Errors that all processes raise together, so that none waits for another one."""
    if len(set(samples)) > 1:
        raise ValueError(
            f"the processes have {samples} samples; they must share the items of the same samples"
        )
    if not all(items):
        raise ValueError(
            f"the processes have {items} items; every process needs at least one, because it takes "
            "part in all exchanges"
        )
    for what, found in (("require gradients", gradients), ("have weights", weights)):
        if len(set(found)) > 1:
            raise ValueError(
                f"the anchors {what} in {sum(found)} of {len(found)} processes; expected all or "
                "none of them"
            )
    if not sum(anchors):
        raise ValueError("no process has an anchor; expected at least one")
