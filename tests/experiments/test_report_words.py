"""Words of a report: captions, labels and tables say no more and no less than there is."""

import json

import pytest

from flashgatr.experiments import report
from flashgatr.experiments.nbody.report import data_efficiency, trajectories
from flashgatr.experiments.nbody.report.titles import CAPTIONS, DASHES, DOTS
from flashgatr.experiments.report import learning_curves, markup
from flashgatr.train import fingerprint
from flashgatr.train.settings import DataConfig, ModelConfig, RunConfig, TrainConfig, save

SETS = ("eval", "more_bodies", "translated", "eval_moved")


def fake(folder, model="gatr", samples=1000, where="gone", **train):
    """A run that was never trained, with made-up results."""
    config = RunConfig(
        experiment="nbody",
        folder=str(folder),
        model=ModelConfig(model, {}),
        data=DataConfig(folder=where, train_samples=samples),
        train=TrainConfig(**train),
    )
    save(config, folder / "config.toml")
    metrics = dict(mse=1e-3, median=1e-4, q90=1e-2, trimmed=1e-4, systems=8)
    results = {name: metrics for name in SETS if (model, name) != ("mlp", "more_bodies")}
    summary = dict(step=10, best_step=5, best_score=1e-3, run=fingerprint(config), results=results)
    (folder / "results.json").write_text(json.dumps(summary))


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    for module in (data_efficiency, learning_curves, trajectories):
        monkeypatch.setattr(module, "draw", lambda *_: b"a picture")


def write(folder):
    page = report.write([folder], folder / "out").read_text()
    return json.loads((folder / "out" / "report.json").read_text()), page


def test_a_single_run_is_not_called_all_runs(tmp_path):
    fake(tmp_path / "a")
    assert "<summary>The run, mean squared errors</summary>" in write(tmp_path)[1]
    fake(tmp_path / "b", lr=1e-3)
    assert "<summary>All 2 runs, mean squared errors</summary>" in write(tmp_path)[1]


@pytest.mark.parametrize(("samples", "drawn"), [(0, False), (100, False), (400, True)])
def test_dashes_are_explained_where_they_are_drawn(samples, drawn, tmp_path):
    fake(tmp_path / "a", samples=samples)
    page = write(tmp_path)[1]
    assert (markup.escape(DASHES) in page) == drawn
    assert markup.escape(DOTS) not in page  # the data are gone


def test_every_picture_has_its_own_caption(tmp_path, monkeypatch):
    monkeypatch.setattr(trajectories, "scenes", lambda *_: [])
    fake(tmp_path / "a", samples=100)
    (tmp_path / "a" / "log.jsonl").write_text("")
    page = write(tmp_path)[1]
    for name, caption in CAPTIONS.items():
        figure = page[page.index(f'alt="{name}"') :]
        assert f"<figcaption>{markup.escape(caption)}</figcaption>" in figure[:600]


def test_dots_are_explained_where_they_are_drawn(tmp_path):
    fake(tmp_path / "a")
    found, _ = write(tmp_path)
    assert DOTS not in data_efficiency.caption(found)
    assert DOTS in data_efficiency.caption(found | {"straight_line": {"eval": {"mse": 0.1}}})


def test_runs_on_other_data_have_other_labels_and_are_not_averaged(tmp_path):
    fake(tmp_path / "a", where="one")
    fake(tmp_path / "b", where="two")
    labels = [(group["label"], group["seeds"]) for group in write(tmp_path)[0]["groups"]]
    assert labels == [("GATr, data one", [0]), ("GATr, data two", [0])]


def test_a_note_names_the_settings_that_labels_leave_out(tmp_path):
    fake(tmp_path / "a", lr=1e-3, clip=1.0)
    fake(tmp_path / "b", lr=2e-3, clip=2.0)
    found, page = write(tmp_path)
    (note,) = (x for x in found["notes"] if x.startswith("labels"))
    assert note.endswith(": train.clip")
    assert markup.escape(note) in page


def test_a_model_that_a_table_lacks_is_named_with_the_reason(tmp_path):
    fake(tmp_path / "a")
    fake(tmp_path / "b", "mlp")
    page = write(tmp_path)[1]
    table = page.partition("<h3>More bodies</h3>")[2].partition("<h3>")[0]
    assert "Without results here: MLP. An MLP takes only as many bodies" in table
    assert page.count("Without results here") == 1


def test_short_rows_end_with_empty_cells():
    text = markup.table(["a", "b", "c"], [["x", 1, 2], ["y"]], [["<z>", ""]])
    assert "<tr><td>x</td><td>1</td><td>2</td><tr><td>y</td><td></td><td></td></tbody>" in text
    assert '<tbody class="soft"><tr><td>&lt;z&gt;</td><td></td><td></td></tbody>' in text


def test_cells_may_wrap_so_that_no_column_is_cut(tmp_path):
    """Seven metrics with standard errors are wider than a page if every cell is one line."""
    fake(tmp_path / "a")
    assert "nowrap" not in write(tmp_path)[1]
