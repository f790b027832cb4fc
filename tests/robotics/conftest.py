"""A tiny trained run of the experiment, made once."""

import pytest
from typer.testing import CliRunner

from flashgatr.experiments import cli
from flashgatr.experiments.robotics.world import physics

TINY = [
    "device=cpu",
    "train.cuda_graph=false",
    "train.precision=float32",
    "train.steps=4",
    "train.batch_size=2",
    "train.validate_every=2",
    "data.options.held_out=4",
    "data.options.validation_windows=4",
    "data.options.test_windows=4",
    "data.options.scenes=1",
    "data.options.sampling_steps=2",
]
GATR = ["num_blocks=1", "hidden_mv_channels=2", "hidden_s_channels=4", "num_heads=1"]
needs_physics = pytest.mark.skipif(
    not physics.installed("mujoco"), reason="the engine mujoco is not installed"
)


def command(*arguments):
    """The output of a successful command."""
    done = CliRunner().invoke(cli.application(), [str(x) for x in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def train(data, folder, *changes, model="gatr"):
    """Train a tiny network by the command line."""
    own = [f"model.options.{x}" for x in GATR] if model == "gatr" else []
    every = [*TINY, f"model.name={model}", f"data.folder='{data}'", *own, *changes]
    return command("train", "kuka", "--folder", folder, *(x for c in every for x in ("--set", c)))


@pytest.fixture(scope="session")
def demonstrations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kuka") / "data"
    command("data", "kuka", "--folder", folder, "--demonstrations", 9, "--workers", 1)
    return folder


@pytest.fixture(scope="session")
def trained(demonstrations, tmp_path_factory):
    """A run that planned one scene, if MuJoCo is installed."""
    folder = tmp_path_factory.mktemp("kuka") / "run"
    train(demonstrations, folder, "data.options.turned=true")
    return folder
