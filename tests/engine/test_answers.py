"""What a task answers is checked at the beginning: its loss, its validation, its data."""

import random
import signal
from unittest import mock

import numpy as np
import pytest
import torch

from flashgatr.train import ConfigError, Trainer, TrainingError
from flashgatr.train import checkpoint as checkpoints
from flashgatr.train.answers import hash_of_batches

from . import toy
from .toy import CPU, Toy, make, outcome, settings, train

LONG = dict(steps=2000, validate_every=1000)

# ---- the task itself ----


class Empty:
    samples, model = 3, torch.sin


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (Empty, "takes a task, got the class Empty; pass an object of it"),
        (Empty(), "task Empty lacks batch, loss, validate, evaluate; see flashgatr.train.Task"),
        (mock.Mock(model=torch.sin), r"model must be a torch\.nn\.Module, got <built-in"),
    ],
)
def test_what_is_no_task_is_a_sentence(tmp_path, task, sentence):
    with pytest.raises(TrainingError, match=sentence):
        Trainer(task, settings(tmp_path), CPU)


def test_settings_that_are_a_dictionary_are_a_sentence(tmp_path):
    with pytest.raises(TypeError, match=r"a RunConfig, got dict; .*train\.settings\.from_dict"):
        Trainer(Toy(), {"folder": str(tmp_path)}, CPU)


# ---- loss and validation ----

LOSSES = {
    "no pair": (lambda loss: loss, r"must return a pair: .*got a tensor of shape \(\)"),
    "three": (lambda loss: (loss, {}, 1), "got a tuple of 3"),
    "no dictionary": (lambda loss: (loss, loss), "must return a pair"),
    "no scalar": (lambda loss: (loss.expand(4), {}), r"one real number, got .*shape \(4,\)"),
    "a number": (lambda loss: (loss.item(), {}), r"one real number, got .*\(float\)"),
    "no gradient": (lambda loss: (loss.detach(), {}), "does not depend on the model's parameters"),
}


@pytest.mark.parametrize("case", LOSSES)
def test_a_wrong_loss_is_a_sentence_at_the_first_step(tmp_path, case):
    change, sentence = LOSSES[case]
    trainer = make(settings(tmp_path))
    right = trainer.task.loss
    trainer.task.loss = lambda *args: change(right(*args)[0])
    with pytest.raises(TrainingError, match=sentence):
        trainer.run()
    assert trainer.step == 0


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_a_loss_of_one_number_may_have_axes(tmp_path, shape):
    plain = train(tmp_path / "plain")
    trainer = make(settings(tmp_path / "axes"))
    right = trainer.task.loss
    trainer.task.loss = lambda *args: (right(*args)[0].reshape(shape), {})
    trainer.summary = trainer.run()
    assert outcome(trainer) == outcome(plain)


@pytest.mark.parametrize("samples", [None, 64.0, "64", 0, -1])
def test_a_wrong_number_of_samples_is_a_sentence_before_the_first_step(tmp_path, samples):
    trainer = make(settings(tmp_path))
    trainer.task.samples = samples
    with pytest.raises(TrainingError, match="samples must be the number of its training samples"):
        trainer.run()
    assert trainer.step == 0


def test_the_number_of_samples_may_be_numpys(tmp_path):
    trainer = make(settings(tmp_path))
    trainer.task.samples = np.int64(64)
    assert trainer.run()["step"] == 20


@pytest.mark.parametrize(
    "answer",
    [{}, None, 0.5, {"loss": 1.0}, {"score": "good"}, {"score": torch.ones(2)}, {"score": None}],
)
def test_a_wrong_validation_is_a_sentence_before_the_first_step(tmp_path, answer):
    trainer = make(settings(tmp_path, **LONG))
    trainer.task.validate = lambda model: answer
    with pytest.raises(TrainingError, match="validate must return a dictionary with a number"):
        trainer.run()
    assert trainer.step == 0


def test_a_validation_that_comes_soon_is_not_tried(tmp_path):
    trainer = train(tmp_path, steps=20, validate_every=20)
    assert len(trainer.task.validated) == 1


def test_a_score_may_be_a_tensor_or_a_number_of_numpy(tmp_path):
    scores = [torch.tensor(3.0), np.float32(2.0), 4, 5.0]
    assert train(tmp_path, toy=dict(scores=scores)).summary["best_score"] == 2.0


def test_the_trial_changes_no_weights_and_no_random_numbers(tmp_path):
    """Dropout draws in every step; the validation draws too."""

    class Drawing(Toy):
        def validate(self, model):
            self.draws = torch.rand(5), random.random(), np.random.rand(3)  # noqa: NPY002
            return super().validate(model)

        def batch(self, indices):
            x, y = super().batch(indices)
            return x * (1 + random.random() * np.random.rand()), y  # noqa: NPY002

    found = []
    for trial in (100, 10**9):
        with (
            mock.patch("flashgatr.train.trainer.TRIAL", trial),
            mock.patch.object(toy, "Toy", Drawing),
        ):
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002  the process's own generator
            trainer = train(
                tmp_path / str(trial), toy=dict(dropout=0.5), ema=0.9, steps=120, validate_every=110
            )
        found.append(outcome(trainer))
        assert len(trainer.task.validated) == 2 + (trial == 100)
    assert found[0] == found[1]


# ---- the data ----


def resumed(folder, kind, **options):
    """Continue a run of the toy that was stopped, with a task of another kind."""
    with mock.patch.object(toy, "Toy", kind):
        return train(folder, **options)


@pytest.fixture
def stopped(tmp_path):
    with pytest.raises(SystemExit):
        train(tmp_path, toy=dict(signals={7: signal.SIGTERM}))
    return tmp_path


class Other(Toy):
    """The same task on other data."""

    def __init__(self, **options):
        super().__init__(**options)
        self.x = self.x + 1


def test_a_run_does_not_go_on_with_other_data(stopped):
    with pytest.raises(ConfigError, match="holds a run on other training data than those in data"):
        resumed(stopped, Other)
    assert checkpoints.load(stopped / "checkpoints").step == 8
    assert train(stopped).summary["step"] == 20


def test_a_task_can_do_without_the_comparison(stopped):
    class Unnamed(Other):
        data_hash = ""

    assert resumed(stopped, Unnamed).summary["step"] == 20


def test_a_hash_of_its_own_is_not_compared_with_that_of_batches(stopped):
    class Named(Other):
        data_hash = "mine"

    assert resumed(stopped, Named).summary["step"] == 20


def test_a_checkpoint_without_hash_is_resumed_and_then_has_one(stopped):
    point = checkpoints.load(stopped / "checkpoints")
    assert point.state["data"].startswith("batches:")
    point.state["data"] = None
    checkpoints.save(stopped / "checkpoints", point)
    train(stopped)
    assert checkpoints.load(stopped / "checkpoints").state["data"].startswith("batches:")


def test_batches_that_are_drawn_at_random_are_not_compared(tmp_path):
    class Augmented(Toy):
        def batch(self, indices):
            x, y = super().batch(indices)
            return x + torch.randn_like(x), y

    with mock.patch.object(toy, "Toy", Augmented):
        train(tmp_path)
    assert checkpoints.load(tmp_path / "checkpoints").state["data"] == ""


@pytest.mark.parametrize(
    "extra", [None, 3, torch.zeros(0), torch.tensor(1.0), torch.ones(2, 3).mT, torch.ones(2).bool()]
)
def test_every_part_of_a_batch_counts(tmp_path, extra):
    task, hashes = Toy(), []
    for more in (extra, extra, "another"):
        task.batch = lambda indices, more=more: {"x": task.x[indices], "more": more}
        hashes.append(hash_of_batches(task, [torch.arange(3)], CPU))
    assert hashes[0] == hashes[1] != hashes[2]
    task.batch = lambda indices: [object()]
    assert hash_of_batches(task, [torch.arange(3)], CPU) == ""
