"""Where a prediction comes from: its mesh, its network and the version, stored in its file."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .... import io
from ....version import __version__
from ..anchoring import AnchorChoice
from ..data import raw
from .model_input import Vessel

ALL = "all nodes"


@dataclass(frozen=True)
class Origin:
    """What a written file says about itself, as VTK's field data."""

    mesh: str  # name of the file, or of the folder with the samples
    sample: str  # name of the vessel: the mesh's stem, or the sample's
    mesh_sha256: str  # of the file
    run: str  # folder
    network_sha256: str  # of the file with the weights
    unit: str  # of the mesh
    inlet: str
    anchors: str = ALL  # the nodes that all nodes attend to
    extensions: str = "auto"  # what was asked for
    both_signs: str = "no"
    flashgatr: str = __version__

    def fields(self) -> dict[str, str]:
        return asdict(self)

    def is_of_the_same(self, fields: Mapping[str, str]) -> bool:
        """Whether a file with these field data has the same mesh, network and options.

        The name of the mesh, the folder of the run and the version may differ. A file of an earlier
        version lacks some options, which had their defaults then.
        """
        defaults = {x.name: x.default for x in dataclasses.fields(self)}
        names = defaults.keys() - {"mesh", "run", "flashgatr"}
        return all(fields.get(name, defaults[name]) == getattr(self, name) for name in names)


def find_origin(
    run: Path,
    path: Path,
    vessel: Vessel,
    anchors: AnchorChoice | None = None,
    *,
    extensions: str = "auto",
    both_signs: bool = False,
) -> Origin:
    """The origin of the prediction of a run on the vessel read from `path` with these options."""
    name = vessel.mesh.name
    file = raw.sample_file(path, name) if path.is_dir() else path
    return Origin(
        mesh=path.resolve().name,
        sample=name,
        mesh_sha256=_sha256(file),
        run=str(run.resolve()),
        network_sha256=_sha256(run / "model" / io.WEIGHTS),
        unit=vessel.unit,
        inlet=vessel.inlet,
        anchors=ALL if anchors is None else str(anchors),
        extensions=extensions,
        both_signs="yes" if both_signs else "no",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
