"""What do anchors cost in accuracy? The trained artery network on the published test meshes.

The stress is predicted at all nodes, by full attention and with anchors. `epsilon_mean` is the mean
of ε over the meshes, for each seed of the anchors. The setting `meshes` says how many meshes.

The meshes are those in FLASHGATR_ARTERIES (default data/arteries). FLASHGATR_MESHES limits them to
the first ones. Cases that the results have already, for the same network and number of meshes and
threads, are not computed again, so that a long measurement can be continued. The setting `network`
is the beginning of the SHA-256 of the file with the network's weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .... import io
from ... import results, shipped
from ...arteries.anchoring import AnchorChoice
from ...arteries.data.mesh import Mesh
from ...arteries.data.orientation import orientations, turned
from ...arteries.data.sets import load as load_meshes
from ...arteries.inference import predict_meshes
from ...arteries.metrics import mesh_errors, summarise
from ...arteries.vessel.predict import load
from ..timing import CaseReport, Found, pick_device

NAME = "anchored-accuracy"
NETWORK = "pretrained:arteries"
COUNTS, SEEDS = (512, 1024), range(5)
ORIENTATION = "random"


def cases() -> Iterator[AnchorChoice | None]:
    """None for full attention; the most important cases come first."""
    yield None
    for method in ("medoids", "farthest"):
        for seed in SEEDS:
            for count in COUNTS:
                yield AnchorChoice(count, method, seed=seed)
    for weighted, method in ((True, "random"), (False, "random"), (False, "farthest")):
        for count in COUNTS:
            yield AnchorChoice(count, method, weighted)  # type: ignore[arg-type]


def run() -> None:
    data = Path(os.environ.get("FLASHGATR_ARTERIES", "data/arteries"))
    limit = int(os.environ.get("FLASHGATR_MESHES", "0")) or None
    found = load_meshes(data, "test", limit=limit, division="original")
    matrices = orientations(found, ORIENTATION)
    meshes = [turned(mesh, matrix) for mesh, matrix in zip(found, matrices, strict=True)]
    device = pick_device()
    run_folder = shipped.find(Path(NETWORK))
    model, _ = load(run_folder, device=device.type)
    common = {"precision": "float32", "meshes": len(meshes), "network": network_of(run_folder)}
    report = CaseReport(NAME, keep=True, **common)
    known = recorded()
    for choice in cases():
        settings = settings_of(choice)
        if report.common | settings not in known:
            report.run("gatr", settings, lambda c=choice: measured(model, meshes, c, device))  # type: ignore[misc]
    report.show()


def settings_of(choice: AnchorChoice | None) -> dict[str, Any]:
    """The settings of a case, by which its result is found again."""
    if choice is None:
        return {"anchors": "all nodes"}
    given = asdict(choice)
    return {"anchors": given.pop("count"), **given}


def network_of(run: Path) -> str:
    """Which network a run has: the first digits of the hash of its weights."""
    return hashlib.sha256((run / "model" / io.WEIGHTS).read_bytes()).hexdigest()[:12]


def measured(
    model: nn.Module, meshes: list[Mesh], choice: AnchorChoice | None, device: torch.device
) -> Found:
    """The mean of ε over the meshes."""
    errors = [
        mesh_errors(found, torch.from_numpy(mesh.wss), torch.from_numpy(mesh.mask))
        for found, mesh in zip(
            predict_meshes(model, meshes, device, anchors=choice), meshes, strict=True
        )
    ]
    return Found({"epsilon_mean": summarise(errors)["epsilon_mean"]})


def recorded() -> list[dict[str, Any]]:
    """The settings of the cases that were measured on this machine."""
    file = results.FOLDER / f"{NAME}.jsonl"
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return [line["settings"] for line in lines if line["machine"] == results.machine()]
