"""docs/results.md is what is recorded, says what is not, and its commands are valid."""

import json
import re
import shlex
from dataclasses import asdict
from functools import partial, reduce
from operator import getitem
from pathlib import Path

import pytest

from flashgatr.experiments import recording, results, shipped, sweep
from flashgatr.experiments import table as experiments
from flashgatr.experiments.bench.accuracy import (
    arteries,
    charges,
    equivariance,
    kuka,
    mirrors,
    nbody,
    page,
    rates,
    scaling,
    tables,
)
from flashgatr.experiments.bench.accuracy.gpu_time import gpu_time
from flashgatr.experiments.bench.accuracy.recipes import Group, planned
from flashgatr.experiments.bench.accuracy.recorded import Which, read, runs_of
from flashgatr.experiments.bench.accuracy.tables import NOTHING, Gap, Table, emphasise, not_measured
from flashgatr.train import toml
from flashgatr.train.settings import read_assignment

from .pages import DOCS, ROOT, section

FOLDER = ROOT / "benchmarks" / "results"


WRITTEN = (ROOT / "docs" / "results.md").read_text()


def test_the_page_is_what_is_recorded():
    assert page.text(FOLDER) == WRITTEN, "run flashgatr bench results"


def selected(command):
    """The runs of `recipe:NAME --only KEY=VALUE --set KEY=VALUE`."""
    recipe, *options = shlex.split(command)
    given = {"--only": [], "--set": []}
    for flag, text in zip(options[::2], options[1::2], strict=True):
        given[flag].append(text)
    planned = sweep.plan(shipped.find(Path(recipe)), Path("runs"), given["--set"])
    runs = sweep.select(planned, given["--only"])
    for key, value in map(read_assignment, given["--set"]):
        for run in runs:  # --set does not reach keys of the grid
            assert toml.literal(setting(run, key)) == toml.literal(value), command
    return runs


def setting(run, path):
    return reduce(getitem, path, asdict(run.config))


def test_every_recipe_on_the_page_has_the_runs_that_its_command_selects():
    commands = set(re.findall(r"`(recipe:[^`]+)`", WRITTEN))
    assert len(commands) > 30
    for command in commands:
        assert selected(command), command


def test_runs_that_repeat_rewards_have_the_settings_of_their_row():
    """Of the rows of recipes, whose cells are told on the page."""
    lines = section("results", "Robotics").splitlines()
    rows = [x.split(" | ") for x in lines if x.startswith("| ") and "recipe:kuka_" in x]
    assert rows
    for row in rows:
        engine, scenes, sampler, demonstrations, steps = (x.replace(",", "") for x in row[4:9])
        for run in selected(row[-1].strip("` |")):
            options = run.config.data.options
            assert [options["engine"], options["sampler"]] == [engine, sampler.split()[0]]
            assert str(options["scenes"]) == scenes.split()[0]
            assert options["scene_set"] == "test"
            assert str(run.config.data.train_samples) == demonstrations
            assert str(run.config.train.steps) == steps


def test_a_row_of_a_shipped_run_is_repeated_by_evaluating_it():
    """The command has the settings that the run itself does not have."""
    about = {
        "recipe": "pretrained:kuka", "engine": "mujoco", "scenes": 200, "scene_set": "test",
        "sampler": "dpm_solver", "sampling_steps": 20, "turned": True, "steps": 27_050,
        "demonstrations": 11_000, "train.precision": "float32",
    }  # fmt: skip
    _, _, run, *options, last = shlex.split(kuka._command(about, "gatr").strip("`"))
    assert (run, last) == ("pretrained:kuka", "--record")
    assert dict(zip(options[1::2], options[::2], strict=True)) == dict.fromkeys(
        [
            "data.options.engine=mujoco",
            "data.options.sampler=dpm_solver",
            "data.options.sampling_steps=20",
            "data.options.turned=true",
            "train.precision=float32",
        ],
        "--set",
    )


def test_a_row_of_a_run_that_nobody_else_has_cannot_be_repeated():
    about = {"recipe": "runs/mine", "engine": "mujoco", "steps": 5, "demonstrations": 5}
    assert kuka._command(about, "gatr") == NOTHING
    own = {"recipe": "pretrained:kuka", "engine": "bullet"}
    assert kuka._command(own, "gatr") == "`flashgatr eval pretrained:kuka --record`"


def every_table(folder):
    return [table(folder) for section in page.SECTIONS for table in section.tables]


OF_SYMMETRIES = {"arteries_paper_short"}
"""Recipes that are on the page only because the symmetry of their networks is not measured."""


def test_without_results_the_page_has_no_table_and_names_every_recipe(tmp_path):
    assert not any(table.rows for table in every_table(tmp_path))
    text = page.text(tmp_path)
    assert "\n|" not in text.split(f"## {page.WAITING}")[1]
    named = set(re.findall(r"`recipe:(\w+)", text))
    assert named == set(re.findall(r"`recipe:(\w+)", WRITTEN)) - OF_SYMMETRIES


def test_no_row_of_the_page_is_empty_and_what_is_missing_is_said_once():
    for table in every_table(FOLDER):
        for row in table.rows:
            assert any(tables.leading(cell.strip("*")) is not None for cell in row[1:]), row
    for part in WRITTEN.split("\n## ")[1:-1]:
        assert part.count("Not measured yet: ") <= 1


def recorded_recipes():
    """The recipes of which any result is recorded."""
    lines = [x for file in FOLDER.glob("*.jsonl") for x in read(FOLDER, file.stem)]
    return {line["settings"].get("recipe") for line in lines}


def sentences(path):
    """Rows of tables, and sentences of paragraphs."""
    for block in re.split(r"\n\n+", path.read_text()):
        if block.startswith("|"):
            yield from block.splitlines()
        else:
            yield from re.split(r"(?<=\.) ", " ".join(block.split()))


@pytest.mark.parametrize("file", [*DOCS, ROOT / "README.md"], ids=lambda file: file.stem)
def test_recipes_that_are_said_not_to_be_run_have_no_results(file):
    known = shipped.known(shipped.RECIPE)
    for text in sentences(file):
        if re.search(r"\bnot (been )?run( yet|[.,;])|No result is recorded", text):
            named = {name for name in re.findall(r"\w+", text) if name in known}
            assert named, text
            assert not named & recorded_recipes(), text


def test_columns_in_which_nothing_is_measured_are_left_out():
    rows = [["x", NOTHING, "1"], ["y", NOTHING, NOTHING]]
    table = Table(["model", "a", "b"], rows, shows="So.")
    wanted = ["So.", "", "| model | b |", "|---|---|", "| x | 1 |", "| y | – |"]
    assert table.text.splitlines() == wanted
    assert Table(["model"], [], [Gap("x", "`y`")], "So.").text == ""


def test_the_best_of_rows_that_may_be_compared_is_bold():
    rows = [["a", "2.0 ± 0.1", "same"], ["b", "1.0, 3 GiB", "same"], ["c", "0.5", "own"]]
    rows += [["d", NOTHING, "same"], ["e", "1.0 ± 0.3", "same"], ["f", "0.1", None]]
    shown = emphasise([*rows, ["g", "0.2", None]], [1], lambda row: row[2])
    wanted = ["2.0 ± 0.1", "**1.0**, 3 GiB", "0.5", NOTHING, "**1.0 ± 0.3**", "0.1", "0.2"]
    assert [row[1] for row in shown] == wanted  # a row alone is not the best of anything
    assert emphasise(rows[:2], [1], best=max)[0][1] == "**2.0 ± 0.1**"
    assert rows[0][1] == "2.0 ± 0.1"


def test_what_is_missing_is_grouped_by_what_measures_it_and_then_by_where():
    walls = "on walls"
    gaps = [Gap("A", "`x`", walls), Gap("B", "`y`"), Gap("B", "`x`"), Gap("C", "`x`", walls)]
    assert not_measured([*gaps, gaps[0]]) == (
        "Not measured yet: A and C on walls, B, by `x`; B, by `y`."
    )
    assert not_measured([]) == ""


def test_the_table_of_neighbours_is_what_is_recorded():
    rows = {"all five others": "", "the four nearest": "_k4", "the three nearest": "_k3"}
    about = {"recipe": "nbody_segnn", "train.lr": 3e-4, "seed": 0}
    runs = runs_of(FOLDER, Which("nbody-accuracy", "segnn", about))
    shown = section("nbody", "SEGNN on six bodies")
    for label, suffix in rows.items():
        cells = [runs.mean(metric, set=f"more_bodies{suffix}") for metric in ("mse", "median")]
        assert f"| {label} | {' | '.join(cells)} |" in shown


def _record(folder, value, seed, **settings):
    told = {
        "train_samples": 1000,
        "steps": 5000,
        "recipe": "nbody_readme",
        "seed": seed,
        **settings,
    }
    results.record("nbody-accuracy", "gca_gnn", "mse", value, "length²", told, folder=folder)


def test_a_cell_is_the_mean_of_the_latest_runs_of_the_recipe_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    _record(tmp_path, 9.0, 0, set="eval")  # repeated below
    _record(tmp_path, 0.05, 0, set="eval")
    _record(tmp_path, 0.07, 1, set="eval", **{"train.cuda_graph": False})
    _record(tmp_path, 5.0, 2, set="eval", **{"train.lr": 1.0})  # another recipe
    _record(tmp_path, 3.0, 0, set="translated")
    (cells,) = nbody.readme(tmp_path).rows
    assert cells[0] == "GCA-GNN"
    assert cells[1:3] == ["0.0526", "0.06000 ± 0.01000"]
    assert cells[5:7] == ["0.0003", "2"]
    found = runs_of(tmp_path, Which("nbody-accuracy", "gca_gnn", {"train.lr": 1.0}))
    assert found.mean("mse", ".1f", set="eval") == "5.0"


def rows_of(table, *first):
    """The cells of the rows that begin like this."""
    return [row for row in table.rows if row[: len(first)] == [*first]]


def test_the_rate_with_the_least_error_on_val_is_chosen_once_all_are_measured(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    errors = {1e-4: 0.05, 3e-4: 0.03, 1e-3: 0.04}
    for number, (rate, value) in enumerate(errors.items(), 1):
        told = {"recipe": "nbody_rates", "train.lr": rate}
        _record(tmp_path, value, 0, set="val", **told)
        _record(tmp_path, 1 - value, 0, set="eval", **told)  # has no say
        found = rows_of(rates.chosen(tmp_path), "nbody", "`gca_gnn`")
        (row,) = [cells for cells in found if "recipe:nbody_rates " in cells[-1]]
        assert row[4] == (NOTHING if number < 3 else "0.0003")
    assert row[3] == "0.0001: 0.05000; 0.0003: 0.03000; 0.001: 0.04000"


@pytest.mark.parametrize("recipe", rates.recipes())
def test_rates_are_compared_without_the_test_data_three_for_each_model(recipe):
    for runs in rates._groups(recipe).values():
        assert len({run.config.train.lr for run in runs}) == len(runs) >= 3
        assert all(run.config.data.options["test"] is False for run in runs)
        changes = [
            {**asdict(run.config.train), "lr": 0, "lr_final": 0, "data": run.config.data}
            for run in runs
        ]
        assert all(each == changes[0] for each in changes)


@pytest.mark.parametrize(
    ("tuned", "recipe"),
    [(x, "charges_standard") for x in rates.recipes() if x.startswith("charges")]
    + [("nbody_best_rates", "nbody_best")],
)
def test_rates_are_compared_with_the_settings_of_the_recipe_that_takes_them(tuned, recipe):
    def settings(config):
        options = {**config.data.options, "test": True, "val": False}
        return config.model, {**asdict(config.train), "lr": 0}, config.data.train_samples, options

    wanted = [settings(run.config) for run in planned(recipe)]
    assert all(settings(run.config) in wanted for run in planned(tuned))


def test_what_the_tables_say_of_recipes_is_what_their_runs_have():
    group = Group("charges_standard", "segnn", {charges.REVERSE: False})
    assert (group.rate, group.steps, group.parameters) == ("0.002", 6000, "147,424")
    assert group.options == {"moving_frame": True}
    one = {arteries.ORIENTATION: "random"}  # the default of data.options
    assert Group("arteries_ablations_ours", "gatr", one).options == {"length_scale": 0.1}
    with pytest.raises(ValueError, match="the recipe arteries_best has no run with"):
        Group("arteries_best", "mlp").configs  # noqa: B018
    with pytest.raises(ValueError, match=r"differ in model\.options"):
        Group("nbody_mlp_depths", "mlp").options  # noqa: B018


def test_gpu_time_is_that_of_all_steps_measured_alone_as_the_run_takes_them(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    monkeypatch.setattr(results, "machine", lambda: "NVIDIA GPU")
    config = Group("nbody_readme", "mlp").configs[0]
    assert gpu_time(tmp_path, config) == NOTHING
    about = dict(batch=64, items=4, precision="float32", cuda_graph=True, compile=False)
    others = [{"precision": "tf32"}, {"cuda_graph": False}, {"compile": True}, {"batch": 100}]
    for other in ({}, *others):
        time = 9.0 if other else 0.4
        given = dict(folder=tmp_path, settings=about | other)
        results.record("nbody-step", "mlp", "time", time, "ms", **given)
    assert gpu_time(tmp_path, config) == "2 s, GPU"  # 5,000 steps
    deep = Group("nbody_mlp_depths", "mlp", {"model.options.layers": 5}).configs[0]
    assert gpu_time(tmp_path, deep) == NOTHING  # another network


def test_models_are_compared_at_the_same_gpu_time():
    """Where steps are measured."""
    times = {}
    for run in planned("nbody_best"):
        found = gpu_time(FOLDER, run.config)
        if found != NOTHING:
            times[run.config.model.name] = int(found.split()[0])
    assert {"gatr", "segnn", "se3_transformer", "transformer", "mlp"} <= times.keys()
    assert set(times.values()) == {times["gatr"]}


def test_the_loss_and_the_depth_are_chosen_on_val_and_the_neighbours_on_the_set(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")

    def record(model, recipe, value, where, samples=1000, **own):
        told = dict(train_samples=samples, recipe=recipe, seed=0, set=where, **own)
        results.record(nbody.FILE, model, "mse", value, "length²", told, folder=tmp_path)

    for huber, on_val, value in ((0.01, 0.2, 0.4), (0.0, 0.3, 0.1)):
        own = {"data.options.huber": huber}
        record("mlp", "nbody_best", on_val, "val", **own)
        assert bool(rows_of(nbody.best(tmp_path), "MLP")) == (huber == 0)  # both losses are there
        record("mlp", "nbody_best", value, "eval", **own)
    (row,) = rows_of(nbody.best(tmp_path), "MLP")
    assert row[1:5] == ["robust loss", "0.20000", "0.30000", "0.40000"]
    assert "MLP" not in [gap.what for gap in nbody.best(tmp_path).missing]

    for layers, on_val, value in ((2, 0.3, 0.1), (5, 0.2, 0.4), (10, 0.5, 0.3)):
        for where, error in (("val", on_val), ("eval", value)):
            record("mlp", "nbody_mlp_depths", error, where, 100, **{"model.options.layers": layers})
    for end, value in (("", 0.5), ("_k4", 0.3), ("_k3", 0.4)):
        record("segnn", "nbody_figure_baselines", value, f"more_bodies{end}", 100)
    new, more = (nbody.errors("", name, "mse", tmp_path) for name in ("eval", "more_bodies"))
    (row,) = rows_of(new, "MLP with the best number of layers on val")
    assert row[1:] == ["4.00e-01 (5 layers)", *[NOTHING] * 3]
    (row,) = rows_of(more, "SEGNN with the best of these")
    assert row[1:] == ["**3.00e-01 (k: 4)**", *[NOTHING] * 3]
    gaps = [gap for gap in nbody.costs(tmp_path).missing if gap.what.startswith("MLP with")]
    assert {gap.where for gap in gaps} == {"on 1,000, 10,000 and 100,000 systems"}


def test_the_figure_of_arteries_is_on_validation_meshes(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    about = dict(recipe="arteries_sizes_ours", orientation="random", steps=6000, train_meshes=200)
    for seed, value in ((0, 8.0), (1, 10.0)):
        for split, error in (("val", value), ("test", 1.0)):
            told = dict(**about, seed=seed, split=split)
            given = (arteries.FILE, "gatr", "epsilon_mean", error, "%", told)
            results.record(*given, folder=tmp_path)
    table = arteries.sizes(tmp_path)
    (row,) = rows_of(table, "GATr", "random")
    assert row[2:7] == [NOTHING, "9.00 ± 1.00", *[NOTHING] * 3]
    assert row[7:9] == ["0.01", "2"]
    assert table.missing[:2] == [
        Gap("GATr", "`recipe:arteries_sizes_ours`", f"on {where} orientation")
        for where in ("100, 400, 800 and 1,600 meshes of random", "meshes of canonical")
    ]


def test_rewards_of_recorded_runs_have_rows_and_are_no_longer_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    told = {"demonstrations": 110, "recipe": "kuka_figure", "steps": 900, "engine": "mujoco"}
    told |= {"sampler": "ancestral", "sampling_steps": 1000, "scenes": 200, "train.lr": 0.01}
    places = {"plain": {"turned": False}, "turned": {"turned": True},
              "mirrored": {"turned": False, "mirrored": True}}  # fmt: skip
    for place in places.values():
        for seed, reward in ((0, 60.0), (1, 70.0)):
            for scene_set in ("test", "validation"):  # settings are chosen by the latter
                own = {**told, **place, "seed": seed, "scene_set": scene_set, "reward": "original"}
                results.record("kuka-reward", "gatr", "reward", reward, "%", own, folder=tmp_path)
    table = kuka.rewards(tmp_path)
    assert len(table.rows) == 3
    for name, row in zip(places, table.rows, strict=True):
        assert row[:5] == ["GATr", "74.8 ± 1.7", "65.0 ± 5.0", NOTHING, "mujoco"]
        assert row[5:10] == [f"200, {name}", "ancestral, 1,000", "110", "900", "2"]
        runs = selected(row[-1].strip("`"))
        assert [run.config.seed for run in runs] == [0, 1]
        for run in runs:
            assert (run.config.model.name, run.config.data.train_samples) == ("gatr", 110)
            assert (run.config.train.steps, run.config.train.lr) == (900, 0.01)
            assert run.config.data.options["engine"] == "mujoco"
    figure = [gap for gap in table.missing if "kuka_figure" in gap.how]
    (gap,) = [gap for gap in figure if gap.what.startswith("GATr")]
    assert gap.where == "with 1,100 and 11,000 demonstrations"


def test_seeds_share_a_row_though_the_recipe_became_what_one_was_changed_to(tmp_path, monkeypatch):
    """The first run of kuka_figure was recorded with its rate as a change; that is its own now."""
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    told = {"demonstrations": 11_000, "recipe": "kuka_figure", "steps": 27_050, "engine": "bullet"}
    told |= {"sampler": "ancestral", "sampling_steps": 1000, "scenes": 200, "scene_set": "test"}
    changes = {"model.options.predict": "velocity", "train.lr": 1e-3, "train.batch_size": 8}
    changes["train.checkpoint_every"] = 27_050  # leaves results what they are
    other = changes | {"train.lr": 3e-3}
    for seed, own, reward in ((0, changes, 60.0), (1, {}, 70.0), (2, other, 10.0)):
        about = {**told, **own, "turned": False, "seed": seed, "reward": "original"}
        results.record("kuka-reward", "gatr", "reward", reward, "%", about, folder=tmp_path)
    both, alone = kuka.rewards(tmp_path).rows
    assert (both[2].strip("*"), both[9]) == ("65.0 ± 5.0", "2")
    assert (alone[2], alone[9]) == ("10.0", "1")
    assert "--set train.lr=0.003" in alone[-1]
    assert "--set train" not in both[-1]


def test_rewards_with_types_have_rows_beside_those_without(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    told = {"demonstrations": 11_000, "recipe": "kuka_types", "steps": 27_050, "engine": "bullet"}
    told |= {"sampler": "ancestral", "sampling_steps": 1000, "scenes": 200, "scene_set": "test"}
    told |= {"turned": False, "mirrored": True, "reward": "original", "seed": 0}
    for model, reward in (("gatr", 60.0), ("gatr_e3", 70.0)):
        results.record("kuka-reward", model, "reward", reward, "%", told, folder=tmp_path)
    table = kuka.rewards(tmp_path)
    assert [[row[0], row[2], row[-2]] for row in table.rows] == [
        ["GATr", "60.0", "1,190,292"],
        ["GATr with types", "**70.0**", "742,130"],
    ]
    assert selected(table.rows[1][-1].strip("`"))
    (gap,) = [gap for gap in table.missing if "kuka_types" in gap.how]
    assert gap == Gap("Wider GATr with types", "`recipe:kuka_types`", "in mirrored scenes")


def test_networks_with_types_are_compared_as_they_were_trained(tmp_path, monkeypatch):
    """Each with its own learning rate; errors are compared by geometric means over seeds."""
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")

    def record(file, model, metric, value, **own):
        results.record(file, model, metric, value, "", own, folder=tmp_path)

    def bodies(model, value, seed, **own):
        about = dict(recipe="nbody_types", steps=50_000, train_samples=1000, seed=seed)
        record(nbody.FILE, model, "median", value, **about, set="eval", **own)

    for seed, value in enumerate((1.0, 4.0)):
        bodies("gatr", value, seed)
        bodies("gatr_e3", 2 * value, seed, **{"train.lr": 4e-3})
        bodies("gatr_e3", 100 * value, seed, **{"train.clip": 1.0})  # another recipe
    table = mirrors.nbody(tmp_path)
    assert [[row[0], row[2], row[5], row[6]] for row in table.rows] == [
        ["`gatr`", "**2.50e+00 ± 1.50e+00**", "0.002", "0 / 2 / 0 / 0"],
        ["`gatr_e3`", "5.00e+00 ± 3.00e+00", "0.004", "0 / 2 / 0 / 0"],
    ]
    assert table.rows[1][-2] == "2,495,705"  # those between unlike types are not trained
    assert "seeds: 2.00 (`gatr_e3`, 1,000 systems)." in table.shows
    assert len(selected(table.rows[1][-1].strip("`"))) == 12
    assert table.missing[0].where == "on 100, 10,000 and 100,000 systems"
    bodies("gatr_e3", 0.5, 0)  # of two rates, the test data do not choose one
    assert len(mirrors.nbody(tmp_path).rows) == 3
    assert mirrors.nbody(tmp_path).shows == ""

    about = dict(recipe="arteries_mirrors", steps=20_000, train_meshes=1600, seed=0)
    for k, model in enumerate(("gatr", "gatr_e3")):
        given = (arteries.FILE, model)
        for split, value in (("test", 6 + k), ("test_mirrored", 7 - k), ("val", 5.0)):
            where = dict(about, orientation="canonical", split=split)
            record(*given, "epsilon_mean", value, **where)
            record(*given, "change_max", value / 100, **where)
    table = mirrors.arteries(tmp_path)
    assert [row[:8] for row in table.rows] == [
        ["`gatr`", "canonical", "1,600", "**6.00**", "7.00", NOTHING, "7.0e-02", "**5.00**"],
        ["`gatr_e3`", "canonical", "1,600", "7.00", "**6.00**", NOTHING, "6.0e-02", "**5.00**"],
    ]
    assert [row[-2] for row in table.rows] == ["191,597", "129,899"]
    places = {gap.what: gap.where for gap in table.missing}
    assert places["`gatr`"] == places["`gatr_e3`"] == "on meshes of random orientation"
    assert places["`gatr_both_signs`"] == places["`gatr_e3_wide`"] == ""


def test_the_largest_number_of_items_and_what_does_not_fit_are_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    about = {"batch": 4, "precision": "bfloat16", "checkpointing": True}

    def record(metric, value, **own):
        results.record("scaling", "segnn", metric, value, "", about | own, folder=tmp_path)

    for n in (256, 512):
        record("time", 10.0, n_items=n, mode="eager")
        record("memory", 4 * n**2 / 64, n_items=n, mode="eager")  # 16 KiB per pair
    record("largest", 1008, limit="memory", fails=1024)
    (row,) = scaling.sizes(tmp_path).rows
    assert row[0] == "SEGNN with checkpointing"
    assert row[2:5] == ["10 ms, 4.00 GiB", "10 ms, 16.00 GiB", "does not fit"]
    assert row[6:8] == ["1,008", "453,492"]
    (row,) = scaling.mesh(tmp_path).rows
    assert row[1:] == ["256 and 512", "16.0 KiB", "748 GiB"]


def test_sizes_and_the_extrapolation_are_of_the_machine_that_measured_last(tmp_path, monkeypatch):
    """Also if its cases are older than those of another machine."""
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")

    def record(machine, sizes, per_pair):
        monkeypatch.setattr(results, "machine", lambda: machine)
        for n in sizes:
            about = {"batch": 4, "checkpointing": False, "n_items": n}
            for metric, value in (("time", 10.0 * per_pair), ("memory", per_pair * 4 * n**2 / 64)):
                results.record("scaling", "segnn", metric, value, "", about, folder=tmp_path)

    record("new", (256, 512), 1)
    record("old", (512, 1024), 3)
    record("new", (256, 512), 1)  # again: its cases keep their places in the file
    (row,) = scaling.sizes(tmp_path).rows
    assert row[0] == "SEGNN"
    assert row[2:5] == ["10 ms, 4.00 GiB", "10 ms, 16.00 GiB", NOTHING]
    (row,) = scaling.mesh(tmp_path).rows
    assert row[1:] == ["256 and 512", "16.0 KiB", "748 GiB"]


def test_equivariance_errors_are_the_largest_of_the_latest_ones(tmp_path, monkeypatch):
    """A row per experiment, model and recipe, with the number of its runs."""
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    monkeypatch.setattr(results, "machine", lambda: "NVIDIA GPU")

    def record(model, value, **own):
        about = {"recipe": "nbody_readme", "seed": 0, "dtype": "float32"} | own
        results.record(
            "nbody-equivariance", model, "equivariance", value, "1", about, folder=tmp_path
        )

    record("gatr", 0.5)  # repeated below
    record("gatr", 2e-6)
    record("gatr", 3e-6, seed=1)
    record("gatr", 2.5e-6, seed=1, train_samples=100)  # a third run
    record("gatr", 4e-14, dtype="float64")
    record("gatr", 7e-6, recipe="nbody_figure")
    record("mlp", 1.5, dtype="bfloat16 autocast")
    _record(tmp_path, 0.05, 0, set="eval")  # the error of a GCA-GNN on data
    table = equivariance.errors(tmp_path)
    assert table.rows == [
        ["nbody", "gatr", "nbody_readme", "4.0e-14", "3.0e-06", NOTHING, "3", "GPU"],
        ["nbody", "gatr", "nbody_figure", NOTHING, "7.0e-06", NOTHING, "1", "GPU"],
        ["nbody", "mlp", "nbody_readme", NOTHING, NOTHING, "1.5e+00", "1", "GPU"],
    ]
    assert table.missing == [Gap("`gca_gnn`", "`recipe:nbody_readme`")]
    assert table.shows == "In float64 the errors of `gatr` (nbody) are rounding errors."


def test_published_results_are_ranked_with_ours_and_bold_where_the_data_are_the_same(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")

    def record(value, reverse):
        about = dict(recipe="charges_standard", horizon=1000, seed=0, **charges.DATA["charges"])
        about |= {charges.REVERSE: reverse, "steps": 10_000, "set": "test"}
        results.record(charges.FILE, "gatr", "mse", value, "length²", about, folder=tmp_path)

    record(0.0031, True)
    record(0.0060, False)
    table = charges.standard(tmp_path)
    errors = [float(row[1].strip("*")) for row in table.rows]
    assert errors == sorted(errors)
    assert [row[:2] for row in table.rows[:2]] == [
        ["GATr", "0.0031"],
        ["Multivector Neurons, published", "**0.0035**"],
    ]
    assert "Our least error is 0.0031 (GATr; training systems: 3,000, each also" in table.shows
    record(0.0034, False)
    (row,) = [x for x in charges.standard(tmp_path).rows if x[0] == "GATr" and x[3] == "3,000"]
    assert row[1] == "**0.0034**"
    assert "GATr" not in [gap.what for gap in table.missing]


def test_sentences_say_less_only_if_it_is_less(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")

    def record(model, samples, value, recipe="nbody_figure"):
        about = dict(train_samples=samples, recipe=recipe, seed=0, set="eval")
        results.record(nbody.FILE, model, "mse", value, "length²", about, folder=tmp_path)

    def shown():
        return nbody.errors(*nbody.FIGURES[0], tmp_path).shows

    record("gatr", 100, 0.2)
    assert shown() == ""
    record("transformer", 100_000, 0.3)
    assert "GATr has a mean error of 2.00e-01 on new ones, less than the 3.00e-01" in shown()
    record("transformer", 100_000, 0.1)
    assert ", not less than the 1.00e-01" in shown()
    record("mlp", 1000, 0.05, "nbody_readme")
    for value, order in ((0.1, "another"), (0.01, "the same")):  # GATr is first in the README
        record("gatr", 1000, value, "nbody_readme")
        assert f"come in {order} order" in nbody.readme(tmp_path).shows


@pytest.mark.parametrize("name", ["nbody-accuracy", "arteries-accuracy", "kuka-reward"])
def test_all_lines_of_a_file_are_read(name):
    text = (FOLDER / f"{name}.jsonl").read_text()
    assert read(FOLDER, name) == [json.loads(line) for line in text.splitlines()]


METRICS = {"nbody": "mse", "charges": "mse", "arteries": "epsilon_mean"}
SETS = {
    "nbody": {"eval", "translated", *(f"more_bodies{end}" for end in nbody.NEIGHBOURS.values())},
    "charges": {"test"},
    "arteries": {"test", "val"},
}


def record_all(command, folder):
    """What `sweep COMMAND --record` would append, with an error of 1 for every run of seed 0."""
    name = shlex.split(command)[0].partition(":")[2]
    for run in selected(command):
        config, task = run.config, experiments.find(run.config.experiment).get("task")
        if config.seed:
            continue
        options = task.option_defaults | config.data.options
        places = set(SETS[config.experiment]) if options["test"] else {"val"}
        metrics = {METRICS[config.experiment]: 1.0}
        if config.experiment == "arteries":
            metrics |= {"train_meshes": config.data.train_samples or arteries.WHOLE}
            metrics["orientation"] = options["orientation"]
        found = dict.fromkeys(places | {"val"} if options.get("val") else places, metrics)
        recording.record_run(config, found, name, run.values | run.changes)


def test_every_result_of_a_recipe_on_the_page_has_a_place_there(tmp_path, monkeypatch):
    """Of systems and vessels: if all recipes are run, nothing is missing but symmetries."""
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    monkeypatch.setattr(results, "record", partial(results.record, folder=tmp_path))
    recipes = {x for x in re.findall(r"`(recipe:\w+)", WRITTEN) if ":kuka" not in x}
    for command in sorted(recipes):
        record_all(command, tmp_path)
    tables = [
        make(tmp_path)
        for section in page.SECTIONS
        if section.title not in {"Robotics", "Scaling", "Equivariance of trained models"}
        for make in section.tables
    ]
    assert len(tables) > 10
    assert all(found.rows for found in tables)
    assert not [gap for found in tables for gap in found.missing]


@pytest.mark.parametrize("row", [arteries.WIDE, arteries.LONG], ids=["wide", "long"])
def test_a_row_with_changes_shows_what_its_command_records(row, tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    monkeypatch.setattr(results, "record", partial(results.record, folder=tmp_path))
    record_all(row.group.command.strip("`"), tmp_path)
    record_all("recipe:arteries_ours", tmp_path)  # without the changes
    found = rows_of(arteries.errors(tmp_path), row.label)
    assert [[cells[1], cells[3].strip("*")] for cells in found] == [["1,600", "1.00"]]
    assert row.runs(FOLDER, 800, "random").lines  # recorded before


def test_a_run_that_diverged_is_the_last_of_its_table(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    about = dict(recipe="charges_standard", horizon=1000, seed=0, **charges.DATA["charges"])
    for model, error in (("gatr", float("nan")), ("mlp", 0.05)):
        told = about | {charges.REVERSE: False, "steps": 10_000, "set": "test"}
        results.record(charges.FILE, model, "mse", error, "length²", told, folder=tmp_path)
        told = dict(train_samples=1000, recipe="nbody_readme", seed=0, set="eval")
        results.record(nbody.FILE, model, "mse", error, "length²", told, folder=tmp_path)
    table = charges.standard(tmp_path)
    assert table.rows[-1][0] == "GATr"
    assert "Our least error is 0.0500 (MLP;" in table.shows
    assert [row[0] for row in nbody.readme(tmp_path).rows] == ["MLP", "GATr"]
    assert "in another order" in nbody.readme(tmp_path).shows
