"""Which runs a recipe has, and which of them are wanted."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flashgatr.experiments import cli, results, sweep
from flashgatr.experiments.config import ConfigError
from flashgatr.train.trainer import fingerprint

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
RECIPE = """
[run.train]
steps = 5
[grid]
"data.train_samples" = [100, 1000]
"model.name" = ["gatr", "mlp"]
seed = [0, 1, 2]
"""


@pytest.fixture
def planned(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    return sweep.plan(recipe, tmp_path / "runs")


def test_a_grid_has_every_combination_once(planned):
    assert len(planned) == len({run.name for run in planned}) == 12
    assert {run.config.train.steps for run in planned} == {5}


def test_changes_of_all_runs_leave_the_grid_as_it_is(tmp_path):
    """A run's folder is named after its values in the grid, so the settings must agree."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    for run in sweep.plan(recipe, tmp_path / "runs", ["seed=9", "train.steps=7"]):
        assert (run.config.seed, run.config.train.steps) == (run.values["seed"], 7)


@pytest.mark.parametrize(
    "grid", ["seed = [0, 1, 0]", '"model.name" = ["mlp", "mlp"]', '"train.lr" = [1e-3, 0.001]']
)
def test_a_value_that_is_listed_twice_is_refused(tmp_path, grid):
    """Two runs in one folder, at the same time with --jobs."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f"[grid]\n{grid}\n")
    with pytest.raises(ConfigError, match=r"has several runs of the name .*; list values once"):
        sweep.plan(recipe, tmp_path / "runs")


@pytest.mark.parametrize("jobs", ["0", "-1"])
def test_a_sweep_needs_a_job(tmp_path, jobs):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    done = CliRunner().invoke(cli.application(), ["sweep", str(recipe), "--list", "--jobs", jobs])
    assert done.exit_code == 2
    assert "--jobs" in done.output


def test_a_run_is_finished_if_its_results_are_those_of_its_settings(planned, tmp_path):
    run, other = planned[:2]
    folder = Path(run.config.folder)
    folder.mkdir(parents=True)
    for content, finished in (
        ({"run": fingerprint(run.config)}, True),
        ({"run": fingerprint(other.config)}, False),
        ({}, False),
    ):
        (folder / "results.json").write_text(json.dumps(content))
        assert run.is_finished == finished
    assert not other.is_finished


def test_values_of_one_key_are_alternatives_and_keys_conditions(planned):
    found = sweep.select(planned, ["model.name=gatr", "seed=0", "seed=2"])
    names = [(run.config.model.name, run.config.seed) for run in found]
    assert names == [("gatr", 0), ("gatr", 2)] * 2
    assert sweep.select(planned, []) == planned


@pytest.mark.parametrize(
    ("only", "complaint"),
    [
        (["seed"], "expected KEY=VALUE"),
        (["train.steps=5"], "data.train_samples, model.name, seed"),
        (["seed=7"], "no run of the recipe has seed=7"),
        (["seed=1", "seed=7"], "no run of the recipe has seed=7"),
    ],
)
def test_what_selects_nothing_is_refused(planned, only, complaint):
    with pytest.raises(ConfigError, match=complaint):
        sweep.select(planned, only)


def test_settings_may_depend_on_the_grid(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE + '[when."model.name=mlp"]\n"train.lr" = 0.5\n"train.steps" = 7\n')
    for run in sweep.plan(recipe, tmp_path):
        is_mlp = run.config.model.name == "mlp"
        assert run.config.train.steps == (7 if is_mlp else 5)
        assert (run.config.train.lr == 0.5) == is_mlp
        assert not run.changes
    for run in sweep.plan(recipe, tmp_path, ["train.lr=0.25"]):  # the user's choice overrides it
        assert run.config.train.lr == 0.25
        assert run.changes == {"train.lr": 0.25}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[when."model.name=cnn"]', "no run of the grid has that"),
        ('[when."train.steps=5"]', "no run of the grid has that"),
        ('[when."seed"]', "expected KEY=VALUE"),
        ('[when."seed=0"]\n"data.train_samples" = 5', "data.train_samples is in the grid"),
        ('[when."seed=0".train]\nlr = 5.0', "train is a table: write dotted keys in quotes"),
        ('[when."seed=0"]\n"train.lf" = 5', "unknown key train.lf"),
        ('[when]\n"seed=0" = 5', "must be a table of settings, got 5"),
        ("[where]", "may have the tables"),
        ('"train.lr" = 3\n[when."train.lr=3"]', "grid.train.lr must list values, got 3"),
    ],
)
def test_faulty_conditions_are_refused(tmp_path, text, complaint):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE + text)
    with pytest.raises(ConfigError, match=complaint):
        sweep.plan(recipe, tmp_path)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_planned(recipe, tmp_path):
    assert sweep.plan(recipe, tmp_path)


def test_what_is_recorded_tells_runs_apart(tmp_path, monkeypatch):
    """Whatever the grid varies, and whatever --set changes that matters."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[grid]\n"data.options.scaling" = [0.1, 0.3]\nseed = [0]\n')
    planned = sweep.plan(
        recipe,
        tmp_path / "runs",
        ["train.lr=1e-3", "data.folder=elsewhere", "data.options.huber=0.1"],
    )
    for run in planned:
        found = {"run": fingerprint(run.config), "results": {"eval": {"mse": 1.0}}}
        Path(run.config.folder).mkdir(parents=True)
        (Path(run.config.folder) / "results.json").write_text(json.dumps(found))
    lines = [(10, 3.0), (20, 9.0)]
    log = "".join(json.dumps({"step": step, "seconds": t}) + "\n" for step, t in lines)
    (Path(planned[0].config.folder) / "log.jsonl").write_text(log)
    found = []
    monkeypatch.setattr(results, "record", lambda *given: found.append(given))
    assert sweep.record_results(planned, "recipe") == 2
    assert [given[1:5] for given in found] == [
        ("gatr", "mse", 1.0, "length²"),
        ("gatr", "training time", 9.0, "s"),
        ("gatr", "mse", 1.0, "length²"),
    ]
    recorded = [given[-1] for given in found if given[2] == "mse"]
    assert found[1][-1] == {k: x for k, x in found[0][-1].items() if k != "set"}  # of no set
    common = {
        "steps": 50_000, "recipe": "recipe", "seed": 0, "train_samples": 0, "set": "eval",
        "train.lr": 1e-3, "data.options.huber": 0.1,
    }  # fmt: skip
    assert recorded == [common | {"data.options.scaling": x} for x in (0.1, 0.3)]


def test_options_that_are_no_longer_set_are_changes_too(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[run.model.options]\nnum_blocks = 4\nhidden_s_channels = 8\n")
    (run,) = sweep.plan(recipe, tmp_path / "runs", ["model.options={num_blocks=3}"])
    assert run.changes == {"model.options.num_blocks": 3, "model.options.hidden_s_channels": None}
