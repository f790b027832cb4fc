"""The paper's n-body figure, error against training systems, from results of `sweep --record`.

`draw` writes docs/images/nbody.png; it does not measure and needs no GPU.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from .. import results
from ..nbody.report import data_efficiency
from ..report.numbers import estimate

FIGURE = Path("docs/images/nbody.png")
LABELS = {
    ("nbody_figure", "gatr"): "GATr",
    ("nbody_figure_seeds", "gatr"): "GATr",
    ("nbody_figure_ours", "gatr"): "GATr, our recipe",
    ("nbody_figure_baselines", "segnn"): "SEGNN",
    ("nbody_figure_seeds", "segnn"): "SEGNN",
    ("nbody_figure_baselines", "se3_transformer"): "SE(3)-Transformer",
    ("nbody_figure", "transformer"): "Transformer",
    ("nbody_figure_baselines", "gca_gnn"): "GCA-GNN",
    ("nbody_figure", "mlp"): "MLP",
}
"""By recipe and model."""


def draw(source: Path | None = None, target: Path = FIGURE) -> None:
    source = source or results.FOLDER / "nbody-accuracy.jsonl"
    groups = read(source)
    if not groups:
        raise ValueError(
            f"{source} has no runs of recipes/nbody_figure.toml; make some with "
            "flashgatr sweep --record"
        )
    found = {group["label"] for group in groups}
    nothing: dict[str, Any] = {"set": None, "mse": {}, "samples": 1}
    report = {"groups": groups, "reference": nothing, "straight_line": {}}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(
        data_efficiency.draw(
            report, [label for label in dict.fromkeys(LABELS.values()) if label in found]
        )
    )
    print(f"drew {target} from {source}")


def read(source: Path) -> list[dict[str, Any]]:
    """Means over seeds, and their standard errors, by label and number of training systems."""
    values: dict[tuple[str, int, str], dict[int, float]] = defaultdict(dict)
    for line in map(json.loads, source.read_text().splitlines()):
        settings = line["settings"]
        label = LABELS.get((settings.get("recipe"), line["model"]))
        if label and line["metric"] == "mse":
            case = label, settings["train_samples"], settings["set"]
            values[case][settings["seed"]] = line["value"]  # a later line replaces earlier ones
    groups: dict[tuple[str, int], dict[str, Any]] = {}
    for label, samples, name in sorted(values):
        group = groups.setdefault(
            (label, samples), {"label": label, "samples": samples, "results": {}}
        )
        group["results"][name] = {"mse": estimate(list(values[label, samples, name].values()))}
    return list(groups.values())
