"""The report on artery runs: every number beside the paper's; pictures if the meshes are there."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from torch import device, from_numpy

from flashgatr.experiments import report, runs, sweep
from flashgatr.experiments.arteries import task
from flashgatr.experiments.arteries.data import sets
from flashgatr.experiments.arteries.data.shards import write_shard
from flashgatr.experiments.arteries.metrics import mesh_errors
from flashgatr.experiments.arteries.report import contents, errors, wall_maps, walls
from flashgatr.experiments.arteries.report.facts import error_per_mesh
from flashgatr.experiments.arteries.report.titles import CAPTIONS, REFERENCE
from flashgatr.experiments.arteries.report.wall_maps import Wall
from flashgatr.experiments.config import override, save
from flashgatr.experiments.report import commands, learning_curves, plots
from flashgatr.experiments.report.collect import collect
from flashgatr.train.trainer import fingerprint

from .walls import chosen, tube
from .walls import walls as all_walls

RECIPES = Path(__file__).parents[2] / "recipes"
SMALL = {
    "gatr": ["num_blocks=1", "hidden_mv_channels=4", "hidden_s_channels=8", "num_heads=2"],
    "transformer": ["num_blocks=1", "hidden_channels=16", "num_heads=2"],
}
TITLE = 'GATr, num_blocks 1, nodes default, steps 3, orientation "canonical", synthetic vessels'


def fake(folder, model="gatr", meshes=800, seed=0, epsilon=8.0, *changes):
    """A run that was never trained, with this error on all sets."""
    settings = [f"model.name={model}", f"data.train_samples={meshes}", f"seed={seed}", *changes]
    config = override(runs.defaults("arteries"), [f"folder='{folder}'", *settings])
    save(config, folder / "config.toml")
    kind = config.data.options.get("orientation", "random")
    metrics = dict(epsilon_mean=epsilon, epsilon_median=epsilon / 2, epsilon_q75=epsilon * 2)
    metrics |= dict(nmae=1.0, mean_error=2.0, max_error=30.0, cosine=0.9, meshes=2)
    metrics |= dict(train_meshes=meshes, orientation=kind)
    test = {**metrics, "per_mesh": {"sample_0200": epsilon - 1, "sample_0201": epsilon + 1}}
    moved = {**metrics, "epsilon_mean": epsilon + 0.02, "change_mean": 1e-4, "change_max": 2e-4}
    results = dict(test=test, val=metrics, test_moved=moved, test_mirrored=moved)
    summary = dict(step=10, best_step=5, best_score=epsilon, run=fingerprint(config))
    (folder / "results.json").write_text(json.dumps({**summary, "results": results}))
    lines = [dict(step=k, kind="validation", score=100 / k) for k in (5, 10)]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def amend(folder, **about):
    """Let the results of a run say something else about their meshes."""
    summary = runs.read_results(folder)
    for metrics in summary["results"].values():
        metrics |= about
    (folder / "results.json").write_text(json.dumps(summary))


def write(path, out):
    page = report.write([path], out)
    found = json.loads((out / "report.json").read_text(), parse_constant=pytest.fail)
    return found, page.read_text()


@pytest.fixture
def undrawn(monkeypatch):
    """Skip the pictures: drawing takes a second, and tests of numbers and words do not need it."""
    for name in ("against_meshes", "histograms"):
        monkeypatch.setattr(errors, name, lambda *_: b"a picture")
    monkeypatch.setattr(learning_curves, "draw", lambda *_: b"a picture")


def test_our_numbers_stand_beside_the_papers(tmp_path, undrawn):
    for seed, epsilon in enumerate([7.0, 8.0, 9.0]):
        fake(tmp_path / f"runs/{seed}", seed=seed, epsilon=epsilon)
    fake(tmp_path / "runs/t", "transformer", epsilon=12.0)
    found, page = write(tmp_path / "runs", tmp_path / "out")
    gatr, transformer = found["groups"]
    assert (gatr["label"], gatr["samples"], gatr["seeds"]) == ("GATr", 800, [0, 1, 2])
    assert gatr["results"]["test"]["epsilon_mean"]["mean"] == pytest.approx(8)
    assert transformer["results"]["test"]["epsilon_mean"]["mean"] == 12
    assert "8.00 ± 0.58" in page
    assert "<td>paper: GATr</td><td>random</td><td>1,600</td><td>200,000</td>" in page
    for number in ("5.6", "5.5", "10.5", "8.9"):
        assert f"<td>{number}</td>" in page
    assert "<td>+0.020</td><td>1.0e-04</td><td>2.0e-04</td>" in page
    assert "Ablations" not in page


def test_ablations_are_compared_on_the_validation_meshes(tmp_path, undrawn):
    for name in REFERENCE["ablations"]:
        fake(tmp_path / f"runs/{name}", name, epsilon=9.5)
    _, page = write(tmp_path / "runs", tmp_path / "out")
    ablations = page[page.index("<h2>Ablations</h2>") :]
    assert "<td>GATr without scalars</td>" in ablations
    assert "not measured on synthetic vessels" not in ablations
    for number in ("6.1", "10.4", "9.7", "12.0", "7.8"):
        assert f"<td>9.50</td><td>{number}</td>" in ablations


def test_runs_without_a_test_stand_apart_with_their_errors_on_val(tmp_path, undrawn):
    """They compare settings; the figure has the test meshes if any run has."""
    options = "data.options.test=false"
    fake(tmp_path / "a", "gatr", 800, 0, 7.5, options)
    summary = runs.read_results(tmp_path / "a")
    summary["results"] = {"val": summary["results"]["test"]}
    (tmp_path / "a/results.json").write_text(json.dumps(summary))
    found, page = write(tmp_path, tmp_path / "out")
    assert found["groups"][0]["results"]["val"]["epsilon_mean"]["mean"] == 7.5
    assert not found["unreadable"]
    assert "Validation meshes" in page
    assert "Test meshes" not in page
    assert "ε on the validation meshes" in page
    assert "How many validation meshes have which ε" in page
    fake(tmp_path / "b")
    found, page = write(tmp_path, tmp_path / "out")
    assert page.index("Validation meshes") < page.index("Test meshes")
    assert "ε on the test meshes" in page
    assert "How many test or validation meshes have which ε" in page


def test_orientations_and_settings_are_not_mixed(tmp_path, undrawn):
    fake(tmp_path / "runs/a")
    fake(tmp_path / "runs/b", "gatr", 800, 0, 7.0, "data.options.orientation=canonical")
    found, _ = write(tmp_path / "runs", tmp_path / "out")
    assert {g["orientation"] for g in found["groups"]} == {"random", "canonical"}
    assert len({g["label"] for g in found["groups"]}) == 2


def test_the_orientation_and_number_of_meshes_are_those_of_the_results(tmp_path, undrawn):
    fake(tmp_path / "runs/a")
    fake(tmp_path / "runs/b", seed=1)
    amend(tmp_path / "runs/b", orientation="canonical", train_meshes=700)
    found, page = write(tmp_path / "runs", tmp_path / "out")
    shown = {group["label"]: (group["orientation"], group["samples"]) for group in found["groups"]}
    assert shown == {"GATr": ("random", 800), "GATr, tested canonical": ("canonical", 700)}
    folder = tmp_path / "runs/b"
    for note in (
        f"{folder} was configured with random orientations, its results are on canonical ones",
        f"{folder} was configured with 800 training meshes, its results say 700",
    ):
        assert note in found["notes"]
        assert note in page


def test_synthetic_vessels_stand_apart_from_the_papers(tmp_path, undrawn):
    fake(tmp_path / "runs/a")
    amend(tmp_path / "runs/a", synthetic=True)
    found, page = write(tmp_path / "runs", tmp_path / "out")
    assert found["groups"][0]["synthetic"]
    assert "<h1>Arteries: wall shear stress on synthetic vessels</h1>" in page
    assert "<td>GATr, synthetic vessels</td>" in page
    assert any("the vessels are synthetic and not the paper's" in x for x in found["notes"])
    ours, papers = page.index("<td>8.00</td>"), page.index("<td>paper: GATr</td>")
    assert "</table>" in page[ours:papers]
    assert "Grey: the paper's" not in page


def test_synthetic_and_other_vessels_are_not_averaged(tmp_path, undrawn):
    for seed, name in enumerate(REFERENCE["ablations"]):
        fake(tmp_path / f"runs/{name}", name, seed=seed)
        fake(tmp_path / f"runs/{name}_made", name, seed=seed + 9)
        amend(tmp_path / f"runs/{name}_made", synthetic=True)
    found, page = write(tmp_path / "runs", tmp_path / "out")
    assert [g["synthetic"] for g in found["groups"]] == [False, True] * (len(found["groups"]) // 2)
    assert "<h3>Synthetic test meshes</h3>" in page
    assert "Some vessels are synthetic" in page
    assert any("some vessels are synthetic and not the paper's" in x for x in found["notes"])
    ablations = page[page.index("<h2>Ablations</h2>") :]
    assert ablations.count("<td>8.00</td><td>6.1</td>") == 1  # beside the paper's vessels only
    assert "not measured on synthetic vessels" in ablations


@pytest.mark.parametrize("made", [False, True])
def test_results_say_that_vessels_are_synthetic(made, tmp_path):
    header = dict(synthetic=True, split=sets.tenths(6)) if made else {}
    numbers = range(6) if made else (0, 1, 1600, 1800)
    write_shard(tmp_path / "a.safetensors", [tube(k) for k in numbers], header)
    changes = [f"data.folder='{tmp_path}'", "device=cpu", "train.precision=float32"]
    changes += [f"model.options.{option}" for option in SMALL["gatr"]]
    config = override(runs.defaults("arteries"), changes)
    one = task.ArteryTask(config, device("cpu"))
    for metrics in one.evaluate(one.model).values():
        assert metrics.get("synthetic", False) is made
        assert ("synthetic" in metrics) is made


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("results.json", "{"),
        ("results.json", '{"results": {"test": {"epsilon_mean": 3}}}'),
        ("results.json", '{"results": {"val": {}}}'),
        ("config.toml", "experiment = 'nbody'"),
    ],
)
def test_runs_that_cannot_be_read_are_listed(file, content, tmp_path, undrawn):
    for seed in range(3):
        fake(tmp_path / f"runs/{seed}", seed=seed)
    (tmp_path / "runs/2" / file).write_text(content)
    found, page = write(tmp_path / "runs", tmp_path / "out")
    assert [run["seed"] for run in found["runs"]] == [0, 1]
    assert list(found["unreadable"]) == [str(tmp_path / "runs/2")]
    assert "Runs that cannot be read" in page


def test_the_commands_make_the_same_run_again(tmp_path):
    fake(tmp_path, "transformer", 400, 3, 7.0, "train.steps=7", "data.options.loss=epsilon")
    config = runs.load_config(tmp_path)
    own = ["seed=3", "data.train_samples=400", *commands.assignments(config)]
    assert fingerprint(override(runs.defaults("arteries"), own)) == fingerprint(config)


def test_the_commands_name_the_data_of_each_run(tmp_path, undrawn):
    fake(tmp_path / "runs/a")
    fake(tmp_path / "runs/b", "gatr", 800, 0, 7.0, "data.folder='my data'")
    found, _ = write(tmp_path / "runs", tmp_path / "out")
    comment, usual, own = found["commands"].split("\nflashgatr ")[:3]
    assert comment == "# the prepared meshes lie in data/arteries, 'my data'"
    assert "data.folder" not in usual
    assert "--set 'data.folder=my data'" in own
    assert usual.split()[3] != own.split()[3]  # a folder each


def test_panels_that_are_left_out_are_noted(tmp_path, undrawn):
    for k in range(14):
        fake(tmp_path / f"runs/{k}", "gatr", 800, 0, 7.0, f"train.lr={k + 1}e-4")
    found, _ = write(tmp_path / "runs", tmp_path / "out")
    assert "histograms.png shows the first 12 of 14 models" in found["notes"]


def test_histograms_of_many_runs_are_drawn():
    per_mesh = {f"{TITLE}, lr {k}": [8.0, 9.0 + k] for k in range(14)}
    assert errors.histograms(per_mesh, list(per_mesh)).startswith(b"\x89PNG")


@pytest.mark.parametrize(("count", "shape"), [(1, (1, 1)), (4, (1, 4)), (5, (2, 3)), (12, (3, 4))])
def test_panels_stand_in_rows_of_four_at_most(count, shape):
    with plots.style():
        figure, axes = plots.grid([TITLE] * count, (4.0, 3.0), "x", "y")
        figure.draw_without_rendering()
        assert len(axes) == len(figure.axes) == count
        assert axes[0].get_gridspec().get_geometry() == shape
        for ax in axes:
            panel, title = ax.get_window_extent(), ax._left_title.get_window_extent()
            assert panel.x0 <= title.x0
            assert title.x1 <= panel.x1
            assert panel.height / figure.dpi > 1.5
        assert [ax.get_xlabel() for ax in axes[-shape[1] :]] == ["x"] * min(count, shape[1])


def test_titles_of_maps_do_not_meet():
    mesh = tube(3, 120, faces=True)
    labels = [TITLE, TITLE.replace("GATr", "Transformer")]
    shown = [Wall("a wall", mesh, dict.fromkeys(labels, mesh.wss))] * 2
    drawn = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "png", lambda figure: drawn.append(figure) or b"")
        wall_maps.maps(shown, labels)
    (figure,) = drawn
    figure.draw_without_rendering()
    boxes = [ax._left_title.get_window_extent() for ax in figure.axes if ax._left_title.get_text()]
    assert len(boxes) == 10
    for k, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[k + 1 :])


def test_without_the_meshes_the_rest_is_reported(tmp_path):
    fake(tmp_path / "runs/a", meshes=100)
    fake(tmp_path / "runs/b", meshes=800, epsilon=7.0)
    found, page = write(tmp_path / "runs", tmp_path / "out")
    assert page.count("data:image/png;base64,") == 3
    assert any("maps.png was not drawn" in note for note in found["notes"])
    drawn = {path.name for path in (tmp_path / "out").iterdir()}
    assert drawn == {"report.html", "report.json", "figure.png", "curves.png", "histograms.png"}


def test_real_runs_are_reported_in_full(tmp_path, monkeypatch):
    monkeypatch.setattr(task, "load", all_walls)
    monkeypatch.setattr(task, "choose", chosen)
    monkeypatch.setattr(sets, "load", all_walls)
    fast = ["train.steps=2", "train.batch_size=2", "train.validate_every=1", "device=cpu"]
    for model, kind in dict(gatr="random", transformer="canonical").items():
        changes = [f"model.name={model}", f"folder='{tmp_path / 'runs' / model}'", *fast]
        changes += [f"model.options.{option}" for option in SMALL[model]]
        changes += [f"data.options.orientation={kind}", "train.precision=float32"]
        runs.train(override(runs.defaults("arteries"), changes))
    found, page = write(tmp_path / "runs", tmp_path / "out")
    assert found["notes"] == []
    assert page.count("data:image/png;base64,") == len(CAPTIONS)
    ours = runs.read_results(tmp_path / "runs/gatr")["results"]["test"]
    assert found["groups"][0]["results"]["test"]["nmae"]["mean"] == pytest.approx(ours["nmae"])
    assert found["runs"][0]["per_mesh"] == ours["per_mesh"]


def test_shown_predictions_are_those_the_errors_were_measured_on(tmp_path, monkeypatch):
    def pushed(*given, **options):
        """Walls with a stress outwards, which a new network's predictions are correlated with."""
        found = all_walls(*given, **options)
        return [replace(mesh, wss=mesh.wss + 200 * mesh.normal) for mesh in found]

    monkeypatch.setattr(task, "load", pushed)
    monkeypatch.setattr(task, "choose", chosen)
    monkeypatch.setattr(sets, "load", pushed)
    changes = [f"folder='{tmp_path}'", "train.steps=1", "train.batch_size=2", "device=cpu"]
    changes += [*(f"model.options.{x}" for x in SMALL["gatr"]), "train.precision=float32"]
    changes += ["train.lr=0.5", "train.lr_final=0.5"]
    runs.train(override(runs.defaults("arteries"), changes))
    (run,) = contents.label(collect([tmp_path]).runs)
    shown = walls.choose([run])
    expected = error_per_mesh(run)
    assert min(abs(x - 100) for x in expected.values()) > 1  # that of predictions of zero
    for wall in shown:
        mesh, found = wall.mesh, wall.predictions["GATr"]
        error = mesh_errors(*map(from_numpy, (found, mesh.wss, mesh.mask))).epsilon
        assert error == pytest.approx(expected[mesh.name], abs=1e-3)
    assert expected[shown[-1].mesh.name] == max(expected.values())


def test_walls_are_painted_with_and_without_faces():
    for faces in (False, True):
        mesh = tube(3, 120, faces=faces)
        wall = Wall("a wall", mesh, {"GATr": 0.9 * mesh.wss})
        assert wall_maps.maps([wall], ["GATr"]).startswith(b"\x89PNG")


def test_a_wall_is_seen_from_its_side_wherever_it_is():
    mesh = tube(3, 120)
    place, towards = wall_maps._place(mesh)
    assert np.allclose(place.mean(axis=0), 0, atol=1e-5)
    length, width, depth = np.ptp(place, axis=0)
    assert length > width > 0.99 * depth
    for a, b in ((0, 50), (3, 90)):
        distance = np.linalg.norm(mesh.position[a] - mesh.position[b])
        assert np.linalg.norm(place[a] - place[b]) == pytest.approx(distance, rel=1e-4)
    moved = replace(mesh, position=mesh.position + np.float32([30, -20, 7]))
    again, same = wall_maps._place(moved)
    signs = np.sign((again * place).sum(axis=0))
    assert np.allclose(signs * again, place, atol=1e-3)
    assert np.allclose(signs[2] * same, towards, atol=1e-3)
    assert 0.2 < (towards > 0).mean() < 0.8


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("arteries_*.toml")), ids=lambda p: p.stem)
def test_every_recipe_makes_runs(recipe, tmp_path, monkeypatch):
    planned = sweep.plan(recipe, tmp_path)
    assert planned
    for run in planned:
        assert run.config.experiment == "arteries"
        precision, batch_size = "bfloat16", 8
        if "baselines" in recipe.stem:  # as in the paper
            precision, batch_size = "float32", 12
        if recipe.stem == "arteries_anchors_tuned":  # for a CPU
            precision, batch_size = "float32", 4
        assert run.config.train.precision == precision
        assert run.config.train.batch_size == batch_size
        task.Options.read(run.config.data.options)
    assert len({fingerprint(run.config) for run in planned}) == len(planned)


@pytest.mark.parametrize("faces", [False, True])
def test_what_is_not_counted_is_grey(faces):
    mesh = tube(1, faces=faces)
    painted = wall_maps.paint(Figure().subplots(), mesh, np.ones(mesh.nodes), most=2.0)
    painted.update_scalarmappable()
    colors = {to_hex(x) for x in painted.get_facecolor()}
    assert colors == {wall_maps.OUTSIDE, to_hex(colormaps["viridis"](0.5))}
