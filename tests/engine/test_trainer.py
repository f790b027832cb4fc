"""The loop: only finite updates, the best weights, the configured learning rate."""

import json
import math
import signal
from dataclasses import replace
from unittest import mock

import pytest
import torch

from flashgatr.experiments import table
from flashgatr.experiments.config import TrainConfig
from flashgatr.train import TrainingError
from flashgatr.train import checkpoint as checkpoints
from flashgatr.train.order import batch_indices
from flashgatr.train.stepper import _draws
from flashgatr.train.trainer import learning_rate

from . import toy
from .toy import Toy, lines, make, settings, train

# ---- what is not finite ----


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_what_is_not_finite_never_reaches_the_weights(tmp_path, value):
    seen = {}

    class Watched(Toy):
        def batch(self, indices):
            seen[self.trainer.step] = [x.clone() for x in self.trainer.weights().values()] + [
                x.clone() for s in self.trainer.optimizer.state.values() for x in s.values()
            ]
            return super().batch(indices)

    with mock.patch.object(toy, "Toy", Watched):
        trainer = train(tmp_path, toy=dict(poison={0: value, 7: value, 8: value}))
    assert all(torch.equal(a, b) for a, b in zip(seen[7], seen[9], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(seen[0], seen[1], strict=False))
    assert not all(torch.equal(a, b) for a, b in zip(seen[9], seen[10], strict=True))
    assert all(x.isfinite().all() for x in trainer.weights().values())
    assert trainer.summary["skipped"] == 3
    skipped = [(x["step"], x["updates"]) for x in lines(tmp_path, "skipped")]
    assert skipped == [(1, 1), (8, 2), (9, 3)]


def test_a_gradient_that_is_not_finite_is_skipped_though_the_loss_is(tmp_path):
    class Steep(Toy):
        def loss(self, model, batch):
            loss, more = super().loss(model, batch)
            if self.trainer.step == 7:
                root = (loss - loss.detach()).clamp(min=0).sqrt()  # value 0, slope infinite
                loss = loss + root
            return loss, more

    with mock.patch.object(toy, "Toy", Steep):
        trainer = train(tmp_path)
    assert trainer.summary["skipped"] == 1
    (line,) = [x for x in lines(tmp_path, "train") if x["step"] == 8]
    assert (line["loss"] is not None, line["norm"]) == (True, None)
    assert all(x.isfinite().all() for x in trainer.weights().values())


def test_too_many_bad_steps_in_a_row_end_the_run(tmp_path, capsys):
    poison = dict.fromkeys((3, 4, *range(8, 20)), math.nan)
    with pytest.raises(TrainingError, match=r"4 steps in a row .* up to step 12; the weights are"):
        train(tmp_path, toy=dict(poison=poison), max_bad_steps=4)
    assert (
        "step 12: loss or gradient not finite, update skipped (6 so far)" in capsys.readouterr().err
    )
    assert checkpoints.load(tmp_path / "checkpoints").step == 10


def test_bad_steps_are_counted_across_a_restart(tmp_path):
    poison = dict.fromkeys(range(8, 20), math.nan)
    with pytest.raises(SystemExit):
        train(tmp_path, toy=dict(poison=poison, signals={9: signal.SIGTERM}), max_bad_steps=4)
    with pytest.raises(TrainingError, match=r"4 steps in a row .* up to step 12"):
        train(tmp_path, toy=dict(poison=poison), max_bad_steps=4)


# ---- the best weights, the learning rate ----


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_the_best_weights_are_restored_not_the_last(tmp_path, ema):
    trainer = make(settings(tmp_path, ema=ema), scores=[3.0, 1.0, 2.0, math.nan])
    summary = trainer.run()
    assert (summary["best_step"], summary["best_score"], summary["step"]) == (10, 1.0, 20)
    final, best = trainer.weights(), trainer.task.validated[1]
    assert all(torch.equal(final[name], best[name]) for name in best)
    assert not torch.equal(final["last.weight"], trainer.task.validated[3]["last.weight"])


def test_of_equal_scores_the_first_is_the_best(tmp_path):
    assert train(tmp_path, toy=dict(scores=[2.0, 1.0, 1.0, 1.0])).summary["best_step"] == 10


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_the_last_weights_remain_if_the_best_are_not_wanted(tmp_path, ema):
    trainer = make(settings(tmp_path, ema=ema, restore_best=False), scores=[3.0, 1.0, 2.0, 5.0])
    trainer.run()
    final, last = trainer.weights(), trainer.task.validated[3]
    assert all(torch.equal(final[name], last[name]) for name in last)


def test_a_run_that_never_validates_well_keeps_its_last_weights(tmp_path):
    trainer = train(tmp_path, toy=dict(scores=[math.nan] * 4))
    assert (trainer.summary["best_score"], trainer.summary["best_step"]) == (None, 0)
    assert json.loads(json.dumps(trainer.summary, allow_nan=False)) == trainer.summary


def test_averaged_weights_are_the_weighted_mean_of_all_weights(tmp_path):
    trainer = make(settings(tmp_path, ema=0.8, steps=3, restore_best=False))
    mean = trainer.weights()
    seen = []
    original = trainer.task.loss
    trainer.task.loss = lambda *args: (seen.append(trainer.weights()), original(*args))[1]
    trainer.run()
    last = checkpoints.load(tmp_path / "checkpoints").tensors["model"]
    for weights in (*seen[1:], last):
        mean = {name: 0.8 * mean[name] + 0.2 * weights[name] for name in mean}
    torch.testing.assert_close(trainer.weights(), mean)


def test_the_learning_rate_falls_in_stairs_after_a_warm_up():
    config = TrainConfig(steps=100, lr=1e-2, lr_final=1e-4, decay_every=25, warmup=10)
    rates = [learning_rate(config, k) for k in range(100)]
    for k in range(10):
        assert rates[k] == pytest.approx(1e-2 * (k + 1) / 10)
    for stair in range(4):
        expected = 1e-2 * 0.01 ** (stair / 4)
        assert rates[max(10, 25 * stair) : 25 * (stair + 1)] == pytest.approx(
            [expected] * (25 - 10 * (stair == 0))
        )
    smooth = replace(config, decay_every=1, warmup=0)
    assert learning_rate(smooth, 50) == pytest.approx(1e-3)
    assert learning_rate(smooth, 100) == pytest.approx(1e-4)
    assert learning_rate(smooth, 0) == 1e-2


def test_the_optimiser_uses_the_rate_that_the_log_shows(tmp_path):
    train(tmp_path, warmup=3)
    config = settings(tmp_path, warmup=3).train
    assert [x["lr"] for x in lines(tmp_path, "train")] == [
        learning_rate(config, k) for k in range(20)
    ]
    frozen = train(tmp_path / "frozen", lr=1e-30, lr_final=1e-30)
    torch.testing.assert_close(frozen.weights(), Toy().model.state_dict(), rtol=0, atol=0)


def test_the_update_is_that_of_plain_adam(tmp_path):
    trainer = train(tmp_path, decay_every=1000, lr_final=1e-2, restore_best=False, clip=0.0)
    task = Toy()
    task.trainer = trainer
    adam = torch.optim.Adam(task.model.parameters(), lr=1e-2)
    for k in range(20):
        adam.zero_grad()
        task.loss(task.model, task.batch(batch_indices(0, k, 8, 64)))[0].backward()
        adam.step()
    torch.testing.assert_close(trainer.weights(), task.model.state_dict(), rtol=1e-5, atol=1e-6)


def test_gradients_are_clipped_to_the_norm(tmp_path):
    trainer = make(settings(tmp_path, clip=0.01))
    norms = []
    original = trainer.optimizer.step

    def step():
        gradients = [p.grad for p in trainer.task.model.parameters()]
        norms.append(torch.nn.utils.get_total_norm(gradients).item())
        return original()

    trainer.optimizer.step = step
    trainer.run()
    assert norms == pytest.approx([0.01] * 20, rel=1e-3)
    assert all(x["norm"] > 0.01 for x in lines(tmp_path, "train"))


def test_weights_that_are_used_twice_are_averaged_too(tmp_path):
    class Tied(Toy):
        def __init__(self, **options):
            super().__init__(**options)
            self.model.blocks[1].weight = self.model.blocks[0].weight

    with mock.patch.object(toy, "Toy", Tied):
        trainer = train(tmp_path, ema=0.9, steps=3, restore_best=False)
    found = trainer.weights()
    assert torch.equal(found["blocks.0.weight"], found["blocks.1.weight"])


def test_a_process_weighs_its_part_of_a_batch_as_the_task_counts(tmp_path):
    trainer = make(settings(tmp_path))
    assert trainer._count(torch.tensor([3, 4, 5])) == 3
    trainer.task.counts = lambda indices: [10.0 * i for i in indices.tolist()]
    assert trainer._count(torch.tensor([3, 4, 5])) == 120


def test_models_that_draw_are_known():
    """Their parts must not run at the same time."""
    assert _draws(toy.Network(0.1))
    assert not _draws(toy.Network(0.0))
    for model in ("gatr", "transformer"):
        for dropout in (0.0, 0.1):
            net = table.find("nbody").build(model, dict(num_blocks=1, dropout=dropout))
            assert _draws(net) == (dropout > 0)


# ---- what a step and the end of a run do ----


@pytest.mark.parametrize("clip", [0.0, 1e-3, 1e6])
def test_gradients_above_the_limit_are_scaled_to_it_and_others_are_left_alone(tmp_path, clip):
    trainer = make(settings(tmp_path, steps=1, clip=clip))
    seen = []

    def look(*_):
        seen.append(torch.nn.utils.get_total_norm([p.grad for p in trainer.model.parameters()]))

    trainer.optimizer.register_step_pre_hook(look)
    trainer.run()
    (line,) = lines(tmp_path, "train")
    expected = min(line["norm"], clip or math.inf)
    assert seen[0].item() == pytest.approx(expected, rel=1e-2 if clip == 1e-3 else 1e-6)


def test_random_numbers_of_the_evaluation_are_those_of_the_seed_and_the_step(tmp_path):
    drawn = []

    class Drawing(Toy):
        def evaluate(self, model):
            drawn.append(torch.rand(()).item())
            return {}

    with mock.patch.object(toy, "Toy", Drawing):
        train(tmp_path / "first")
        torch.rand(3)
        train(tmp_path / "first")  # which is finished: evaluated again
        train(tmp_path / "other seed", seed=1)
        train(tmp_path / "other step", steps=10)
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_a_finished_run_is_evaluated_without_dropout_when_it_is_resumed(tmp_path):
    modes = []

    class Watched(Toy):
        def evaluate(self, model):
            modes.append(model.training)
            return super().evaluate(model)

    with mock.patch.object(toy, "Toy", Watched):
        first = train(tmp_path, toy=dict(dropout=0.5)).summary
        assert train(tmp_path, toy=dict(dropout=0.5)).summary == first
    assert modes == [False, False]
