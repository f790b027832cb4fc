"""Windows of demonstrations, on the device: every frame begins one.

A demonstration is a sequence of states. The window of frame i has this frame and those that follow.
Where a demonstration ends before the window does, its last state is repeated: the scene is at rest.
Shapes: F frames of all demonstrations together, D demonstrations, H frames of a window.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from .state import STATE, normalised


class DataError(RuntimeError):
    """Demonstrations are missing or malformed."""


class Demonstrations(NamedTuple):
    """Demonstrations one after another."""

    frames: Tensor
    """(F, 49): positions in metres, flags 0 and 1."""
    offsets: Tensor
    """(D + 1): demonstration d has the frames from offsets[d] up to offsets[d + 1]."""


def load(folder: Path, name: str, limit: int | None = None) -> Demonstrations:
    """The first `limit` demonstrations of a set, from the file NAME.safetensors."""
    file = folder / f"{name}.safetensors"
    if not file.is_file():
        raise DataError(f"{file} is missing; make the data, or set data.folder")
    found = load_file(file)
    missing = {"frames", "offsets"} - found.keys()
    if missing:
        raise DataError(f"{file} lacks {' and '.join(sorted(missing))}; it has {sorted(found)}")
    frames, offsets = found["frames"], found["offsets"].long()
    count = len(offsets) - 1
    if limit is not None and not 0 < limit <= count:
        raise DataError(f"{file} holds {count} demonstrations, got a limit of {limit}")
    offsets = offsets[: None if limit is None else limit + 1]
    return Demonstrations(frames[: offsets[-1]], offsets)


class Windows:
    """The windows of demonstrations, with normalised states in float32."""

    def __init__(self, demonstrations: Demonstrations, length: int, device: torch.device) -> None:
        frames, offsets = demonstrations
        lengths = offsets.diff()
        wanted = int(offsets[-1]) if len(offsets) > 1 else 0
        if frames.shape != (wanted, STATE) or wanted == 0 or lengths.min() < 1 or offsets[0] != 0:
            raise DataError(
                f"expected frames (F, {STATE}) and increasing offsets from 0 to F, got frames "
                f"{tuple(frames.shape)} and {len(offsets)} offsets, the first and the last of them "
                f"{offsets[:1].tolist()} and {offsets[-1:].tolist()}"
            )
        self.frames = normalised(frames.float()).to(device)
        self._last = torch.repeat_interleave(offsets[1:] - 1, lengths).to(device)
        """The last frame of the demonstration of every frame."""
        self._step = torch.arange(length, device=device)

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, first: Tensor) -> Tensor:
        """The windows (B, H, 49) that begin with the frames of these numbers (B)."""
        last = self._last.index_select(0, first)
        chosen = torch.minimum(first[:, None] + self._step, last[:, None])
        return self.frames.index_select(0, chosen.flatten()).view(*chosen.shape, STATE)
