"""Measured results: a JSON object per line in benchmarks/results/NAME.jsonl; the last one wins."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

FOLDER = Path("benchmarks/results")


def record(
    benchmark: str,
    model: str,
    metric: str,
    value: float,
    unit: str,
    settings: dict[str, Any],
    *,
    folder: Path = FOLDER,
) -> dict[str, Any]:
    """Append one measurement, with machine, version and date, and return it."""
    line = {
        "benchmark": benchmark,
        "model": model,
        "metric": metric,
        "value": value,
        "unit": unit,
        "settings": settings,
        "machine": machine(),
        "torch": torch.__version__,
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{benchmark}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    return line


def machine() -> str:
    """The accelerator if there is one, else the processor's architecture and threads."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def _commit(source: Path = Path(__file__).parent) -> str:
    """The commit of a source tree, marked if files other than recorded results have changed;
    "unknown" outside a checkout.

    The environment variable FLASHGATR_COMMIT overrides it, for copies of the tree without history.
    """
    given = os.environ.get("FLASHGATR_COMMIT")
    if given:
        return given
    others = ":/", f":(top,exclude){FOLDER}"
    try:
        commit = _git(source, "rev-parse", "--short=12", "HEAD")
        changes = _git(source, "status", "--porcelain", "--untracked-files=no", "--", *others)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if changes else commit


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=True, cwd=folder
    )
    return done.stdout.strip()
