"""Writing a report: its page, its numbers and its pictures into one folder."""

from __future__ import annotations

import json
from pathlib import Path

from ...train.settings import write_atomically
from . import markup
from .collect import collect, report_of
from .numbers import finite
from .protocol import Contents


def write(paths: list[Path], out: Path) -> Path:
    """Report on the finished runs in and below `paths`; returns the path of report.html."""
    collected = collect(paths)
    return store(report_of(collected.experiment).compose(collected), out)


def store(contents: Contents, out: Path) -> Path:
    """Write the files of a report, and remove pictures of an earlier one that it does not have."""
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in contents.pictures.items():
        if picture is None:
            (out / name).unlink(missing_ok=True)
        else:
            write_atomically(out / name, picture)
    numbers = json.dumps(finite(contents.numbers), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(out / "report.json", numbers + "\n")
    write_atomically(out / "report.html", markup.page(contents))
    return out / "report.html"
