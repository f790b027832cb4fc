"""Files of earlier versions still load, and training still leads to the same weights.

`tests/earlier/make.py` made the files with version 0.1.0. The last bits depend on processor,
compiler and torch: on a machine whose hashes are known, weights must have these hashes; on others
they must be close.
"""

import importlib
import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from ..earlier import make

HERE = make.HERE
KNOWN = json.loads((HERE / "hashes.json").read_text()).get(make.machine())


@pytest.fixture
def folder(tmp_path):
    """A copy of the earlier version's files."""
    return Path(shutil.copytree(HERE, tmp_path / "earlier"))


def trained(run):
    return load_file(run / "model" / "model.safetensors")


def flat(results):
    """The numbers of nested tables by dotted key."""
    found = {}
    for key, value in results.items():
        inner = flat(value).items() if isinstance(value, dict) else [("", value)]
        found |= {f"{key}.{name}": x for name, x in inner if not isinstance(x, str)}
    return found


def require_same_weights(run, earlier):
    if KNOWN:
        assert make.weights_hash(run) == make.weights_hash(earlier)
    assert_close(trained(run), trained(earlier), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["nbody_run", "artery_run"])
def test_an_earlier_run_is_resumed_from_its_checkpoint_to_the_same_weights(folder, name):
    run = folder / name
    shutil.rmtree(run / "model")
    (run / "results.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-00000020")
    (run / "checkpoints" / "latest").write_text("step-00000010\n")
    make.command("train", "--resume", "--folder", name, folder=folder)
    require_same_weights(run, HERE / name)


@pytest.mark.parametrize("name", ["nbody_run", "artery_run"])
def test_an_earlier_run_is_evaluated_and_reported_with_the_same_numbers(folder, name):
    make.command("eval", name, "--out", "again.json", folder=folder)
    make.command("report", name, "--out", "report", folder=folder)
    before = json.loads((HERE / name / "results.json").read_text())["results"]
    after = json.loads((folder / "again.json").read_text())["results"]
    assert flat(after) == pytest.approx(flat(before), rel=1e-3, abs=1e-5)
    assert (folder / "report" / "report.html").stat().st_size > 10_000


def test_the_runs_of_an_earlier_sweep_are_finished(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    make.command("sweep", "recipe.toml", "--folder", "sweep", folder=folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before


def test_an_earlier_recipe_gives_the_same_weights(folder):
    make.command("sweep", "recipe.toml", "--folder", "again", "--only", "seed=1", folder=folder)
    runs = sorted((folder / "again").iterdir())
    assert [run.name for run in runs] == ["seed-1_lr-0.001", "seed-1_lr-0.003"]
    for run in runs:
        require_same_weights(run, HERE / "sweep" / run.name)


@pytest.mark.slow
@pytest.mark.skipif(not KNOWN, reason="no hashes are known for this processor, compiler and torch")
@pytest.mark.parametrize("kind", ["fused", "plain"])
@pytest.mark.parametrize("name", make.TRAINED)
def test_300_steps_give_the_recorded_weights(name, kind):
    assert make.trained_hash(name, "" if kind == "fused" else kind) == KNOWN[name][kind]


def test_the_import_paths_of_earlier_tutorials_work():
    from flashgatr.experiments.config import ModelConfig, RunConfig, TrainConfig
    from flashgatr.experiments.engine import Task, Trainer, distributed

    assert RunConfig(train=TrainConfig(steps=5), model=ModelConfig("net")).train.steps == 5
    assert Task is not Trainer
    assert callable(distributed.join)
    for old, new in (("trainer", "trainer"), ("log", "log"), ("parts", "shape_graphs")):
        moved = importlib.import_module(f"flashgatr.train.{new}")
        assert importlib.import_module(f"flashgatr.experiments.engine.{old}") is moved
        assert getattr(importlib.import_module("flashgatr.experiments.engine"), old) is moved


def test_the_program_of_the_earlier_tutorial_runs(tmp_path, monkeypatch):
    """Its task returns plain tuples, and its imports are the old ones."""
    monkeypatch.chdir(tmp_path)
    text = (HERE / "tutorial.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert "flashgatr.experiments.engine" in "".join(blocks)
    exec(compile("\n".join(blocks), "tutorial", "exec"), {"__name__": "tutorial"})
