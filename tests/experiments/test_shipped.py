"""Recipes and trained runs by name; paths mean what they meant."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flashgatr.experiments import cli, runs, shipped

ROOT = Path(__file__).parents[2]


def test_the_source_tree_has_all_by_name():
    recipes = {file.stem: file for file in (ROOT / "recipes").iterdir()}
    assert shipped.known("recipe") == recipes
    runs_of = ("arteries", "kuka")
    assert shipped.known("pretrained") == {name: ROOT / "pretrained" / name for name in runs_of}
    assert shipped.find(Path("recipe:nbody_readme")) == recipes["nbody_readme"]


@pytest.mark.parametrize("parent", ["src", "site-packages"])
def test_only_a_source_tree_has_them_beside_its_source(parent, tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "one.toml").touch()
    monkeypatch.setattr(shipped, "HERE", tmp_path / parent / "flashgatr" / "experiments")
    assert list(shipped.known("recipe")) == ["one"] * (parent == "src")


@pytest.mark.parametrize("path", ["recipes/nbody_readme.toml", "other:nbody_readme", "recipe"])
def test_paths_stay_as_they_are(path):
    assert shipped.find(Path(path)) == Path(path)


def test_a_path_that_exists_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("recipe:nbody_readme").touch()
    assert shipped.find(Path("recipe:nbody_readme")) == Path("recipe:nbody_readme")


@pytest.mark.parametrize("name", ["nobody", "../recipes/nbody_readme", "", "/etc/passwd"])
def test_unknown_names_are_refused_with_those_there_are(name):
    with pytest.raises(ValueError, match=r"comes with .*recipe:nbody_readme"):
        shipped.find(Path(f"recipe:{name}"))


def test_sweep_lists_a_shipped_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.application(), ["sweep", "recipe:nbody_readme", "--list"])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) == 18


def test_evaluating_a_shipped_run_never_changes_it(monkeypatch):
    """The package's folder may be read-only, and belongs to pip."""
    kept = []
    found = {"results": {}}
    monkeypatch.setattr(runs, "evaluate", lambda settings, keep: kept.append(keep) or found)
    for run in ("pretrained:arteries", str(ROOT / "pretrained" / "arteries")):
        assert CliRunner().invoke(cli.application(), ["eval", run]).exit_code == 0
    assert kept == [False, True]


def test_training_takes_settings_and_weights_of_a_shipped_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    taken = []

    def train(settings, resume):
        taken.append(settings)
        raise ValueError("far enough")

    monkeypatch.setattr(runs, "train", train)
    line = "train --config pretrained:arteries --folder mine --set model.start=pretrained:arteries"
    CliRunner().invoke(cli.application(), line.split())
    assert taken[0].model.options["hidden_s_channels"] == 64
    assert (taken[0].folder, taken[0].model.start) == ("mine", "pretrained:arteries")
