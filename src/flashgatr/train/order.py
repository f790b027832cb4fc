"""Which samples form the batch of step k: a pure function of (seed, k).

Every epoch has its own random permutation of the samples. The epochs form one sequence, and batch k
takes its elements k·B to (k+1)·B - 1. Resuming needs no saved state.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def batch_indices(seed: int, step: int, batch_size: int, samples: int) -> Tensor:
    """Numbers (B) of the samples of step `step`.

    >>> torch.cat([batch_indices(0, k, 2, 6) for k in range(3)]).sort().values.tolist()
    [0, 1, 2, 3, 4, 5]
    """
    if samples < 1 or batch_size < 1 or step < 0:
        raise ValueError(
            f"expected at least one sample, a batch and a step, got {samples}, {batch_size}, {step}"
        )
    start, stop = step * batch_size, (step + 1) * batch_size
    parts = []
    while start < stop:
        epoch, place = divmod(start, samples)
        part = _permutation(seed, epoch, samples)[place : place + stop - start]
        parts.append(part)
        start += len(part)
    return torch.cat(parts)


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, samples: int) -> Tensor:
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    return torch.randperm(samples, generator=generator)


def mix(*numbers: int) -> int:
    """Hash several numbers to one 63-bit seed."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number & (2**64 - 1))) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 31)) * 0x94D049BB133111EB % 2**64
        state ^= state >> 29
    return state >> 1
