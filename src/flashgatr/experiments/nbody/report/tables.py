"""Tables of the n-body report."""

from __future__ import annotations

import math
from typing import Any

from ...report import markup
from .titles import FIXED_SIZE, METRICS, MODELS, SETS, short


def results(report: dict[str, Any], name: str) -> str:
    """The table of one evaluation set: models, the straight-line guess, the authors' results."""
    moved = name == "eval_moved"
    rows = [
        [
            group["label"],
            markup.count_text(group["samples"]),
            markup.count_text(group["steps"]),
            len(group["seeds"]),
            *(_number(**group["results"][name][metric]) for metric in METRICS),
            *([_change(group["results"])] if moved else []),
        ]
        for group in report["groups"]
        if name in group["results"]
    ]
    if not rows:
        return ""
    others: list[list[object]] = []
    if guess := report["straight_line"].get(name):
        numbers = [_number(guess[metric]) for metric in METRICS]
        others.append(["straight line x₀ + v·t", "", "", "", *numbers])
    reference = report["reference"]
    if name == reference["set"]:
        about = [*(markup.count_text(reference[key]) for key in ("samples", "steps")), ""]
        others += [
            [f"README: {model}", *about, f"{mse:.4f}"] for model, mse in reference["mse"].items()
        ]
    title, explanation = SETS[name]
    head = ["model", "training systems", "steps", "seeds", *METRICS.values()]
    head += ["change"] if moved else []
    found = f"<h3>{title}</h3><p>{explanation}</p>" + markup.table(head, rows, others)
    absent = [group["label"] for group in report["groups"] if name not in group["results"]]
    fixed = MODELS["mlp"], MODELS["gca_mlp"]
    has_mlp = any(label.split(",")[0] in fixed for label in absent)
    is_fixed = has_mlp and name == "more_bodies"
    return found + markup.absent(absent, FIXED_SIZE if is_fixed else "")


def runs(report: dict[str, Any]) -> str:
    """Every run, the settings of every group, and the sets in the data folders."""
    columns = {title.lower(): (name, "mse") for name, (title, _) in SETS.items()}
    blocks = report["settings"] | {
        f"Data in {folder}": {
            name: f"{found['count']:,} systems, seed {found['seed']}, SHA-256 {found['sha256']}"
            for name, found in sets.items()
        }
        for folder, sets in report["data"].items()
    }
    return markup.all_runs(
        report["runs"],
        "systems",
        columns,
        lambda _, value: short(value, 2),
        ", mean squared errors",
    ) + markup.settings(blocks)


def _change(results: dict[str, Any]) -> str:
    """How moving the systems changes the mean, as a percentage or a factor."""
    if "eval" not in results:
        return ""
    before, after = (results[name]["mse"]["mean"] for name in ("eval", "eval_moved"))
    if not (math.isfinite(after) and before > 0):
        return ""
    return (
        f"{100 * (after / before - 1):+.2g} %" if after < 2 * before else f"× {after / before:,.1f}"
    )


def _number(mean: float | None, standard_error: float | None = None) -> str:
    return markup.estimate_text(mean, standard_error, lambda x: short(x, 2), lambda x: short(x, 0))
