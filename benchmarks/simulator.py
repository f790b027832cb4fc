"""How many star systems per second? Appends to benchmarks/results/simulator-rate.jsonl.

Systems of the released generator (4 bodies, 100 steps), drawn, evolved and accepted in chunks of 1,000, by one and by two
processes that are already running; the best of five rounds of 40 chunks.
"""

import time
from dataclasses import asdict

from flashgatr.experiments.nbody.data import CHUNK, _mapper
from flashgatr.experiments.nbody.simulate import Gravity
from flashgatr.experiments.results import record

CHUNKS, ROUNDS = 40, 5


def rate(workers):
    jobs = [(Gravity(), [0, 0, chunk]) for chunk in range(CHUNKS)]
    with _mapper(workers) as run:
        list(run(jobs))  # starts the processes
        best = float("inf")
        for _ in range(ROUNDS):
            start = time.perf_counter()
            count = sum(len(systems.mass) for systems in run(jobs))
            best = min(best, time.perf_counter() - start)
    assert count == CHUNKS * CHUNK
    return count / best


def main():
    for workers in (1, 2):
        value = rate(workers)
        settings = dict(workers=workers, chunk=CHUNK, **asdict(Gravity()))
        record("simulator-rate", "gravity", "rate", value, "systems/s", settings)
        print(f"{workers} worker{'s' if workers > 1 else ' '} {value:>10,.0f} systems/s")


if __name__ == "__main__":
    main()
