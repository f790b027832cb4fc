"""An experiment without a report of its own gets tables, curves and commands."""

import ast
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from flashgatr import LoadError, experiments
from flashgatr.experiments import report, table
from flashgatr.experiments.config import (
    ConfigError,
    DataConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
    save,
)
from flashgatr.experiments.experiment import Experiment, Metric
from flashgatr.experiments.report import generic, lookup, markup
from flashgatr.experiments.report.protocol import Contents, Report, Section
from flashgatr.train import fingerprint

EXPERIMENTS = Path(experiments.__file__).parent
GENERIC = EXPERIMENTS / "report"
REPORTS = [path for path in EXPERIMENTS.rglob("*.py") if "report" in path.parent.name]
METRICS = {
    "rmse": Metric("error", "cm", ".2f"),
    "hits": Metric("hits, %", "%", ".0f"),
    "never": Metric("never measured", "1"),
}


@pytest.fixture
def declare(monkeypatch):
    """Make an experiment "springs" known."""

    def put(**options):
        experiment = Experiment("springs", task=object, metrics=METRICS, **options)
        source = table.Source(experiment, Path("springs.py"), sha256="0" * 64)
        monkeypatch.setattr(table, "_files", {"springs": source})

    return put


def fake(folder, seed=0, rmse=1.0, samples=0, lr=3e-4, **further):
    """A run that was never trained."""
    config = RunConfig(
        experiment="springs",
        folder=str(folder),
        seed=seed,
        model=ModelConfig("mine", {}),
        data=DataConfig("data/springs", samples),
        train=TrainConfig(steps=10, lr=lr),
    )
    save(config, folder / "config.toml")
    results = {"test": dict(rmse=rmse, hits=97.0, **further), "far": dict(rmse=2 * rmse)}
    summary = dict(step=10, best_step=5, best_score=rmse, run=fingerprint(config), results=results)
    (folder / "results.json").write_text(json.dumps(summary))
    lines = [dict(step=k, kind="validation", score=1 / k) for k in (5, 10)]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return config


def write(path, out):
    page = report.write([path], out)
    found = json.loads((out / "report.json").read_text(), parse_constant=pytest.fail)
    return found, page.read_text()


def test_an_experiment_without_a_report_gets_tables_and_learning_curves(declare, tmp_path):
    declare(summary="Masses & springs.", count="chains")
    for seed, rmse in enumerate([1.0, 2.0, 3.0]):
        fake(tmp_path / f"runs/{seed}", seed, rmse, chains=8, note="text", extra=7)
    fake(tmp_path / "runs/fast", 0, 9.0, 100, lr=1e-2)
    found, page = write(tmp_path / "runs", tmp_path / "out")
    first, fast = found["groups"]
    assert [first["label"], fast["label"]] == ["mine, lr 0.0003", "mine, lr 0.01"]
    assert first["samples"] is None
    assert first["results"]["test"]["rmse"] == {
        "mean": pytest.approx(2),
        "standard_error": pytest.approx(1 / math.sqrt(3)),
    }
    assert found["runs"][0]["results"]["test"] == {"rmse": 1.0, "hits": 97.0, "chains": 8.0}
    assert "<h1>springs</h1>" in page
    assert "<p>Masses &amp; springs. ± is the standard error over seeds.</p>" in page
    head = ("model", "training chains", "steps", "seeds", "error, cm", "hits, %")
    assert "<h3>test</h3><p>8 chains.</p>" in page
    assert "<tr>" + "".join(f"<th>{name}</th>" for name in head) + "</thead>" in page
    assert "<td>all</td><td>10</td><td>3</td><td>2.00 ± 0.58</td><td>97</td>" in page
    assert "<h3>far</h3>" in page
    assert "<td>4.00 ± 1.15</td>" in page
    assert "never measured" not in page
    for title in ("Results", "Training", "Reproduce"):
        assert f"<h2>{title}</h2>" in page
    assert "<summary>All 4 runs</summary>" in page
    assert page.count("data:image/png;base64,") == 1
    assert (tmp_path / "out/curves.png").read_bytes().startswith(b"\x89PNG")
    assert found["notes"] == []


def test_its_commands_make_the_same_run_again(declare, tmp_path, monkeypatch):
    declare()
    fake(tmp_path / "runs/a", 3, samples=50)
    monkeypatch.setattr(lookup, "argument_of", lambda name: f"my {name}.py")
    found, page = write(tmp_path / "runs", tmp_path / "out")
    train, again = re.sub(r" \\\n *", " ", found["commands"]).splitlines()
    assert train.startswith("flashgatr train 'my springs.py' --folder runs/mine-50-3 --set seed=3 ")
    for option in ("data.train_samples=50", "model.name=mine", "train.steps=10"):
        assert f"--set {option}" in train
    assert again == "flashgatr report runs --out report --experiment 'my springs.py'"
    assert "flashgatr train &#x27;my springs.py&#x27;" in page


def test_without_scores_and_finite_numbers_the_rest_is_reported(declare, tmp_path):
    declare()
    fake(tmp_path / "runs/a", 0, math.nan)
    (tmp_path / "runs/a/log.jsonl").unlink()
    found, page = write(tmp_path / "runs", tmp_path / "out")
    assert found["groups"][0]["results"]["test"]["rmse"]["mean"] is None
    assert "<td>not finite</td>" in page
    assert found["notes"] == ["curves.png was not drawn: no run has a log with validation scores"]


def test_a_report_of_its_own_decides_what_stands_on_the_page(declare, tmp_path):
    def compose(collected):
        collected.notes.append(f"{len(collected.runs)} runs of {collected.experiment.name}")
        numbers = dict(flashgatr="0", notes=collected.notes, unreadable=collected.unreadable, own=1)
        sections = [Section("Mine & yours", "<p>text</p>"), Section("Empty", "")]
        return Contents("A < B", "<p>about $x</p>", sections, numbers, {"old.png": None})

    declare(report=Report(compose, required=frozenset({"rmse"}), required_sets=frozenset({"far"})))
    fake(tmp_path / "runs/a")
    fake(tmp_path / "runs/b", 1)
    (tmp_path / "runs/b/results.json").write_text('{"results": {"test": {"rmse": 1}}}')
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old.png").write_text("of an earlier report")
    found, page = write(tmp_path / "runs", tmp_path / "out")
    assert found["own"] == 1
    assert list(found["unreadable"]) == [str(tmp_path / "runs/b")]
    assert not (tmp_path / "out/old.png").exists()
    assert "<title>A &lt; B</title>" in page
    assert "<p>about $x</p>" in page
    assert "<h2>Mine &amp; yours</h2><p>text</p>" in page
    assert "Empty" not in page
    assert "<li>1 runs of springs</li>" in page


def test_a_report_can_add_to_the_generic_one(declare, tmp_path):
    def compose(collected):
        contents = generic.compose(collected)
        mine = Section("Mine", markup.table(["spring", "length"], [["soft", 2.5]]))
        return replace(contents, sections=[mine, *contents.sections])

    declare(report=Report(compose))
    fake(tmp_path / "runs/a")
    _, page = write(tmp_path / "runs", tmp_path / "out")
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == ["Mine", "Results", "Training", "Reproduce"]
    assert "<td>soft</td><td>2.5</td>" in page


def test_a_report_of_another_type_is_refused(declare, tmp_path):
    declare(report=print)
    fake(tmp_path / "runs/a")
    with pytest.raises(ConfigError, match="report of the experiment 'springs' must be a Report"):
        report.write([tmp_path / "runs"], tmp_path / "out")


def test_runs_of_an_unknown_experiment_say_what_to_do(tmp_path):
    fake(tmp_path / "runs/a")
    with pytest.raises(LoadError, match=r"belongs to the experiment 'springs'.*--experiment"):
        report.write([tmp_path / "runs"], tmp_path / "out")


def test_generic_code_names_no_experiment_and_none_of_its_content():
    names = re.compile("nbody|n-body|arter(y|ies)|mesh|vessel|planet|systems", re.IGNORECASE)
    files = [path for path in GENERIC.iterdir() if path.is_file()]
    assert {"page.html", "writer.py", "plots.py"} <= {path.name for path in files}
    found = [
        f"{path.name}:{number}: {line}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if names.search(line)
    ]
    assert not found


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: str(p.relative_to(EXPERIMENTS)))
def test_no_module_of_a_report_uses_private_names_of_another(path):
    public = {"_fields"}  # of a NamedTuple
    used = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            used.append(node.attr)
        elif isinstance(node, ast.ImportFrom):
            used += [*(node.module or "").split("."), *(alias.name for alias in node.names)]
    private = {name for name in used if name.startswith("_") and not name.startswith("__")}
    assert private <= public
