"""From a mesh file to the stress on its wall."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flashgatr import io
from flashgatr.experiments import cli, runs, table
from flashgatr.experiments.arteries import models
from flashgatr.experiments.arteries.data import wall
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.data.preparation import prepare_folder
from flashgatr.experiments.arteries.data.raw import read_raw, write_raw
from flashgatr.experiments.arteries.data.shards import read_shard
from flashgatr.experiments.arteries.data.wall import prepare
from flashgatr.experiments.arteries.inference import predict_meshes
from flashgatr.experiments.arteries.vessel import model_input, prediction_picture, surface, vtkxml
from flashgatr.experiments.arteries.vessel import predict as prediction
from flashgatr.experiments.arteries.vessel.formats import read as read_file
from flashgatr.experiments.config import override, save

from ..tubes import tube
from . import meshfiles

assert models
SAMPLE = Path(__file__).parents[1] / "fixture" / "sample_0001.hdf5"
PRETRAINED = Path(__file__).parents[3] / "pretrained" / "arteries"
SMALL = ["num_blocks=2", "hidden_mv_channels=4", "hidden_s_channels=8", "num_heads=2"]


def make_run(folder, *changes):
    """A run with random weights."""
    small = [] if "model.name=transformer" in changes else [f"model.options.{x}" for x in SMALL]
    config = override(runs.defaults("arteries"), [*small, "device=cpu", *changes])
    torch.manual_seed(0)
    model = table.find(config.experiment).build(config.model.name, dict(config.model.options))
    with torch.no_grad():
        for x in model.parameters():
            x += 0.2 * torch.randn_like(x)
    folder.mkdir(parents=True)
    save(config, folder / "config.toml")
    kind = f"{config.experiment}/{config.model.name}"
    io.save(folder / "model", kind, dict(config.model.options), model.state_dict())
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="module")
def model(run):
    return prediction.load(run)[0]


@pytest.fixture(scope="module")
def raw():
    return read_raw(SAMPLE)


@pytest.fixture(scope="module")
def inlet(raw):
    return " ".join(map(str, raw.position[raw.inlet].mean(axis=0)))


@pytest.fixture(scope="module")
def expected(model):
    return prediction.predict_vessel(model, model_input.read_vessel(SAMPLE))


def found(model, folder, position, face, inlet, kind="vtp", **options):
    """The prediction on a surface that goes through a file."""
    writer = dict(vtp=meshfiles.vtk, stl=meshfiles.stl, ply=meshfiles.ply_text)[kind]
    (folder / f"a.{kind}").write_bytes(writer(position, face))
    return prediction.predict_vessel(
        model, model_input.read_vessel(folder / f"a.{kind}", inlet=inlet, **options)
    )


def difference(one, other, turn=None, place=lambda x: x):
    """Difference of two predictions at their common nodes, relative to the second."""
    there = {tuple(np.round(x, 3)): k for k, x in enumerate(place(other.position) + 0.0)}
    pairs = [(k, there.get(tuple(np.round(x, 3) + 0.0))) for k, x in enumerate(one.position)]
    mine, theirs = np.array([pair for pair in pairs if pair[1] is not None]).T
    assert len(mine) > 0.97 * max(one.mesh.nodes, other.mesh.nodes)
    before = other.wss[theirs] @ (np.eye(3) if turn is None else turn.T)
    return np.linalg.norm(one.wss[mine] - before) / np.linalg.norm(before)


def test_the_network_that_comes_with_the_source_knows_flows_of_another_solver():
    """It learned from the published vessels. These are synthetic, their stress is our own
    solver's, their meshes are coarser.
    """
    net = prediction.load(PRETRAINED)[0]
    told = runs.read_results(PRETRAINED)["results"]["test"]
    assert told["epsilon_mean"] < 6
    assert told["meshes"] == 100
    for number in (3, 5):
        found = prediction.predict_vessel(
            net, model_input.read_vessel(SAMPLE.parent / f"sample_000{number}.hdf5")
        )
        assert found.errors.epsilon < 14  # 12.0 and 13.3


def test_published_vessels_are_seen_as_in_training(raw):
    mesh, ours = prepare(raw), model_input.read_vessel(SAMPLE).mesh
    assert ours.inlet_diameter == mesh.inlet_diameter
    for name in ("position", "normal", "geodesic", "mask", "face", "wss"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(mesh, name))


def test_training_and_prediction_see_the_same_bits_of_a_published_sample(run, model, tmp_path):
    """Once through preparation and a shard, once as the file that `flashgatr predict` reads."""
    prepare_folder(SAMPLE.parent, tmp_path / "data", workers=1)
    (shard,) = (tmp_path / "data").glob("*.safetensors")
    (trained,) = (mesh for mesh in read_shard(shard) if mesh.name == SAMPLE.stem)
    result, _, _ = prediction.run(run, SAMPLE, tmp_path / "out", device="cpu")
    seen = result.vessel.mesh
    assert (seen.name, seen.index) == (trained.name, trained.index)
    assert seen.inlet_diameter == trained.inlet_diameter
    for name in ("position", "normal", "geodesic", "mask", "wss", "face"):
        mine, theirs = getattr(seen, name), getattr(trained, name)
        assert mine.dtype == theirs.dtype
        assert mine.tobytes() == theirs.tobytes(), name
    (stress,) = predict_meshes(model, [trained], torch.device("cpu"))
    assert result.wss.tobytes() == stress.numpy().tobytes()


def test_prediction_does_not_import_the_training_task(run, tmp_path):
    program = f"""
import sys
from typer.testing import CliRunner
from flashgatr.experiments import cli
arguments = ["predict", "arteries", {str(run)!r}, {str(SAMPLE)!r}, "--out", {str(tmp_path)!r}]
result = CliRunner().invoke(cli.application(), arguments, catch_exceptions=False)
assert result.exit_code == 0, result.output
assert "flashgatr.experiments.arteries.vessel.predict" in sys.modules
print([name for name in sys.modules if name.startswith("flashgatr") and name.endswith(".task")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert "arteries.task" not in done.stdout
    assert (tmp_path / "sample_0001.vtp").exists()


@pytest.mark.parametrize("kind", ["vtp", "stl", "ply"])
def test_the_format_of_the_file_changes_nothing(kind, model, raw, inlet, expected, tmp_path):
    again = found(model, tmp_path, raw.position, raw.face, inlet, kind)
    assert again.mesh.nodes == expected.mesh.nodes
    assert difference(again, expected) < 1e-4


def test_the_order_of_nodes_and_faces_changes_nothing(model, raw, inlet, expected, tmp_path):
    draw = np.random.default_rng(0)
    order = draw.permutation(raw.nodes)
    face = np.argsort(order)[draw.permutation(raw.face)]
    assert difference(found(model, tmp_path, raw.position[order], face, inlet), expected) < 1e-3


def test_predictions_turn_and_move_with_the_mesh(model, raw, expected, tmp_path):
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    turn *= np.linalg.det(turn)

    def place(x):
        return x.astype(np.float64) @ turn.T + [100.0, -200.0, 50.0]

    moved = place(raw.position)
    inlet = " ".join(map(str, moved[raw.inlet].mean(axis=0)))
    again = found(model, tmp_path, moved, raw.face, inlet)
    assert difference(again, expected, turn, place) < 1e-3


def test_both_signs_make_predictions_turn_with_mirrors(run, raw, tmp_path):
    both, _ = prediction.load(run, both_signs=True)
    mirror = np.diag([1.0, -1.0, 1.0])
    position = raw.position.astype(np.float64) @ mirror
    inlet = " ".join(map(str, position[raw.inlet].mean(axis=0)))
    here = prediction.predict_vessel(both, model_input.read_vessel(SAMPLE))
    there = found(both, tmp_path, position, raw.face[:, ::-1], inlet)
    assert difference(there, here, mirror, lambda x: x @ mirror) < 1e-3
    assert both.both_signs  # test_models.py has a model that needs it
    assert not prediction.load(run)[0].both_signs


@pytest.mark.parametrize("scale", ["mm", "auto"])
def test_a_mesh_in_millimetres_is_the_same_vessel(scale, model, raw, inlet, expected, tmp_path):
    inlet = " ".join(str(10 * float(x)) for x in inlet.split())
    position = 10 * raw.position.astype(np.float64)
    again = found(model, tmp_path, position, raw.face, inlet, scale=scale)
    assert again.vessel.unit == "mm"
    told = any("taken to be mm" in note for note in again.vessel.notes)
    assert told == (scale == "auto")
    assert difference(again, expected, place=lambda x: 10 * x) < 1e-4


def opened(raw):
    """Without the faces of both caps."""
    first, last = (raw.position[raw.face].mean(axis=1) @ d for d in _axes(raw))
    caps = (first > first.max() - 1e-3) | (last > last.max() - 1e-3)
    return raw.face[~caps]


def _axes(raw):
    return (
        model_input.find_ends(raw.position.astype(np.float64), raw.face)[0][k].outward
        for k in (0, 1)
    )


def test_an_open_tube_is_closed_and_equals_the_closed_one(model, raw, inlet, expected, tmp_path):
    face = opened(raw)
    assert len(face) < len(raw.face)
    again = found(model, tmp_path, raw.position, face, inlet)
    assert any("open ends were closed: 1, 2" in note for note in again.vessel.notes)
    assert difference(again, expected) < 0.01
    shift = np.median(again.mesh.geodesic) - np.median(expected.mesh.geodesic)
    assert abs(shift) < 0.03  # cm


def bare(raw, length=4.15):
    """The vessel alone: its flow extensions cut off, open."""
    centre = raw.position[raw.face].mean(axis=1)
    return raw.face[(centre[:, 0] > 0.02) & (centre[:, 0] < length)]


def test_a_vessel_without_extensions_gets_them_and_is_seen_as_in_training(
    model, raw, expected, tmp_path
):
    again = found(model, tmp_path, raw.position, bare(raw), "0 0 0")
    assert any("extensions were added" in note for note in again.vessel.notes)
    assert (again.vessel.origin < 0).any()  # the model saw them
    names = dict.fromkeys(map(tuple, raw.position.astype(np.float64).tolist()))
    assert all(tuple(x) in names for x in again.position.tolist())  # but they are not shown
    place = {tuple(x): k for k, x in enumerate(expected.position.tolist())}
    pairs = [
        (k, place[tuple(x)]) for k, x in enumerate(again.position.tolist()) if tuple(x) in place
    ]
    mine, theirs = np.array(pairs).T
    assert len(mine) > 0.98 * again.mesh.nodes
    away = again.mesh.geodesic[mine] - expected.mesh.geodesic[theirs]
    assert np.abs(away).max() < 0.15  # cm, of 4; without extensions it would be 1.5
    change = np.linalg.norm(again.wss[mine] - expected.wss[theirs])
    assert change < 0.05 * np.linalg.norm(expected.wss[theirs])


def test_written_distances_begin_at_the_inlet_of_the_file(
    model, raw, expected, tmp_path, monkeypatch
):
    again = found(model, tmp_path, raw.position, bare(raw), "0 0 0")
    first = again.position[:, 0] < 0.1
    assert np.abs(again.geodesic[first]).max() < 0.15  # cm
    assert again.mesh.geodesic[first].min() > 1.5  # the model's begin at the added extension
    monkeypatch.setattr(prediction_picture, "picture", lambda mesh, stress: b"")
    prediction.save(again, tmp_path / "out")
    written = read_file(tmp_path / "out" / "a.vtp", "geodesic")[2][:, 0]
    np.testing.assert_array_equal(written, again.geodesic)
    np.testing.assert_array_equal(expected.geodesic, expected.mesh.geodesic)


def cut_notes(vessel):
    return [note for note in vessel.notes if "left out" in note]


def test_nodes_that_are_cut_off_are_counted_in_a_note(raw, inlet, expected, tmp_path):
    gone = raw.nodes - expected.mesh.nodes
    told = f"{gone:,} of 1,922 nodes are left out; --extensions keep keeps all but the caps"
    assert cut_notes(expected.vessel) == [f"flow extensions were cut off at both ends: {told}"]
    file = tmp_path / "a.vtp"
    file.write_bytes(meshfiles.vtk(raw.position, raw.face))
    assert cut_notes(model_input.read_vessel(file, inlet=inlet)) == [
        f"flow extensions were cut off at ends 1 and 2: {told}"
    ]
    for extensions in ("keep", "add"):
        assert not cut_notes(model_input.read_vessel(file, inlet=inlet, extensions=extensions))
    centre = raw.position[raw.face].mean(axis=1)
    file.write_bytes(meshfiles.vtk(raw.position, raw.face[centre[:, 0] < 4.15]))  # no outlet
    (note,) = cut_notes(model_input.read_vessel(file, inlet=inlet))
    assert re.search(r"cut off at end [12]: \d+ of ", note)


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_the_files_nodes_are_never_cut_where_an_extension_was_added(factor, tmp_path, monkeypatch):
    mesh = tube(around=12, length=35.0, bend=0.0)  # more edges than the usual time step can pass
    face = mesh.face[np.ptp(mesh.position[mesh.face][:, :, 0], axis=1) > 0]  # without its caps
    (tmp_path / "a.vtp").write_bytes(meshfiles.vtk(mesh.position, face))
    true = wall.geodesics
    monkeypatch.setattr(wall, "geodesics", lambda *arguments: factor * true(*arguments))
    seen = model_input.read_vessel(tmp_path / "a.vtp", inlet="0 0 0", extensions="add")
    assert sum(seen.origin >= 0) == len(np.unique(face))
    assert not cut_notes(seen)
    if factor == 1:
        own = seen.mesh.geodesic[seen.origin >= 0]
        assert np.ptp(own) == pytest.approx(35, rel=0.03)


def test_keeping_leaves_out_the_caps_alone(model, raw, inlet, tmp_path):
    again = found(model, tmp_path, raw.position, raw.face, inlet, extensions="keep")
    rims = 2 * 16
    assert again.mesh.nodes == raw.nodes - 2 * len(raw.inlet) + rims
    with pytest.raises(ArteryError, match=r"nothing is left.*--extensions add"):
        found(model, tmp_path, raw.position, bare(raw, 2.0), "0 0 0", extensions="cut")
    with pytest.raises(ArteryError, match=r"nothing is left.*--extensions add$"):
        found(model, tmp_path, raw.position, bare(raw, 0.5), "0 0 0", extensions="keep")


@pytest.mark.parametrize("extensions", ["auto", "add", "cut"])
def test_a_vessel_with_three_ends_is_used_as_it_is_or_extended(
    extensions, model, raw, inlet, tmp_path
):
    centre = raw.position[raw.face].mean(axis=1)
    middle = centre[np.argmin(np.abs(centre[:, 0] - 2) - centre[:, 2])]
    branch = np.linalg.norm(centre - middle, axis=1) < 0.15
    face = raw.face[~branch]
    if extensions == "cut":
        with pytest.raises(ArteryError, match="needs a vessel with two ends, got 3"):
            found(model, tmp_path, raw.position, face, inlet, extensions=extensions)
        return
    again = found(model, tmp_path, raw.position, face, inlet, extensions=extensions)
    assert any("trained on vessels with two" in note for note in again.vessel.notes)
    added = any("added for the computation at ends 1, 2 and 3" in x for x in again.vessel.notes)
    assert added == (extensions == "add")
    assert again.mesh.geodesic.min() < (2.5 if added else 0.2)
    if added:
        assert again.mesh.mask.all()
        beyond = again.vessel.mesh.geodesic.max() - again.mesh.geodesic.max()
        assert beyond < 1.3 * again.mesh.inlet_diameter  # the model saw one diameter of them


def wedge_tube(thin=0.8):
    """A tube that narrows towards its end."""
    mesh = tube(around=18, length=6.0, bend=0.0, jitter=0.0)
    factor = 1 - (1 - thin) * mesh.position[:, :1] / 6
    return replace(mesh, position=mesh.position * np.concatenate([factor**0, factor, factor], 1))


def test_the_largest_end_is_the_inlet_unless_told(model, tmp_path):
    mesh = wedge_tube()
    ends = {"auto": 0.0, "1": 0.0, "2": 6.0, "0.1 0 0": 0.0, "5.9,0.1,0": 6.0}
    for wanted, x in ends.items():
        again = found(model, tmp_path, mesh.position, mesh.face, wanted)
        nearest = again.position[again.mesh.geodesic.argmin(), 0]
        assert abs(nearest - x) < 0.5, wanted
        told = [note for note in again.vessel.notes if "taken to be the largest end" in note]
        assert len(told) == (wanted == "auto")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("3", "--inlet must be auto, the number of an end or a point"),
        ("left", r"got 'left'; the ends are 1: capped, diameter 0\.3"),
        ("3 0 0", "away from the nearest end"),
        ("nan 0 0", "--inlet must be"),
    ],
)
def test_inlets_that_are_none_are_refused(wanted, message, model, tmp_path):
    mesh = wedge_tube()
    with pytest.raises(ArteryError, match=message):
        found(model, tmp_path, mesh.position, mesh.face, wanted)


def test_ends_of_one_size_must_be_told_apart(model, raw, tmp_path):
    with pytest.raises(ArteryError, match="cannot be told from the outlet; say which with --inlet"):
        found(model, tmp_path, raw.position, raw.face, "auto")


@pytest.mark.parametrize(
    ("move", "told"), [(-0.1, "at 0.000 0.000 0.000"), (1e6, "at 1000006.100 0.000 0.000")]
)
def test_ends_are_listed_to_the_precision_that_matters(move, told, model, tmp_path):
    mesh = wedge_tube()
    position = mesh.position + np.array([move, -1e-18, 1e-18])
    with pytest.raises(ArteryError, match=f"{told}(;|$)"):
        found(model, tmp_path, position, mesh.face, "left")


@pytest.mark.parametrize(
    ("factor", "scale", "message"),
    [
        (0.1, "cm", "diameter of 0.0361 cm"),
        (1000.0, "auto", "in none of cm, mm, m"),
        (1.0, "inch", "--scale must be one of auto, cm, mm, m"),
    ],
)
def test_a_wrong_scale_is_said(factor, scale, message, model, raw, inlet, tmp_path):
    position = factor * raw.position
    inlet = " ".join(str(factor * float(x)) for x in inlet.split())
    if scale == "cm":
        again = found(model, tmp_path, position, raw.face, inlet, scale=scale)
        assert any(message in note for note in again.vessel.notes)
        return
    with pytest.raises(ArteryError, match=message):
        found(model, tmp_path, position, raw.face, inlet, scale=scale)


def repaired(what, raw):
    """A mesh with something wrong that can be put right, and what is said about it."""
    position, face, draw = raw.position, raw.face, np.random.default_rng(0)
    if what == "inward":
        return position, face[:, ::-1], "looked inward"
    if what == "mixed":
        turned = draw.random(len(face)) < 0.3
        return position, np.where(turned[:, None], face[:, ::-1], face), "looked the other way"
    if what == "twice":
        return position, np.concatenate([face, face[5:9]]), "4 faces were there twice"
    if what == "flat":
        return position, np.concatenate([face, [[3, 3, 9]]]), "1 faces had a node twice"
    if what == "double":
        both = np.concatenate([position, position[:50]])
        return (
            both,
            np.where(face < 50, face + raw.nodes, face),
            "50 double nodes were merged, 1,922",
        )
    if what == "unused":
        return np.concatenate([position, [[9, 9, 9]]]), face, "1 nodes belong to no face"
    assert what == "hole"
    middle = np.argmin(np.abs(position[face].mean(axis=1)[:, 0] - 2))
    return position, np.delete(face, middle, axis=0), "1 small holes were closed"


@pytest.mark.parametrize("what", ["inward", "mixed", "twice", "flat", "double", "unused", "hole"])
def test_small_faults_are_put_right_and_said(what, model, raw, inlet, expected, tmp_path):
    position, face, note = repaired(what, raw)
    again = found(model, tmp_path, position, face, inlet)
    assert any(note in x for x in again.vessel.notes)
    assert difference(again, expected) < (1e-2 if what == "hole" else 1e-4)


def spoilt(what, raw):
    position, face = raw.position, raw.face
    if what == "fin":
        fin = np.concatenate([position, position[face[100, :1]] + [[0, 0, 1]]])
        return fin, np.concatenate([face, [[*face[100, :2], len(position)]]]), "more than two faces"
    if what == "pieces":
        both = np.concatenate([position, position + np.float32(9)])
        return (
            both,
            np.concatenate([face, face + len(position)]),
            "2 pieces of 1,922, 1,922 nodes.*largest",
        )
    if what == "soup":
        corners = position[face].reshape(-1, 3).astype(np.float64)
        noise = 1e-7 * np.random.default_rng(0).normal(size=corners.shape)
        advice = r"3,840 pieces of .*clean\(tolerance=[78]e-04\)"
        return corners + noise, np.arange(len(corners)).reshape(-1, 3), advice
    if what == "touching":
        both = np.concatenate([position, position + (position[40] - position[1000])])
        return both, np.concatenate([face, face + len(position)]), "touches itself"
    if what == "tiny":
        return position[:90], face[(face < 90).all(axis=1)], "expected at least 100"
    assert what == "round"
    mesh = tube(around=18, length=6.0)
    point = mesh.position.astype(np.float64)
    end = (mesh.position[:, None] == mesh.position[mesh.face[-1, -1]]).all(-1)[:, 0]
    point[end] += [0.0, 0.5, 0.0]
    return point, mesh.face, "it has 1 ends"


@pytest.mark.parametrize("what", ["fin", "pieces", "soup", "touching", "tiny", "round"])
def test_what_is_no_vessel_is_refused(what, model, raw, tmp_path):
    position, face, message = spoilt(what, raw)
    with pytest.raises(ArteryError, match=message) as caught:
        found(model, tmp_path, position, face, "1")
    assert "cannot use" in str(caught.value)


def test_too_many_nodes_are_refused_with_a_way_out(model, raw, tmp_path, monkeypatch):
    monkeypatch.setattr(surface, "MOST", 1000)
    with pytest.raises(ArteryError, match=r"1,922 nodes, expected at most 1,000; .*Decimate"):
        found(model, tmp_path, raw.position, raw.face, "1")


def test_a_strip_without_inside_is_refused():
    turn = np.linspace(0, 2 * np.pi, 60, endpoint=False)[:, None]
    across = np.array([-0.1, 0.1])[None]
    radius = 1 + across * np.cos(turn / 2)
    position = np.stack(
        [radius * np.cos(turn), radius * np.sin(turn), across * np.sin(turn / 2)], -1
    ).reshape(-1, 3)
    a = np.arange(0, 118, 2)
    face = np.concatenate([np.stack([a, a + 1, a + 2], 1), np.stack([a + 1, a + 3, a + 2], 1)])
    face = np.concatenate([face, [[118, 119, 1], [119, 0, 1]]])
    with pytest.raises(ArteryError, match="Möbius"):
        surface.cleaned(position, face)


def invoke(*arguments):
    return CliRunner().invoke(cli.application(), ["predict", *map(str, arguments)])


def test_the_command_writes_a_file_and_a_picture_and_says_what_it_found(run, expected, tmp_path):
    done = invoke("arteries", run, SAMPLE, "--out", tmp_path)
    assert done.exit_code == 0, done.exception
    inside = f"{expected.mesh.nodes:,}, {expected.mesh.mask.sum():,} of them inside"
    for text in (inside, "the file's", "0.3614 cm", "ε against the labels"):
        assert text in done.output
    assert f"{expected.errors.epsilon:.2f} %" in done.output
    file = tmp_path / "sample_0001.vtp"
    assert (tmp_path / "sample_0001.png").read_bytes().startswith(b"\x89PNG")
    position, face, wss = read_file(file, "wss")
    np.testing.assert_array_equal(position, expected.position)
    np.testing.assert_array_equal(face, expected.mesh.face)
    np.testing.assert_allclose(wss, expected.wss, atol=1e-5)
    np.testing.assert_array_equal(read_file(file, "wss_reference")[2], expected.mesh.wss)
    error = np.linalg.norm(expected.wss - expected.mesh.wss, axis=1)
    np.testing.assert_allclose(read_file(file, "wss_error")[2][:, 0], error, rtol=1e-4)
    np.testing.assert_array_equal(read_file(file, "inside")[2][:, 0], expected.mesh.mask)
    # What was written is a mesh again: the vessel with its labels, open, and in its own folder.
    again = invoke("arteries", run, file, "--inlet", "-0.3 0 0", "--out", tmp_path / "again")
    assert again.exit_code == 0, again.exception
    assert "ε against the labels" in again.output
    done = invoke("arteries", run, file, "--inlet", "-0.3 0 0", "--out", tmp_path)
    assert "is the mesh itself" in str(done.exception)


def test_only_predictions_are_overwritten(run, raw, tmp_path):
    file, image = tmp_path / "sample_0001.vtp", tmp_path / "sample_0001.png"
    for mine, other in ((file, image), (image, file)):
        mine.write_bytes(b"mine")
        done = invoke("arteries", run, SAMPLE, "--out", tmp_path)
        assert f"{mine} is there" in str(done.exception)
        assert "choose another folder with --out" in str(done.exception)
        assert mine.read_bytes() == b"mine"
        assert not other.exists()
        mine.unlink()
    file.write_bytes(vtkxml.write(raw.position, raw.face, {}))  # as an earlier prediction
    assert b"flashgatr" in file.read_bytes()[:100]
    assert prediction.targets(tmp_path, "sample_0001", SAMPLE) == [file, image]


def test_a_file_is_no_folder_to_write_to(run, tmp_path):
    (tmp_path / "a").write_bytes(b"mine")
    for out in (tmp_path / "a", tmp_path / "a" / "below"):
        with pytest.raises(ArteryError, match=f"--out must be a folder, but {tmp_path}/a is a"):
            prediction.run(run, tmp_path / "none.stl", out)  # at once: nobody looked at the mesh


def test_a_reference_that_was_asked_for_must_be_there(raw, inlet, tmp_path):
    file = tmp_path / "a.vtp"
    file.write_bytes(meshfiles.vtk(raw.position, raw.face, fields={"stress": raw.wss}))
    assert model_input.read_vessel(file, inlet=inlet).mesh.wss is None
    assert model_input.read_vessel(file, inlet=inlet, reference="stress").mesh.wss is not None
    with pytest.raises(ArteryError, match=r"wss is not there, .* there are: stress"):
        model_input.read_vessel(file, inlet=inlet, reference="wss")
    with pytest.raises(ArteryError, match=r"--reference goes with .vtp and .vtu files"):
        model_input.read_vessel(SAMPLE, reference="stress")


def test_published_files_say_the_same_as_others(raw, tmp_path):
    kept = model_input.read_vessel(SAMPLE, extensions="keep")
    assert kept.inlet in ("end 1, the file's", "end 2, the file's")
    for seen in (kept, model_input.read_vessel(SAMPLE)):
        assert any("its edges are 0.0" in note for note in seen.notes)


def test_a_database_needs_the_name_of_a_sample(run, raw, tmp_path):
    for name in ("sample_0001", "sample_0002"):
        write_raw(tmp_path / f"{name}.hdf5", replace(raw, wss=None))
    assert "such as --sample sample_0001" in str(invoke("arteries", run, tmp_path).exception)
    (tmp_path / "below").mkdir()
    for name in ("../sample_0001", "sample_0003"):
        wrong = invoke("arteries", run, tmp_path, "--sample", name, "-o", tmp_path / "out")
        listed = f"no sample {name!r}; --sample must be one of sample_0001, sample_0002"
        assert listed in str(wrong.exception)
    done = invoke("arteries", run, tmp_path, "--sample", "sample_0002", "-o", tmp_path / "out")
    assert "sample_0002.vtp" in done.output
    assert "ε" not in done.output  # without labels
    other = tmp_path / "a.stl"
    other.write_bytes(meshfiles.stl(raw.position, raw.face))
    message = str(invoke("arteries", run, other, "--sample", "sample_0002").exception)
    assert "--sample goes with HDF5" in message


def test_runs_of_other_kinds_are_refused_or_said(run, tmp_path):
    plain = make_run(tmp_path / "plain", "model.name=transformer", "model.options.num_blocks=1")
    done = invoke("arteries", plain, SAMPLE, "--out", tmp_path)
    assert "transformer may predict something else for a mesh that is moved" in done.output
    done = invoke("arteries", plain, SAMPLE, "--both-signs", "--out", tmp_path)
    assert "--both-signs is for GATr" in str(done.exception)
    assert "expected arteries" in str(invoke("nbody", run, SAMPLE).exception)
    assert "is not a run" in str(invoke("arteries", tmp_path, SAMPLE).exception)
    assert "there is no" in str(invoke("arteries", run, tmp_path / "none.vtp").exception)
    other = tmp_path / "other"
    other.mkdir()
    save(override(runs.defaults("nbody"), ["device=cpu"]), other / "config.toml")
    assert "a run of the nbody experiment" in str(invoke("arteries", other, SAMPLE).exception)
    wrong = invoke("arteries", run, SAMPLE, "--device", "tpu")
    assert "device" in str(wrong.exception)
