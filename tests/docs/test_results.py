"""docs/results.md is what is recorded, and its commands are valid."""

import json
import re
import shlex
from dataclasses import asdict
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest

from flashgatr.experiments import results, shipped, sweep
from flashgatr.experiments.bench.accuracy import (
    arteries,
    charges,
    equivariance,
    kuka,
    nbody,
    page,
    rates,
    scaling,
)
from flashgatr.experiments.bench.accuracy.gpu_time import gpu_time
from flashgatr.experiments.bench.accuracy.recipes import Group, planned
from flashgatr.experiments.bench.accuracy.recorded import MISSING, Which, read, runs_of
from flashgatr.train import toml
from flashgatr.train.settings import read_assignment

from .pages import ROOT, section

FOLDER = ROOT / "benchmarks" / "results"


WRITTEN = (ROOT / "docs" / "results.md").read_text()


def test_the_page_is_what_is_recorded():
    assert page.text(FOLDER) == WRITTEN, "run flashgatr bench results"


def selected(command):
    """The runs of `flashgatr sweep recipe:NAME --only KEY=VALUE --set KEY=VALUE`."""
    _, _, recipe, *options = shlex.split(command)
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
    commands = set(re.findall(r"`(flashgatr sweep recipe:[^`]*)`", WRITTEN))
    assert len(commands) > 30
    for command in commands:
        assert selected(command), command


def test_runs_that_repeat_rewards_have_the_settings_of_their_row():
    """Of the recorded rows, whose cells are told on the page."""
    shown = [x.split(" | ") for x in section("results", "Robotics").splitlines() if "kuka_" in x]
    rows = [cells for cells in shown if MISSING not in cells]
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
    assert kuka._command(about, "gatr") == "–"
    own = {"recipe": "pretrained:kuka", "engine": "bullet"}
    assert kuka._command(own, "gatr") == "`flashgatr eval pretrained:kuka --record`"


def test_without_results_every_cell_says_so(tmp_path):
    tables = [nbody.readme, arteries.errors, arteries.ablations, charges.standard, kuka.rewards]
    tables += [nbody.best, arteries.sizes, charges.horizons, rates.chosen]
    for table in (*tables, nbody.figure, scaling.sizes, scaling.mesh, equivariance.errors):
        text = table(tmp_path)
        assert MISSING in text
        assert "e-0" not in text


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
    (row,) = [x for x in nbody.readme(tmp_path).splitlines() if x.startswith("| GCA-GNN")]
    cells = row.split(" | ")
    assert cells[1:3] == ["0.0526", "0.06000 ± 0.01000"]
    assert cells[5:7] == ["0.0003", "2"]
    found = runs_of(tmp_path, Which("nbody-accuracy", "gca_gnn", {"train.lr": 1.0}))
    assert found.mean("mse", ".1f", set="eval") == "5.0"


def rows_of(text, first):
    """The cells of the rows that begin like this."""
    return [x.split(" | ") for x in text.splitlines() if x.startswith(f"| {first}")]


def test_the_rate_with_the_least_error_on_val_is_chosen_once_all_are_measured(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    errors = {1e-4: 0.05, 3e-4: 0.03, 1e-3: 0.04}
    for number, (rate, value) in enumerate(errors.items(), 1):
        told = {"recipe": "nbody_rates", "train.lr": rate}
        _record(tmp_path, value, 0, set="val", **told)
        _record(tmp_path, 1 - value, 0, set="eval", **told)  # has no say
        found = rows_of(rates.chosen(tmp_path), "nbody | `gca_gnn`")
        (row,) = [cells for cells in found if "recipe:nbody_rates " in cells[-1]]
        assert row[4] == (MISSING if number < 3 else "0.0003")
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
    assert gpu_time(tmp_path, config) == MISSING
    about = dict(batch=64, items=4, precision="float32", cuda_graph=True, compile=False)
    others = [{"precision": "tf32"}, {"cuda_graph": False}, {"compile": True}, {"batch": 100}]
    for other in ({}, *others):
        time = 9.0 if other else 0.4
        given = dict(folder=tmp_path, settings=about | other)
        results.record("nbody-step", "mlp", "time", time, "ms", **given)
    assert gpu_time(tmp_path, config) == "2 s, GPU"  # 5,000 steps
    deep = Group("nbody_mlp_depths", "mlp", {"model.options.layers": 5}).configs[0]
    assert gpu_time(tmp_path, deep) == MISSING  # another network


def test_models_are_compared_at_the_same_gpu_time():
    """Where steps are measured."""
    times = {}
    for run in planned("nbody_best"):
        found = gpu_time(FOLDER, run.config)
        if found != MISSING:
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
        assert rows_of(nbody.best(tmp_path), "MLP")[0][1] == (MISSING if huber else "robust loss")
        record("mlp", "nbody_best", value, "eval", **own)
    (row,) = rows_of(nbody.best(tmp_path), "MLP")
    assert row[1:5] == ["robust loss", "0.20000", "0.30000", "0.40000"]

    for layers, on_val, value in ((2, 0.3, 0.1), (5, 0.2, 0.4), (10, 0.5, 0.3)):
        for where, error in (("val", on_val), ("eval", value)):
            record("mlp", "nbody_mlp_depths", error, where, 100, **{"model.options.layers": layers})
    for end, value in (("", 0.5), ("_k4", 0.3), ("_k3", 0.4)):
        record("segnn", "nbody_figure_baselines", value, f"more_bodies{end}", 100)
    text = nbody.figure(tmp_path)
    assert rows_of(text, "MLP, best number of layers on val")[0][1] == "4.00e-01 (5 layers)"
    assert rows_of(text, "SEGNN, best of these")[0][1] == "3.00e-01 (k: 4)"


def test_the_figure_of_arteries_is_on_validation_meshes(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    about = dict(recipe="arteries_sizes_ours", orientation="random", steps=6000, train_meshes=200)
    for seed, value in ((0, 8.0), (1, 10.0)):
        for split, error in (("val", value), ("test", 1.0)):
            told = dict(**about, seed=seed, split=split)
            given = (arteries.FILE, "gatr", "epsilon_mean", error, "%", told)
            results.record(*given, folder=tmp_path)
    (row,) = rows_of(arteries.sizes(tmp_path), "GATr | random")
    assert row[2:7] == [MISSING, "9.00 ± 1.00", *[MISSING] * 3]
    assert row[7:9] == ["0.01", "0 / 2 / 0 / 0 / 0"]


def test_rewards_of_recorded_runs_replace_the_row_that_says_not_measured(tmp_path, monkeypatch):
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
    rows = [x for x in kuka.rewards(tmp_path).splitlines() if x.startswith("| GATr")]
    assert len(rows) == 3
    for name, row in zip(places, rows, strict=True):
        assert row.startswith(
            f"| GATr | 74.8 ± 1.7 | 65.0 ± 5.0 | not measured | mujoco | 200, {name} | "
            "ancestral, 1,000 | 110 | 900 | 2 |"
        )
        runs = selected(row.split(" | ")[-1].strip("` |"))
        assert [run.config.seed for run in runs] == [0, 1]
        for run in runs:
            assert (run.config.model.name, run.config.data.train_samples) == ("gatr", 110)
            assert (run.config.train.steps, run.config.train.lr) == (900, 0.01)
            assert run.config.data.options["engine"] == "mujoco"


def test_the_largest_number_of_items_and_what_does_not_fit_are_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    about = {"batch": 4, "precision": "bfloat16", "checkpointing": True}

    def record(metric, value, **own):
        results.record("scaling", "segnn", metric, value, "", about | own, folder=tmp_path)

    for n in (256, 512):
        record("time", 10.0, n_items=n, mode="eager")
        record("memory", 4 * n**2 / 64, n_items=n, mode="eager")  # 16 KiB per pair
    record("largest", 1008, limit="memory", fails=1024)
    rows = scaling.sizes(tmp_path).splitlines()
    (row,) = [x for x in rows if x.startswith("| SEGNN, checkpointing")]
    cells = row.split(" | ")[1:]
    assert cells[1:4] == ["10 ms, 4.00 GiB", "10 ms, 16.00 GiB", "does not fit"]
    assert cells[5:7] == ["1,008", "453,492"]
    assert "| 256 and 512 | 16.0 KiB | 748 GiB |" in scaling.mesh(tmp_path)


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
    (row,) = [x for x in scaling.sizes(tmp_path).splitlines() if x.startswith("| SEGNN |")]
    assert row.split(" | ")[2:5] == ["10 ms, 4.00 GiB", "10 ms, 16.00 GiB", MISSING]
    assert "| 256 and 512 | 16.0 KiB | 748 GiB |" in scaling.mesh(tmp_path)


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
    rows = equivariance.errors(tmp_path).splitlines()[2:]
    assert rows == [
        "| nbody | gatr | nbody_readme | 4.0e-14 | 3.0e-06 | not measured | 3 | GPU |",
        "| nbody | gatr | nbody_figure | not measured | 7.0e-06 | not measured | 1 | GPU |",
        "| nbody | mlp | nbody_readme | not measured | not measured | 1.5e+00 | 1 | GPU |",
    ]


@pytest.mark.parametrize("name", ["nbody-accuracy", "arteries-accuracy", "kuka-reward"])
def test_all_lines_of_a_file_are_read(name):
    text = (FOLDER / f"{name}.jsonl").read_text()
    assert read(FOLDER, name) == [json.loads(line) for line in text.splitlines()]
