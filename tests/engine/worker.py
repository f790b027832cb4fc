"""One process of several (torchrun): runs of a small GATr, as a JSON file lists them."""

import json
import os
import signal
import sys
import warnings

import torch

from flashgatr import GATr, embed_point, extract_point
from flashgatr.experiments import config as configuration
from flashgatr.train import Trainer, distributed
from flashgatr.train.distributed import World


class Springs(torch.nn.Module):
    """Points in, points out."""

    def __init__(self):
        super().__init__()
        self.net = GATr(
            in_mv_channels=1, out_mv_channels=1, in_s_channels=0, out_s_channels=0,
            hidden_mv_channels=2, hidden_s_channels=4, num_blocks=1, num_heads=2,
        )  # fmt: skip

    def forward(self, x):
        return extract_point(self.net(embed_point(x).unsqueeze(-2))[0][..., 0, :])


class SpringTask:
    """Move every point towards its neighbour.

    In step `nan`, the last process's data are NaN; in step `stop`, it gets a signal.
    """

    samples = 50

    def __init__(self, world, *, dtype, nan, stop):
        torch.manual_seed(0)
        self.dtype = getattr(torch, dtype)
        self.model = Springs().to(self.dtype)
        self.x = torch.randn(self.samples, 3, 3, dtype=torch.float64)
        self.y = self.x + 0.2 * (self.x.roll(1, -2) - self.x)
        self.nan, self.stop, self.is_last = nan, stop, world.rank == world.size - 1
        self.trainer = None

    def batch(self, indices):
        step = self.trainer.step
        if self.is_last and step == self.stop:
            os.kill(os.getpid(), signal.SIGTERM)
        factor = torch.nan if self.is_last and step == self.nan else 1.0
        return self.x[indices].to(self.dtype) * factor, self.y[indices].to(self.dtype)

    def loss(self, model, batch):
        x, y = batch
        return (model(x) - y).square().mean(), {}

    @torch.no_grad()
    def validate(self, model):
        data = (self.x.to(self.dtype), self.y.to(self.dtype))
        return {"score": self.loss(model, data)[0].item()}

    def evaluate(self, model):
        return self.validate(model)


def run(settings, world, *, dtype="float64", nan=-1, stop=-1):
    """Train as configured; the exit code."""
    task = SpringTask(world, dtype=dtype, nan=nan, stop=stop)
    task.trainer = Trainer(task, configuration.from_dict(settings), world)
    try:
        task.trainer.run()
    except SystemExit as end:
        return end.code
    return 0


def alone(settings, **options):
    return run(settings, World(0, 1, torch.device("cpu")), **options)


if __name__ == "__main__":
    signal.alarm(150)  # torchrun's own shutdown would leave a hanging process
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    world = distributed.join("cpu")
    codes = [run(settings, world, **options) for settings, options in json.loads(sys.argv[1])]
    distributed.leave()
    print(f"exit codes {codes} in process {world.rank}", flush=True)
