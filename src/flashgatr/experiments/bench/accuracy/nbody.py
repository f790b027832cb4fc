"""n-body: the table of the authors' README, all models at the same GPU time, and the paper's figure
as tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...nbody.report.titles import MODELS, REFERENCE
from .gpu_time import gpu_time
from .recipes import Group, models
from .recorded import MISSING, Runs, Which, least, number, runs_of, table

FILE = "nbody-accuracy"
SAMPLES = (100, 1000, 10_000, 100_000)
SETS = {
    "eval": "New systems",
    "more_bodies": "Six bodies instead of four",
    "translated": "Translated by (200, 0, 0)",
}
FIXED_SIZE = ("mlp", "gca_mlp")


@dataclass(frozen=True)
class Row:
    """A model and the recipes that train it; the others have more seeds than the first."""

    label: str
    model: str
    recipes: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def runs(self, folder: Path, samples: int) -> Runs:
        lines = []
        for recipe in self.recipes:
            own = dict(recipe=recipe, train_samples=samples, **self.settings)
            lines += runs_of(folder, Which(FILE, self.model, own)).lines
        return Runs(lines)

    @property
    def groups(self) -> list[Group]:
        return [Group(recipe, self.model, self.settings) for recipe in self.recipes]

    @property
    def command(self) -> str:
        return "; ".join(group.command for group in self.groups)

    def gpu_time(self, folder: Path) -> str:
        return gpu_time(folder, self.groups[0].configs[0])


ROBUST = {"data.options.scaling": 0.3, "data.options.huber": 0.01}
README = (
    *(
        Row(MODELS[model], model, ("nbody_readme",))
        for model in ("gatr", "se3_transformer", "transformer", "gca_gnn", "gca_mlp", "mlp")
    ),
    *(Row("SEGNN", "segnn", ("nbody_segnn",), {"train.lr": rate}) for rate in (3e-4, 1e-3)),
    Row("GATr, our recipe", "gatr", ("nbody_robust",), ROBUST),
)
LOSSES = {"robust loss": 0.01, "squared error": 0.0}
"""Of recipes/nbody_best.toml: `data.options.huber`."""
FIGURE = (
    Row("GATr", "gatr", ("nbody_figure", "nbody_figure_seeds")),
    Row("GATr, our recipe", "gatr", ("nbody_figure_ours",)),
    Row("GATr without distances", "gatr", ("nbody_paper_gatr",)),
    Row("SEGNN", "segnn", ("nbody_figure_baselines", "nbody_figure_seeds")),
    *(
        Row(MODELS[model], model, ("nbody_figure_baselines",))
        for model in ("se3_transformer", "gca_gnn", "gca_mlp")
    ),
    Row("Transformer", "transformer", ("nbody_figure",)),
    Row("MLP", "mlp", ("nbody_figure",)),
)
DEPTHS = tuple(
    Row(f"MLP, {n} hidden layers", "mlp", ("nbody_mlp_depths",), {"model.options.layers": n})
    for n in (2, 5, 10)
)
NEIGHBOURS = {"all": "", "4": "_k4", "3": "_k3"}
"""From how many of the others SEGNN takes messages, and the ends of the sets' names."""


def readme(folder: Path) -> str:
    rows = []
    for row in README:
        runs = row.runs(folder, 1000)
        published = REFERENCE["mse"].get(MODELS[row.model])
        rows.append(
            [
                row.label,
                f"{published:.4f}" if published and "our" not in row.label else "–",
                runs.mean("mse", ".5f", set="eval"),
                runs.mean("median", set="eval"),
                runs.mean("trimmed", set="eval"),
                row.groups[0].rate,
                str(len(runs.seeds)),
                runs.cost,
                row.gpu_time(folder),
                row.groups[0].parameters,
                row.command,
            ]
        )
    head = ["model", "authors' README, mse", "mse", "median", "trimmed", "lr", "seeds", "training"]
    return table([*head, "GPU time", "parameters", "repeat with"], rows)


def best(folder: Path) -> str:
    """A row per model: of the losses of recipes/nbody_best.toml, the one with less error on val."""
    rows = []
    for model in models("nbody_best"):
        label = MODELS[model]
        both = {
            loss: Row(label, model, ("nbody_best",), {"data.options.huber": huber})
            for loss, huber in LOSSES.items()
        }
        found = {loss: row.runs(folder, 1000) for loss, row in both.items()}
        loss = least(found, "mse", set="val")
        row, runs = both[loss or "robust loss"], found[loss or "robust loss"]
        rows.append(
            [
                label,
                loss or MISSING,
                *(x.mean("mse", ".5f", set="val") for x in found.values()),
                runs.mean("mse", ".5f", set="eval") if loss else MISSING,
                runs.mean("median", set="eval") if loss else MISSING,
                runs.mean("trimmed", set="eval") if loss else MISSING,
                row.groups[0].rate,
                number(row.groups[0].steps),
                row.gpu_time(folder),
                runs.cost,
                str(len(runs.seeds)),
                Group("nbody_best", model).command,
            ]
        )
    head = ["model", "loss, chosen on val", *(f"{loss}, mse on val" for loss in LOSSES), "mse"]
    head += ["median", "trimmed", "lr", "steps", "GPU time", "training", "seeds", "repeat with"]
    return table(head, rows)


def figure(folder: Path) -> str:
    tables = [(f"{title}, mse", name, "mse") for name, title in SETS.items()]
    tables.append(("New systems, median", "eval", "median"))
    parts = [
        table([title, *(f"{n:,} systems" for n in SAMPLES)], _errors(folder, name, metric))
        for title, name, metric in tables
    ]
    return "\n\n".join([*parts, _costs(folder)])


def _errors(folder: Path, name: str, metric: str) -> list[list[str]]:
    rows = []
    for row in (*FIGURE, *DEPTHS):
        every = [row.runs(folder, n) for n in SAMPLES]
        if name == "more_bodies" and row.model in FIXED_SIZE:
            continue
        if name == "more_bodies" and row.model == "segnn":
            rows += _by_neighbours(every, metric)
        else:
            rows.append([row.label, *(runs.mean(metric, set=name) for runs in every)])
    if name != "more_bodies":
        cells = [_best_depth(folder, n, name, metric) for n in SAMPLES]
        rows.append(["MLP, best number of layers on val", *cells])
    return rows


def _by_neighbours(every: list[Runs], metric: str) -> list[list[str]]:
    """Rows of SEGNN on six bodies; the last has the best number of neighbours, as in the paper."""
    rows = []
    for neighbours, end in NEIGHBOURS.items():
        label = "all neighbours" if neighbours == "all" else f"{neighbours} nearest"
        cells = [runs.mean(metric, set=f"more_bodies{end}") for runs in every]
        rows.append([f"SEGNN, {label}", *cells])
    cells = []
    for runs in every:
        means = {k: runs.average(metric, set=f"more_bodies{x}") for k, x in NEIGHBOURS.items()}
        known = {k: mean for k, mean in means.items() if mean is not None}
        k = min(known, key=known.__getitem__, default=None)
        text = "" if k is None else runs.mean(metric, set=f"more_bodies{NEIGHBOURS[k]}")
        cells.append(f"{text} (k: {k})" if text else MISSING)
    return [*rows, ["SEGNN, best of these", *cells]]


def _best_depth(folder: Path, samples: int, name: str, metric: str) -> str:
    found = {row.settings["model.options.layers"]: row.runs(folder, samples) for row in DEPTHS}
    layers = least(found, "mse", set="val")
    if layers is None:
        return MISSING
    return f"{found[layers].mean(metric, set=name)} ({layers} layers)"


def _costs(folder: Path) -> str:
    rows = []
    for row in (*FIGURE, *DEPTHS):
        every = [row.runs(folder, n) for n in SAMPLES]
        seeds = " / ".join(str(len(runs.seeds)) for runs in every)
        longest = every[-1] if every[-1].lines else max(every, key=lambda runs: len(runs.lines))
        about = [row.groups[0].rate, row.groups[0].parameters, row.command]
        rows.append([row.label, seeds, longest.cost, row.gpu_time(folder), *about])
    head = ["model", "seeds at 100 / 1,000 / 10,000 / 100,000", "training of a run", "GPU time"]
    return table([*head, "lr", "parameters", "repeat with"], rows)
