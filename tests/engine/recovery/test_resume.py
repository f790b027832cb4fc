"""Interruptions do not change the result of a run."""

import errno
import math
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest import mock

import pytest
import torch

from flashgatr.experiments import config as configuration
from flashgatr.experiments.config import ConfigError
from flashgatr.train import CheckpointError, Trainer, TrainingError
from flashgatr.train import checkpoint as checkpoints
from flashgatr.train.distributed import World
from flashgatr.train.trainer import fingerprint, identity

from .. import toy
from ..toy import CPU, Toy, lines, make, outcome, settings, train

KINDS = {
    "plain": ({}, {}),
    "averaged, with dropout": (dict(ema=0.9), dict(dropout=0.3)),
    "averaged, last weights": (dict(ema=0.9, restore_best=False), dict(dropout=0.3)),
    "sixteen bits": (dict(precision="bfloat16"), dict(dropout=0.3)),
    "decaying, warming up": (dict(weight_decay=0.1, warmup=7, clip=0.1), {}),
    "with a skipped update": ({}, dict(poison={6: math.nan})),
}


# ---- stopping and going on ----


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_stopped_and_resumed_ends_as_one_that_is_not(tmp_path, kind):
    changes, options = KINDS[kind]
    expected = outcome(train(tmp_path / "whole", toy=options, **changes))
    for step in (0, 6, 11, 12, 18):
        with pytest.raises(SystemExit):
            train(tmp_path / "parts", toy=options | dict(signals={step: signal.SIGTERM}), **changes)
        assert checkpoints.load(tmp_path / "parts" / "checkpoints").step == step + 1
    assert outcome(train(tmp_path / "parts", toy=options, **changes)) == expected
    assert outcome(train(tmp_path / "parts", toy=options, **changes)) == expected  # only evaluates


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("step", [7, 19])
def test_a_signal_ends_the_run_after_the_step_and_a_checkpoint(
    tmp_path, number, code, step, capsys
):
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as stop:
        train(tmp_path, toy=dict(signals={step: number}))
    assert stop.value.code == code
    assert checkpoints.load(tmp_path / "checkpoints").step == step + 1
    assert f"stopped by signal {number:d} after step {step + 1}; a ch" in capsys.readouterr().err
    assert signal.getsignal(number) is before


def test_a_signal_during_the_evaluation_ends_it_at_once(tmp_path):
    class Slow(Toy):
        def evaluate(self, model):
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("went on")

    expected = outcome(train(tmp_path / "whole"))
    with mock.patch.object(toy, "Toy", Slow), pytest.raises(SystemExit) as stop:
        train(tmp_path / "parts")
    assert stop.value.code == 143
    assert outcome(train(tmp_path / "parts")) == expected


def test_a_run_goes_on_after_its_newest_checkpoint_was_damaged(tmp_path):
    expected = outcome(train(tmp_path / "whole"))
    with pytest.raises(SystemExit):
        train(tmp_path / "parts", toy=dict(signals={12: signal.SIGTERM}))
    path = tmp_path / "parts" / "checkpoints" / "step-00000013" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.warns(UserWarning, match="step-00000013 is damaged"):
        assert outcome(train(tmp_path / "parts")) == expected


def test_a_disk_that_is_full_stops_the_run_with_its_last_checkpoint_intact(tmp_path):
    expected = outcome(train(tmp_path / "whole"))
    full, synced = OSError(errno.ENOSPC, "No space left on device"), os.fsync

    def fsync(number):
        if trainer.step == 10 and os.readlink(f"/proc/self/fd/{number}").endswith("log.jsonl"):
            raise full
        synced(number)

    trainer = make(settings(tmp_path / "parts"))
    with (
        mock.patch.object(os, "fsync", fsync),
        pytest.raises(OSError, match=r"log.jsonl: No space left on device; the checkpoints are"),
    ):
        trainer.run()
    assert checkpoints.load(tmp_path / "parts" / "checkpoints").step == 5
    with (
        mock.patch.object(os, "mkdir", side_effect=full),
        pytest.raises(CheckpointError, match="No space left on device; the previous one is intact"),
    ):
        train(tmp_path / "parts")
    assert checkpoints.load(tmp_path / "parts" / "checkpoints").step == 5
    assert outcome(train(tmp_path / "parts")) == expected


# ---- which run is it ----

OTHERS = {
    "seed=1": "seed was 0, is 1",
    "train.lr=0.5": "train.lr was 0.01, is 0.5",
    "train.steps=30": "train.steps was 20, is 30",
    "train.betas=[0.5, 0.6]": "train.betas was",
    "train.ema=0.5": "train.ema was 0.0, is 0.5",
    "train.validate_every=3": "train.validate_every was 5, is 3",
    "model.name=mlp": "model.name was 'gatr', is 'mlp'",
    "model.options.num_blocks=3": "model.options was {}, is {'num_blocks': 3}",
    "data.train_samples=5": "data.train_samples was 0, is 5",
}
SAME = [
    "folder=elsewhere", "device=cpu", "data.folder=elsewhere", "train.checkpoint_every=2",
    "train.keep_checkpoints=5", "train.log_every=3", "train.max_bad_steps=3", "train.strategy=ddp",
]  # fmt: skip


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with pytest.raises(SystemExit):
        train(folder, toy=dict(signals={7: signal.SIGTERM}))
    return folder


@pytest.mark.parametrize("change", OTHERS)
def test_a_run_does_not_go_on_with_another_configuration(stopped, change):
    config = configuration.override(settings(stopped), [change])
    assert fingerprint(config) != fingerprint(settings(stopped))
    with pytest.raises(ConfigError) as caught:
        make(config)
    assert f"holds a run with another configuration ({OTHERS[change]}" in str(caught.value)
    assert f"or resume with the one in {stopped / 'config.toml'}" in str(caught.value)


@pytest.mark.parametrize("change", SAME)
def test_where_a_run_lies_and_how_often_it_saves_may_change(tmp_path, change):
    config = configuration.override(settings(tmp_path), [change])
    assert fingerprint(config) == fingerprint(settings(tmp_path))
    assert change.partition("=")[0] not in identity(config)


def test_other_intervals_of_saving_and_logging_change_no_weights(tmp_path):
    expected = train(tmp_path / "whole")
    with pytest.raises(SystemExit):
        train(tmp_path / "parts", toy=dict(signals={7: signal.SIGTERM}), checkpoint_every=2)
    (tmp_path / "parts").rename(tmp_path / "moved")
    found = train(tmp_path / "moved", log_every=4, checkpoint_every=3, keep_checkpoints=1)
    assert outcome(found)[:2] == outcome(expected)[:2]


def test_a_checkpoint_of_another_network_is_refused(stopped):
    class Other(Toy):
        def __init__(self, **options):
            super().__init__(**options)
            self.model = torch.nn.Linear(3, 1)

    with (
        mock.patch.object(toy, "Toy", Other),
        pytest.raises(
            TrainingError, match=r"cannot resume from .*the checkpoint belongs to another model"
        ),
    ):
        make(settings(stopped))


def test_a_checkpoint_that_lacks_something_is_refused(stopped, tmp_path):
    found = checkpoints.load(stopped / "checkpoints")
    checkpoints.save(tmp_path / "checkpoints", replace(found, state={}))
    with pytest.raises(TrainingError, match="another version of flashgatr wrote its checkpoints"):
        make(settings(tmp_path))


def test_a_batch_smaller_than_the_number_of_processes_is_refused(tmp_path):
    with pytest.raises(TrainingError, match="batch size 2 is less than the 3 processes; start few"):
        Trainer(Toy(), settings(tmp_path, batch_size=2), World(0, 3, CPU))


def test_resuming_reads_no_pickle(stopped):
    refuse = mock.Mock(side_effect=AssertionError("pickle"))
    with (
        mock.patch("pickle.load", refuse),
        mock.patch("pickle.loads", refuse),
        mock.patch("pickle.Unpickler", refuse),
        mock.patch("torch.load", refuse),
    ):
        assert make(settings(stopped)).step == 8


def test_training_works_in_a_thread(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(train, tmp_path, steps=2).result(60)
    assert [line["step"] for line in lines(tmp_path, "train")] == [1, 2]
