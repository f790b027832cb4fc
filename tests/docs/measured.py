"""Values that were measured, from benchmarks/results, and rows of tables."""

import json

from .pages import ROOT


def measured(benchmark, metric, *, model="gatr", machine="", unchanged=False, **settings):
    """The latest value in benchmarks/results that was recorded with these settings.

    unchanged: only runs of a recipe without changes other than those in `settings`.
    """
    lines = (ROOT / "benchmarks" / "results" / f"{benchmark}.jsonl").read_text().splitlines()
    for line in map(json.loads, reversed(lines)):
        told = {**line["settings"], "metric": line["metric"], "model": line["model"]}
        wanted = {**settings, "metric": metric, "model": model}
        if "optimizer" in told and "optimizer" not in settings:
            continue  # measured without an optimiser, so not a training step
        if unchanged and any("." in key and key not in settings for key in told):
            continue
        if machine in line["machine"] and wanted.items() <= told.items():
            return line["value"]
    raise AssertionError(f"benchmarks/results/{benchmark}.jsonl has no {metric} for {settings}")


def latest_times(benchmark, model, **settings):
    """The latest time for each combination of settings."""
    lines = (ROOT / "benchmarks" / "results" / f"{benchmark}.jsonl").read_text().splitlines()
    return {
        json.dumps(line["settings"], sort_keys=True): line["value"]
        for line in map(json.loads, lines)
        if line["metric"] == "time"
        and line["model"] == model
        and settings.items() <= line["settings"].items()
        and "H200" in line["machine"]
    }.values()


def table_row(*cells):
    return f"| {' | '.join(map(str, cells))} |"


NETWORKS = {"gatr": "GATr", "transformer": "Transformer", "mlp": "MLP"}
