"""Reports on finished runs: one HTML page, its pictures, and all of its numbers as JSON.

    write([Path("runs")], Path("report"))       # report/report.html, report.json, *.png

This package finds runs, groups them, and makes tables, learning curves and pages. It knows no
experiment: each one describes its own sections in a `protocol.Report`, its `Experiment.report`.
An experiment without one gets the report in `generic`.
"""

from __future__ import annotations

from pathlib import Path


def write(paths: list[Path], out: Path) -> Path:
    """Report on the finished runs in and below `paths`; returns the path of report.html.

    Runs of several experiments cannot be compared. The report is about the experiment that most
    runs belong to, and it lists the other runs.
    """
    from . import writer  # lazy: figures and benchmarks use this package without any run

    return writer.write(paths, out)
