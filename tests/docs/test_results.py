"""docs/results.md is what is recorded, and its commands are valid."""

import json
import re
import shlex
from pathlib import Path

import pytest

from flashgatr.experiments import results, shipped, sweep
from flashgatr.experiments.bench.accuracy import arteries, charges, kuka, nbody, page, scaling
from flashgatr.experiments.bench.accuracy.recorded import MISSING, Which, read, runs_of

from .pages import ROOT, section

FOLDER = ROOT / "benchmarks" / "results"


WRITTEN = (ROOT / "docs" / "results.md").read_text()


def test_the_page_is_what_is_recorded():
    assert page.text(FOLDER) == WRITTEN, "run flashgatr bench results"


def test_every_recipe_on_the_page_has_the_runs_that_its_command_selects():
    commands = set(re.findall(r"`flashgatr (sweep recipe:[^`]*)`", WRITTEN))
    assert len(commands) > 30
    for command in commands:
        _, recipe, *options = shlex.split(command)
        chosen = [
            x for flag, x in zip(options[::2], options[1::2], strict=True) if flag == "--only"
        ]
        planned = sweep.plan(shipped.find(Path(recipe)), Path("runs"))
        assert sweep.select(planned, chosen), command


def test_without_results_every_cell_says_so(tmp_path):
    tables = [nbody.readme, arteries.errors, arteries.ablations, charges.standard, kuka.rewards]
    for table in (*tables, nbody.figure, scaling.sizes, scaling.mesh):
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
    assert cells[5] == "2"
    found = runs_of(tmp_path, Which("nbody-accuracy", "gca_gnn", {"train.lr": 1.0}))
    assert found.mean("mse", ".1f", set="eval") == "5.0"


def test_rewards_of_recorded_runs_replace_the_row_that_says_not_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    told = {"demonstrations": 110, "recipe": "kuka_figure", "steps": 9, "engine": "mujoco"}
    for seed, reward in ((0, 60.0), (1, 70.0)):
        own = {**told, "seed": seed, "reward": "original", "scenes": 200, "turned": True}
        results.record("kuka-reward", "gatr", "reward", reward, "%", own, folder=tmp_path)
    (row,) = [x for x in kuka.rewards(tmp_path).splitlines() if x.startswith("| GATr")]
    assert row.startswith(
        "| GATr | 74.8 ± 1.7 | 65.0 ± 5.0 | not measured | mujoco | turned | – | 110 | 9 |"
    )
    assert "recipe:kuka_figure" in row


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
    assert cells[5] == "1,008"
    assert "| 256 and 512 | 16.0 KiB | 748 GiB |" in scaling.mesh(tmp_path)


@pytest.mark.parametrize("name", ["nbody-accuracy", "arteries-accuracy", "kuka-reward"])
def test_all_lines_of_a_file_are_read(name):
    text = (FOLDER / f"{name}.jsonl").read_text()
    assert read(FOLDER, name) == [json.loads(line) for line in text.splitlines()]
