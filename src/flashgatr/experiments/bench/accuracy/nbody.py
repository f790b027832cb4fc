"""n-body: the table of the authors' README, and the paper's figure as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...nbody import EXPERIMENT
from ...nbody.report.titles import MODELS, REFERENCE
from .parameters import count
from .recorded import Runs, Which, number, runs_of, table

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
    """A model and the recipes that train it."""

    label: str
    model: str
    recipes: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    only: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def runs(self, folder: Path, samples: int) -> Runs:
        lines = []
        for recipe in self.recipes:
            own = dict(recipe=recipe, train_samples=samples, **self.settings)
            lines += runs_of(folder, Which(FILE, self.model, own)).lines
        return Runs(lines)

    @property
    def command(self) -> str:
        first, *others = self.recipes  # the others have one model
        only = f" --only model.name={self.model}" if self.only is None else self.only
        commands = [f"{first}{only}", *others]
        return "; ".join(f"`flashgatr sweep recipe:{x}`" for x in commands)


ROBUST = {"data.options.huber": 0.01, "data.options.scaling": 0.3}
README = (
    *(
        Row(MODELS[model], model, ("nbody_readme",))
        for model in ("gatr", "se3_transformer", "transformer", "gca_gnn", "gca_mlp", "mlp")
    ),
    *(
        Row(
            f"SEGNN, learning rate {rate:g}",
            "segnn",
            ("nbody_segnn",),
            {"train.lr": rate},
            f" --only train.lr={rate:g}",
        )
        for rate in (3e-4, 1e-3)
    ),
    Row(
        "GATr, our recipe",
        "gatr",
        ("nbody_robust",),
        ROBUST,
        " --only data.options.scaling=0.3 --only data.options.huber=0.01",
    ),
)
PAPERS_GATR = dict(attention_width=1, distance_aware=False)
FIGURE = (
    Row("GATr", "gatr", ("nbody_figure",)),
    Row("GATr, our recipe", "gatr", ("nbody_figure_ours",), only=""),
    Row("GATr without distances", "gatr", ("nbody_paper_gatr",), only="", options=PAPERS_GATR),
    Row("SEGNN", "segnn", ("nbody_figure_baselines", "nbody_figure_segnn")),
    *(
        Row(MODELS[model], model, ("nbody_figure_baselines",))
        for model in ("se3_transformer", "gca_gnn", "gca_mlp")
    ),
    Row("Transformer", "transformer", ("nbody_figure",)),
    Row("MLP", "mlp", ("nbody_figure",)),
    *(
        Row(
            f"MLP, {layers} hidden layers",
            "mlp",
            ("nbody_mlp_depths",),
            {"model.options.layers": layers},
            f" --only model.options.layers={layers}",
            dict(layers=layers),
        )
        for layers in (2, 5, 10)
    ),
)


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
                str(len(runs.seeds)),
                runs.cost,
                number(count(EXPERIMENT, row.model, row.options)),
                row.command,
            ]
        )
    head = ["model", "authors' README, mse", "mse", "median", "trimmed", "seeds", "training"]
    return table([*head, "parameters", "repeat with"], rows)


def figure(folder: Path) -> str:
    parts = []
    for name, title in SETS.items():
        head = [f"{title}, mse", *(f"{n:,} systems" for n in SAMPLES)]
        parts.append(table(head, _errors(folder, name)))
    parts.append(
        table(["New systems, median", *(f"{n:,} systems" for n in SAMPLES)], _medians(folder))
    )
    parts.append(_costs(folder))
    return "\n\n".join(parts)


def _errors(folder: Path, name: str) -> list[list[str]]:
    rows = []
    for row in FIGURE:
        if name == "more_bodies" and row.model in FIXED_SIZE:
            continue
        places = {row.label: name}
        if name == "more_bodies" and row.model == "segnn":
            places = {
                "SEGNN, all neighbours": name,
                **{f"SEGNN, {k} nearest": f"{name}_k{k}" for k in (3, 4)},
            }
        for label, place in places.items():
            rows.append([label, *(row.runs(folder, n).mean("mse", set=place) for n in SAMPLES)])
    return rows


def _medians(folder: Path) -> list[list[str]]:
    return [
        [row.label, *(row.runs(folder, n).mean("median", set="eval") for n in SAMPLES)]
        for row in FIGURE
    ]


def _costs(folder: Path) -> str:
    rows = []
    for row in FIGURE:
        every = [row.runs(folder, n) for n in SAMPLES]
        seeds: Sequence[str] = [str(len(runs.seeds)) for runs in every]
        longest = every[-1] if every[-1].lines else max(every, key=lambda runs: len(runs.lines))
        own = str(number(count(EXPERIMENT, row.model, row.options)))
        rows.append([row.label, " / ".join(seeds), longest.cost, own, row.command])
    head = ["model", "seeds at 100 / 1,000 / 10,000 / 100,000", "training of a run"]
    return table([*head, "parameters", "repeat with"], rows)
