"""Rows of the table of docs/large_geometry.md, from the measurements."""

import json

from .measured import measured, table_row
from .pages import ROOT

MESHES = dict(meshes=100, precision="float32")
CASES = ((512, "medoids"), (512, "farthest"))


def recorded(**wanted):
    """The last errors by seed, of the cases with these settings."""
    file = ROOT / "benchmarks" / "results" / "anchored-accuracy.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    wanted = {**MESHES, **wanted}
    return {
        x["settings"]["seed"]: x["value"] for x in lines if wanted.items() <= x["settings"].items()
    }


def of_anchors():
    full = measured("anchored-accuracy", "epsilon_mean", anchors="all nodes", **MESHES)
    yield table_row("all nodes: full attention", "", f"{full:.2f}", "", "")
    for count, method in CASES:
        values = recorded(anchors=count, method=method, weighted=True).values()
        mean = sum(values) / len(values)
        spread = f"{min(values):.2f} to {max(values):.2f}" if len(values) > 1 else ""
        more = f"{mean - full:+.2f}"
        yield table_row(f"{count:,} {method}", len(values), f"{mean:.2f}", spread, more)
