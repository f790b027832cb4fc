"""Arteries: the paper's table 2, its figure and its table 3."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from .recipes import Group
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
ORIENTATION = "data.options.orientation"


@dataclass(frozen=True)
class Row:
    """A model, and how it is trained."""

    model: str
    recipe: str
    orientation: str
    about: str = ""

    @property
    def group(self) -> Group:
        return Group(self.recipe, self.model, {ORIENTATION: self.orientation})

    def runs(self, folder: Path, meshes: int) -> Runs:
        own = dict(recipe=self.recipe, orientation=self.orientation, steps=self.group.steps)
        own["train_meshes"] = meshes
        return runs_of(folder, Which(FILE, self.model, own))


_OURS = "arteries_ours", "arteries_best", "arteries_baselines"
TABLE_2 = tuple(
    Row(model, recipe, orientation, about)
    for orientation in ("random", "canonical")
    for model, recipe, about in (
        ("gatr", _OURS[0], "our recipe"),
        ("gatr", _OURS[1], "twice the width"),
        ("transformer", _OURS[0], "our recipe"),
        ("transformer", _OURS[1], "augmented" if orientation == "random" else "more steps"),
        ("pointnet2", _OURS[2], ""),
        ("gem_cnn", _OURS[2], ""),
    )
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
                    number(row.group.steps),
                    row.group.rate,
                    str(len(runs.seeds)),
                    runs.cost,
                    row.group.parameters,
                    row.group.command,
                ]
            )
    head = ["model", "orientation", "paper, ε in %", "ε", "ε on val", "meshes", "steps", "lr"]
    return table([*head, "seeds", "training", "parameters", "repeat with"], rows)


def sizes(folder: Path) -> str:
    """Errors on val, as in the paper's figure; the training time is that with most meshes."""
    rows = []
    for model, orientation in product(("gatr", "transformer"), ("random", "canonical")):
        row = Row(model, "arteries_sizes_ours", orientation)
        found = [_runs_with(folder, row, meshes) for meshes in SIZES]
        cells = [runs.mean("epsilon_mean", ".2f", split="val") for runs in found]
        seeds = " / ".join(str(len(runs.seeds)) for runs in found)
        largest = next((runs for runs in reversed(found) if runs.lines), Runs([]))
        about = [row.group.rate, seeds, largest.cost, row.group.parameters, row.group.command]
        rows.append([NAMES[model], orientation, *cells, *about])
    head = ["model", "orientation", *(f"{n:,} meshes" for n in SIZES), "lr", "seeds", "training"]
    return table([*head, "parameters", "repeat with"], rows)


def _runs_with(folder: Path, row: Row, meshes: int) -> Runs:
    """The ablations have the same runs with random orientations and all meshes."""
    runs = row.runs(folder, meshes)
    if runs.lines or row.orientation != "random":
        return runs
    return replace(row, recipe="arteries_ablations_ours").runs(folder, meshes)


def ablations(folder: Path) -> str:
    rows = []
    for model, published in ABLATIONS.items():
        row = Row(model, "arteries_ablations_ours", "random")
        found = {n: row.runs(folder, n) for n in (800, WHOLE)}
        cells = [runs.mean("epsilon_mean", ".2f", split="val") for runs in found.values()]
        seeds = " / ".join(str(len(runs.seeds)) for runs in found.values())
        known = next((r for r in reversed(found.values()) if r.lines), Runs([]))
        about = [row.group.rate, seeds, known.cost, row.group.parameters, row.group.command]
        rows.append([f"`{model}`", published, *cells, *about])
    head = ["model", "paper, ε on val in %", "ε on val, 800 meshes", "1,600 meshes", "lr", "seeds"]
    return table([*head, "training", "parameters", "repeat with"], rows)
