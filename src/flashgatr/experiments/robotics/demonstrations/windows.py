"""Demonstrations as tensors in the geometric layout, and the windows that networks are trained on.

    states (F, 49) float32, all demonstrations one after another    offsets (N + 1)

A window is 128 frames of one demonstration and may start at any frame. After the end, the last
state is held for `rest` more frames, so that windows also show what to do when all is done: stay.
Windows are numbered through all demonstrations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..layouts import GEOMETRIC, HORIZON

REST = 160
"""Frames for which the last state is held: 34 windows of a demonstration show rest only."""


@dataclass(frozen=True)
class Demonstrations:
    """A set of demonstrations, on any device."""

    states: Tensor  # (F, 49)
    offsets: Tensor  # (N + 1), int64
    rest: int = REST

    def __post_init__(self) -> None:
        ends = self.offsets
        good = ends.ndim == 1 and len(ends) > 0 and int(ends[0]) == 0
        if not good or int(ends[-1]) != len(self.states) or bool((ends.diff() < 1).any()):
            raise ValueError("offsets must grow from 0 to the number of states")
        if self.states.shape[1:] != (GEOMETRIC,):
            raise ValueError(f"got states of shape {tuple(self.states.shape)}, expected (F, 49)")
        if self.rest < 0:
            raise ValueError(f"rest must be at least 0, got {self.rest}")

    def __len__(self) -> int:
        """The number of demonstrations."""
        return len(self.offsets) - 1

    @cached_property
    def starts(self) -> Tensor:
        """The number of windows of each demonstration; 0 for one that is too short."""
        return (self.offsets.diff() + (self.rest - HORIZON + 1)).clamp(min=0)

    @cached_property
    def _totals(self) -> Tensor:
        return self.starts.cumsum(0)

    @cached_property
    def count(self) -> int:
        """The number of windows."""
        return int(self.starts.sum())

    def windows(self, numbers: Tensor) -> Tensor:
        """The windows (B, 128, 49) of these numbers (B), each from 0 to `count` - 1.

        Numbers on a GPU are not checked, because that would make the host wait for it.
        """
        if numbers.device.type == "cpu" and bool(((numbers < 0) | (numbers >= self.count)).any()):
            raise ValueError(f"windows are numbered from 0 to {self.count - 1}")
        which = torch.searchsorted(self._totals, numbers, right=True)
        start = numbers - (self._totals[which] - self.starts[which])
        frame = start[:, None] + torch.arange(HORIZON, device=self.states.device)
        length = self.offsets[which + 1] - self.offsets[which]
        frame = frame.minimum(length[:, None] - 1)
        return self.states[self.offsets[which][:, None] + frame]

    def first(self, count: int) -> Demonstrations:
        """The first `count` demonstrations."""
        if not 0 < count <= len(self):
            raise ValueError(f"got {count} demonstrations; there are {len(self)}")
        end = self.offsets[: count + 1]
        return replace(self, states=self.states[: int(end[-1])], offsets=end)

    def to(self, device: torch.device | str) -> Demonstrations:
        """The same on another device."""
        return replace(self, states=self.states.to(device), offsets=self.offsets.to(device))
