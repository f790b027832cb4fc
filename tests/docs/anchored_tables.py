"""Rows of the table of docs/large_geometry.md, from the measurements."""

import json

from .measured import measured, table_row
from .pages import ROOT

MESHES = dict(meshes=100, precision="float32")
CASES = (
    (256, "medoids"), (512, "medoids"), (1024, "medoids"), (512, "farthest"), (1024, "farthest"),
    (512, "random"), (1024, "random"),
)  # fmt: skip


def recorded(**wanted):
    """The last errors by seed, of the cases with these settings."""
    file = ROOT / "benchmarks" / "results" / "anchored-accuracy.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    wanted = {**MESHES, **wanted}
    return {
        x["settings"]["seed"]: x["value"] for x in lines if wanted.items() <= x["settings"].items()
    }


def of_a_cpu():
    field = dict(n_items=1_000_000, blocks=2)
    vessel = dict(model="pretrained", refined=11)
    names = ("1,000,000 points of a field", "a vessel of 1,130,626 nodes")
    for what, about in zip(names, (field, vessel), strict=True):
        seconds = measured("anchored-cpu", "time", **about) / 1000
        memory = measured("anchored-cpu", "memory", **about) / 1024
        yield table_row(what, f"{seconds:.0f} s", f"{memory:.1f} GiB")


def of_a_gpu():
    for items in (100_000, 1_000_000, 10_000_000):
        cells = []
        for anchors in (4096, 16384):
            about = dict(machine="H200", n_items=items, anchors=anchors)
            seconds = measured("anchored", "time", **about) / 1000
            cells += [f"{seconds:.3f} s", f"{measured('anchored', 'memory', **about):,.0f} MiB"]
        yield table_row(f"{items:,}", *cells)


def the_distances_of_the_vessel():
    """The largest difference in cm, and in % of the largest distance."""
    about = dict(model="pretrained", refined=11)
    found = (measured("anchored-cpu", metric, **about) for metric in ("difference", "ratio"))
    difference, ratio = found
    return f"{difference:.3f} cm", f"{100 * ratio:.2f} %"


def of_anchors():
    full = full_attention()
    yield table_row("all nodes: full attention", "", f"{full:.2f}", "", "")
    for count, method in CASES:
        values = recorded(anchors=count, method=method, weighted=True).values()
        more = cost(count, method)
        spread = f"{min(values):.2f} to {max(values):.2f}" if len(values) > 1 else ""
        mean = f"{full + more:.2f}"
        yield table_row(f"{count:,} {method}", len(values), mean, spread, f"{more:+.2f}")


def full_attention():
    return measured("anchored-accuracy", "epsilon_mean", anchors="all nodes", **MESHES)


def cost(count, method, weighted=True):
    """The mean increase over the seeds, compared with full attention."""
    values = recorded(anchors=count, method=method, weighted=weighted).values()
    return sum(values) / len(values) - full_attention()


FLOWS = [(n, n, anchors) for n in (10_000, 100_000) for anchors in (128, 512, 2048)]
FLOWS.append((1_000_000, 200_000, 512))


def of_flows():
    for lumen, wall, anchors in FLOWS:
        about = dict(set="test", points=lumen + wall, anchors=anchors, vessels=6, steps=5000)
        metrics = "epsilon_velocity", "epsilon_stress"
        found = [measured("flows-accuracy", metric, **about) for metric in metrics]
        cells = [f"{anchors:,}", *(f"{x:.1f}" for x in found)]
        yield table_row(f"{lumen:,} and {wall:,}", *cells)
