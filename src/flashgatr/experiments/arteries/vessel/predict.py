"""`flashgatr predict arteries RUN MESH`: predicts the stress on the wall of a vessel.

It writes a .vtp file for ParaView and a picture. The file has the nodes of the wall, in the units
and at the position of the mesh, with these arrays: wss (vectors, dyn/cm²), wss_magnitude, geodesic
(cm from the inlet of the mesh), inside (1: at least one diameter away from the ends of what the
model sees), and, for a mesh with labels, wss_reference and wss_error. Its field data say where it
comes from; a prediction of another origin is never replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ....anchored import Progress
from ....io import files
from ....train import distributed
from ....train.precision import set_precision
from ....train.settings import RunConfig, override
from ... import runs
from ..anchoring import AnchorChoice, anchored
from ..data.mesh import Array, ArteryError, Mesh, kept_faces
from ..inference import predict_meshes
from ..metrics import MeshErrors, mesh_errors
from ..models import GATrArteries, SEGNNArteries
from ..unconstrained import AnyLinear
from . import vtkxml
from .model_input import REFERENCE, Vessel, read_vessel
from .origin import Origin, find_origin
from .surface import MOST, require_at_most

ATTENDED = 200_000
"""Most nodes of a mesh on which every node attends to every other; the time grows as the square."""
WAY_OUT = "let them attend to a few of them with --anchors 1024, or "


@dataclass(frozen=True)
class Prediction:
    """The predicted stress at the nodes of a file's mesh."""

    mesh: Mesh  # in cm; with the labels, if there are any
    position: Array  # (N, 3) float64, as in the file
    wss: Array  # (N, 3) float32, dyn/cm²
    errors: MeshErrors | None
    vessel: Vessel

    @property
    def magnitude(self) -> Array:
        return np.asarray(np.linalg.norm(self.wss, axis=1))

    @property
    def geodesic(self) -> Array:
        """Distances (N,) from the inlet of the file, cm. Those of the model include added
        extensions.
        """
        return np.asarray(self.mesh.geodesic - np.float32(self.vessel.start))

    def rows(self) -> list[tuple[str, str]]:
        """The table that the command prints: names and values."""
        seen = self.magnitude[self.mesh.mask]
        found = [
            ("nodes", f"{self.mesh.nodes:,}, {int(self.mesh.mask.sum()):,} of them inside"),
            ("inlet", self.vessel.inlet),
            ("inlet diameter", f"{self.mesh.inlet_diameter:.4g} cm"),
            ("unit of the mesh", self.vessel.unit),
            ("mean |wss| inside", f"{seen.mean():.4g} dyn/cm²"),
            ("largest |wss| inside", f"{seen.max():.4g} dyn/cm²"),
        ]
        if self.errors is not None:
            found.append(("ε against the labels", f"{self.errors.epsilon:.2f} %"))
        return found


def load(run: Path, *, device: str = "", both_signs: bool = False) -> tuple[nn.Module, RunConfig]:
    """The trained model of an artery run, on its device, and its settings."""
    config = runs.load_config(run)
    if config.experiment != "arteries":
        raise ArteryError(f"{run} is a run of the {config.experiment} experiment, not of arteries")
    if device:
        config = override(config, ["train.cuda_graph=false", f"device={device}"])  # no training
    model: Any = runs.load_model(config)
    if both_signs:
        if not isinstance(model, GATrArteries) or not is_equivariant(model):
            raise ArteryError(f"--both-signs is for GATr, not for {config.model.name}")
        model.both_signs = not model.net.config.is_typed  # types make one pass exact
    return model.to(distributed.join(config.device).device).eval(), config


def is_equivariant(model: nn.Module) -> bool:
    """Whether predictions rotate and move with the mesh; False for models that are not ours."""
    is_free = any(isinstance(layer, AnyLinear) for layer in model.modules())
    return isinstance(model, GATrArteries | SEGNNArteries) and not is_free


def predict_vessel(
    model: nn.Module,
    vessel: Vessel,
    anchors: AnchorChoice | None = None,
    progress: Progress | None = None,
) -> Prediction:
    """The stress on the nodes that come from the file."""
    found = stress(model, vessel.mesh, anchors, progress)
    own = vessel.origin >= 0
    mesh = part(vessel.mesh, own)
    errors = None
    if mesh.wss is not None:
        errors = mesh_errors(*map(torch.from_numpy, (found[own], mesh.wss, mesh.mask)))
    return Prediction(mesh, vessel.position[own], found[own], errors, vessel)


def stress(
    model: nn.Module,
    mesh: Mesh,
    anchors: AnchorChoice | None = None,
    progress: Progress | None = None,
) -> Array:
    """The stress (N, 3) at all nodes of a prepared mesh, dyn/cm².

    anchors: the nodes that all nodes attend to; None for attention among all nodes.
    Files, preparation and output do not depend on how the network computes it.
    """
    if anchors is None:
        require_at_most(mesh.nodes, ATTENDED, WAY_OUT)
    set_precision("float32")
    device = next(model.parameters()).device
    found = next(predict_meshes(model, [mesh], device, anchors=anchors, progress=progress)).numpy()
    if not np.isfinite(found).all():
        raise ArteryError(f"the model's predictions on {mesh.name} are not finite")
    return np.asarray(found)


def part(mesh: Mesh, keep: Array) -> Mesh:
    """Some nodes of a mesh, and the faces between them."""
    assert mesh.face is not None
    return replace(
        mesh,
        position=mesh.position[keep],
        normal=mesh.normal[keep],
        geodesic=mesh.geodesic[keep],
        mask=mesh.mask[keep],
        wss=None if mesh.wss is None else mesh.wss[keep],
        face=kept_faces(mesh.face, keep),
        levels=None,
    )


def save(
    prediction: Prediction,
    folder: Path,
    source: Path | None = None,
    origin: Origin | None = None,
) -> list[Path]:
    """Write FOLDER/NAME.vtp and FOLDER/NAME.png and return where they are (see `targets`)."""
    from .prediction_picture import picture  # matplotlib

    mesh = prediction.mesh
    fields = {
        "wss": prediction.wss,
        "wss_magnitude": prediction.magnitude,
        "geodesic": prediction.geodesic,
        "inside": mesh.mask.astype(np.uint8),
    }
    if mesh.wss is not None:
        fields[REFERENCE] = mesh.wss
        fields["wss_error"] = np.linalg.norm(prediction.wss - mesh.wss, axis=1)
    assert mesh.face is not None
    about = None if origin is None else origin.fields()
    contents = [
        vtkxml.write(prediction.position, mesh.face, fields, about),
        picture(mesh, prediction.wss),
    ]
    written = targets(folder, mesh.name, source, origin)
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in zip(written, contents, strict=True):
        files.write(path, content)
    return written


def targets(
    folder: Path, name: str, source: Path | None = None, origin: Origin | None = None
) -> list[Path]:
    """FOLDER/NAME.vtp and FOLDER/NAME.png; an error if they exist and are not our predictions.

    Predictions of another origin are kept: the name is then NAME-2, NAME-3, and so on.
    """
    require_folder(folder)
    for number in count(1):
        chosen = name if number == 1 else f"{name}-{number}"
        file, image = (folder / f"{chosen}{suffix}" for suffix in (".vtp", ".png"))
        _require_ours(file, image, source)
        if origin is None or not file.exists():
            break
        if origin.is_of_the_same(vtkxml.read_about(file)):
            break
    return [file, image]


def _require_ours(file: Path, image: Path, source: Path | None) -> None:
    """Refuse to replace files that are not predictions by this command."""
    other = "choose another folder with --out"
    if source is not None and file.exists() and source.exists() and file.samefile(source):
        raise ArteryError(f"{file} is the mesh itself; {other}")
    if not file.exists():
        if image.exists():
            raise ArteryError(f"{image} is there without a prediction beside it; {other}")
    elif not (file.is_file() and vtkxml.is_ours(file)):
        raise ArteryError(f"{file} is there and not a prediction by this command; {other}")


def require_folder(folder: Path) -> None:
    """Refuse a folder that cannot be created because a file has its name."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ArteryError(f"--out must be a folder, but {there} is a file")


def run(
    folder: Path,
    file: Path,
    out: Path,
    *,
    device: str = "",
    both_signs: bool = False,
    anchors: AnchorChoice | None = None,
    extensions: str = "auto",
    progress: Progress | None = None,
    **options: Any,
) -> tuple[Prediction, list[str], list[Path]]:
    """Predict and write the files; returns the prediction, notes on it, and the paths."""
    require_folder(out)
    model, config = load(folder, device=device, both_signs=both_signs)
    if anchors is not None:
        anchored(model)  # a model that cannot have them is refused before the preparation
    limit: dict[str, Any] = {"most": MOST} if anchors else {"most": ATTENDED, "way_out": WAY_OUT}
    vessel = read_vessel(file, extensions=extensions, **limit, **options)
    targets(out, vessel.mesh.name, file)
    asked: dict[str, Any] = {"extensions": extensions, "both_signs": both_signs}
    origin = find_origin(folder, file, vessel, anchors, **asked)
    notes = list(vessel.notes)
    if not is_equivariant(model):
        notes.append(
            f"{config.model.name} may predict something else for a mesh that is moved or turned; "
            "the published vessels begin at the origin and run along x"
        )
    prediction = predict_vessel(model, vessel, anchors, progress)
    written = save(prediction, out, file, origin)
    if written[0].stem != vessel.mesh.name:
        notes.append(
            f"{out / vessel.mesh.name}.vtp is kept, a prediction for another mesh, by another "
            f"network or with other options; this one is {written[0].name}"
        )
    return prediction, notes, written
