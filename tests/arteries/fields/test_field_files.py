"""Files of solutions and points are the same however they are made, and refused if damaged."""

import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flashgatr.experiments import cli
from flashgatr.experiments.arteries.data.field_points import (
    LUMEN,
    WALL,
    field_files,
    load_fields,
    read_field,
    write_field,
)
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.data.raw import read_raw, sample_names
from flashgatr.experiments.arteries.synthetic import field_picture
from flashgatr.experiments.arteries.synthetic.field import Field
from flashgatr.experiments.arteries.synthetic.field_files import field_points, make_fields
from flashgatr.experiments.arteries.synthetic.flow import Fluid, initial, wall_stress
from flashgatr.experiments.arteries.synthetic.generate import Settings, generate, solution
from flashgatr.experiments.arteries.synthetic.grid import surface, sweep
from flashgatr.experiments.arteries.synthetic.locate import locate
from flashgatr.experiments.arteries.synthetic.solution import (
    Solution,
    read_solution,
    write_solution,
)
from flashgatr.experiments.arteries.synthetic.tube import Tube

BEND = ((0.0, 0.0), (0.3, 0.1), (-0.1, 0.3), (0.2, 0.2), (0.3, -0.1))
TINY = dict(mesh=(1, 1, 6), max_reduction=0.06, workers=1, say=lambda text: None)
QUIET = dict(workers=1, say=lambda text: None)


def contents(folder, suffix):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).glob(f"*{suffix}"))}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    made = tmp_path_factory.mktemp("raw")
    generate(made, 3, seed=7, solutions=True, **TINY)
    return made


@pytest.fixture(scope="module")
def fields(raw, tmp_path_factory):
    made = tmp_path_factory.mktemp("fields")
    result = make_fields(raw, made, 3000, 1000, seed=1, **QUIET)
    assert result.made == ["sample_0000", "sample_0001", "sample_0002"]
    return made


def test_samples_are_the_same_with_and_without_their_solutions(raw, tmp_path):
    generate(tmp_path, 1, seed=7, **TINY)
    plain = contents(tmp_path, ".hdf5")
    assert plain == {"sample_0000.hdf5": contents(raw, ".hdf5")["sample_0000.hdf5"]}
    before = (tmp_path / "sample_0000.hdf5").stat().st_mtime_ns
    again = generate(tmp_path, 1, seed=7, solutions=True, **TINY)
    assert again.made == ["sample_0000"]
    assert (tmp_path / "sample_0000.hdf5").stat().st_mtime_ns == before
    name = "sample_0000.safetensors"
    assert contents(tmp_path, name) == {name: contents(raw, ".safetensors")[name]}
    assert generate(tmp_path, 1, seed=7, solutions=True, **TINY).kept == ["sample_0000"]
    assert sample_names(raw) == [f"sample_000{i}" for i in range(3)]


def test_a_solution_is_read_as_it_was_computed(tmp_path):
    settings = Settings(7, (1, 1, 6), True, 0.06)
    expected = solution(1, settings)
    write_solution(tmp_path / "solution.safetensors", expected, asdict(settings))
    found = read_solution(tmp_path / "solution.safetensors")
    assert (found.number, found.tube, found.flow.fluid) == (
        1,
        expected.tube,
        expected.flow.fluid,
    )
    for name in ("velocity", "pressure"):
        assert np.array_equal(getattr(found.flow, name), getattr(expected.flow, name))
    assert np.array_equal(found.flow.grid.node, expected.flow.grid.node)
    assert (found.flow.residual, found.flow.steps) == (expected.flow.residual, expected.flow.steps)


def test_a_solution_gives_the_labels_of_its_sample(raw):
    flow = read_solution(raw / "sample_0002.safetensors").flow
    nodes, _, _ = surface(flow.grid)
    stress = np.zeros_like(flow.velocity)
    stress[:, flow.grid.section.free :] = wall_stress(flow)
    labels = read_raw(raw, "sample_0002").wss
    assert np.array_equal(stress.reshape(-1, 3)[nodes].astype(np.float32), labels)
    assert np.abs(labels).max() > 1


@pytest.mark.parametrize("place", ["data", "header"])
def test_damaged_files_are_refused(raw, fields, tmp_path, place):
    for source, read in ((raw, read_solution), (fields, read_field)):
        content = bytearray((source / "sample_0000.safetensors").read_bytes())
        at = len(content) - 5 if place == "data" else content.index(b"seed") + 8
        content[at] ^= 1
        damaged = tmp_path / "sample_0000.safetensors"
        damaged.write_bytes(content)
        with pytest.raises(ArteryError, match=r"sample_0000.*is damaged or not"):
            read(damaged)
        with pytest.raises(ArteryError, match=r"is damaged or not"):
            read({read_solution: fields, read_field: raw}[read] / "sample_0000.safetensors")


def test_points_have_the_values_of_the_field_at_their_positions(tmp_path):
    tube, random = Tube(0.15, BEND), np.random.default_rng(0)
    flow = initial(tube, sweep(tube, (1, 1, 60)), Fluid())
    flow.velocity = random.normal(size=flow.velocity.shape)
    flow.pressure = random.normal(size=flow.pressure.shape)
    write_field(tmp_path / "sample_0004.safetensors", field_points(Solution(4, tube, flow), 900, 0))
    found, field = read_field(tmp_path / "sample_0004.safetensors"), Field(flow)
    assert (found.position.dtype, found.position.shape) == (np.float32, (900, 3))
    places, inside = locate(field, found.position)
    assert inside.mean() > 0.99  # float32 moves a few points across the wall
    values = field.lumen(places)
    for name, expected in (("target", "velocity"), ("pressure", "pressure")):
        error = getattr(found, name) - getattr(values, expected)
        assert np.abs(error)[inside].max() < 1e-4
    assert np.abs(found.distance - values.distance)[inside].max() < 1e-5


def test_the_stress_on_the_wall_is_tangential(fields):
    found = read_field(fields / "sample_0001.safetensors")
    stress = found.target[found.wall]
    assert stress.shape == (1000, 3)
    assert np.abs((stress * found.normal).sum(axis=1)).max() < 1e-5 * np.abs(stress).max()


def test_points_lie_between_the_flow_extensions(raw, fields):
    found = read_field(fields / "sample_0000.safetensors")
    tube = read_solution(raw / "sample_0000.safetensors").tube
    length = tube.span[1] - tube.span[0]
    assert found.inlet_diameter == 2 * tube.radius
    assert np.allclose(found.span, [8 * tube.radius, length - 8 * tube.radius])
    assert found.distance.min() > found.span[0] - 1e-5
    assert found.distance.max() < found.span[1] + 1e-5
    along = found.distance - 10 * tube.radius  # extensions are five diameters long
    inside = (along > 0) & (along < tube.span[1] - 10 * tube.radius)
    assert np.array_equal(found.mask, inside)
    assert 0 < found.mask.sum() < len(found.mask)
    assert np.array_equal(found.kind, np.repeat([LUMEN, WALL], [3000, 1000]))
    assert abs(found.volume / (np.pi * tube.radius**2 * (length - 16 * tube.radius)) - 1) < 0.15


def test_points_depend_on_neither_workers_nor_the_number_of_the_other_kind(raw, fields, tmp_path):
    make_fields(raw, tmp_path / "two", 3000, 1000, seed=1, workers=2, say=lambda text: None)
    assert contents(tmp_path / "two", ".safetensors") == contents(fields, ".safetensors")
    full = read_field(fields / "sample_0001.safetensors")
    wall = field_points(read_solution(raw / "sample_0001.safetensors"), 0, 500, seed=1)
    assert np.array_equal(wall.target, full.target[full.wall][:500])
    other = field_points(read_solution(raw / "sample_0001.safetensors"), 0, 500, seed=2)
    assert not np.array_equal(other.position, wall.position)


def test_finished_points_are_kept_and_other_settings_are_refused(raw, fields, tmp_path):
    shutil.copy2(fields / "sample_0001.safetensors", tmp_path)
    result = make_fields(raw, tmp_path, 3000, 1000, seed=1, **QUIET)
    assert (result.kept, result.made) == (["sample_0001"], ["sample_0000", "sample_0002"])
    with pytest.raises(ArteryError, match=r"other settings \(lumen 3000, not 10\)"):
        make_fields(raw, tmp_path, 10, 1000, seed=1, **QUIET)
    with pytest.raises(ArteryError, match="there are no solutions"):
        make_fields(fields / "none", tmp_path, 10, 10, **QUIET)
    with pytest.raises(ValueError, match="lumen must be at least 0, got -1"):
        make_fields(raw, tmp_path, -1, 10, **QUIET)


def test_vessels_are_divided_by_number(fields, tmp_path):
    names = {split: [x.name for x in load_fields(fields, split)] for split in ("train", "test")}
    assert names == {"train": ["sample_0000"], "test": ["sample_0002"]}
    for n in range(20):
        shutil.copy2(fields / "sample_0000.safetensors", tmp_path / f"sample_{n:04d}.safetensors")
    assert [len(field_files(tmp_path, x)) for x in ("train", "val", "test")] == [16, 2, 2]
    assert field_files(tmp_path, "val")[0].stem == "sample_0016"
    for wrong, told in (
        (dict(split="rest"), "unknown set 'rest'"),
        (dict(split="val", limit=2), "has 1 val vessels, 2 are needed"),
        (dict(split="val", limit=0), "limit must be at least 1"),
    ):
        with pytest.raises(ValueError, match=told):
            load_fields(fields, **wrong)
    with pytest.raises(ArteryError, match="there are no points"):
        load_fields(tmp_path / "none", "train")


def test_the_command_keeps_flows_and_draws_points(tmp_path, monkeypatch):
    monkeypatch.setattr(field_picture, "PIXELS", 60)
    monkeypatch.setattr(field_picture, "WALL_POINTS", 500)
    out = tmp_path / "made"

    def run(*arguments):
        found = CliRunner().invoke(
            cli.application(), ["data", "arteries", "-f", str(out), *arguments]
        )
        return found.exit_code, f"{found.output} {found.exception or ''}"

    for arguments, text in (
        (["--source", "x", "--fields", "5", "5"], "--fields goes with --synthetic"),
        (["--synthetic", "3", "--fields", "0", "0"], "--fields must be two numbers of points"),
    ):
        code, output = run(*arguments)
        assert code != 0
        assert text in output
    assert not out.exists()
    options = ["--synthetic", "3", "--seed", "7", "--workers", "1", "--mesh", "1", "1", "6"]
    options += ["--max-reduction", "0.06", "--fields", "50", "20"]
    code, output = run(*options)
    assert code == 0, output
    assert "points of 3 vessels made, 0 kept, 0 failed" in output
    assert load_fields(out / "fields", "val")[0].position.shape == (70, 3)
    assert (out / "fields" / "sample_0000.png").read_bytes()[1:4] == b"PNG"
    code, output = run(*options)
    assert code == 0, output
    assert "points of 0 vessels made, 3 kept, 0 failed" in output
