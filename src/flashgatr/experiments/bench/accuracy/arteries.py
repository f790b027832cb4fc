"""Arteries: the paper's table 2, its figure and its table 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...arteries import EXPERIMENT
from .parameters import count
from .recorded import Runs, Which, number, read, runs_of, table

FILE = "arteries-accuracy"
WHOLE = 1600
PUBLISHED = {
    "gatr": {"random": "5.6", "canonical": "5.5"},
    "transformer": {"random": "10.5", "canonical": "6.0"},
    "pointnet2": {"random": "12.3", "canonical": "8.6"},
    "gem_cnn": {"random": "7.7", "canonical": "7.8"},
}
"""Paper, table 2: mean ε on test in %, 1,600 meshes, 200,000 steps."""
NAMES = {
    "gatr": "GATr",
    "transformer": "Transformer",
    "pointnet2": "PointNet++",
    "gem_cnn": "GEM-CNN",
}
ABLATIONS = {
    "gatr": "6.1",
    "transformer": "10.5",
    "gatr_no_scalars": "10.4",
    "gatr_unconstrained": "9.7",
    "gatr_narrow": "12.0",
    "gatr_shallow": "7.8",
}
"""Paper, table 3: mean ε on val in %, 1,600 meshes, 100,000 steps."""
SIZES = (100, 200, 400, 800, WHOLE)
WIDE = dict(hidden_mv_channels=16, hidden_s_channels=64)


@dataclass(frozen=True)
class Row:
    """A model, and how it is trained."""

    model: str
    recipe: str
    orientation: str
    steps: int
    about: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def runs(self, folder: Path, meshes: int) -> Runs:
        own = dict(recipe=self.recipe, orientation=self.orientation, steps=self.steps)
        own["train_meshes"] = meshes
        return runs_of(folder, Which(FILE, self.model, own))

    @property
    def command(self) -> str:
        orientation = (
            f" --only data.options.orientation={self.orientation}"
            if self.recipe != "arteries_best"
            else ""
        )
        return f"`flashgatr sweep recipe:{self.recipe} --only model.name={self.model}{orientation}`"


_OURS = "arteries_ours", "arteries_best", "arteries_baselines"
TABLE_2 = (
    Row("gatr", _OURS[0], "random", 20_000, "our recipe"),
    Row("gatr", _OURS[1], "random", 24_000, "twice the width", WIDE),
    Row("transformer", _OURS[0], "random", 20_000, "our recipe"),
    Row("transformer", _OURS[1], "random", 60_000, "with augmentation"),
    Row("pointnet2", _OURS[2], "random", 20_000),
    Row("gem_cnn", _OURS[2], "random", 20_000),
    Row("gatr", _OURS[0], "canonical", 20_000, "our recipe"),
    Row("transformer", _OURS[0], "canonical", 20_000, "our recipe"),
    Row("pointnet2", _OURS[2], "canonical", 20_000),
    Row("gem_cnn", _OURS[2], "canonical", 20_000),
)


def errors(folder: Path) -> str:
    """A row per network and orientation with all meshes, and one per smaller set that was used."""
    used = {
        line["settings"]["train_meshes"]
        for line in read(folder, FILE)
        if line["settings"].get("train_meshes")
    }
    rows = []
    for row in TABLE_2:
        for meshes in sorted({WHOLE, *used}, reverse=True):
            runs = row.runs(folder, meshes)
            if not runs.lines and meshes != WHOLE:
                continue
            label = f"{NAMES[row.model]}, {row.about}" if row.about else NAMES[row.model]
            rows.append(
                [
                    label,
                    row.orientation,
                    PUBLISHED[row.model][row.orientation],
                    runs.mean("epsilon_mean", ".2f", split="test"),
                    runs.mean("epsilon_mean", ".2f", split="val"),
                    number(meshes),
                    number(row.steps),
                    str(len(runs.seeds)),
                    runs.cost,
                    number(count(EXPERIMENT, row.model, row.options)),
                    row.command,
                ]
            )
    head = ["model", "orientation", "paper, ε in %", "ε", "ε on val", "meshes", "steps", "seeds"]
    return table([*head, "training", "parameters", "repeat with"], rows)


def sizes(folder: Path) -> str:
    rows = []
    for model in ("gatr", "transformer"):
        for orientation in ("random", "canonical"):
            cells = []
            for meshes in SIZES:
                runs = Row(model, "arteries_sizes_ours", orientation, 6000).runs(folder, meshes)
                if not runs.lines:  # the ablations have the same runs with all meshes
                    row = Row(model, "arteries_ablations_ours", orientation, 6000)
                    runs = row.runs(folder, meshes)
                cells.append(runs.mean("epsilon_mean", ".2f", split="test"))
            rows.append([NAMES[model], orientation, *cells])
    command = "`flashgatr sweep recipe:arteries_sizes_ours`"
    head = ["model", "orientation", *(f"{n:,} meshes" for n in SIZES), "repeat with"]
    return table(head, [[*row, command] for row in rows])


def ablations(folder: Path) -> str:
    recipe = "arteries_ablations_ours"
    rows = []
    for model, published in ABLATIONS.items():
        row = Row(model, recipe, "random", 6000)
        found = {n: row.runs(folder, n) for n in (800, WHOLE)}
        cells = [runs.mean("epsilon_mean", ".2f", split="val") for runs in found.values()]
        known = next((r for r in reversed(found.values()) if r.lines), Runs([]))
        own = number(count(EXPERIMENT, model))
        command = f"`flashgatr sweep recipe:{recipe} --only model.name={model}`"
        rows.append([f"`{model}`", published, *cells, known.cost, own, command])
    head = ["model", "paper, ε on val in %", "ε on val, 800 meshes", "1,600 meshes", "training"]
    return table([*head, "parameters", "repeat with"], rows)
