"""How a report reads: one HTML page that needs no other file. Every text on it is escaped."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Iterable
from typing import Any

from .drawing import METRICS, PICTURES, SETS

CSS = """
:root { color-scheme: light dark; --text: #1d2025; --soft: #666c75; --line: #dcdfe4; --back: #fff; --tint: #f5f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e3e5e9; --soft: #9aa1ab; --line: #33373d; --back: #121212; --tint: #1c1e21; }
  img { filter: invert(0.93) hue-rotate(180deg); }
}
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--text); background: var(--back);
  max-width: 62rem; margin: 3rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; margin: 3rem 0 .75rem; }
h3 { font-size: 1rem; margin: 2rem 0 .25rem; }
p { margin: .25rem 0 .75rem; max-width: 46rem; }
figure { margin: 1.5rem 0; }
img { max-width: max(100%, 40rem); display: block; }
figcaption, .soft, .soft td { color: var(--soft); }
figcaption { font-size: .875rem; margin-top: .5rem; max-width: 46rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8125rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: left; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; }
pre { font: .8125rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: var(--tint);
  padding: .75rem 1rem; border-radius: 4px; white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .75rem 0; }
details pre { columns: 22rem; }
summary { cursor: pointer; }
"""
INTRODUCTION = """<p>Models see masses, positions and velocities of bodies that attract each other, and predict their
positions after a while. The error of a system is the mean square of the differences of all coordinates. A few systems
in which bodies nearly collide dominate the mean, so that median, 90 % quantile and the mean of the best 99 % of the systems
stand beside it. ± is the standard error over seeds.</p>"""


def page(report: dict[str, Any], pictures: dict[str, bytes]) -> str:
    """A report as one HTML file that needs no other."""
    sections = {
        "Results": _image("figure.png", pictures)
        + "".join(_results(report, name) for name in SETS),
        "Systems": _image("trajectories.png", pictures),
        "Training": _image("curves.png", pictures),
        "Reproduce": f"<pre>{_escape(report['commands'])}</pre>" + _runs(report),
        "Notes": _list(report["notes"]),
        "Runs that cannot be read": _list(f"{k}: {v}" for k, v in report["unreadable"].items()),
    }
    return document("n-body: where will the bodies be?", INTRODUCTION, sections, report)


def document(
    title: str, introduction: str, sections: dict[str, str], report: dict[str, Any]
) -> str:
    """The whole page; sections without text are left out."""
    body = "".join(f"<h2>{name}</h2>{text}" for name, text in sections.items() if text)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="generator" '
        f'content="flashgatr {_escape(report["flashgatr"])}">'
        f"<title>{title}</title><style>{CSS}</style><h1>{title}</h1>{introduction}{body}</html>\n"
    )


def _results(report: dict[str, Any], name: str) -> str:
    """The table of one set: models, the straight-line guess, reference values."""
    moved = name == "eval_moved"
    rows = [
        [group["label"], _count(group["samples"]), _count(group["steps"]), len(group["seeds"])]
        + [_number(**group["results"][name][metric]) for metric in METRICS]
        + ([_change(group["results"])] if moved else [])
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
        about = [_count(reference["samples"]), _count(reference["steps"]), ""]
        others += [
            [f"README: {model}", *about, f"{mse:.4f}"] for model, mse in reference["mse"].items()
        ]
    title, explanation = SETS[name]
    head = ["model", "training systems", "steps", "seeds", *METRICS.values()]
    head += ["change"] if moved else []
    return f"<h3>{title}</h3><p>{explanation}</p>" + _table(head, rows, others)


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


def _runs(report: dict[str, Any]) -> str:
    """Every run, and the settings of every group."""
    rows = [
        [run["label"], _count(run["samples"]), run["seed"], run["best_step"]]
        + [_number(run["results"].get(name, {}).get("mse")) for name in SETS]
        + [run["folder"]]
        for run in report["runs"]
    ]
    blocks = report["settings"] | {
        f"Data in {folder}": {
            name: f"{found['count']:,} systems, seed {found['seed']}, SHA-256 {found['sha256']}"
            for name, found in sets.items()
        }
        for folder, sets in report["data"].items()
    }
    names = [title.lower() for title, _ in SETS.values()]
    head = ["model", "training systems", "seed", "best step", *names, "folder"]
    return (
        f"<details><summary>All {len(rows)} runs, mean squared errors</summary>"
        f"{_table(head, rows)}</details>" + _settings(blocks)
    )


def _settings(blocks: dict[str, dict[str, Any]]) -> str:
    """Settings of every group, and what is in data folders, folded away."""
    text = "".join(
        f"<h3>{_escape(title)}</h3><pre>"
        + _escape("\n".join(f"{key} = {json.dumps(value)}" for key, value in block.items()))
        + "</pre>"
        for title, block in blocks.items()
    )
    return f"<details><summary>Settings and data</summary>{text}</details>"


def _table(head: list[str], rows: Iterable[list[Any]], soft: Iterable[list[Any]] = ()) -> str:
    def line(cells: list[Any]) -> str:
        cells = cells + [""] * (len(head) - len(cells))
        return "<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in cells)

    names = "".join(f"<th>{_escape(name)}</th>" for name in head)
    return (
        f'<div class="wide"><table><thead><tr>{names}</thead><tbody>{"".join(map(line, rows))}'
        f'</tbody><tbody class="soft">{"".join(map(line, soft))}</tbody></table></div>'
    )


def _image(name: str, pictures: dict[str, bytes], captions: dict[str, str] = PICTURES) -> str:
    if name not in pictures:
        return ""
    content = base64.b64encode(pictures[name]).decode()
    width = int.from_bytes(pictures[name][16:20], "big")  # as PNG has it
    return (
        f'<figure><div class="wide"><img alt="{name}" width="{0.53 * width:.0f}" '
        f'src="data:image/png;base64,{content}"></div>'
        f"<figcaption>{_escape(captions[name])}</figcaption></figure>"
    )


def _list(items: Iterable[str]) -> str:
    lines = "".join(f"<li>{_escape(item)}</li>" for item in items)
    return f"<ul>{lines}</ul>" if lines else ""


def _escape(text: object) -> str:
    return html.escape(str(text))


def _count(number: int | None) -> str:
    return "all" if number is None else f"{number:,}"


def _number(mean: float | None, standard_error: float | None = None) -> str:
    if mean is None:
        return ""
    if not math.isfinite(mean):
        return "not finite"
    return short(mean, 2) + (f" ± {short(standard_error, 0)}" if standard_error else "")


def short(number: float, digits: int) -> str:
    """
    >>> short(0.000123, 1)
    '1.2e-4'
    """
    mantissa, exponent = f"{number:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}"
