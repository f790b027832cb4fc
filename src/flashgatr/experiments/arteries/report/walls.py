"""The walls that are drawn: test meshes (or validation meshes of runs without a test) on which
GATr is good or bad, with predictions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from .... import LoadError
from ...report.protocol import Run
from ...runs import load_model
from ..data import sets
from ..data.orientation import orientations, turned
from ..inference import predict_meshes
from ..task import Options
from .facts import error_per_mesh, is_synthetic, last_set, mean_error, tested_orientation
from .wall_maps import Wall

SHOWN_WALLS = {"best": 0.0, "median": 0.5, "90 % quantile": 0.9, "worst": 1.0}
"""The meshes drawn: quantiles of GATr's ε."""


def choose(runs: Sequence[Run]) -> list[Wall]:
    """Meshes at quantiles of the best GATr's error, with predictions.

    These are its own and the best Transformer's.
    """
    able = [run for run in runs if mean_error(run) < math.inf and (run.folder / "model").is_dir()]
    able.sort(key=mean_error)
    best = next((run for run in able if run.config.model.name == "gatr"), None)
    if best is None:
        raise LoadError("there is no GATr run with its trained model")
    others = [run for run in able if run.config.model.name == "transformer"]
    others = [run for run in others if _meshes(run) == _meshes(best)][:1]
    errors = {k: x for k, x in error_per_mesh(best).items() if math.isfinite(x)}
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


def _meshes(run: Run) -> tuple[str, bool]:
    return last_set(run), is_synthetic(run)


def _predicted(run: Run, titles: dict[str, str]) -> dict[str, Wall]:
    """Meshes in canonical orientation, with a run's predictions turned back to it."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model(run.config).float().eval().to(device)
    options = Options.read(run.config.data.options)
    every = sets.load(run.config.data.folder, last_set(run), division=options.division)
    meshes = [mesh for mesh in every if mesh.name in titles]
    turns = orientations(meshes, tested_orientation(run))
    oriented = [turned(mesh, turn) for mesh, turn in zip(meshes, turns, strict=True)]
    return {
        mesh.name: Wall(titles[mesh.name], mesh, {run.label: found.numpy() @ turn})
        for mesh, turn, found in zip(
            meshes, turns, predict_meshes(model, oriented, device), strict=True
        )
    }
