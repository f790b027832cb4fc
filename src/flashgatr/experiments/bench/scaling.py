"""Time and memory of forward and backward against the number of items, for GATr, a Transformer and
networks on all pairs of items, all of the same width.

Four sets of N items with four multivectors each. GATr has 8 multivector and 16 scalar channels,
which are as many numbers as the Transformer has channels (144), and SEGNN and the
SE(3)-Transformer have scalars and vectors (36 of each). All have ten layers. Each case runs eagerly
and, up to 32,768 items (256 for networks on pairs), as one CUDA graph; at some sizes, all but GATr
also run with compiled blocks. The fastest result counts. At two sizes there is also a case with
checkpointing, as in the paper (without a graph); networks on pairs have it at every size.

`largest` is the largest N whose step fits into memory, run eagerly. Where memory is no limit
(`limit` is "time"), N is doubled beyond the sizes as long as a step is expected to take at most a
minute.

`draw` writes docs/images/scaling.png from recorded results; it needs no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .. import results
from ..report import plots
from . import largest, timing, workload
from .artery_step import fixed_size, width_setting
from .largest import Largest
from .page import latest
from .timing import CaseReport, Found
from .workload import Make

SETS, CHANNELS, LAYERS = 4, 144, 10
NUMBERS = 64, 16
"""Input and output channels of the Transformer: four multivectors, and one."""
SIZES = (16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
PAIR_SIZES = (16, 64, 128, 256, 512, 1024, 2048, 4096)
"""Sizes for networks on pairs."""
CHECKPOINTED = (1024, 16384)
COMPILED = {True: (64, 256, 512, 1024), False: (256, 2048, 16384)}
"""Sizes at which networks also run compiled, by whether they are on pairs; GATr's kernels leave
nothing to compile."""
LARGEST_GRAPH = {True: 256, False: 32768}
"""By whether the network is one on pairs."""
LARGEST_OVERLAP = 2048
"""Largest number of items at which weight gradients are computed on a side stream; larger sets fill
the GPU without it."""
LONGEST = 8000.0
"""Milliseconds; after a slower step, larger sizes are skipped."""
LONGEST_ONCE = 60_000.0
"""Milliseconds that a step may take in the search for the largest number, which runs it once."""
FEWER_SIZES = (16, 64, 256)  # on a CPU
FEWER_PAIR_SIZES = (16,)
FIGURE = Path("docs/images/scaling.png")
LABELS = {
    ("gatr", 1): "GATr, width factor 1",
    ("gatr", 2): "GATr, width factor 2",
    ("transformer", None): "Transformer",
    ("segnn", None): "SEGNN",
    ("se3_transformer", None): "SE(3)-Transformer",
}
ON_PAIRS = ("segnn", "se3_transformer")
MODELS = tuple(dict.fromkeys(model for model, _ in LABELS))
Line = list[tuple[int, float]]
"""Number of items and a value, in order."""


def best(
    report: CaseReport, model: str, settings: dict[str, Any], make: Make, graph: bool
) -> Found | None:
    """The fastest of eager, captured (if `graph`) and compiled, with its mode; None if none ran."""
    size = SETS, settings["n_items"]
    found: Found | None = None
    for mode in _modes(model, settings["n_items"], graph):
        todo = partial(
            fixed_size,
            make,
            size,
            graph="graph" in mode,
            compiled="compiled" in mode,
            overlap=model == "gatr" and settings["n_items"] <= LARGEST_OVERLAP,
        )
        metrics = report.attempt(model, {**settings, "mode": mode}, todo)
        if metrics and (found is None or metrics.metrics["time"] < found.metrics["time"]):
            found = Found(metrics.metrics, {"mode": mode})
    return found


def _modes(model: str, n: int, graph: bool) -> list[str]:
    """Networks on pairs also run compiled where they are not captured: to save memory."""
    modes = ["eager", "graph"] if graph else ["eager"]
    is_compiled = model != "gatr" and n in COMPILED[model in ON_PAIRS]
    if is_compiled and (graph or model in ON_PAIRS):
        modes.append("compiled graph" if graph else "compiled")
    return modes


def run(models: Sequence[str] = MODELS) -> None:
    device = timing.pick_device()
    cuda = device.type == "cuda"
    precision = workload.usual_precision(device)
    report = CaseReport("scaling", keep=cuda, batch=SETS, precision=precision)
    with timing.precision(precision):
        for checkpointing in (False, True):
            for model, width in LABELS:
                if model in models:
                    sizes = _sizes(model, checkpointing, cuda)
                    _measure(report, (model, width), checkpointing, sizes, device)
    report.show()
    if cuda:
        draw()


def _sizes(model: str, checkpointing: bool, cuda: bool) -> Sequence[int]:
    if model in ON_PAIRS:
        return PAIR_SIZES if cuda else FEWER_PAIR_SIZES
    sizes = SIZES if cuda else FEWER_SIZES
    return [n for n in CHECKPOINTED if n in sizes] if checkpointing else sizes


def _measure(
    report: CaseReport,
    which: tuple[str, int | None],
    checkpointing: bool,
    sizes: Sequence[int],
    device: torch.device,
) -> None:
    """All sizes of a network and, on a GPU, the largest one."""
    model, width = which
    make = make_of(model, width, checkpointing, device)
    of_case = {**width_setting(width), "checkpointing": checkpointing}
    fits, time, fails = 0, 0.0, 0
    for n in sizes:
        settings = {**width_setting(width), "n_items": n, "checkpointing": checkpointing}
        largest_graph = LARGEST_GRAPH[model in ON_PAIRS]
        graph = device.type == "cuda" and not checkpointing and n <= largest_graph
        found = best(report, model, settings, make, graph)
        if found is None:  # most likely out of memory, as larger sizes would be
            fails = n
            break
        report.add(model, settings, found)
        fits, time = n, found.metrics["time"]
        if time > LONGEST:
            break
    if device.type == "cuda" and (model in ON_PAIRS or not checkpointing):
        search = partial(_largest, partial(largest.runs, make, SETS), fits, time, fails)
        limit = report.attempt(model, {**of_case, "largest": "searched"}, search)
        if limit is not None:
            about = {"fails": limit.fails, "limit": "memory"} if limit.fails else {"limit": "time"}
            report.add(model, {**of_case, **about}, Found({"largest": limit.fits}))


def _largest(runs: Callable[[int], bool], fits: int, time: float, fails: int) -> Largest:
    """The largest number of items: `fits` do, in this time, and `fails` (if any) failed."""
    if not fails:
        fits, fails = largest.doubled(runs, fits, time, LONGEST_ONCE)
    return largest.search(runs, fits, fails) if fails else Largest(fits, 0)


def make_of(model: str, width: int | None, checkpointing: bool, device: torch.device) -> Make:
    """A function that makes the network and its inputs."""
    if model == "gatr":
        changes = dict(attention_width=width, checkpoint=checkpointing)
        return partial(workload.gatr, "scaling", device, **changes)
    if model in ON_PAIRS:
        of_model = workload.segnn if model == "segnn" else workload.se3_transformer
        return partial(of_model, CHANNELS // 4, LAYERS, device, checkpoint=checkpointing)
    options: dict[str, Any] = dict(hidden_channels=CHANNELS, checkpoint=checkpointing)
    return partial(workload.transformer, NUMBERS, device, **options)


# ---- the figure ----


def draw(source: Path | None = None, target: Path = FIGURE) -> None:
    """Time, peak memory and the ratios of GATr to the Transformer, against the number of items."""
    source = source or results.FOLDER / "scaling.jsonl"
    lines = read(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(_picture(lines))
    print(f"drew {target} from {source}")


def read(source: Path) -> dict[str, dict[str, Line]]:
    """Lines by metric and label: the last results of the last machine.

    Without checkpointing; of networks on pairs, the smaller value of with and without counts.
    """
    found: dict[str, dict[str, dict[int, float]]] = {"time": {}, "memory": {}}
    lines = latest(source)
    for line in lines:
        settings = line["settings"]
        label = LABELS.get((line["model"], settings.get("width_factor")))
        is_shown = line["model"] in ON_PAIRS or not settings.get("checkpointing")
        is_last = line["machine"] == lines[-1]["machine"]
        if label and is_last and is_shown and line["metric"] in found:
            points = found[line["metric"]].setdefault(label, {})
            n = settings["n_items"]
            points[n] = min(line["value"], points.get(n, line["value"]))
    if not found["time"]:
        raise ValueError(
            f"{source} has no results of the scaling benchmark; run flashgatr bench scaling on a "
            "GPU"
        )
    return {
        metric: {label: sorted(points.items()) for label, points in of_metric.items()}
        for metric, of_metric in found.items()
    }


def _picture(lines: dict[str, dict[str, Line]]) -> bytes:
    labels = [label for label in LABELS.values() if label in lines["time"]]
    titles = {"time": "Forward and backward, ms", "memory": "Peak memory, MiB"}
    titles = {metric: title for metric, title in titles.items() if lines[metric]}
    with plots.style():
        figure, axes = plots.panels(len(titles) + 1, (3.9, 3.6))
        looks = plots.looks(labels)
        for ax, (metric, title) in zip(axes, titles.items(), strict=False):
            ax.set(xscale="log", yscale="log", title=title, xlabel="items")
            for label, points in lines[metric].items():
                ax.plot(*zip(*points, strict=True), markersize=4, **looks[label])
        ax = axes[-1]
        dashed = " (dashed: memory)" if "memory" in titles else ", time"
        ax.set(xscale="log", title=f"GATr / Transformer{dashed}", xlabel="items")
        ax.axhline(1, color=plots.GREY, linewidth=0.8)
        for metric, dash in (("time", "-"), ("memory", "--")):
            baseline = dict(lines[metric].get("Transformer", []))
            for label, points in lines[metric].items():
                if not label.startswith("GATr"):
                    continue
                ratios = [(n, x / baseline[n]) for n, x in points if n in baseline]
                if ratios:
                    ax.plot(*zip(*ratios, strict=True), dash, markersize=4, **looks[label])
        ax.set_ylim(bottom=0)
        for ax in axes:
            ax.grid(visible=True, axis="y")
        plots.legend(figure, [dict(label=label, **look) for label, look in looks.items()])
        return plots.png(figure)
