"""Scaling: time and memory at some sizes, the largest size that fits, and an artery mesh."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..page import of_last_machine
from ..scaling import LABELS, ON_PAIRS, SETS, make_of
from .mesh_memory import VERTICES, extrapolate
from .parameters import trained
from .recorded import number
from .tables import NOTHING, Gap, Table, emphasise, leading, listed

SIZES = (64, 256, 512, 1024, 16384)


def sizes(folder: Path) -> Table:
    """Time and memory on the last machine, without checkpointing and, on pairs, with it."""
    lines = of_last_machine(folder / "scaling.jsonl")
    rows, missing = [], []
    for (model, width), label in LABELS.items():
        for checkpointing in (False, True) if model in ON_PAIRS else (False,):
            own = [
                line
                for line in lines
                if line["model"] == model
                and line["settings"].get("width_factor") == width
                and line["settings"].get("checkpointing") == checkpointing
            ]
            name = _name(label, checkpointing)
            if not own:
                missing.append(Gap(name, _command(model)))
                continue
            cells = [_cell(own, n) for n in SIZES]
            about = [number(_parameters(model, width)), _command(model)]
            rows.append([name, *cells, _largest(own, model), *about])
    head = ["model", *(f"{n:,} items" for n in SIZES), "largest number of items", "parameters"]
    shown = emphasise(rows, range(1, 1 + len(SIZES)))
    return Table([*head, "command"], shown, missing, _largest_set(rows))


def _largest_set(rows: list[list[str]]) -> str:
    """The fastest network at the largest size of the table."""
    known = [row for row in rows if leading(row[len(SIZES)]) is not None]
    if not known:
        return ""
    told = listed(f"{row[len(SIZES)].partition(', ')[0]} ({row[0]})" for row in known)
    return f"A step on {SETS} sets of {SIZES[-1]:,} items takes {told}."


def _name(label: str, checkpointing: bool) -> str:
    return f"{label} with checkpointing" if checkpointing else label


@cache
def _parameters(model: str, width: int | None) -> int:
    nowhere = torch.device("meta")
    with nowhere:
        return trained(make_of(model, width, False, nowhere)().net)


def _command(model: str) -> str:
    return f"`flashgatr bench scaling --model {model}`"


def _cell(lines: list[dict[str, Any]], items: int) -> str:
    found = {x["metric"]: x["value"] for x in lines if x["settings"].get("n_items") == items}
    if "time" not in found:
        largest = [x for x in lines if x["metric"] == "largest"]
        too_many = any(x["settings"].get("fails", items + 1) <= items for x in largest)
        return "does not fit" if too_many else NOTHING
    memory = f", {found['memory'] / 1024:.2f} GiB" if "memory" in found else ""
    return f"{found['time']:.3g} ms{memory}"


def _largest(lines: list[dict[str, Any]], model: str) -> str:
    for line in reversed(lines):
        if line["metric"] == "largest":
            least = "at least " * (line["settings"]["limit"] == "time")
            return f"{least}{line['value']:,.0f}"
    sizes = [x["settings"]["n_items"] for x in lines if x["metric"] == "time"]
    return f"at least {max(sizes):,}" if sizes and model not in ON_PAIRS else NOTHING


def mesh(folder: Path) -> Table:
    """Memory that networks on pairs would need for one mesh."""
    found = {(x.model, x.checkpointing): x for x in extrapolate(folder / "scaling.jsonl")}
    rows, missing = [], []
    for model in ON_PAIRS:
        for checkpointing in (False, True):
            own = found.get((model, checkpointing))
            name = _name(LABELS[model, None], checkpointing)
            if own is None:
                missing.append(Gap(name, _command(model)))
                continue
            first, second = own.measured
            cells = [f"{first:,} and {second:,}", f"{own.bytes_per_pair / 1024:.1f} KiB"]
            rows.append([name, *cells, f"{own.gibibytes:,.0f} GiB"])
    head = ["model", "measured at", "per pair of items", f"a mesh of {VERTICES:,} nodes"]
    return Table(head, rows, missing)
