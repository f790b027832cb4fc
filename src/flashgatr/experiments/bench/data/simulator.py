"""How many star systems are generated per second?

Systems of the released generator (4 bodies, 100 steps) are drawn, evolved and accepted in chunks of
1,000, by one and by two processes that are already running. The result is the best of five rounds
of 40 chunks.
"""

from __future__ import annotations

import time
from dataclasses import asdict

from ...nbody.data import CHUNK, mapper
from ...nbody.simulate import Gravity
from ...results import record

CHUNKS, ROUNDS = 40, 5


def rate(workers: int) -> float:
    jobs = [(Gravity(), [0, 0, chunk]) for chunk in range(CHUNKS)]
    with mapper(workers) as apply:
        list(apply(jobs))  # starts the processes
        best = float("inf")
        for _ in range(ROUNDS):
            start = time.perf_counter()
            count = sum(len(systems.mass) for systems in apply(jobs))
            best = min(best, time.perf_counter() - start)
    assert count == CHUNKS * CHUNK
    return count / best


def run() -> None:
    for workers in (1, 2):
        value = rate(workers)
        settings = dict(workers=workers, chunk=CHUNK, **asdict(Gravity()))
        record("simulator-rate", "gravity", "rate", value, "systems/s", settings)
        print(f"{workers} worker{'s' if workers > 1 else ' '} {value:>10,.0f} systems/s")
