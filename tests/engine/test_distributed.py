"""Two processes (torchrun, gloo) do what one does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flashgatr.train import checkpoint as checkpoints
from flashgatr.train import distributed

from .toy import lines
from .worker import alone

ROOT = Path(__file__).parents[2]
STEPS, NAN = 21, 9
WHOLE = {
    "ddp-even": ("ddp", 8, "float32", 1e-6),
    "ddp-odd": ("ddp", 7, "float64", 1e-12),
    "fsdp-odd": ("fsdp", 7, "float64", 1e-12),
}


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7", "mps"])
def test_a_gpu_that_is_not_there_is_refused(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"device = {device}, but torch finds no GPU; use device"):
        distributed.join(device)


@pytest.mark.parametrize(("count", "there"), [(1, "cuda:0 only"), (2, "cuda:0 to cuda:1 only")])
def test_a_gpu_beyond_the_last_one_is_refused(count, there, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ValueError, match=f"device = cuda:2, but torch finds {there}"):
        distributed.join("cuda:2")
    assert distributed.join(f"cuda:{count - 1}").device == torch.device("cuda", count - 1)
    monkeypatch.setenv("LOCAL_RANK", "2")  # a third process of torchrun
    with pytest.raises(ValueError, match=f"device = cuda:2, but torch finds {there}"):
        distributed.join("cuda")


def torchrun(*arguments, seconds=120):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment, timeout=seconds, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def settings(folder, strategy, batch_size):
    few = dict(steps=STEPS, batch_size=batch_size, lr=1e-2, lr_final=1e-3, decay_every=5)
    few |= dict(log_every=1, checkpoint_every=5, validate_every=5, ema=0.9, strategy=strategy)
    return {"folder": str(folder), "device": "cpu", "train": few}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same runs by one process and by two; some by one for 7 steps, then by two for 7 more."""
    folder, jobs = tmp_path_factory.mktemp("runs"), []
    for name, (strategy, batch_size, dtype, _) in WHOLE.items():
        options = dict(dtype=dtype, nan=NAN)
        assert alone(settings(folder / f"{name}-alone", strategy, batch_size), **options) == 0
        jobs.append((settings(folder / name, strategy, batch_size), options))
    for strategy in ("ddp", "fsdp"):
        change = settings(folder / f"{strategy}-there-and-back", strategy, 7)
        assert alone(change, stop=6) == 143
        jobs.append((change, dict(nan=NAN, stop=13)))
    done = torchrun("-m", "tests.engine.worker", json.dumps(jobs))
    assert done.returncode == 0, done.stdout
    for rank in (0, 1):
        assert f"exit codes [0, 0, 0, 143, 143] in process {rank}" in done.stdout
    return folder


def table(folder):
    """What the log and the newest checkpoint say: numbers by name, and the rest."""
    numbers = {
        (line["step"], line["kind"], name): x
        for line in lines(folder)
        for name, x in line.items()
        if name not in ("step", "kind") and x is not None
    }
    found = checkpoints.load(folder / "checkpoints")
    numbers[found.step, "best", "score"] = found.state.pop("best_score")
    del found.state["config"]
    return numbers, found.state, found.tensors


def assert_close(folder, other, limit):
    """The same losses in every step, and the same state at the end."""
    (numbers, state, tensors), (numbers_2, state_2, tensors_2) = table(folder), table(other)
    assert numbers == pytest.approx(numbers_2, rel=limit, abs=limit)  # norms are up to 50
    assert len([name for _, _, name in numbers if name == "loss"]) == 20
    assert (NAN + 1, "skipped", "updates") in numbers
    assert state == state_2
    assert {group: set(x) for group, x in tensors.items()} == {
        group: set(x) for group, x in tensors_2.items()
    }
    if limit < 1e-8:  # Adam amplifies rounding in weights whose gradients vanish
        torch.testing.assert_close(tensors, tensors_2, rtol=0, atol=1e3 * limit)


@pytest.mark.parametrize("name", WHOLE)
def test_two_processes_train_as_one(runs, name):
    assert_close(runs / name, runs / f"{name}-alone", WHOLE[name][-1])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_goes_on_with_another_number_of_processes(runs, strategy):
    folder = runs / f"{strategy}-there-and-back"
    assert checkpoints.load(folder / "checkpoints").step == 14
    assert alone(settings(folder, strategy, 7)) == 0
    assert_close(folder, runs / f"{strategy}-odd-alone", 1e-12)
