"""A task of a few milliseconds: a small network with blocks and dropout fits random numbers."""

import os

import torch
from torch import nn

from flashgatr.experiments.config import RunConfig, TrainConfig
from flashgatr.train import Trainer
from flashgatr.train.distributed import World
from flashgatr.train.log import read

CPU = torch.device("cpu")


class Network(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + self.dropout(block(x.tanh()))
        return self.last(x)


class Toy:
    """The task, with accidents.

    `poison`: value of the inputs of some steps' batches.  `scores`: what validation says, in turn.
    `signals`: step → signal that this process gets while that step's batch is made.
    """

    samples = 64

    def __init__(self, *, dropout=0.0, poison=None, scores=None, signals=None, device=CPU):
        torch.manual_seed(0)
        self.model = Network(dropout)
        self.x = torch.randn(self.samples, 3).to(device)
        self.y = self.x.square().sum(-1, keepdim=True)
        self.poison, self.scores, self.signals = poison or {}, scores, signals or {}
        self.validated = []
        self.trainer = None

    def batch(self, indices):
        step = self.trainer.step
        if step in self.signals:
            os.kill(os.getpid(), self.signals[step])
        mine = indices.to(self.x.device)
        return self.x[mine] * self.poison.get(step, 1.0), self.y[mine]

    def loss(self, model, batch):
        x, y = batch
        loss = (model(x) - y).square().mean()
        return loss, {}

    def validate(self, model):
        self.validated.append({name: x.clone() for name, x in model.state_dict().items()})
        with torch.no_grad():
            score = (model(self.x) - self.y).square().mean().item()
        return {"score": self.scores[len(self.validated) - 1] if self.scores else score}

    def evaluate(self, model):
        with torch.no_grad():  # with random numbers, as a sampling task would
            return {"loss": model(self.x + torch.randn_like(self.x)).square().mean().item()}


class Follower(Toy):
    """The task with learning rates of its parts, and a weight's average that follows each step."""

    rate_factors = {"blocks": 0.25, "last.bias": 3.0}  # noqa: RUF012

    def __init__(self, **options):
        super().__init__(**options)
        self.model.register_buffer("target", self.model.last.weight.detach().clone())

    def after_step(self):
        self.model.target.lerp_(self.model.last.weight.detach(), 0.3)


def settings(folder, seed=0, **train):
    """A short run; `train` changes its training section."""
    few = dict(steps=20, batch_size=8, lr=1e-2, lr_final=1e-3, decay_every=5, log_every=1)
    few |= dict(checkpoint_every=5, validate_every=5)
    return RunConfig(
        folder=str(folder), seed=seed, device="auto", train=TrainConfig(**(few | train))
    )


def make(config, world=None, **toy):
    task = Toy(**toy)
    task.trainer = trainer = Trainer(task, config, world or World(0, 1, CPU))
    return trainer


def train(folder, *, seed=0, toy=None, world=None, **changes):
    """Run to the end; returns the trainer, whose model has its final weights."""
    trainer = make(settings(folder, seed, **changes), world, **(toy or {}))
    trainer.summary = trainer.run()
    return trainer


def lines(folder, kind=None):
    """The log without its times."""
    found = [{k: v for k, v in line.items() if k != "seconds"} for line in read(folder)]
    return [line for line in found if kind is None or line["kind"] == kind]


def outcome(trainer):
    """All results that must not depend on interruptions, in a form that compares bit by bit."""
    weights = {name: x.numpy().tobytes() for name, x in trainer.weights().items()}
    return weights, trainer.summary, lines(trainer.folder)
