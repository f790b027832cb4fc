"""HTML of reports. The page needs no other file; every function here escapes the text it is given.

The page itself is the template page.html beside this file.
"""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

from .protocol import Contents, Section

_SHOWN_SIZE = 0.53  # CSS pixels per pixel of a picture


def page(contents: Contents) -> str:
    """The whole page: the report's own sections, its notes, and the runs that cannot be read."""
    numbers = contents.numbers
    unreadable = [f"{folder}: {reason}" for folder, reason in numbers["unreadable"].items()]
    sections = [
        *contents.sections,
        Section("Notes", bullets(numbers["notes"])),
        Section("Runs that cannot be read", bullets(unreadable)),
    ]
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        version=escape(numbers["flashgatr"]),
        title=escape(contents.title),
        introduction=contents.introduction,
        sections="\n".join(f"<h2>{escape(s.title)}</h2>{s.html}" for s in sections if s.html),
    )


def table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], soft: Iterable[Sequence[Any]] = ()
) -> str:
    """A table; short rows end with empty cells, `soft` rows follow in grey."""

    def line(cells: Sequence[Any]) -> str:
        cells = [*cells, *[""] * (len(head) - len(cells))]
        return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells)

    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return (
        f'<div class="wide"><table><thead><tr>{names}</thead><tbody>{"".join(map(line, rows))}'
        f'</tbody><tbody class="soft">{"".join(map(line, soft))}</tbody></table></div>'
    )


def figure(name: str, pictures: Mapping[str, bytes | None], caption: str) -> str:
    """A PNG picture with its caption; empty if it could not be drawn."""
    content = pictures.get(name)
    if content is None:
        return ""
    width = int.from_bytes(content[16:20], "big")  # a field of the PNG header
    return (
        f'<figure><div class="wide"><img alt="{escape(name)}" width="{_SHOWN_SIZE * width:.0f}" '
        f'src="data:image/png;base64,{base64.b64encode(content).decode()}"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def bullets(items: Iterable[str]) -> str:
    """A list; empty if it has no items."""
    lines = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{lines}</ul>" if lines else ""


def preformatted(text: str) -> str:
    """Text that keeps its lines, such as commands."""
    return f"<pre>{escape(text)}</pre>"


def folded(summary: str, content: str) -> str:
    """HTML that a click on its summary shows."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def settings(blocks: Mapping[str, Mapping[str, Any]]) -> str:
    """Settings of every group, and facts about the data, folded."""
    text = "".join(
        f"<h3>{escape(title)}</h3>"
        + preformatted("\n".join(f"{key} = {json.dumps(value)}" for key, value in block.items()))
        for title, block in blocks.items()
    )
    return folded("Settings and data", text)


def all_runs(
    runs: Sequence[Mapping[str, Any]],
    count: str,
    columns: Mapping[str, tuple[str, str]],
    show: Callable[[str, float], str],
    remark: str = "",
) -> str:
    """A table of every run in report.json, folded.

    count: what training samples are called.  columns: titles, each with an evaluation set and a
    metric.  show: formats a value of this metric.  remark: follows "All N runs" in the summary,
    or "The run" if there is one.
    """
    rows = [
        [run["label"], count_text(run["samples"]), run["seed"], run["best_step"]]
        + [
            estimate_text(run["results"].get(name, {}).get(metric), None, partial(show, metric))
            for name, metric in columns.values()
        ]
        + [run["folder"]]
        for run in runs
    ]
    head = ["model", f"training {count}", "seed", "best step", *columns, "folder"]
    which = "The run" if len(rows) == 1 else f"All {len(rows):,} runs"
    return folded(which + remark, table(head, rows))


def absent(labels: Sequence[str], reason: str = "") -> str:
    """A sentence after a table that says which models it lacks; empty if it has all."""
    if not labels:
        return ""
    names = "; ".join(dict.fromkeys(labels))
    return f'<p class="soft">Without results here: {escape(names)}.{escape(reason)}</p>'


def count_text(number: int | None) -> str:
    """A number of samples or steps; None means all."""
    return "all" if number is None else f"{number:,}"


def estimate_text(
    mean: float | None,
    standard_error: float | None,
    show: Callable[[float], str],
    show_error: Callable[[float], str] | None = None,
) -> str:
    """Mean ± standard error as text; empty without a mean, and without an error only the mean."""
    if mean is None:
        return ""
    if not math.isfinite(mean):
        return "not finite"
    return show(mean) + (f" ± {(show_error or show)(standard_error)}" if standard_error else "")


def escape(text: object) -> str:
    """Text for HTML, also within quotes."""
    return html.escape(str(text))
