"""What `flashgatr predict` says of files that are no files and of nodes that nearly coincide."""

import os
from pathlib import Path

import numpy as np
import pytest

from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.vessel.model_input import read_vessel

from ..tubes import tube
from . import meshfiles


def with_split_nodes(position, face, count, gap):
    """Nodes doubled `gap` apart, with faces of no area between them, as by marching cubes."""
    points, faces = list(position.astype(np.float64)), face.tolist()
    used = set()
    for here in range(len(face)):
        a, b, c = faces[here]
        there = next(k for k, x in enumerate(faces) if a in x and b in x and k != here)
        (d,) = set(faces[there]) - {a, b}
        if len(points) - len(position) < count and not used & {a, b, c, d}:
            new = len(points)
            points.append(points[a] + gap)
            faces[here], faces[there] = [new, b, c], [b, new, d]
            faces += [[a, new, c], [new, a, d]]
            used |= {a, b, c, d}
    return np.array(points), np.array(faces)


@pytest.mark.parametrize(("gap", "at"), [(1e-16, "rim"), (1e-16, "wall"), (1e-9, "wall")])
def test_nodes_that_nearly_coincide_come_with_a_remedy(gap, at, tmp_path):
    mesh = tube(around=18, length=6.0)
    faces = mesh.face if at == "rim" else np.random.default_rng(0).permutation(mesh.face)
    position, face = with_split_nodes(mesh.position, faces, 20, gap)
    (tmp_path / "a.vtp").write_bytes(meshfiles.vtk(position, face))
    what = dict(rim="it has 1 ends", wall="have no normal")[at]
    told = rf"{what}.*20 pairs of its nodes nearly coincide, .*clean\(tolerance=[0-9]e-04\)"
    with pytest.raises(ArteryError, match=told):
        read_vessel(tmp_path / "a.vtp", inlet="0 0 0")


@pytest.mark.parametrize("suffix", ["stl", "vtp", "hdf5"])
def test_pipes_and_devices_are_refused(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "read_bytes", None)  # would wait for ever, or fill the memory
    pipe, device = tmp_path / f"pipe.{suffix}", tmp_path / f"device.{suffix}"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path in (pipe, device):
        with pytest.raises(ArteryError, match="neither a file nor a folder"):
            read_vessel(path)
