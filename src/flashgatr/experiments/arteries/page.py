"""How the report on artery runs reads."""

from __future__ import annotations

import math
from typing import Any

from .. import page as pages
from . import EXPERIMENT
from .pictures import GREY, PICTURES

TITLE = "Arteries: wall shear stress"
INTRODUCTION = """<p>Models see the wall of a vessel, its nodes with normals and their distance from the inlet, and predict the
stress that the flow exerts on it. The error of a mesh is ε = √(Σ‖ŷ − y‖² / Σ‖y‖²) over its nodes away from both ends; the number
to compare is the mean over test meshes. Labels come from simulations and carry noise of their own, of up to about 5 %:
differences of less than 0.3 points mean little. ± is the standard error over seeds.</p>"""
SYNTHETIC = """<p><strong>{some} vessels are synthetic: flashgatr made them, and they are not the paper's data.</strong> Errors on
them cannot be compared with the paper's numbers.</p>"""
TABLE = (
    "epsilon_mean",
    "epsilon_median",
    "epsilon_q75",
    "nmae",
    "mean_error",
    "max_error",
    "cosine",
)
_COLUMNS = EXPERIMENT.metrics


def page(report: dict[str, Any], pictures: dict[str, bytes]) -> str:
    """A report as one HTML file that needs no other."""
    synthetic = [group["synthetic"] for group in report["groups"]]
    title, introduction, captions = TITLE, INTRODUCTION, dict(PICTURES)
    if all(synthetic):
        title += " on synthetic vessels"
        introduction += SYNTHETIC.format(some="The")
    else:
        captions["figure.png"] += f" {GREY}"
        if any(synthetic):
            title += ", on synthetic vessels too"
            introduction += SYNTHETIC.format(some="Some")

    def image(name: str) -> str:
        return pages._image(name, pictures, captions)

    commands = f"<pre>{pages._escape(report['commands'])}</pre>"
    unreadable = [f"{k}: {v}" for k, v in report["unreadable"].items()]
    sections = {
        "Results": _results(report) + image("figure.png"),
        "Meshes": image("histograms.png") + image("maps.png") + image("scatter.png"),
        "Symmetry": _symmetry(report),
        "Ablations": _ablations(report),
        "Training": image("curves.png"),
        "Reproduce": commands + _runs(report) + pages._settings(report["settings"]),
        "Notes": pages._list(report["notes"]),
        "Runs that cannot be read": pages._list(unreadable),
    }
    return pages.document(title, introduction, sections, report)


def _results(report: dict[str, Any]) -> str:
    """Our models, then the paper's and the README's; those on synthetic vessels apart."""
    head = ["model", "orientations", "training meshes", "steps", "seeds"]
    head += [_COLUMNS[metric].title for metric in TABLE]
    rows, synthetic = (
        [
            [*_who(group), *(_cell(group, "test", metric) for metric in TABLE)]
            for group in report["groups"]
            if group["synthetic"] == kind
        ]
        for kind in (False, True)
    )
    units = "ε, its median and 75 % quantile over meshes, and NMAE in %; errors in dyn/cm²."
    text = ""
    if synthetic:
        text += f"<h3>Synthetic test meshes</h3><p>{units}</p>" + pages._table(head, synthetic)
    if rows:
        text += f"<h3>Test meshes</h3><p>{units}</p>"
    else:
        text += (
            "<h3>The paper's test meshes</h3><p>Other vessels than those above: do not compare.</p>"
        )
    return text + pages._table(head, rows, _paper(report["reference"]))


def _paper(reference: dict[str, Any]) -> list[list[str]]:
    about = [pages._count(reference["meshes"]), pages._count(reference["steps"]), ""]
    rows = [
        [f"paper: {model}", kind, *about, f"{error:.1f}"]
        for place, kind in enumerate(("random", "canonical"))
        for model, errors in reference["epsilon"].items()
        for error in [errors[place]]
    ]
    about[1] = pages._count(reference["readme"]["steps"])
    for model, error in reference["readme"]["epsilon"].items():
        rows.append([f"README of the authors' code: {model}", "random", *about, f"{error:.1f}"])
    return rows


_ELSEWHERE = {
    "test_float32": "in float32",
    "test_moved": "turned and moved",
    "test_mirrored": "mirrored too",
}


def _symmetry(report: dict[str, Any]) -> str:
    """What turning, moving and mirroring do to predictions and errors."""
    rows = []
    for group in report["groups"]:
        for name, what in _ELSEWHERE.items():
            if name in group["results"]:
                kinds = [] if name == "test_float32" else ["mean", "max"]
                change = [_cell(group, name, f"change_{kind}", ".1e") for kind in kinds]
                rows.append([*_who(group)[:3], what, _points(group, name), *change])
    if not rows:
        return ""
    head = ["model", "orientations", "training meshes", "test meshes"]
    head += ["change of ε, points", "of predictions: mean", "largest"]
    return (
        "<p>Every test mesh predicted in float32; and turned at random and moved by 1,000 cm, without or with a mirror: its "
        "predictions are turned back and compared in float32, relative to their size.</p>"
        + pages._table(head, rows)
    )


def _ablations(report: dict[str, Any]) -> str:
    """The paper's table 3 beside ours; only if there is more than GATr and the Transformer."""
    paper = report["reference"]["ablations"]
    groups = [g for g in report["groups"] if g["model"] in paper and "val" in g["results"]]
    if not {g["model"] for g in groups} - {"gatr", "transformer"}:
        return ""
    rows = [
        [*_who(g), _cell(g, "val", "epsilon_mean")]
        + ([] if g["synthetic"] else [f"{paper[g['model']]:.1f}"])
        for g in groups
    ]
    head = ["model", "orientations", "training meshes", "steps", "seeds", "ε, %", "paper's ε, %"]
    remark = ""
    if any(g["synthetic"] for g in groups):
        remark = " It is not on synthetic vessels, and stands beside others only."
    return (
        f"<p>Mean ε on the validation meshes. The paper's: 1,600 training meshes, 100,000 steps.{remark} Without "
        "multivectors GATr is a Transformer.</p>" + pages._table(head, rows)
    )


def _runs(report: dict[str, Any]) -> str:
    rows = [
        [run["label"], pages._count(run["samples"]), run["seed"], run["best_step"]]
        + [_number(run["results"].get(name, {}).get("epsilon_mean")) for name in ("val", "test")]
        + [run["folder"]]
        for run in report["runs"]
    ]
    head = ["model", "training meshes", "seed", "best step", "ε on val, %", "on test", "folder"]
    summary = f"<summary>All {len(rows)} runs</summary>"
    return f"<details>{summary}{pages._table(head, rows)}</details>"


def _who(group: dict[str, Any]) -> list[Any]:
    numbers = [pages._count(group["samples"]), pages._count(group["steps"]), len(group["seeds"])]
    return [group["label"], group["orientation"], *numbers]


def _cell(group: dict[str, Any], name: str, metric: str, style: str | None = None) -> str:
    found = group["results"].get(name, {}).get(metric)
    if found is None:
        return ""
    return _number(found["mean"], found["standard_error"], style or _COLUMNS[metric].format)


def _points(group: dict[str, Any], name: str) -> str:
    """By how much ε differs from that on the test meshes as they are."""
    moved, still = (group["results"][n]["epsilon_mean"]["mean"] for n in (name, "test"))
    return f"{moved - still:+.3f}" if math.isfinite(moved - still) else "not finite"


def _number(mean: float | None, error: float | None = None, style: str = ".2f") -> str:
    if mean is None:
        return ""
    if not math.isfinite(mean):
        return "not finite"
    return format(mean, style) + (f" ± {error:{style}}" if error else "")
