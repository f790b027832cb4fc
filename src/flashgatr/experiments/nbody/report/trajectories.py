"""The figure of a few systems: the true paths of their bodies and the predicted final positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .... import LoadError
from ...report import plots
from ...report.plots import LIGHT_GREY
from ...report.protocol import Run
from ...runs import load_model
from .. import data
from ..metrics import system_errors
from ..simulate import Array, State, evolve
from .numbers import Described
from .titles import short

SHOWN_SYSTEMS = {"median": 0.5, "90 % quantile": 0.9, "99 % quantile": 0.99, "worst": 1.0}
"""The systems that are drawn: quantiles of GATr's error."""
MOST_PREDICTED = 1000  # systems; takes seconds for the paper's network on a CPU


@dataclass(frozen=True)
class Scene:
    """One system of n bodies.

    mass: (n).  paths: the true positions at all times, (frames, n, 3).
    predictions: per label, the predicted final positions (n, 3).
    """

    title: str
    mass: Array
    paths: Array
    predictions: dict[str, Array]


def scenes(runs: Sequence[Run], sets: Described) -> list[Scene]:
    """Systems at quantiles of the best GATr's error, with its predictions and those of the best
    Transformer.
    """
    best: dict[str, Run] = {}
    for run in sorted(runs, key=_eval_error):
        if _eval_error(run) < math.inf and (run.folder / "model").is_dir():
            best.setdefault(run.config.model.name, run)
    if "gatr" not in best:
        raise LoadError("there is no GATr run with its trained model")
    folder = best["gatr"].config.data.folder
    if "eval" not in sets.get(folder, {}):
        raise LoadError(f"there is no eval set in {folder}")
    described = sets[folder]["eval"]
    systems = data.load(folder, "eval", min(described.count, MOST_PREDICTED))
    inputs = [systems[name] for name in State._fields]
    predictions = {}
    for run in (best[name] for name in ("gatr", "transformer") if name in best):
        model = load_model(run.config).float().eval()
        with torch.no_grad():
            predictions[run.label] = model(*(x.float() for x in inputs))[0].double()
    errors = system_errors(predictions[best["gatr"].label], systems["target"])
    order = errors.argsort().tolist()
    chosen = []
    for title, quantile in SHOWN_SYSTEMS.items():
        one = order[int(quantile * (len(order) - 1))]
        state = State(*(x[one : one + 1].numpy() for x in inputs))
        _, paths = evolve(state, described.settings, keep=1)
        seen = {label: places[one].numpy() for label, places in predictions.items()}
        chosen.append(
            Scene(f"{title}: {short(float(errors[one]), 1)}", state.mass[0], paths[0], seen)
        )
    return chosen


def _eval_error(run: Run) -> float:
    error = run.results.get("eval", {}).get("mse", math.inf)
    return error if math.isfinite(error) else math.inf


def draw(scenes: Sequence[Scene], labels: Sequence[str]) -> bytes:
    """A panel per system, viewed along the axis in which it extends least."""
    with plots.style():
        figure, axes = plots.panels(len(scenes), (3.0, 3.4))
        looks = plots.looks(labels)
        handles: list[dict[str, Any]] = [
            dict(label="beginning", color=LIGHT_GREY, marker="o", markerfacecolor="white"),
            dict(label="end (large: the star)", color="black", marker="o"),
        ]
        for label, marker in zip(scenes[0].predictions, "+x", strict=False):
            cross = dict(marker=marker, markersize=8, markeredgewidth=1.5)
            handles.append(dict(label=label, color=looks[label]["color"], **cross))
        for ax, scene in zip(axes, scenes, strict=True):
            _draw_scene(ax, scene, handles)
        plots.legend(figure, [dict(linestyle="", **handle) for handle in handles])
        return plots.png(figure)


def _draw_scene(ax: Any, scene: Scene, handles: list[dict[str, Any]]) -> None:
    points = scene.paths.reshape(-1, 3)
    centre = points.mean(axis=0)
    projection = np.linalg.svd(points - centre, full_matrices=False)[2][:2].T  # (3, 2)
    paths = (scene.paths - centre) @ projection
    start = dict(color=LIGHT_GREY, markerfacecolor="white", markersize=3.5)
    for body in range(len(scene.mass)):
        ax.plot(*paths[:, body].T, color=LIGHT_GREY, linewidth=1.2)
        ax.plot(*paths[0, body], "o", **start)
        size = 7 if body == scene.mass.argmax() else 4
        ax.plot(*paths[-1, body], "o", color="black", markersize=size)
    for handle in handles[2:]:
        ends = (scene.predictions[handle["label"]] - centre) @ projection
        for pair in zip(paths[-1], ends, strict=True):
            ax.plot(*zip(*pair, strict=True), color=handle["color"], linewidth=0.7)
        ax.plot(*ends.T, linestyle="", zorder=4, **{**handle, "label": None})
    low, high = paths.min(axis=(0, 1)), paths.max(axis=(0, 1))
    half = 0.6 * float((high - low).max()) or 1.0
    (left, bottom), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    ax.set(title=scene.title, aspect="equal", xlim=(left, right), ylim=(bottom, top))
    ax.tick_params(labelsize=8)
    ax.locator_params(nbins=5)
