"""The report on finished artery runs: report.html, which holds all of it, and its parts.

    report.json       every number: of runs, of groups (mean and standard error over seeds), of the paper
    figure.png        ε against the number of training meshes       curves.png    validation while training
    histograms.png    ε of every test mesh      scatter.png  maps.png   true and predicted stress on a few walls

A group is a model with its settings, and a number of training meshes.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ... import LoadError, __version__
from .. import drawing, runs
from .. import report as reports
from ..report import Run
from . import EXPERIMENT, page, pictures
from .data import sets
from .data.orientation import orientations, turned
from .inference import predict_meshes
from .pictures import PICTURES, Wall
from .task import Options

MODELS = {
    "gatr": "GATr",
    "transformer": "Transformer",
    "gatr_no_scalars": "GATr without scalars",
    "gatr_unconstrained": "GATr with any linear maps",
    "gatr_narrow": "GATr, less wide",
    "gatr_shallow": "GATr, less deep",
}
REFERENCE: dict[str, Any] = {
    "source": "the paper's table 2",
    "meshes": 1600,
    "steps": 200_000,
    "epsilon": {  # %, on randomly and on canonically oriented meshes
        "GATr": (5.6, 5.5),
        "Transformer": (10.5, 6.0),
        "PointNet++": (12.3, 8.6),
        "GEM-CNN": (7.7, 7.8),
    },
    "readme": {"steps": 50_000, "epsilon": {"GATr": 8.9, "Transformer": 10.5}},
    "ablations": {  # %, on the validation meshes after 100,000 steps
        "gatr": 6.1,
        "transformer": 10.5,
        "gatr_no_scalars": 10.4,
        "gatr_unconstrained": 9.7,
        "gatr_narrow": 12.0,
        "gatr_shallow": 7.8,
    },
}
SETS = ("test", "val", "test_float32", "test_moved", "test_mirrored")
METRICS = (*EXPERIMENT.metrics, "change_mean")
SHOWN_WALLS = {"best": 0.0, "median": 0.5, "90 % quantile": 0.9, "worst": 1.0}
"""The meshes drawn: quantiles of GATr's ε."""
_NEEDED = {"epsilon_mean", "epsilon_median", "epsilon_q75", "nmae", "cosine", "meshes"}


def write(paths: list[Path], out: Path) -> Path:
    """Report on the finished artery runs in and below `paths`; the path of report.html."""
    notes: list[str] = []
    found, unreadable = reports.collect(paths, notes, read)
    found = _labelled(found)
    _compare(found, notes)
    if len({tuple(sorted(_per_mesh(run))) for run in found}) > 1:
        notes.append("runs were evaluated on different meshes: compare them with care")
    report = {
        "flashgatr": __version__,
        "groups": _groups(found),
        "reference": REFERENCE,
        "runs": [reports._numbers(run) | {"per_mesh": _per_mesh(run)} for run in found],
        "settings": {run.label: reports._compared(run.config) for run in found},
        "commands": _commands(found),
        "unreadable": unreadable,
        "notes": notes,
    }
    drawn = _pictures(found, report)
    return reports.store(out, report, drawn, page.page(report, drawn), PICTURES)


def read(folder: Path) -> Run:
    """A finished artery run."""
    config = runs.load_config(folder)
    if config.experiment != "arteries":
        raise LoadError(
            f"it is a run of the experiment {config.experiment!r}, most others are not; report on it "
            "by itself"
        )
    summary = runs.read_results(folder)
    results = (summary or {}).get("results")
    if summary is None or not isinstance(results, dict) or "test" not in results:
        raise LoadError(f"{runs.RESULTS} holds no results; run flashgatr eval {folder}")
    numbers: dict[str, dict[str, float]] = {}
    for name, metrics in results.items():
        if not isinstance(metrics, dict) or not metrics.keys() >= _NEEDED:
            raise LoadError(f"{runs.RESULTS} lacks metrics of {name}; run flashgatr eval {folder}")
        numbers[name] = {
            key: math.nan if metrics[key] is None else float(metrics[key])
            for key in (*METRICS, "meshes", "train_meshes")
            if key in metrics
        }
    samples = numbers["test"].get("train_meshes")
    return Run(folder, config, summary, numbers, samples=int(samples) if samples else None)


def _labelled(found: list[Run]) -> list[Run]:
    """As in every experiment; labels say too what the results say of the test meshes and the configuration does not."""
    labelled = []
    for run in reports._labelled(found, {}, MODELS):
        parts = [run.label]
        if _orientation(run) != _configured(run):
            parts.append(f"tested {_orientation(run)}")
        if _is_synthetic(run):
            parts.append("synthetic vessels")
        labelled.append(replace(run, label=", ".join(parts)))
    return labelled


def _compare(found: list[Run], notes: list[str]) -> None:
    """Note where the results of runs are not what their configuration says, or not of the paper's data."""
    if any(map(_is_synthetic, found)):
        some = "the" if all(map(_is_synthetic, found)) else "some"
        notes.append(
            f"{some} vessels are synthetic and not the paper's: errors on them cannot be compared with "
            "the paper's numbers"
        )
    for run in found:
        if _orientation(run) != _configured(run):
            notes.append(
                f"{run.folder} was configured with {_configured(run)} orientations, its results are "
                f"on {_orientation(run)} ones"
            )
        wanted = run.config.data.train_samples
        if wanted and run.samples != wanted:
            notes.append(
                f"{run.folder} was configured with {wanted:,} training meshes, its results say "
                f"{run.samples:,}"
            )


def _configured(run: Run) -> str:
    return str(run.config.data.options.get("orientation", "random"))


def _orientation(run: Run) -> str:
    """That of the meshes it was tested on."""
    found = run.summary["results"]["test"].get("orientation")
    return found if isinstance(found, str) else _configured(run)


def _is_synthetic(run: Run) -> bool:
    return run.summary["results"]["test"].get("synthetic") is True


# ---- numbers ----


def _groups(found: list[Run]) -> list[dict[str, Any]]:
    """As of every experiment, with the model of each and its kind of test meshes."""
    groups = reports._groups(found, SETS, METRICS)
    for group in groups:
        run = next(run for run in found if run.label == group["label"])
        group["model"] = run.config.model.name
        group["orientation"] = _orientation(run)
        group["synthetic"] = _is_synthetic(run)
    return groups


def _per_mesh(run: Run) -> dict[str, float]:
    """ε of every test mesh, by its name."""
    found = run.summary["results"]["test"].get("per_mesh", {})
    if not isinstance(found, dict):
        return {}
    return {str(k): float(x) for k, x in found.items() if isinstance(x, int | float)}


def _commands(found: list[Run]) -> str:
    """A script that makes the runs and the report again; the data are the user's."""
    usual = runs.defaults("arteries").data.folder
    folders = dict.fromkeys(run.config.data.folder for run in found)
    lines = [f"# the prepared meshes lie in {', '.join(map(shlex.quote, folders))}"]
    times: Counter[str] = Counter()
    for run in found:
        name = re.sub("[^a-z0-9]+", "-", run.label.lower()).strip("-")
        name = f"{name}-{run.samples}-{run.config.seed}"
        times[name] += 1  # runs may differ in their data only
        name += f"-{times[name]}" if times[name] > 1 else ""
        own = [f"seed={run.config.seed}", f"data.train_samples={run.config.data.train_samples}"]
        if run.config.data.folder != usual:
            own.append(shlex.quote(f"data.folder={run.config.data.folder}"))
        options = own + [shlex.quote(x) for x in reports.assignments(run.config)]
        lines.append(
            f"flashgatr train arteries --folder runs/{name}"
            + "".join(f" \\\n    --set {option}" for option in options)
        )
    return "\n".join([*lines, "flashgatr report runs --out report"])


# ---- pictures ----


def _pictures(found: list[Run], report: dict[str, Any]) -> dict[str, bytes]:
    """Those that can be drawn; the report's notes say why others cannot."""
    labels = list(dict.fromkeys(run.label for run in found))
    curve_of = reports._curve
    walls = cache(lambda: _walls(found))
    synthetic = all(map(_is_synthetic, found))
    errors = _histograms(found)
    makers: dict[str, Callable[[], bytes]] = {
        "figure.png": lambda: pictures.against_meshes(
            report["groups"], labels, None if synthetic else REFERENCE
        ),
        "curves.png": lambda: drawing.curves(
            [curve_of(run) for run in found], labels, "meshes", "mean ε, %"
        ),
        "histograms.png": lambda: pictures.histograms(errors, labels),
        "scatter.png": lambda: pictures.scatter(walls(), labels),
        "maps.png": lambda: pictures.maps(walls(), labels),
    }
    drawn = {}
    for name, draw in makers.items():
        try:
            drawn[name] = draw()
        except reports._BAD_INPUT as error:
            report["notes"].append(f"{name} was not drawn: {error}")
    if len(errors) > pictures.MOST_PANELS:
        report["notes"].append(
            f"histograms.png shows the first {pictures.MOST_PANELS} of {len(errors)} models"
        )
    return drawn


def _histograms(found: list[Run]) -> dict[str, list[float]]:
    """ε of the test meshes, of the best run of each label with the most training meshes."""
    best: dict[str, Run] = {}
    for run in sorted(found, key=lambda run: (-(run.samples or 0), _error(run))):
        if any(math.isfinite(x) for x in _per_mesh(run).values()):
            best.setdefault(run.label, run)
    return {
        label: [x for x in _per_mesh(best[label]).values() if math.isfinite(x)]
        for label in dict.fromkeys(run.label for run in found)
        if label in best
    }


def _walls(found: list[Run]) -> list[Wall]:
    """Test meshes on which the best GATr is good and bad, with its predictions and the best Transformer's."""
    able = [run for run in found if _error(run) < math.inf and (run.folder / "model").is_dir()]
    able.sort(key=_error)
    best = next((run for run in able if run.config.model.name == "gatr"), None)
    if best is None:
        raise LoadError("there is no GATr run with its trained model")
    others = [run for run in able if run.config.model.name == "transformer"]
    others = [run for run in others if _is_synthetic(run) == _is_synthetic(best)][:1]
    errors = {k: x for k, x in _per_mesh(best).items() if math.isfinite(x)}
    if not errors:
        raise LoadError(f"{best.folder} does not say its error on every mesh")
    order = sorted(errors, key=errors.__getitem__)
    titles: dict[str, str] = {}
    for title, quantile in SHOWN_WALLS.items():
        name = order[round(quantile * (len(order) - 1))]
        titles.setdefault(name, f"{title}: {errors[name]:.1f} %")
    walls = _predicted(best, titles)
    if not walls:
        raise LoadError(f"the meshes of {best.folder} are not in its data folder")
    for run in others:
        for name, wall in _predicted(run, titles).items():
            same = name in walls and np.array_equal(wall.mesh.position, walls[name].mesh.position)
            if same:  # and not another mesh of that name
                walls[name].predictions.update(wall.predictions)
    return [walls[name] for name in titles if name in walls]


def _predicted(run: Run, titles: dict[str, str]) -> dict[str, Wall]:
    """Some test meshes, canonically oriented, with a run's predictions turned back to that."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = runs.load_model(run.config).float().eval().to(device)
    options = Options.read(run.config.data.options)
    every = sets.load(run.config.data.folder, "test", division=options.division)
    meshes = [mesh for mesh in every if mesh.name in titles]
    turns = orientations(meshes, _orientation(run))
    oriented = [turned(mesh, turn) for mesh, turn in zip(meshes, turns, strict=True)]
    return {
        mesh.name: Wall(titles[mesh.name], mesh, {run.label: found.numpy() @ turn})
        for mesh, turn, found in zip(
            meshes, turns, predict_meshes(model, oriented, device), strict=True
        )
    }


def _error(run: Run) -> float:
    error = run.results["test"]["epsilon_mean"]
    return error if math.isfinite(error) else math.inf
