"""Runs with random weights, and predictions on surfaces that go through a file."""

from pathlib import Path

import numpy as np
import torch

from flashgatr import io
from flashgatr.experiments import runs, table
from flashgatr.experiments.arteries import models
from flashgatr.experiments.arteries.vessel import model_input
from flashgatr.experiments.arteries.vessel import predict as prediction
from flashgatr.experiments.config import override, save

from . import meshfiles

SAMPLE = Path(__file__).parents[1] / "fixture" / "sample_0001.hdf5"
SMALL = ["num_blocks=2", "hidden_mv_channels=4", "hidden_s_channels=8", "num_heads=2"]


def make_run(folder, *changes):
    """A run with random weights."""
    others = ("transformer", "segnn", *models.ON_SURFACES)
    is_gatr = not any(f"model.name={name}" in changes for name in others)
    small = [f"model.options.{x}" for x in SMALL] if is_gatr else []
    config = override(runs.defaults("arteries"), [*small, "device=cpu", *changes])
    torch.manual_seed(0)
    model = table.find(config.experiment).build(config.model.name, dict(config.model.options))
    with torch.no_grad():
        for x in model.parameters():
            x += 0.2 * torch.randn_like(x)
    folder.mkdir(parents=True)
    save(config, folder / "config.toml")
    kind = f"{config.experiment}/{config.model.name}"
    io.save(folder / "model", kind, dict(config.model.options), model.state_dict())
    return folder


def predicted(model, folder, position, face, inlet, kind="vtp", **options):
    """The prediction on a surface that goes through a file."""
    writer = dict(vtp=meshfiles.vtk, stl=meshfiles.stl, ply=meshfiles.ply_text)[kind]
    (folder / f"a.{kind}").write_bytes(writer(position, face))
    return prediction.predict_vessel(
        model, model_input.read_vessel(folder / f"a.{kind}", inlet=inlet, **options)
    )


def difference(one, other, turn=None, place=lambda x: x):
    """Difference of two predictions at their common nodes, relative to the second."""
    there = {tuple(np.round(x, 3)): k for k, x in enumerate(place(other.position) + 0.0)}
    pairs = [(k, there.get(tuple(np.round(x, 3) + 0.0))) for k, x in enumerate(one.position)]
    mine, theirs = np.array([pair for pair in pairs if pair[1] is not None]).T
    assert len(mine) > 0.97 * max(one.mesh.nodes, other.mesh.nodes)
    before = other.wss[theirs] @ (np.eye(3) if turn is None else turn.T)
    return np.linalg.norm(one.wss[mine] - before) / np.linalg.norm(before)
