"""The tables of docs/benchmarks.md, from recorded results: one per benchmark of speed and machine.

A table shows the results of every model's last day on the machine; of repeated cases, the last one.
If these days differ, a column has the date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...train.settings import write_atomically
from .. import results
from . import SPEED
from .timing import UNITS

PAGE = Path("docs/benchmarks.md")
BEGIN, END = "<!-- results: flashgatr bench page -->", "<!-- end of results -->"


def latest(file: Path) -> list[dict[str, Any]]:
    """The lines of every model's last day on every machine, in the order of the cases' first lines;
    of repeated cases the last line.
    """
    if not file.exists():
        return []
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
    last = {(line["machine"], line["model"]): line["date"] for line in lines}
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["date"] == last[line["machine"], line["model"]]:
            case = [line["machine"], line["model"], line["metric"], line["settings"]]
            found[json.dumps(case, sort_keys=True)] = line
    return list(found.values())


def of_last_machine(file: Path) -> list[dict[str, Any]]:
    """Of the latest lines, those of the machine that recorded the last line of the file."""
    if not file.exists():
        return []
    recorded = [line for line in file.read_text().splitlines() if line.strip()]
    machine = json.loads(recorded[-1])["machine"] if recorded else None
    return [line for line in latest(file) if line["machine"] == machine]


def tables(folder: Path) -> str:
    """All tables, as Markdown."""
    parts = []
    for benchmark in SPEED:
        lines = latest(folder / f"{benchmark}.jsonl")
        for machine in dict.fromkeys(line["machine"] for line in lines):
            parts.append(_table(benchmark, [line for line in lines if line["machine"] == machine]))
    return "\n\n".join(parts) or "Nothing is recorded yet."


def _table(benchmark: str, lines: list[dict[str, Any]]) -> str:
    rows: dict[str, dict[str, str]] = {}
    dates = sorted({line["date"] for line in lines})
    for line in lines:
        case = {"model": line["model"], **line["settings"]}
        if len(dates) > 1:
            case["date"] = line["date"]
        row = rows.setdefault(json.dumps(case), {k: _shown(v) for k, v in case.items()})
        row[f"{line['metric']} ({line['unit']})"] = _shown(line["value"])
    metrics = [f"{metric} ({unit})" for metric, unit in UNITS.items()]
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))
    columns.sort(key=lambda key: metrics.index(key) if key in metrics else -1)
    last, ends = lines[-1], dict.fromkeys((dates[0], dates[-1]))
    return "\n".join(
        [
            f"**{benchmark}**, {last['machine']}, torch {last['torch']}, {' to '.join(ends)}:",
            "",
            f"| {' | '.join(columns)} |",
            "|---" * len(columns) + "|",
            *(f"| {' | '.join(row.get(key, '') for key in columns)} |" for row in rows.values()),
        ]
    )


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def filled(text: str, folder: Path) -> str:
    """The text of the page with the tables from this folder."""
    if BEGIN not in text or END not in text:
        raise ValueError(f"the page must have the lines {BEGIN} and {END} around the tables")
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n\n{tables(folder)}\n\n{END}{rest.split(END, 1)[1]}"


def write(page: Path = PAGE, folder: Path = results.FOLDER) -> None:
    """Write the tables of recorded results into the page."""
    write_atomically(page, filled(page.read_text(), folder))
    print(f"wrote the tables of {page}")
