"""Speed of two versions of the source, side by side on one machine.

    python benchmarks/compare.py BEFORE/src AFTER/src [--rounds 5] [--first-calls 2] [--record NAME]

Each round measures every workload once with either version, in separate processes that take turns;
a ratio is that of the medians over rounds. On a GPU: the n-body step with Adam as a CUDA graph
(TF32 and float32), its eager forward and backward pass, the artery step (both widths), scaling at
five sizes, and the first call with an empty kernel cache. On a CPU: forward and backward of the
n-body network.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WORKER = """
import json, sys
import torch
from flashgatr.experiments.bench import artery_step, nbody_step, scaling, timing, workload
device, found = timing.pick_device(), {}
torch.zeros(1, device=device)
if sys.argv[1] == "first":
    case = nbody_step.Case("gatr", "tf32")
    found["first call"] = 1e3 * nbody_step.measure(
        case, device, repeats=3, first_call=True
    ).metrics["first_call"]
elif device.type == "cpu":
    torch.set_num_threads(2)
    step = nbody_step.RandomSystems("gatr", device).gradients
    found["cpu step"] = timing.measure(step, device, repeats=40).metrics["time"]
else:
    for precision in ("tf32", "float32"):
        case = nbody_step.Case("gatr", precision, cuda_graph=True)
        time = nbody_step.measure(case, device, repeats=50).metrics["time"]
        found[f"n-body step, {precision}, graph"] = time
    case = nbody_step.Case("gatr", "tf32", optimizer=False)
    found["n-body eager"] = nbody_step.measure(case, device, repeats=60).metrics["time"]
    with timing.precision("bfloat16"):
        for width in (1, 2):
            make = artery_step.works(device)["gatr", width]
            size = artery_step.MESHES, artery_step.VERTICES
            time = artery_step.fixed_size(make, size, graph=True).metrics["time"]
            found[f"artery step, width {width}"] = time
        for n in (16, 256, 1024, 4096, 16384):
            make = lambda: workload.gatr("scaling", device, attention_width=1)
            overlap = n <= scaling.LARGEST_OVERLAP
            time = artery_step.fixed_size(make, (4, n), graph=True, overlap=overlap).metrics["time"]
            found[f"scaling, {n} items"] = time
print("FOUND", json.dumps(found))
"""


def measure(source: Path, kind: str, cache: str | None = None) -> dict[str, float]:
    """Milliseconds by workload, of one process."""
    environment = os.environ | {"PYTHONPATH": str(source.resolve())}
    if cache is not None:
        environment["TRITON_CACHE_DIR"] = cache
    command = [sys.executable, "-c", WORKER, kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    if not lines:
        raise RuntimeError(f"{source} measured nothing:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(lines[-1].removeprefix("FOUND "))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--first-calls", type=int, default=0)
    parser.add_argument("--record", default="", help="name of the file in benchmarks/results")
    given = parser.parse_args()
    sources = {"before": given.before, "after": given.after}
    times: dict[str, dict[str, list[float]]] = {}

    def add(version: str, found: dict[str, float]) -> None:
        print(version, json.dumps(found), flush=True)
        for work, value in found.items():
            times.setdefault(work, {}).setdefault(version, []).append(value)

    for _ in range(given.rounds):
        for version, source in sources.items():
            add(version, measure(source, "steps"))
    for _ in range(given.first_calls):
        for version, source in sources.items():
            with tempfile.TemporaryDirectory() as cache:
                add(version, measure(source, "first", cache))
    print(f"{'':<28}{'before':>10}{'after':>10}{'ratio':>8}")
    for work, both in times.items():
        before, after = (statistics.median(both[version]) for version in sources)
        print(f"{work:<28}{before:>10.3f}{after:>10.3f}{after / before:>8.3f}", flush=True)
        if given.record:
            record(given.record, work, before, after, len(both["before"]))


def record(name: str, work: str, before: float, after: float, rounds: int) -> None:
    from flashgatr.experiments.results import record as append

    settings = {"work": work, "rounds": rounds}
    append(name, "gatr", "time", after, "ms", settings)
    append(name, "gatr", "ratio", after / before, "1", {**settings, "to": "the version before"})


if __name__ == "__main__":
    main()
