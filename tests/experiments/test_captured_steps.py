"""The part of a training step that is captured as a CUDA graph, of every model that is: gathering
the batch, changing it at random, the loss and its gradients. None of it waits for the device.
"""

from dataclasses import replace

import pytest
import torch

from flashgatr.experiments import runs, table
from flashgatr.experiments.arteries import models as on_walls
from flashgatr.experiments.arteries import task as arteries
from flashgatr.experiments.charges import task as charges
from flashgatr.experiments.charges.data import simulate
from flashgatr.experiments.charges.simulate import STANDARD
from flashgatr.experiments.charges.simulate import State as Charges
from flashgatr.experiments.config import override
from flashgatr.experiments.nbody import task as nbody

from ..arteries.walls import chosen, walls
from .test_baseline_steps import never_waits

CPU = torch.device("cpu")
GATR = dict(num_blocks=1, hidden_mv_channels=4, hidden_s_channels=8, num_heads=2)
SMALL = {
    "segnn": dict(num_layers=1, hidden_channels=8),
    "se3_transformer": dict(num_layers=1, hidden_channels=4, max_degree=1),
    "transformer": dict(num_blocks=1, hidden_channels=16, num_heads=2),
    "gca_gnn": dict(hidden_channels=3, message_channels=4, mlp_channels=5, steps=2),
    "gca_mlp": dict(hidden=4),
    "mlp": dict(hidden=8),
}
WIDTHS = {"gatr_e3_wide", "gatr_narrow", "gatr_shallow"}
"""Models whose names say some of their sizes: these are left as they are."""
CASES = [
    (experiment, name)
    for experiment in ("nbody", "charges", "arteries")
    for name in sorted(table.find(experiment).get("models"))
    if not (experiment == "arteries" and name in on_walls.ON_SURFACES)
]
OPTIONS = {
    "nbody": [dict(scaling=0.3, huber=0.01)],
    "charges": [dict(flip_charges=True, rotate=True, reverse_time=True)],
    "arteries": [
        dict(nodes=40, augment=True, loss="epsilon"),
        dict(nodes=40, loss="mse"),
        dict(augment=True, loss="l1"),
    ],
}
FROZEN = {"charges": ["model.options.moving_frame=true"]}
"""Settings that all recipes of the experiment have."""


def settings(experiment, name, options):
    model = {} if name in WIDTHS else SMALL.get(name, GATR)
    if name == "gatr_no_scalars":
        model = {key: x for key, x in model.items() if key != "hidden_s_channels"}
    own = [f"model.options.{key}={x}" for key, x in model.items()]
    own += [f"data.options.{key}={str(x).lower()}" for key, x in options.items()]
    own += [f"model.name={name}", "train.precision=float32", "data.train_samples=6"]
    return override(runs.defaults(experiment), [*own, *FROZEN.get(experiment, ())])


@pytest.fixture
def without_files(monkeypatch):
    """Made-up systems and walls stand in for those of a folder."""
    torch.manual_seed(0)
    position, velocity, target = torch.randn(3, 6, 4, 3).double()
    bodies = dict(mass=torch.rand(6, 4), position=position, velocity=velocity, target=target)
    settings = replace(STANDARD["charges"], input_step=2, horizons=(1000,))
    start = (torch.rand(6, 5) - 0.5).sign(), *torch.randn(2, 6, 5, 3)
    found = simulate(Charges(*(x.double().numpy() for x in start)), settings)._asdict()
    particles = {key: torch.tensor(x) for key, x in found.items()}
    particles |= {key: particles[key][:, 0] for key in ("target", "leaving")}
    monkeypatch.setattr(nbody, "load", lambda *given: bodies)
    monkeypatch.setattr(charges, "load", lambda *given: particles)
    for module in (nbody, charges):
        monkeypatch.setattr(module, "require", lambda *given: None)
    monkeypatch.setattr(arteries, "load", walls)
    monkeypatch.setattr(arteries, "choose", chosen)


@pytest.mark.usefixtures("without_files")
@pytest.mark.parametrize(("experiment", "name"), CASES, ids=[f"{e} {name}" for e, name in CASES])
def test_what_is_captured_does_not_wait_for_the_device(experiment, name):
    for options in OPTIONS[experiment]:
        task = table.find(experiment).get("task")(settings(experiment, name, options), CPU)
        numbers = torch.tensor([0, 3, 4])
        assert task.samples >= 6
        parts = [numbers]
        if not task.gathers_on_device:
            parts = [part for part, _ in task.parts(numbers)]
            assert len(parts) == 2

        def step(part, task=task):
            batch = task.batch(part) if task.gathers_on_device else part
            loss, _ = task.loss(task.model, batch)
            loss.backward()
            return loss

        step(parts[0])  # the data go to the device, and GATr looks at its input, before the capture
        with never_waits():
            *_, loss = map(step, parts)
        assert loss.isfinite()
        assert any(p.grad is not None and p.grad.any() for p in task.model.parameters())
