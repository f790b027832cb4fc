"""Compares a folder with the published data: totals of raw samples, and the scale of labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .. import LABEL_SCALE
from .arrays import PathLike
from .preparation import TOTALS
from .sets import describe, numbers, scan

SAMPLES = 2000
PUBLISHED = {
    "nodes, mean": 9188.8475,
    "nodes, least": 5466,
    "nodes, most": 12160,
    "faces, mean": 18373.695,
    "inlet nodes, mean": 235.4915,
    "|WSS|, mean": 29.1146,
    "|WSS|, most": 548.8169,
}
"""Of the 2,000 raw arteries. It is unknown whether the mean |WSS| is over nodes or over samples."""
SCALES = {1600: LABEL_SCALE, 800: 54.357}
"""Root mean square of the labels over samples 0 to n - 1, by n."""
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Check:
    """A number and its expected value, or None if that is unknown."""

    what: str
    found: float
    expected: float | None

    @property
    def passed(self) -> bool:
        return self.expected is None or math.isclose(
            self.found, self.expected, rel_tol=1e-6, abs_tol=TOLERANCE
        )


def verify(folder: PathLike, division: str = "original") -> list[Check]:
    """Read and check all files of a folder, and compare them with the published data."""
    contents = scan(folder)
    synthetic = any(header.get("synthetic") for header in contents.headers.values())
    checks = []
    for name, summary in describe(folder, division).items():
        checks.append(Check(f"{name} meshes", summary.meshes, None))
        if summary.label_scale is not None:
            there = numbers(contents, name, division)
            known = name == "train" and not synthetic and there == list(range(len(there)))
            expected = SCALES.get(len(there)) if known else None
            checks.append(Check(f"{name} label scale", summary.label_scale, expected))
    totals = _totals(list(contents.headers.values()))
    whole = not synthetic and sum(map(len, contents.files.values())) == SAMPLES
    return checks + [
        Check(f"raw {what}", found, PUBLISHED[what] if whole else None)
        for what, found in totals.items()
    ]


def _totals(headers: list[dict[str, Any]]) -> dict[str, float]:
    """The quantities of PUBLISHED over all samples; {} if a shard does not store them."""
    kept: dict[str, list[float]] = {name: [] for name in TOTALS}
    for header in headers:
        raw = header.get("raw")
        if not isinstance(raw, dict) or not raw.keys() >= set(TOTALS):
            return {}
        for name in TOTALS:
            kept[name] += raw[name]
    count, nodes = len(kept["nodes"]), sum(kept["nodes"])
    each = [total / n for total, n in zip(kept["wss_sum"], kept["nodes"], strict=True)]
    means = [sum(kept["wss_sum"]) / nodes, sum(each) / count]
    found = [
        nodes / count,
        min(kept["nodes"]),
        max(kept["nodes"]),
        sum(kept["faces"]) / count,
        sum(kept["inlet"]) / count,
        min(means, key=lambda mean: abs(mean - PUBLISHED["|WSS|, mean"])),
        max(kept["wss_max"]),
    ]
    return dict(zip(PUBLISHED, found, strict=True))
