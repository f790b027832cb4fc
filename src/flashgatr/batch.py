"""Sets of unequal size: padded with a mask, or packed with offsets; the results are the same.

    padded   values (B, N, ...)  mask (B, N), True where an item is valid
    packed   values (T, ...)     offsets (B + 1): sample b owns items offsets[b] to offsets[b + 1]

With two item axes (times and objects, say), packed values are (T, N2, ...): the offsets divide the
first axis, and all samples have N2 items on the second.

Samples never mix: sums, means and attention run over the valid items of one sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Sets",
    "from_pyg",
    "pack",
    "packed_to_padded",
    "pad",
    "padded_to_packed",
    "readout",
    "unpack",
    "unpad",
]


class ByLength(NamedTuple):
    """Packed samples in the order of their sizes."""

    shapes: list[tuple[int, int]]
    """How many samples there are of which size."""
    items: Tensor | None
    """(T) the items in that order; None if they are in it already."""
    back: Tensor | None
    """(T) the inverse of `items`."""


class Sets:
    """Which items of a tensor form which sample.

    Every leading axis counts samples; the `axes` axes after them (one, or two for axial data)
    count items. With `offsets` there are no leading axes: the first axis holds the items of all
    samples one after another; a second item axis is common to all samples. If `device` is given,
    mask and offsets must be on that device.
    """

    def __init__(
        self,
        items: Sequence[int],
        *,
        axes: int = 1,
        mask: Tensor | None = None,
        offsets: Tensor | None = None,
        max_items: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        shape = tuple(items)
        if mask is not None and offsets is not None:
            raise ValueError(
                "got both mask and offsets; padded sets take a mask, packed ones offsets"
            )
        _check_tensors(device, mask=mask, offsets=offsets)
        if mask is not None:
            _check_mask(mask, shape)
        if max_items is not None and offsets is None:
            raise ValueError("max_items goes with offsets; padded sets do not need it")
        self.axes = axes
        self.shape = shape
        self.mask = mask
        self.offsets = offsets
        self.sample: Tensor | None = None
        self._max_items = max_items
        self._lengths: list[int] | None = None
        self._by_length: ByLength | None = None
        if offsets is not None:
            _check_offsets(offsets, shape, max_items, axes)
            positions = torch.arange(shape[0], device=offsets.device)
            self.sample = torch.bucketize(positions, offsets[1:], right=True)

    @property
    def samples(self) -> tuple[int, ...]:
        """Shape of the samples: (B) for packed sets, else the leading axes."""
        if self.offsets is not None:
            return (self.offsets.shape[0] - 1,)
        return self.shape[: len(self.shape) - self.axes]

    @property
    def is_plain(self) -> bool:
        """Whether every sample has the same number of items, all valid."""
        return self.mask is None and self.offsets is None

    @property
    def max_items(self) -> int:
        """Size of the largest packed sample along the first axis (reads it from the device unless
        it was given).
        """
        assert self.offsets is not None
        if self._max_items is None:
            if torch.compiler.is_compiling():
                raise ValueError(
                    "pass max_items=… when compiling packed sets: a graph cannot read it from "
                    "offsets"
                )
            lengths = self.offsets.diff()
            self._max_items = int(lengths.max()) if lengths.numel() else 0
        return self._max_items

    @property
    def can_be_read(self) -> bool:
        """Whether the sizes of packed sets can be read without waiting for a device or breaking a
        trace.
        """
        offsets = self.offsets
        return offsets is not None and type(offsets) is Tensor and offsets.device.type == "cpu"

    @property
    def lengths(self) -> list[int]:
        """Sizes of the packed sets (reads them from the device)."""
        assert self.offsets is not None
        if self._lengths is None:
            self._lengths = self.offsets.diff().tolist()
        return self._lengths

    @property
    def by_length(self) -> ByLength:
        """The packed items in the order of the sizes of their samples (reads the sizes)."""
        if self._by_length is None:
            assert self.offsets is not None
            lengths, order = self.offsets.diff().sort(stable=True)
            sizes, counts = (x.tolist() for x in lengths.unique_consecutive(return_counts=True))
            shapes = list(zip(counts, sizes, strict=True))
            if len(shapes) == 1:
                self._by_length = ByLength(shapes, None, None)
            else:
                starts = self.offsets[:-1][order] - (lengths.cumsum(0) - lengths)
                items = torch.arange(self.shape[0], device=lengths.device)
                items = items + starts.repeat_interleave(lengths)
                self._by_length = ByLength(shapes, items, items.argsort())
        return self._by_length

    def keep(self, x: Tensor) -> Tensor:
        """x (items, ...) with the padded items set to zero, whatever they held."""
        if self.mask is None:
            return x
        extra = (1,) * (x.dim() - self.mask.dim())
        return torch.where(self.mask.reshape(*self.mask.shape, *extra), x, 0)

    def sum(self, x: Tensor) -> Tensor:
        """Sum over the valid items of every sample: (items, F) to (samples, F)."""
        if self.sample is not None:
            assert self.offsets is not None
            total = x.new_zeros(self.offsets.shape[0] - 1, x.shape[-1])
            return total.index_add(0, self.sample, x if self.axes == 1 else x.sum(1))
        return self.keep(x).sum(self._item_dims())

    def count(self, dtype: torch.dtype) -> Tensor | int:
        """Number of valid items, at least one: (samples, 1), or one number if all samples agree."""
        if self.offsets is not None:
            lengths = self.offsets.diff()[:, None].to(dtype)
            return (lengths if self.axes == 1 else lengths * self.shape[1]).clamp(min=1)
        if self.mask is not None:
            return self.mask.unsqueeze(-1).to(dtype).sum(self._item_dims()).clamp(min=1)
        return max(math.prod(self.shape[len(self.shape) - self.axes :]), 1)

    def mean(self, x: Tensor) -> Tensor:
        """Mean over the valid items of every sample (zero for an empty one)."""
        return self.sum(x) / self.count(x.dtype)

    def spread(self, per_sample: Tensor) -> Tensor:
        """Repeat values (samples, F) for every item: broadcastable to (items, F)."""
        axes = self.axes
        if self.sample is not None:
            per_sample, axes = per_sample.index_select(0, self.sample), axes - 1
        for _ in range(axes):
            per_sample = per_sample.unsqueeze(-2)
        return per_sample

    def along_second(self) -> Sets:
        """For two item axes: the sets within which items attend to each other along the second."""
        return self if self.offsets is None else Sets(self.shape)

    def along_first(self) -> Sets:
        """For two item axes: the sets within which items attend to each other along the first.

        Their items are ours with the two axes exchanged. Packed ones are also flattened, object by
        object: every object of every sample is a set of its own.
        """
        *leading, first, second = self.shape
        if self.offsets is None:
            mask = None if self.mask is None else self.mask.mT
            return Sets((*leading, second, first), axes=2, mask=mask)
        starts = first * torch.arange(second, device=self.offsets.device)[:, None]
        begins = (starts + self.offsets[:-1]).flatten()
        offsets = torch.cat([begins, begins.new_full((1,), first * second)])
        return Sets((first * second,), offsets=offsets, max_items=self._max_items)

    def positions(self, device: torch.device) -> Tensor:
        """Position of every item within its sample along the last item axis, (N) or (..., N).

        Only valid items count, wherever the mask has holes; padded and packed sets therefore agree.
        With two item axes the items form a grid, and a position is the index along the axis.
        """
        if self.mask is not None and self.axes == 1:
            return (self.mask.to(device).cumsum(-1) - 1).clamp(min=0)
        positions = torch.arange(self.shape[-1], device=device)
        if self.offsets is None or self.axes == 2:
            return positions
        assert self.sample is not None
        return positions - self.offsets.index_select(0, self.sample)

    def _item_dims(self) -> tuple[int, ...]:
        return tuple(range(-1 - self.axes, -1))


def pad(sets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Stack tensors (n_i, ...) of unequal length to (B, max n, ...), with the mask (B, max n).

    >>> values, mask = pad([torch.ones(2, 3), torch.ones(1, 3)])
    >>> values.shape, mask.tolist()
    (torch.Size([2, 2, 3]), [[True, True], [True, False]])
    """
    _check_list(sets)
    return packed_to_padded(*pack(sets))


def unpad(values: Tensor, mask: Tensor) -> list[Tensor]:
    """The valid items of every sample, as a list."""
    _check_mask(mask, tuple(values.shape[: mask.dim()]))
    if mask.dim() != 2:
        raise ValueError(f"mask must be (batch, items), got {tuple(mask.shape)}")
    return [sample[valid] for sample, valid in zip(values, mask, strict=True)]


def pack(sets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Concatenate tensors (n_i, ...) to (sum n, ...), with the offsets (B + 1)."""
    _check_list(sets)
    lengths = torch.tensor([len(x) for x in sets], device=sets[0].device)
    return torch.cat(list(sets)), torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def unpack(values: Tensor, offsets: Tensor) -> list[Tensor]:
    """The items of every sample, as a list (views)."""
    _check_offsets(offsets, tuple(values.shape[:1]))
    return list(values.split(offsets.diff().tolist()))


def packed_to_padded(
    values: Tensor, offsets: Tensor, max_items: int | None = None
) -> tuple[Tensor, Tensor]:
    """(T, ...) and offsets to (B, max n, ...) and mask; padding is zero."""
    sets = Sets(values.shape[:1], offsets=offsets, max_items=max_items)
    width = sets.max_items
    positions = torch.arange(width, device=offsets.device)
    mask = positions < offsets.diff()[:, None]
    padded = values.new_zeros(offsets.shape[0] - 1, width, *values.shape[1:])
    assert sets.sample is not None
    return padded.index_put((sets.sample, sets.positions(values.device)), values), mask


def padded_to_packed(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(B, N, ...) and mask to (T, ...) and offsets, keeping the order of the valid items."""
    _check_mask(mask, tuple(values.shape[: mask.dim()]))
    if mask.dim() != 2:
        raise ValueError(f"mask must be (batch, items), got {tuple(mask.shape)}")
    return values[mask], torch.nn.functional.pad(mask.sum(-1).cumsum(0), (1, 0))


def from_pyg(batch: Any) -> Tensor:
    """Offsets of a PyTorch Geometric `Batch` (its `ptr`), for `net(mv, s, offsets=...)`.

    The nodes of such a batch are packed already: embed `batch.pos` and pass it with these offsets.
    """
    pointer = getattr(batch, "ptr", None)
    if isinstance(pointer, Tensor):
        return pointer
    nodes = getattr(batch, "num_nodes", None)
    if isinstance(nodes, int) and getattr(batch, "batch", None) is None:
        position = getattr(batch, "pos", None)
        device = position.device if isinstance(position, Tensor) else None
        return torch.tensor([0, nodes], device=device)
    raise TypeError(
        f"expected a torch_geometric Batch or Data, got {type(batch).__name__} without `ptr`; "
        "make one with torch_geometric.data.Batch.from_data_list or a PyG DataLoader"
    )


def readout(
    mv: Tensor,
    s: Tensor | None = None,
    *,
    reduce: Literal["mean", "sum"] = "mean",
    mask: Tensor | None = None,
    offsets: Tensor | None = None,
    item_axes: int = 1,
) -> tuple[Tensor, Tensor]:
    """Pool the items of every set: (..., N, C, 16), (..., N, S) to (..., C, 16), (..., S).

    Mean and sum are linear, so they transform as the items do. `item_axes` is 2 for the output
    (..., N1, N2, C, 16) of an AxialGATr.
    """
    if reduce not in ("mean", "sum"):
        raise ValueError(f"unknown reduce {reduce!r}; expected 'mean' or 'sum'")
    if mv.dim() < 2 + item_axes:
        raise ValueError(
            f"expected multivectors with {item_axes} item axes before channels and blades, got "
            f"{tuple(mv.shape)}"
        )
    s = mv.new_zeros(*mv.shape[:-2], 0) if s is None else s
    sets = Sets(mv.shape[:-2], axes=item_axes, mask=mask, offsets=offsets, device=mv.device)
    pool = sets.mean if reduce == "mean" else sets.sum
    return pool(mv.flatten(-2)).unflatten(-1, mv.shape[-2:]), pool(s)


def _check_list(sets: Sequence[Tensor]) -> None:
    if isinstance(sets, Tensor):
        raise ValueError(
            "expected a list of tensors, one per sample, got one tensor; if its first axis counts "
            "samples, list(x) splits it"
        )
    if not sets or not all(isinstance(x, Tensor) for x in sets):
        kinds = ", ".join(sorted({type(x).__name__ for x in sets})) or "no samples"
        raise ValueError(f"expected a non-empty list of tensors, one per sample, got {kinds}")
    if len({(x.shape[1:], x.dtype, x.device) for x in sets}) != 1:
        shapes = ", ".join(str(tuple(x.shape)) for x in sets[:4])
        raise ValueError(
            f"samples must agree in dtype, device and all axes but the first; got shapes {shapes}"
        )


def _check_tensors(device: torch.device | None, **given: Tensor | None) -> None:
    for name, x in given.items():
        if x is not None and not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x is not None and device is not None and x.device != device:
            raise ValueError(f"{name} is on {x.device}, the items on {device}; move it with .to()")


def _check_mask(mask: Tensor, items: tuple[int, ...]) -> None:
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True = valid item), got {mask.dtype}")
    if mask.dim() != len(items) or any(m != n for m, n in zip(mask.shape, items, strict=True)):
        raise ValueError(
            f"mask must have shape {items}, one entry per item, got {tuple(mask.shape)}"
        )


def _check_offsets(
    offsets: Tensor, items: tuple[int, ...], max_items: int | None = None, axes: int = 1
) -> None:
    if (
        offsets.dim() != 1
        or offsets.shape[0] < 1
        or offsets.dtype not in (torch.int32, torch.int64)
    ):
        raise ValueError(
            "offsets must be a 1-d integer tensor of batch size + 1, got shape "
            f"{tuple(offsets.shape)} and {offsets.dtype}"
        )
    if len(items) != axes:
        expected = "one axis of items" if axes == 1 else f"{axes} axes of items"
        raise ValueError(
            f"packed sets have {expected} before the channels and no batch axes, got "
            f"{len(items)} axes"
        )
    if torch.compiler.is_compiling() or offsets.device.type != "cpu":
        return  # reading values would break a graph or wait for the device
    if offsets[0] != 0 or offsets[-1] != items[0] or bool((offsets.diff() < 0).any()):
        raise ValueError(
            f"offsets must rise from 0 to the number of items, {items[0]}; got "
            f"{offsets.tolist()[:8]}"
        )
    if max_items is not None and bool((offsets.diff() > max_items).any()):
        raise ValueError(
            f"max_items={max_items}, but the largest set has {int(offsets.diff().max())} items"
        )
