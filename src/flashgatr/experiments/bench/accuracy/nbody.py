"""n-body: the table of the authors' README, all models at the same GPU time, and the paper's figure
as tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...nbody.report.titles import MODELS, REFERENCE
from .gpu_time import gpu_time
from .recipes import Group, models
from .recorded import Runs, Which, least, number, runs_of
from .tables import NOTHING, Gap, Table, emphasise, listed, rank

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

    @property
    def named(self) -> str:
        return " and ".join(group.named for group in self.groups)

    def gpu_time(self, folder: Path) -> str:
        return gpu_time(folder, self.groups[0].configs[0])


OURS = "with our recipe"
"""Its rows have another schedule than the others, with which they are not compared."""
ROBUST = {"data.options.scaling": 0.3, "data.options.huber": 0.01}
README = (
    *(
        Row(MODELS[model], model, ("nbody_readme",))
        for model in ("gatr", "se3_transformer", "transformer", "gca_gnn", "gca_mlp", "mlp")
    ),
    Row("SEGNN", "segnn", ("nbody_segnn",), {"train.lr": 3e-4}),
    Row("SEGNN with a learning rate of 0.001", "segnn", ("nbody_segnn",), {"train.lr": 1e-3}),
    Row(f"GATr {OURS}", "gatr", ("nbody_robust",), ROBUST),
)
LOSSES = {"robust loss": 0.01, "squared error": 0.0}
"""Of recipes/nbody_best.toml: `data.options.huber`."""
FIGURE = (
    Row("GATr", "gatr", ("nbody_figure", "nbody_figure_seeds")),
    Row("GATr without distances", "gatr", ("nbody_paper_gatr",)),
    Row("SEGNN", "segnn", ("nbody_figure_baselines", "nbody_figure_seeds")),
    *(
        Row(MODELS[model], model, ("nbody_figure_baselines",))
        for model in ("se3_transformer", "gca_gnn", "gca_mlp")
    ),
    Row("Transformer", "transformer", ("nbody_figure",)),
    Row("MLP", "mlp", ("nbody_figure",)),
)
OUR_FIGURE = Row(f"GATr {OURS}", "gatr", ("nbody_figure_ours",))
DEPTHS = tuple(
    Row(f"MLP with {n} hidden layers", "mlp", ("nbody_mlp_depths",), {"model.options.layers": n})
    for n in (2, 5, 10)
)
NEIGHBOURS = {"all": "", "4": "_k4", "3": "_k3"}
"""From how many of the others SEGNN takes messages, and the ends of the sets' names."""


def _authors(row: Sequence[str]) -> str | None:
    return None if OURS in row[0] else "the authors' recipe"


def readme(folder: Path) -> Table:
    """The models by their mean errors, and how that compares with the README."""
    rows, missing, both = [], [], {}
    for row in README:
        runs = row.runs(folder, 1000)
        published = REFERENCE["mse"].get(row.label)
        theirs = f"{published:.4f}" if published else NOTHING
        if not runs.lines:
            shown = f" (README: {theirs})" if published else ""
            missing.append(Gap(f"{row.label}{shown}", row.named))
            continue
        mse = runs.mean("mse", ".5f", set="eval")
        if published:
            both[row.label] = published, rank(mse)
        cells = [mse, *(runs.mean(metric, set="eval") for metric in ("median", "trimmed"))]
        about = [row.groups[0].rate, str(len(runs.seeds)), runs.cost, row.gpu_time(folder)]
        rows.append([row.label, theirs, *cells, *about, row.groups[0].parameters, row.command])
    rows.sort(key=lambda row: (_authors(row) is None, rank(row[2])))
    head = ["model", "authors' README, mse", "mse", "median", "trimmed", "lr", "seeds", "training"]
    head += ["GPU time", "parameters", "recipe"]
    return Table(head, emphasise(rows, (2, 3, 4), _authors), missing, _ranks(both))


def _ranks(both: Mapping[str, tuple[float, float]]) -> str:
    """both: the published error and ours, by model."""
    published, ours = (sorted(both, key=lambda label: both[label][k]) for k in (0, 1))
    order = "the same order" if published == ours else "another order"
    return f"Ranked by their mean errors, the models of the README come in {order} here."


def best(folder: Path) -> Table:
    """A row per model: of the losses of recipes/nbody_best.toml, the one with less error on val."""
    rows, missing = [], []
    for model in models("nbody_best"):
        both = {
            loss: Row(MODELS[model], model, ("nbody_best",), {"data.options.huber": huber})
            for loss, huber in LOSSES.items()
        }
        found = {loss: row.runs(folder, 1000) for loss, row in both.items()}
        loss = least(found, "mse", set="val")
        if loss is None:
            missing.append(Gap(MODELS[model], Group("nbody_best", model).named))
            continue
        group, runs = both[loss].groups[0], found[loss]
        rows.append(
            [
                MODELS[model],
                loss,
                *(x.mean("mse", ".5f", set="val") for x in found.values()),
                runs.mean("mse", ".5f", set="eval"),
                runs.mean("median", set="eval"),
                runs.mean("trimmed", set="eval"),
                group.rate,
                number(group.steps),
                both[loss].gpu_time(folder),
                runs.cost,
                str(len(runs.seeds)),
                Group("nbody_best", model).command,
            ]
        )
    head = ["model", "loss, chosen on val", *(f"{loss}, mse on val" for loss in LOSSES), "mse"]
    head += ["median", "trimmed", "lr", "steps", "GPU time", "training", "seeds", "recipe"]
    return Table(head, emphasise(rows, (4, 5, 6)), missing)


FIGURES = (
    ("New systems, mse", "eval", "mse"),
    ("New systems, median", "eval", "median"),
    ("New systems, trimmed", "eval", "trimmed"),
    ("Six bodies instead of four, mse", "more_bodies", "mse"),
    ("Translated by (200, 0, 0), mse", "translated", "mse"),
)
"""The tables of the figure: title, set and metric."""


def errors(title: str, name: str, metric: str, folder: Path) -> Table:
    """The errors against the number of systems."""
    rows = []
    for row in (*FIGURE, *DEPTHS):
        every = _runs(folder, row)
        if name == "more_bodies" and row.model in FIXED_SIZE:
            continue
        if name == "more_bodies" and row.model == "segnn":
            rows += _by_neighbours(every, metric)
        else:
            rows.append([row.label, *(runs.mean(metric, set=name) for runs in every)])
    if name != "more_bodies":
        cells = [_best_depth(folder, n, name, metric) for n in SAMPLES]
        rows.append(["MLP with the best number of layers on val", *cells])
    rows.append([OUR_FIGURE.label, *(x.mean(metric, set=name) for x in _runs(folder, OUR_FIGURE))])
    head = [title, *(f"{n:,} systems" for n in SAMPLES)]
    known = [row for row in rows if set(row[1:]) != {NOTHING}]
    shows = _few_and_many(folder) if (name, metric) == FIGURES[0][1:] else ""
    return Table(head, emphasise(known, range(1, len(head)), _authors), shows=shows)


def _runs(folder: Path, row: Row) -> list[Runs]:
    return [row.runs(folder, n) for n in SAMPLES]


def _by_neighbours(every: list[Runs], metric: str) -> list[list[str]]:
    """Rows of SEGNN on six bodies; the last has the best number of neighbours, as in the paper."""
    rows = []
    for neighbours, end in NEIGHBOURS.items():
        label = "all neighbours" if neighbours == "all" else f"the {neighbours} nearest neighbours"
        cells = [runs.mean(metric, set=f"more_bodies{end}") for runs in every]
        rows.append([f"SEGNN with {label}", *cells])
    cells = []
    for runs in every:
        means = {k: runs.average(metric, set=f"more_bodies{x}") for k, x in NEIGHBOURS.items()}
        known = {k: mean for k, mean in means.items() if mean is not None}
        k = min(known, key=known.__getitem__, default=None)
        text = "" if k is None else runs.mean(metric, set=f"more_bodies{NEIGHBOURS[k]}")
        cells.append(f"{text} (k: {k})" if text else NOTHING)
    return [*rows, ["SEGNN with the best of these", *cells]]


def _best_depth(folder: Path, samples: int, name: str, metric: str) -> str:
    found = {row.settings["model.options.layers"]: row.runs(folder, samples) for row in DEPTHS}
    layers = least(found, "mse", set="val")
    if layers is None:
        return NOTHING
    return f"{found[layers].mean(metric, set=name)} ({layers} layers)"


def costs(folder: Path) -> Table:
    """The runs of the figure."""
    rows, missing = [], []
    for row in (*FIGURE, *DEPTHS, OUR_FIGURE):
        every = _runs(folder, row)
        known = [runs for runs in every if runs.lines]
        missing += _absent(row.label, row.named, every)
        if known:
            seeds = " / ".join(str(len(runs.seeds)) for runs in every)
            about = [row.groups[0].rate, row.groups[0].parameters, row.command]
            rows.append([row.label, seeds, known[-1].cost, row.gpu_time(folder), *about])
    head = ["model", "seeds at 100 / 1,000 / 10,000 / 100,000", "training of a run", "GPU time"]
    return Table([*head, "lr", "parameters", "recipe"], rows, missing)


def _absent(label: str, how: str, every: list[Runs]) -> list[Gap]:
    """Without results at all, or with some numbers of systems only."""
    absent = [f"{n:,}" for n, runs in zip(SAMPLES, every, strict=True) if not runs.lines]
    if not absent:
        return []
    return [Gap(label, how, f"on {listed(absent)} systems" if len(absent) < len(every) else "")]


def _few_and_many(folder: Path) -> str:
    """GATr with the fewest systems beside the Transformer with the most."""
    few, many = SAMPLES[0], SAMPLES[-1]
    by_label = {row.label: row for row in FIGURE}
    ours = by_label["GATr"].runs(folder, few).average("mse", set="eval")
    theirs = by_label["Transformer"].runs(folder, many).average("mse", set="eval")
    if ours is None or theirs is None:
        return ""
    return (
        f"Trained on {few} systems, GATr has a mean error of {ours:.2e} on new ones, "
        f"{'less' if ours < theirs else 'not less'} than the {theirs:.2e} of the Transformer "
        f"trained on {many:,}."
    )
