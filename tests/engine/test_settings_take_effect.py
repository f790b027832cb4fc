"""Every setting of the optimiser takes effect; models are evaluated in evaluation mode."""

import json
from pathlib import Path
from unittest import mock

import pytest
import torch

from flashgatr.experiments import results, sweep
from flashgatr.train.order import batch_indices
from flashgatr.train.trainer import fingerprint

from . import toy
from .toy import Toy, make, settings, train

PLAIN = dict(decay_every=1000, lr_final=1e-2, restore_best=False, clip=0.0) | dict(
    checkpoint_every=1000, validate_every=1000
)
"""Settings with which a run is plain Adam at the rate 1e-2."""


def _by_hand(*, steps=20, batch_size=8, seed=0, clip=0.0, ema=0.0, lr=1e-2, **adam):
    """The weights after these steps of torch's Adam, and their average."""
    task = Toy()
    x, y = task.x, task.y
    optimizer = torch.optim.Adam(task.model.parameters(), lr=lr, **adam)
    average = {name: p.detach().clone() for name, p in task.model.named_parameters()}
    for k in range(steps):
        optimizer.zero_grad()
        mine = batch_indices(seed, k, batch_size, len(x))
        (task.model(x[mine]) - y[mine]).square().mean().backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), clip)
        optimizer.step()
        for name, p in task.model.named_parameters():
            average[name] = ema * average[name] + (1 - ema) * p.detach()
    return average if ema else task.model.state_dict()


CHANGES = {
    "nothing": {},
    "weight_decay": dict(weight_decay=0.3),
    "betas": dict(betas=(0.5, 0.9)),
    "the first of betas": dict(betas=(0.2, 0.999)),
    "the second of betas": dict(betas=(0.9, 0.7)),
    "clip": dict(clip=0.05),
    "steps": dict(steps=7),
    "batch_size": dict(batch_size=3),
    "lr": dict(lr=3e-3, lr_final=3e-3),
    "ema": dict(ema=0.8),
}


@pytest.mark.parametrize("name", CHANGES)
def test_training_is_torchs_adam_with_these_settings(tmp_path, name):
    change = CHANGES[name]
    found = train(tmp_path, **(PLAIN | change)).weights()
    by_hand = {key: value for key, value in change.items() if key != "lr_final"}
    close = dict(rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found, _by_hand(**by_hand), **close)
    if change:  # and the change can be seen
        default = _by_hand()
        assert any(not torch.allclose(found[key], default[key], **close) for key in found)


def test_the_seed_chooses_the_batches(tmp_path):
    found = train(tmp_path, seed=5, **PLAIN).weights()
    torch.testing.assert_close(found, _by_hand(seed=5), rtol=1e-4, atol=1e-5)


class _Watched(Toy):
    """Notes in which mode the model is when it is used."""

    def __init__(self, **options):
        super().__init__(**options)
        self.modes = []

    def _note(self, what, model):
        modes = {module.training for module in model.modules()}
        assert len(modes) == 1
        self.modes.append((what, modes.pop()))

    def loss(self, model, batch):
        self._note("loss", model)
        return super().loss(model, batch)

    def validate(self, model):
        self._note("validate", model)
        return super().validate(model)

    def evaluate(self, model):
        self._note("evaluate", model)
        return super().evaluate(model)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_validation_and_evaluation_run_in_evaluation_mode_and_training_in_its_own(tmp_path, ema):
    with mock.patch.object(toy, "Toy", _Watched):
        trainer = train(tmp_path, toy=dict(dropout=0.5), ema=ema)
    modes = trainer.task.modes
    assert modes.count(("loss", True)) == 20
    assert modes.count(("validate", False)) == 4
    assert modes[-1] == ("evaluate", False)
    assert len(modes) == 25


def test_the_score_of_a_network_with_dropout_is_that_without_it(tmp_path):
    trainer = train(tmp_path, toy=dict(dropout=0.5), restore_best=False)
    model = trainer.task.model.eval()
    with torch.no_grad():
        score = (model(trainer.task.x) - trainer.task.y).square().mean().item()
    (last,) = [x for x in toy.lines(tmp_path, "validation") if x["step"] == 20]
    assert last["score"] == pytest.approx(score, rel=1e-5)


def test_the_optimiser_has_the_settings_of_the_run(tmp_path):
    trainer = make(settings(tmp_path, betas=(0.3, 0.6), weight_decay=0.07, lr=0.02))
    (group,) = trainer.optimizer.param_groups
    assert group["betas"] == (0.3, 0.6)
    assert group["weight_decay"] == 0.07
    assert float(group["lr"]) == pytest.approx(0.02)
    assert len(group["params"]) == len(list(trainer.task.model.parameters()))


def test_results_of_a_run_with_other_settings_are_not_recorded(tmp_path, monkeypatch):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[grid]\nseed = [0, 1, 2]\n")
    planned = sweep.plan(recipe, tmp_path / "runs")
    others = sweep.plan(recipe, tmp_path / "runs", ["train.lr=0.5"])
    written = {0: planned[0], 1: others[1]}  # 0 is finished, 1 is another run, 2 was not trained
    for number, run in written.items():
        found = {"run": fingerprint(run.config), "results": {"eval": {"mse": 10.0 + number}}}
        folder = Path(run.config.folder)
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(json.dumps(found))
    recorded = []
    monkeypatch.setattr(results, "record", lambda *given: recorded.append(given))
    assert sweep.record_results(planned, "recipe") == 1
    assert [(given[3], given[5]["seed"]) for given in recorded] == [(10.0, 0)]
    trained = []
    monkeypatch.setattr(sweep, "train", lambda config, resume: trained.append(config.seed))
    said = []
    sweep.execute(planned, said.append)
    assert said[0] == "1 of 3 runs are finished"
    assert trained == [1, 2]
