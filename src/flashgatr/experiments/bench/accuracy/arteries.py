"""Arteries: the paper's table 2, its figure and its table 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from ... import recording
from ...arteries.report.titles import REFERENCE
from .recipes import Group
from .recorded import HARMLESS, Runs, Which, number, read, runs_of
from .tables import NOTHING, Gap, Table, emphasise, leading, listed, rank

FILE = "arteries-accuracy"
WHOLE = 1600
NAMES = {
    "gatr": "GATr",
    "transformer": "Transformer",
    "pointnet2": "PointNet++",
    "gem_cnn": "GEM-CNN",
}
SIZES = (100, 200, 400, 800, WHOLE)
ORIENTATIONS = ("random", "canonical")
ORIENTATION = "data.options.orientation"


@dataclass(frozen=True)
class Row:
    """A model, and how it is trained."""

    model: str
    recipe: str
    about: str = ""
    orientations: tuple[str, ...] = ORIENTATIONS
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of the recipe, by dotted key."""
    recorded: Mapping[str, Any] = field(default_factory=dict)
    """How runs were recorded before changed options had lines of their own."""

    @property
    def label(self) -> str:
        return f"{NAMES[self.model]} {self.about}".strip()

    @property
    def group(self) -> Group:
        some = {} if len(self.orientations) > 1 else {ORIENTATION: self.orientations[0]}
        return Group(self.recipe, self.model, some, self.changes)

    def runs(self, folder: Path, meshes: int, orientation: str) -> Runs:
        first = self.group.configs[0]
        own = recording.facts(first, {}, self.recipe, dict(self.changes))
        own |= dict(orientation=orientation, train_meshes=meshes)
        del own["seed"]
        before = {key: x for key, x in own.items() if key not in self.changes} | dict(self.recorded)
        forms = (before, own) if self.recorded else (own,)  # the latest of a seed counts
        return Runs([x for form in forms for x in runs_of(folder, self._which(form)).lines])

    def _which(self, settings: Mapping[str, Any]) -> Which:
        known = {key: x for key, x in settings.items() if key not in HARMLESS}
        return Which(FILE, self.model, known)


WIDE = Row(
    "gatr",
    "arteries_ours",
    "of twice the width (`pretrained:arteries`)",
    ("random",),
    {
        "model.options.hidden_mv_channels": 16,
        "model.options.hidden_s_channels": 64,
        "train.lr": 3e-3,
    },
    {
        "model.options": dict(hidden_mv_channels=16, hidden_s_channels=64, length_scale=0.1),
        "train.lr": 3e-3,
    },
)
"""The network that comes with the package."""
LONG = Row(
    "transformer",
    "arteries_ours",
    "with augmentation and 60,000 steps",
    ("random",),
    {"data.options.augment": True, "train.steps": 60_000, "train.validate_every": 5000},
    {"data.options": dict(augment=True, nodes=1024, orientation="random")},
)
TABLE_2 = (
    Row("gatr", "arteries_ours"),
    WIDE,
    Row("gatr", "arteries_best", "of twice the width with 24,000 steps"),
    Row("transformer", "arteries_ours"),
    LONG,
    Row("transformer", "arteries_best", "with 60,000 steps"),
    Row("pointnet2", "arteries_baselines"),
    Row("gem_cnn", "arteries_baselines"),
)


def errors(folder: Path) -> Table:
    """A row per network and number of meshes, most meshes first."""
    used = {line["settings"].get("train_meshes", WHOLE) for line in read(folder, FILE)}
    rows, missing = [], []
    for meshes in sorted({WHOLE, *used}, reverse=True):
        for row in TABLE_2:
            found = {x: row.runs(folder, meshes, x) for x in row.orientations}
            absent = [x for x, runs in found.items() if not runs.lines]
            if len(absent) < len(found):
                rows.append(_errors(row, meshes, found))
            if absent and meshes == WHOLE and not row.changes:
                only = f" of {absent[0]} orientation" if len(absent) < len(found) else ""
                missing.append(Gap(row.label, row.group.named, f"on {WHOLE:,} meshes{only}"))
    shown = {row[0].split()[0] for row in rows}
    missing = [gap if gap.what.split()[0] in shown else _with_paper(gap) for gap in missing]
    head = ["model", "meshes"]
    head += [f"{x}, {what}" for x in ORIENTATIONS for what in ("paper", "ε", "ε on val")]
    head += ["steps", "lr", "seeds", "training", "parameters", "recipe"]
    return Table(head, emphasise(rows, (3, 4, 6, 7), lambda row: row[1]), missing, _least(rows))


def _errors(row: Row, meshes: int, found: Mapping[str, Runs]) -> list[str]:
    cells = [row.label, number(meshes)]
    for orientation in ORIENTATIONS:
        runs = found.get(orientation, Runs([]))
        cells.append(f"{_published(row.model, orientation):.1f}")
        cells += [runs.mean("epsilon_mean", ".2f", split=split) for split in ("test", "val")]
    every = Runs([line for runs in found.values() for line in runs.lines])
    about = [number(row.group.steps), row.group.rate, str(len(every.seeds)), every.cost]
    return [*cells, *about, row.group.parameters, row.group.command]


def _published(model: str, orientation: str) -> float:
    """Paper, table 2: mean ε on test in %, 1,600 meshes, 200,000 steps."""
    found: float = REFERENCE["epsilon"][NAMES[model]][ORIENTATIONS.index(orientation)]
    return found


def _with_paper(gap: Gap) -> Gap:
    """With the paper's errors of this model, which no row shows."""
    model = {name: model for model, name in NAMES.items()}[gap.what.split()[0]]
    told = " and ".join(f"{_published(model, x)} % {x}" for x in ORIENTATIONS)
    return gap._replace(what=f"{gap.what} (paper: {told})")


def _least(rows: list[list[str]]) -> str:
    """The least errors of GATr and of the Transformer, on as many meshes."""
    parts = []
    for orientation, column in zip(ORIENTATIONS, (3, 6), strict=True):
        least = {}
        for name in ("GATr", "Transformer"):
            own = [x[column] for x in rows if x[0].startswith(name) and x[1] == rows[0][1]]
            known = [cell for cell in own if cell != NOTHING]
            least[name] = min(known, key=rank, default=NOTHING)
        if NOTHING not in least.values():
            told = " and ".join(f"the best {name} has {x} %" for name, x in least.items())
            parts.append(f"on meshes of {orientation} orientation {told}")
    return f"With {rows[0][1]} meshes, {', '.join(parts)}." if parts else ""


def sizes(folder: Path) -> Table:
    """Errors on val, as in the paper's figure; the training time is that with most meshes."""
    rows, missing, first_and_last = [], [], []
    for model, orientation in product(("gatr", "transformer"), ORIENTATIONS):
        row = Row(model, "arteries_sizes_ours", orientations=(orientation,))
        found = {meshes: _runs_with(folder, row, meshes) for meshes in SIZES}
        known = {meshes: runs for meshes, runs in found.items() if runs.lines}
        absent = [number(meshes) for meshes in found if meshes not in known]
        if absent:
            some = f"{listed(absent)} meshes of" if known else "meshes of"
            missing.append(Gap(row.label, row.group.named, f"on {some} {orientation} orientation"))
        if not known:
            continue
        cells = [runs.mean("epsilon_mean", ".2f", split="val") for runs in found.values()]
        seeds = " / ".join(str(len(runs.seeds)) for runs in known.values())
        about = [row.group.rate, seeds, known[max(known)].cost, row.group.parameters]
        rows.append([row.label, orientation, *cells, *about, row.group.command])
        if orientation == "random":
            first_and_last.append((cells, min(known), max(known)))
    head = [
        "model",
        "orientation",
        *(f"{n:,} meshes" for n in SIZES),
        "lr",
        "seeds",
        "training",
        "parameters",
    ]
    shown = emphasise(rows, range(2, 2 + len(SIZES)), lambda row: row[1])
    return Table([*head, "recipe"], shown, missing, _few_and_many(first_and_last))


def _few_and_many(both: list[tuple[list[str], int, int]]) -> str:
    """both: of GATr and of the Transformer, the errors and the least and most meshes they have."""
    if len(both) < 2:
        return ""
    (ours, few, _), (theirs, _, many) = both
    one, other = ours[SIZES.index(few)], theirs[SIZES.index(many)]
    order = "less" if rank(one) < rank(other) else "not less"
    return (
        f"Trained on {few} randomly oriented meshes, GATr has an error of {one} %, {order} than "
        f"the {other} % of the Transformer trained on {number(many)}."
    )


def _runs_with(folder: Path, row: Row, meshes: int) -> Runs:
    """The ablations have the same runs with random orientations and most meshes."""
    (orientation,) = row.orientations
    runs = row.runs(folder, meshes, orientation)
    if runs.lines or orientation != "random":
        return runs
    return replace(row, recipe="arteries_ablations_ours").runs(folder, meshes, orientation)


def ablations(folder: Path) -> Table:
    rows, missing = [], []
    for model, published in REFERENCE["ablations"].items():
        row = Row(model, "arteries_ablations_ours", orientations=("random",))
        found = {n: row.runs(folder, n, "random") for n in (800, WHOLE)}
        known = [runs for runs in found.values() if runs.lines]
        if not found[WHOLE].lines:
            paper = "" if known else f" (paper: {published} %)"
            missing.append(Gap(f"`{model}`{paper}", row.group.named, f"on {WHOLE:,} meshes"))
        if known:
            cells = [runs.mean("epsilon_mean", ".2f", split="val") for runs in found.values()]
            seeds = " / ".join(str(len(runs.seeds)) for runs in known)
            about = [row.group.rate, seeds, known[-1].cost, row.group.parameters]
            rows.append([f"`{model}`", f"{published:.1f}", *cells, *about, row.group.command])
    head = ["model", "paper, ε on val", "ε on val, 800 meshes", "ε on val, 1,600 meshes", "lr"]
    head += ["seeds", "training", "parameters", "recipe"]
    return Table(head, emphasise(rows, (2, 3)), missing, _worst(rows))


def _worst(rows: list[list[str]]) -> str:
    """The ablation that costs most."""
    column = next((k for k in (3, 2) if all(leading(row[k]) is not None for row in rows)), None)
    ours = [row for row in rows if row[0].startswith("`gatr")]
    if column is None or len(ours) < 2 or ours[0][0] != "`gatr`":
        return ""
    worst = max(ours[1:], key=lambda row: rank(row[column]))
    before, after = ours[0][column], worst[column]
    return f"GATr loses most as {worst[0]}, whose error is {after} % instead of {before} %."
