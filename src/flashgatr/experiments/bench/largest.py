"""The largest number of items whose training step fits into the memory of the GPU.

Running out of memory is a result here and not a failure: the search halves the distance between a
number that fits and one that does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from . import timing
from .workload import Make

STEP = 16
"""Numbers of items are multiples of this."""


class Largest(NamedTuple):
    """`fits` is the largest number found that fits, 0 if none does, and `fails` the smallest found
    that does not.
    """

    fits: int
    fails: int


def search(fits: Callable[[int], bool], known: int, fails: int, precision: float = 0.02) -> Largest:
    """Narrow the limit down to a share `precision` of it, given that `known` items fit (0: not
    known) and `fails` do not, which is checked first.

    >>> search(lambda n: n <= 700, 512, 1024)
    Largest(fits=688, fails=704)
    """
    if fits(fails):
        raise ValueError(
            f"a step with {fails:,} items fits into memory; it failed for another reason"
        )
    while fails - known > max(STEP, precision * fails):
        middle = (known + fails) // 2 // STEP * STEP
        if middle <= known:
            break
        if fits(middle):
            known = middle
        else:
            fails = middle
    return Largest(known, fails)


def doubled(fits: Callable[[int], bool], known: int, time: float, longest: float) -> Largest:
    """Double a number of items that fits, while a step is expected to take at most `longest`.

    time: that of a step with `known` items; twice the items are taken to need four times as much.
    `fails` is 0 if the time ended the search, and not the memory.

    >>> doubled(lambda n: True, 1000, 1.0, 20.0), doubled(lambda n: n < 3000, 1000, 1.0, 100.0)
    (Largest(fits=4000, fails=0), Largest(fits=2000, fails=4000))
    """
    while (time := 4 * time) <= longest:
        if not fits(2 * known):
            return Largest(known, 2 * known)
        known *= 2
    return Largest(known, 0)


def runs(make: Make, sets: int, items: int) -> bool:
    """Whether forward and backward of a new network fit into memory. Other errors are raised."""
    timing.release()
    try:
        _run(make, sets, items)
    except torch.OutOfMemoryError:
        return False  # the error, which keeps tensors alive, ends here
    finally:
        timing.release()
    return True


def _run(make: Make, sets: int, items: int) -> None:
    work = make()
    work.step(work.sample(sets, items))
    if work.device.type == "cuda":
        torch.cuda.synchronize()
