"""Tables of the artery report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...experiment import Metric
from ...report import markup
from .titles import VARIANTS

COLUMNS = (
    "epsilon_mean",
    "epsilon_median",
    "epsilon_q75",
    "nmae",
    "mean_error",
    "max_error",
    "cosine",
)
"""Metrics in the table of results."""


def results(report: dict[str, Any], metrics: Mapping[str, Metric]) -> str:
    """Our models, then the paper's and the README's; those on synthetic vessels apart, and those
    without a test.
    """
    head = ["model", "orientations", "training meshes", "steps", "seeds"]
    head += [metrics[key].title for key in COLUMNS]
    groups = report["groups"]
    tested = [group for group in groups if "test" in group["results"]]

    def rows_of(name: str, some: list[dict[str, Any]]) -> list[list[Any]]:
        return [
            [*_group(group), *(_cell(group, name, key, metrics[key].format) for key in COLUMNS)]
            for group in some
        ]

    rows, synthetic = (
        rows_of("test", [group for group in tested if group["synthetic"] == kind])
        for kind in (False, True)
    )
    untested = rows_of("val", [group for group in groups if group not in tested])
    units = "ε, its median and 75 % quantile over meshes, and NMAE in %; errors in dyn/cm²."
    text = ""
    if untested:
        text += f"<h3>Validation meshes</h3><p>Runs that compare settings. {units}</p>"
        text += markup.table(head, untested)
    if not tested:
        return text
    if synthetic:
        text += f"<h3>Synthetic test meshes</h3><p>{units}</p>" + markup.table(head, synthetic)
    if rows:
        text += f"<h3>Test meshes</h3><p>{units}</p>"
    else:
        text += (
            "<h3>The paper's test meshes</h3><p>Other vessels than those above: do not compare.</p>"
        )
    return text + markup.table(head, rows, _paper(report["reference"]))


def symmetry(report: dict[str, Any]) -> str:
    """How turning, moving and mirroring meshes changes predictions and errors."""
    rows = []
    for group in report["groups"]:
        for name, what in VARIANTS.items():
            if name in group["results"]:
                kinds = ["mean", "max"] if name in ("test_moved", "test_mirrored") else []
                change = [_cell(group, name, f"change_{kind}", ".1e") for kind in kinds]
                rows.append([*_group(group)[:3], what, _points(group, name), *change])
    if not rows:
        return ""
    head = ["model", "orientations", "training meshes", "test meshes"]
    head += ["change of ε, points", "of predictions: mean", "largest"]
    absent = [g["label"] for g in report["groups"] if not g["results"].keys() & VARIANTS]
    return (
        "<p>Every test mesh is predicted in float32: as it is, and turned at random and moved by "
        "1,000 cm, without or with a mirror. These predictions are turned back and compared in "
        "float32, relative to their size.</p>" + markup.table(head, rows) + markup.absent(absent)
    )


def ablations(report: dict[str, Any]) -> str:
    """The paper's table 3 beside ours; only if there is more than GATr and the Transformer."""
    paper = report["reference"]["ablations"]
    groups = [g for g in report["groups"] if g["model"] in paper and "val" in g["results"]]
    if not {g["model"] for g in groups} - {"gatr", "transformer"}:
        return ""
    rows = [
        [*_group(g), _cell(g, "val", "epsilon_mean", ".2f")]
        + ([] if g["synthetic"] else [f"{paper[g['model']]:.1f}"])
        for g in groups
    ]
    head = ["model", "orientations", "training meshes", "steps", "seeds", "ε, %", "paper's ε, %"]
    remark = ""
    if any(g["synthetic"] for g in groups):
        remark = " It was not measured on synthetic vessels, and stands beside the others only."
    return (
        "<p>Mean ε on the validation meshes. The paper's: 1,600 training meshes, 100,000 steps."
        f"{remark} Without multivectors GATr is a Transformer.</p>"
        + markup.table(head, rows)
        + markup.absent([g["label"] for g in report["groups"] if g not in groups])
    )


def runs(report: dict[str, Any]) -> str:
    """Every run, with its errors on validation and test meshes."""
    columns = {"ε on val, %": ("val", "epsilon_mean"), "on test": ("test", "epsilon_mean")}
    return markup.all_runs(report["runs"], "meshes", columns, lambda _, value: f"{value:.2f}")


def _paper(reference: dict[str, Any]) -> list[list[str]]:
    about = [markup.count_text(reference[key]) for key in ("meshes", "steps")] + [""]
    rows = [
        [f"paper: {model}", kind, *about, f"{errors[place]:.1f}"]
        for place, kind in enumerate(("random", "canonical"))
        for model, errors in reference["epsilon"].items()
    ]
    about[1] = markup.count_text(reference["readme"]["steps"])
    for model, error in reference["readme"]["epsilon"].items():
        rows.append([f"README of the authors' code: {model}", "random", *about, f"{error:.1f}"])
    return rows


def _group(group: dict[str, Any]) -> list[Any]:
    """The cells that say which group it is."""
    counts = [markup.count_text(group[key]) for key in ("samples", "steps")]
    return [group["label"], group["orientation"], *counts, len(group["seeds"])]


def _cell(group: dict[str, Any], name: str, metric: str, style: str) -> str:
    found = group["results"].get(name, {}).get(metric)
    if found is None:
        return ""
    return markup.estimate_text(found["mean"], found["standard_error"], lambda x: format(x, style))


def _points(group: dict[str, Any], name: str) -> str:
    """By how much ε differs from ε on the test meshes as they are."""
    moved, still = (group["results"][n]["epsilon_mean"]["mean"] for n in (name, "test"))
    return f"{moved - still:+.3f}" if math.isfinite(moved - still) else "not finite"
