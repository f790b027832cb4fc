"""`flashgatr predict flows`: a trained run on the test vessels.

errors.json   errors for every number of points and anchors
errors.png    the same, drawn
flow.png      speed on a slice of the lumen and stress on the wall of the first test vessel: true,
              predicted with the most points and anchors, error
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ...anchored import Progress
from ...io import files
from ...train import distributed, toml
from ...train.settings import override
from .. import recording, runs
from ..arteries.data.mesh import ArteryError
from ..arteries.vessel.predict import require_folder
from .picture import draw_errors, draw_flow
from .task import FlowTask


def run(
    folder: Path,
    out: Path,
    *,
    points: Sequence[int] | None = None,
    anchors: Sequence[int] | None = None,
    limit: int = 0,
    data: Path | None = None,
    device: str | None = None,
    record: bool = False,
    progress: Progress | None = None,
) -> tuple[list[dict[str, Any]], list[Path]]:
    """Predict and write the files; returns the errors and the paths.

    points: of the lumen and of the wall, None for all. anchors: of the lumen, and as many of the
    wall; None for those of training. limit: use the first so many test vessels; 0: as in training.
    record: append the errors to benchmarks/results/, too. progress: called after every tile with
    the number of finished points and that of all test vessels, for each of these cases.
    """
    for name, numbers in (("points", points), ("anchors", anchors)):
        if numbers and min(numbers) < 1:
            raise ArteryError(f"--{name} must be at least 1, got {min(numbers)}")
    require_folder(out)
    out.mkdir(parents=True, exist_ok=True)  # an error now, not after all predictions
    config = runs.load_config(folder)
    if config.experiment != "flows":
        raise ArteryError(f"{folder} is a run of the {config.experiment} experiment, not of flows")
    changes = ["train.cuda_graph=false", *([f"device={device}"] if device else [])]
    changes += [f"data.options.test_limit={limit}"] if limit else []
    other = {} if data is None else {"data.folder": str(data)}
    changes += [f"{key}={toml.literal(value)}" for key, value in other.items()]
    config = override(config, changes)
    task = FlowTask(config, distributed.join(config.device).device)
    model = runs.load_model(config).to(task.device).eval()
    vessels = task.test_vessels()
    most = max(x.shape[1] for x in vessels.kinds)
    if points and max(points) > most:
        raise ArteryError(
            f"the test vessels have {most:,} points of a kind, so --points {max(points)} is too "
            f"many; choose at most that, or make more points with `flashgatr data flows`"
        )
    least = min([*(x.shape[1] for x in vessels.kinds), *(points or [])])
    if anchors and max(anchors) > least:
        raise ArteryError(
            f"--anchors {max(anchors)} is too many: anchors are some of the points of the lumen "
            f"and of the wall, of which {least:,} are used; choose at most that, or more --points"
        )
    counts = [(n, n) for n in anchors] if anchors else [task.options.anchors]
    found = []
    for number in points or [0]:
        part = vessels.first(number)
        total = sum(x.shape[1] for x in part.kinds)
        for count in counts:
            about = {"points": total, "anchors": sum(count)}
            found.append(about | task.errors_at(model, vessels, number, count, progress))
            if record:
                own = found[-1] | {"train_vessels": _train_vessels(folder, task)}
                recording.record_run(config, {"test": own}, recording.name_of(folder), other)
    drawn = vessels.first(max(points) if points else 0)
    rows = torch.cat([x[0] for x in drawn.kinds])
    prediction = next(task.predictions(model, drawn, "float32", max(counts)))
    contents = {
        "errors.json": (json.dumps(found, indent=1) + "\n").encode(),
        "errors.png": draw_errors(found),
        "flow.png": draw_flow(vessels.names[0], rows.cpu(), prediction.cpu()),
    }
    for name, content in contents.items():
        files.write(out / name, content)
    return found, [out / name for name in contents]


def _train_vessels(folder: Path, task: FlowTask) -> int:
    """On how many vessels a run was trained; points from elsewhere do not tell."""
    stored = (runs.read_results(folder) or {}).get("results", {}).get("test", {})
    return stored.get("train_vessels") or task.train_vessels
