"""What the n-body models see and return, in numbers; which systems train and which validate."""

import pytest
import torch
from torch import nn

from flashgatr import GATrConfig
from flashgatr.experiments.config import RunConfig, override
from flashgatr.experiments.nbody import EXPERIMENT
from flashgatr.experiments.nbody.data import generate, load
from flashgatr.experiments.nbody.models import GATrNBody
from flashgatr.experiments.nbody.task import NBodyTask

MASS = torch.tensor([[2.0, 0.5]])
POSITION = torch.tensor([[[1.0, 2.0, 3.0], [-1.0, 0.5, 4.0]]])
VELOCITY = torch.tensor([[[0.2, -0.4, 0.6], [1.0, 2.0, -3.0]]])
SYSTEM = MASS, POSITION, VELOCITY


class _Stub(nn.Module):
    """Notes its input; returns the multivectors and scalars it was made with."""

    def __init__(self, mv, s):
        super().__init__()
        self.mv, self.s = mv, s
        self.config = GATrConfig(in_mv_channels=1, out_mv_channels=1, hidden_mv_channels=1)

    def forward(self, mv, s):
        self.seen = mv, s
        return self.mv, self.s


def test_a_body_is_its_mass_its_point_and_a_translation_by_its_velocity():
    stub = _Stub(torch.ones(1, 2, 1, 16), torch.zeros(1, 2, 1))
    GATrNBody(stub)(MASS, POSITION, VELOCITY)
    mv, s = stub.seen
    assert mv.shape == (1, 2, 1, 16)
    assert s.shape == (1, 2, 1)
    assert not s.any()
    # 1 | e0 e1 e2 e3 | e01 e02 e03 e12 e13 e23 | e012 e013 e023 e123 | e0123
    expected = [
        [3.0, 0, 0, 0, 0, -0.1, 0.2, -0.3, 0, 0, 0, -3.0, 2.0, -1.0, 1.0, 0],
        [1.5, 0, 0, 0, 0, -0.5, -1.0, 1.5, 0, 0, 0, -4.0, 0.5, 1.0, 1.0, 0],
    ]
    torch.testing.assert_close(mv[0, :, 0], torch.tensor(expected))


def test_the_regulariser_counts_the_distance_of_the_weight_from_one_with_either_sign():
    mv = torch.zeros(2, 2, 1, 16)
    mv[..., 14] = torch.tensor([[1.0, -1.0], [3.0, -0.5]])[..., None]
    mv[1, 0, 0, 11:14] = torch.tensor([3.0, 6.0, -9.0])
    s = torch.tensor([[[0.0], [2.0]], [[0.5], [0.0]]])
    position, regulariser = GATrNBody(_Stub(mv, s))(*(x.expand(2, *x.shape[1:]) for x in SYSTEM))
    systems = (0 + 0 + 4.0), (2.0**2 + 0.5**2 + 0.25)  # |weight| - 1 squared, scalars squared
    assert regulariser.item() == pytest.approx(sum(systems) / 2)
    torch.testing.assert_close(position[1, 0], torch.tensor([3.0, 2.0, -1.0]))


SMALL = {
    "gatr": dict(num_blocks=2, hidden_mv_channels=4, hidden_s_channels=8, num_heads=2),
    "transformer": dict(num_blocks=2, hidden_channels=16, num_heads=2),
    "mlp": dict(bodies=2, hidden=16, layers=2),
}
RECORDED = {
    "gatr": (
        [1.07367281, 2.055228643, 2.963199699, -1.06921848, 0.4484775626, 4.033823623],
        4.871644477,
    ),
    "transformer": (
        [2.037294478, 0.8651651784, -2.781687493, 2.486845527, 0.5748190857, -2.954644373],
        0.0,
    ),
    "mlp": (
        [0.2873624407, -0.09563168283, 0.07842961484, 0.02780384481, -0.3813811389, 0.399868428],
        0.0,
    ),
}
"""Predicted positions and the regulariser, computed in float64."""


def _fixed(model):
    """Weights that depend on no random numbers and no start values."""
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            numbers = torch.arange(p.numel(), dtype=torch.float64)
            p.copy_((0.4 * torch.sin(1.7 * numbers + k + 1)).reshape(p.shape))
    return model


@pytest.mark.parametrize("name", SMALL)
def test_a_model_with_fixed_weights_gives_the_recorded_output(name):
    model = _fixed(EXPERIMENT.build(name, SMALL[name]).double()).eval()
    position, regulariser = model(*(x.double() for x in SYSTEM))
    expected, penalty = RECORDED[name]
    assert position.flatten().tolist() == pytest.approx(expected, rel=1e-6)
    assert regulariser.item() == pytest.approx(penalty, rel=1e-6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("nbody")
    generate(found, train=12, others=10, workers=1)
    return found


def _task(folder, *changes):
    small = ["model.options.num_blocks=1", "model.options.hidden_s_channels=8"]
    config = override(RunConfig(), [f"data.folder='{folder}'", *small, *changes])
    return NBodyTask(config, torch.device("cpu"))


class _Stays(nn.Module):
    """The guess that nothing moves; notes the positions it is asked for."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, mass, position, velocity):
        self.seen.append(position)
        return position, position.new_zeros(())


def _score(data):
    """Mean squared error of the guess that nothing moves."""
    return (data["position"] - data["target"]).square().mean().item()


def test_validation_is_on_the_validation_set(folder):
    model = _Stays()
    found = _task(folder).validate(model)
    val = load(folder, "val")
    torch.testing.assert_close(torch.cat(model.seen), val["position"].float())
    assert found["score"] == pytest.approx(_score(val), rel=1e-5)
    for other in ("train", "eval", "translated"):  # which would be noticed
        assert abs(_score(load(folder, other)) / found["score"] - 1) > 1e-3


def test_evaluation_is_on_the_evaluation_sets_and_not_on_those_of_training(folder):
    found = _task(folder).evaluate(_Stays())
    assert set(found) == {"eval", "more_bodies", "translated", "eval_moved"}
    for name in ("eval", "more_bodies", "translated"):
        assert found[name]["mse"] == pytest.approx(_score(load(folder, name)), rel=1e-5)
    assert found["eval_moved"]["mse"] == pytest.approx(found["eval"]["mse"], rel=1e-3)


def test_every_system_has_its_own_error_in_the_order_of_the_file_whatever_the_chunks(folder):
    val = load(folder, "val")
    moved = (val["position"] - val["target"]).square().mean((-2, -1))
    for chunk in (4, 10, 1000):
        found = _task(folder).errors(_Stays(), val, chunk)
        torch.testing.assert_close(found, moved, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(("limit", "samples"), [(0, 12), (5, 5), (12, 12)])
def test_train_samples_limits_the_training_systems_to_the_first_ones(folder, limit, samples):
    task = _task(folder, f"data.train_samples={limit}")
    assert task.samples == samples
    batch = task.batch(torch.arange(samples))
    torch.testing.assert_close(batch.position, load(folder, "train")["position"][:samples].float())
    with pytest.raises(IndexError):
        task.batch(torch.tensor([samples]))
    whole = _task(folder)
    assert (task.data_hash == whole.data_hash) == (samples == 12)


def test_the_loss_is_the_squared_error_and_a_hundredth_of_the_regulariser(folder):
    task = _task(folder)
    batch = task.batch(torch.arange(4))
    loss, more = task.loss(task.model, batch)
    position, regulariser = task.model(batch.mass, batch.position, batch.velocity)
    error = (position - batch.target).square().mean()
    torch.testing.assert_close(more["mse"], error.detach())
    torch.testing.assert_close(loss, error + 0.01 * regulariser)
