"""A user's experiment in a file of its own: points on springs, and where they settle."""

import json
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from flashgatr.experiments.experiment import Experiment, Metric


class Springs(NamedTuple):
    start: Tensor
    end: Tensor
    weight: Tensor | None = None


def linear(bias: bool = True):
    return nn.Linear(3, 3, bias=bias)


class SpringTask:
    samples = 24
    option_defaults = {"stiffness": 0.5}  # noqa: RUF012

    def __init__(self, config, device):
        options = self.option_defaults | config.data.options
        torch.manual_seed(config.seed)
        self.model = EXPERIMENT.build(config.model.name, config.model.options)
        file = Path(config.data.folder) / "springs.json"
        start = torch.tensor(json.loads(file.read_text()))
        self.all = Springs(start.to(device), (options["stiffness"] * start).to(device))

    def batch(self, indices):
        return Springs(self.all.start[indices], self.all.end[indices])

    def loss(self, model, batch):
        return (model(batch.start) - batch.end).square().mean(), {}

    @torch.no_grad()
    def validate(self, model):
        return {"score": self.loss(model, self.all)[0].item()}

    @torch.no_grad()
    def evaluate(self, model):
        return {"test": {"mse": self.loss(model, self.all)[0].item(), "springs": self.samples}}


def data(folder: Path = Path("data/springs"), seed: int = 0) -> None:
    """Draw the springs."""
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "springs.json").write_text(json.dumps(torch.randn(24, 3).tolist()))


EXPERIMENT = Experiment(
    "springs",
    task=SpringTask,
    models={"linear": linear},
    defaults={
        "device": "cpu",
        "model": {"name": "linear"},
        "train": {"steps": 6, "batch_size": 8, "lr": 1e-2, "lr_final": 1e-3, "validate_every": 3},
    },
    metrics={"mse": Metric("mse", "length²", ".2e")},
    count="springs",
    data=data,
)
