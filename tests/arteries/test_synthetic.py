"""Synthetic vessels are tubes as drawn, their flow is that of theory, and files are the same
however they are made.
"""

import shutil
import subprocess
import sys
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from flashgatr.experiments import cli
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.data.raw import read_raw, sample_names
from flashgatr.experiments.arteries.synthetic import flow as solver
from flashgatr.experiments.arteries.synthetic import tube as tubes
from flashgatr.experiments.arteries.synthetic.elements import NODE_POINTS, Layer
from flashgatr.experiments.arteries.synthetic.equations import FlowError
from flashgatr.experiments.arteries.synthetic.flow import Fluid, flux, nodal_pressure, solve
from flashgatr.experiments.arteries.synthetic.flow import wall_stress as stress_of
from flashgatr.experiments.arteries.synthetic.generate import Settings, generate, make, sample
from flashgatr.experiments.arteries.synthetic.grid import section, surface, sweep
from flashgatr.experiments.arteries.synthetic.tube import Stenosis, Tube, draw

FIXTURE = Path(__file__).parent / "fixture"
TINY = dict(mesh=(1, 1, 6), max_reduction=0.06, say=lambda text: None)
BENT = Tube(0.15, ((0.0, 0.0), (0.3, 0.0), (-0.1, 0.0), (0.2, 0.0), (0.3, 0.0)))


def volume(position, face):
    a, b, c = position[face].astype(float).swapaxes(0, 1)
    return np.einsum("ia,ia->", a, np.cross(b, c)) / 6


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def error(found, expected):
    return np.sqrt(np.square(found - expected).sum(-1).mean()) / np.linalg.norm(expected)


@pytest.fixture(scope="module")
def straight():
    """Poiseuille flow: a parabola enters a straight tube."""
    tube = Tube(0.15, length=1.5, extension=0)
    return tube, solve(tube, (2, 2, 10), Fluid(viscosity=0.04), parabolic=True)


@pytest.fixture(scope="module")
def bent():
    tube = Tube(0.15, BENT.bend, (Stenosis(2.0, 0.3, 0.2, np.pi),), extension=1)
    return tube, solve(tube, (2, 1, 20), Fluid(speed=8.0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("synthetic")
    result = generate(made, 3, seed=7, workers=1, **TINY)
    assert result.made == ["sample_0000", "sample_0001", "sample_0002"]
    return made


def test_poiseuille_flow_has_its_wall_stress_and_pressure_drop(straight):
    tube, flow = straight
    stress, fluid = stress_of(flow), flow.fluid
    middle = slice(len(stress) // 5, -(len(stress) // 5))
    expected = 4 * fluid.viscosity * fluid.speed / tube.radius
    assert error(stress[middle], np.array([expected, 0, 0])) < 0.005
    pressure = nodal_pressure(flow).mean(axis=1)
    drop = 8 * fluid.viscosity * fluid.speed * tube.length / tube.radius**2
    assert abs((pressure[0] - pressure[-1]) / drop - 1) < 0.005
    assert abs(pressure[-1] - fluid.outlet_pressure) < 0.005 * drop
    speed = flow.velocity[10, :, 0]
    parabola = 2 * fluid.speed * (1 - np.square(flow.grid.section.node).sum(axis=1))
    assert np.abs(speed - parabola).max() < 0.01 * 2 * fluid.speed


def test_what_enters_leaves(straight, bent):
    for tube, flow in (straight, bent):
        entering, leaving = (flux(flow.grid, flow.velocity, plane) for plane in (0, -1))
        assert abs(entering / (np.pi * tube.radius**2 * flow.fluid.speed) - 1) < 1e-9
        assert abs(leaving / entering - 1) < 1e-6
        assert flow.residual < 1e-6


@pytest.mark.parametrize(("residual", "is_good"), [(0.9e-6, True), (1.1e-6, False)])
def test_a_flow_is_refused_from_a_residual_of_a_millionth_on(straight, residual, is_good):
    flow = straight[1]
    equations = SimpleNamespace(residual=lambda *_: (None, residual))
    if is_good:
        assert solver._finished(equations, replace(flow)).residual == residual
    else:
        with pytest.raises(FlowError, match=r"residual is 1\.1e-06, expected less than 1e-06"):
            solver._finished(equations, replace(flow))


def test_the_flow_in_a_planar_vessel_is_mirror_symmetric(bent):
    _, flow = bent
    mirrored = flow.grid.node * [1, 1, -1]
    plane = len(flow.grid.s) // 2
    distance = np.linalg.norm(mirrored[plane][:, None] - flow.grid.node[plane], axis=-1)
    other = distance.argmin(axis=1)
    assert distance.min(axis=1).max() < 1e-12
    assert np.abs(flow.velocity[plane][other] - flow.velocity[plane] * [1, 1, -1]).max() < 1e-4


def test_the_wall_stress_lies_in_the_wall_and_along_the_flow(bent):
    tube, flow = bent
    wall = flow.grid.node[:, flow.grid.section.free :]
    normal = np.cross(np.roll(wall, -1, 1) - np.roll(wall, 1, 1), np.gradient(wall, axis=0))
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
    stress, tangent = stress_of(flow), tube.centreline(flow.grid.s)[1]
    inner = slice(6, -6)
    assert np.abs((stress * normal).sum(-1))[inner].max() < 0.05 * np.abs(stress)[inner].max()
    along = np.einsum("pwa,pa->pw", stress, tangent)
    assert along.mean() > 0
    throat = np.abs(flow.grid.s - 2.0).argmin()
    assert along[throat].max() > 1.5 * np.median(along[inner])  # Q ~ r³: 0.8⁻³ is 1.95


def test_newtons_matrix_is_the_derivative_of_the_residual():
    random = np.random.default_rng(0)
    layer = Layer.of(NODE_POINTS[None] + 0.1 * random.normal(size=(1, 27, 3)))
    u, p = random.normal(size=(1, 27, 3)), random.normal(size=(1, 8))
    du, dp = random.normal(size=(1, 27, 3)), random.normal(size=(1, 8))
    change = np.concatenate([du.ravel(), dp.ravel()])
    up, down = (layer.residual(u + h * du, p + h * dp, 0.3, 1.1) for h in (1e-4, -1e-4))
    exact = layer.matrix(u, 0.3, 1.1, newton=True)[0] @ change
    assert np.allclose((up - down)[0] / 2e-4, exact, rtol=1e-7, atol=1e-7)


def test_elements_fill_the_tube():
    tube = Tube(0.15, BENT.bend, (Stenosis(2.0, 0.35, 0.4, 0.0),))
    grid = sweep(tube, (3, 2, 30))
    found = sum(Layer.of(grid.element_nodes(k)).weight.sum() for k in range(grid.layers))
    s = np.linspace(*tube.span, 20_001)
    # Pappus: an offset o of the section changes the volume by area·o·κ; without stenosis it is area
    # × length.
    plain = sweep(BENT, (3, 2, 30))
    full = sum(Layer.of(plain.element_nodes(k)).weight.sum() for k in range(plain.layers))
    assert abs(full / (np.pi * 0.15**2 * (s[-1] - s[0])) - 1) < 1e-3
    missing = np.trapezoid(np.pi * 0.15**2 * (1 - (1 - tube.depth(s)) ** 2), s)
    assert abs((full - found) / missing - 1) < 0.1


def test_a_folded_grid_is_an_error():
    sharp = Tube(0.2, ((0.0, 0.0), (0.7, 0.0), (-0.7, 0.0), (0.7, 0.0), (-0.7, 0.0)), length=2.0)
    assert sharp.max_bend() > 1
    with pytest.raises(FlowError, match="the grid folds"):
        solve(sharp, (2, 1, 40))


def test_a_stenosis_narrows_the_tube_and_leaves_one_side_straight():
    tube = Tube(0.15, stenoses=(Stenosis(2.0, 0.3, 0.4, 0.0),))
    ring = section(2, 1).node[-16:]
    wall = tube.position(np.array([1.69, 2.0, 2.31]), ring)
    width = np.ptp(wall[..., 1], axis=1)
    assert np.allclose(width, [0.3, 0.18, 0.3])
    assert np.allclose(wall[..., 1].max(axis=1), 0.15)
    assert np.allclose(np.ptp(wall[..., 2], axis=1), width)


def test_vessels_that_bend_too_sharply_are_drawn_again(monkeypatch):
    walk = tubes._walk
    with monkeypatch.context() as patch:
        patch.setattr(tubes, "_walk", lambda rng: [3 * x for x in walk(rng)])
        bends = [draw(np.random.default_rng(k), planar=True).max_bend() for k in range(8)]
    assert 0.5 < max(bends) <= 0.6
    monkeypatch.setattr(tubes, "MAX_BEND", 0.1)  # a few in ten are straighter
    drawn = [draw(np.random.default_rng(k), planar=True) for k in range(5)]
    assert all(tube.max_bend() <= 0.1 for tube in drawn)
    monkeypatch.setattr(tubes, "MAX_BEND", -1.0)
    monkeypatch.setattr(tubes, "_TRIES", 100)
    with pytest.raises(ArteryError, match="no vessel could be drawn"):
        draw(np.random.default_rng(0))


@pytest.mark.parametrize("planar", [True, False])
def test_drawn_vessels_follow_the_stated_distribution(planar):
    random = np.random.default_rng(1)
    tubes = [draw(random, planar=planar, max_reduction=0.3) for _ in range(300)]
    assert all(0.125 <= tube.radius <= 0.2 and tube.max_bend() <= 0.6 for tube in tubes)
    stenoses = [x for tube in tubes for x in tube.stenoses]
    assert all(0.06 <= x.reduction <= 0.3 and 0.25 <= x.half_length <= 0.40 for x in stenoses)
    counts = np.bincount([len(tube.stenoses) for tube in tubes]) / len(tubes)
    assert np.abs(counts - [0.10, 0.35, 0.55]).max() < 0.08
    for tube in tubes:
        depth = tube.depth(np.linspace(*tube.span, 500))
        assert depth.max() <= 0.3  # they do not overlap
        height = tube.position(tube.stations(9), np.zeros((1, 2)))[..., 2]
        assert planar == (np.ptp(height) < 1e-12)


def test_frames_stay_orthonormal_along_a_spatial_centreline():
    tube = draw(np.random.default_rng(2), planar=False)
    s = tube.stations(40)
    corner = tube.position(s, np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    a, b = corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0]
    tangent = tube.centreline(s)[1]
    for x, y in ((a, b), (a, tangent), (b, tangent)):
        assert np.abs((x * y).sum(axis=1)).max() < 1e-12
    assert (np.einsum("pa,pa->p", np.cross(a, b), tangent) > 0).all()


@pytest.mark.parametrize("mesh", [(1, 1, 3), (2, 1, 5), (3, 2, 40)])
def test_the_surface_is_closed_and_turns_outward(mesh):
    tube = draw(np.random.default_rng(3))
    grid = sweep(tube, mesh)
    nodes, face, inlet = surface(grid)
    assert len(face) == 2 * len(nodes) - 4
    edges = np.concatenate([face[:, [0, 1]], face[:, [1, 2]], face[:, [2, 0]]])
    assert len(np.unique(edges, axis=0)) == len(edges)
    assert {tuple(x) for x in edges} == {tuple(x) for x in edges[:, ::-1]}
    position = grid.node.reshape(-1, 3)[nodes]
    inside = sum(Layer.of(grid.element_nodes(k)).weight.sum() for k in range(grid.layers))
    assert 0.7 * inside < volume(position, face) < inside
    centre, tangent = (x[0] for x in tube.centreline(grid.s))
    on_plane = np.abs((position - centre) @ tangent) < 1e-9
    assert np.array_equal(np.flatnonzero(on_plane), inlet)
    assert len(inlet) == len(grid.section.node)


def test_samples_do_not_depend_on_workers_or_on_each_other(folder, tmp_path):
    generate(tmp_path / "two", 2, seed=7, workers=2, **TINY)
    known = files(folder)
    two = files(tmp_path / "two")
    assert two == {name: known[name] for name in two}
    assert len(two) == 2
    assert len(set(known.values())) == 3


def test_samples_say_what_they_are(folder):
    mesh = read_raw(folder, "sample_0001")
    said = mesh.parameters
    assert said["synthetic"] is True or said["synthetic"] == 1
    assert (said["seed"], said["number"], said["mesh"]) == (7, 1, [1, 1, 6])
    assert said["residual"] < 1e-6
    assert abs(said["flux_balance"]) < 1e-6
    tube = draw(np.random.default_rng([7, 1]), max_reduction=0.06)
    assert said["radius"] == tube.radius
    inertia = 2 * tube.radius * said["speed"] * said["density"]
    assert said["reynolds"] == pytest.approx(inertia / said["viscosity"])
    assert np.array_equal(said["bend"], tube.bend)
    assert mesh.nodes == 8 * 13 + 2 * 17
    assert np.abs(mesh.wss[mesh.inlet]).max() > 0


def test_a_second_run_keeps_finished_samples(folder, tmp_path):
    said = []
    shutil.copy2(folder / "sample_0000.hdf5", tmp_path)
    before = (tmp_path / "sample_0000.hdf5").stat().st_mtime_ns
    again = generate(tmp_path, 2, seed=7, workers=1, **{**TINY, "say": said.append})
    assert (again.kept, again.made) == (["sample_0000"], ["sample_0001"])
    assert (tmp_path / "sample_0000.hdf5").stat().st_mtime_ns == before
    assert any("sample_0001" in text for text in said)
    with pytest.raises(ArteryError, match=r"sample_0000.*other settings \(seed 7, not 8\)"):
        generate(tmp_path, 1, seed=8, **TINY)


def test_a_killed_run_goes_on_where_it_was(folder, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        from flashgatr.experiments.arteries.synthetic.generate import generate
        if __name__ == "__main__":
            generate({str(tmp_path / "out")!r}, 3, 7, mesh=(1, 1, 6), max_reduction=0.06, workers=1,
                     say=lambda text: print(text, flush=True))
        """)
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        assert "sample_0000" in process.stdout.readline()
        process.kill()
        process.stdout.read()  # ends when the workers, which share it, have ended too
    result = generate(tmp_path / "out", 3, seed=7, workers=1, **TINY)
    assert "sample_0000" in result.kept
    names = sample_names(tmp_path / "out")
    assert {f"{n}.hdf5": (tmp_path / "out" / f"{n}.hdf5").read_bytes() for n in names} == files(
        folder
    )


def test_a_flow_that_does_not_converge_is_named_and_the_rest_goes_on(tmp_path):
    said = []
    result = generate(tmp_path, 3, mesh=(1, 1, 6), workers=1, say=said.append)
    assert result.failed
    assert result.made
    assert sorted([*result.made, *result.failed]) == [f"sample_000{i}" for i in range(3)]
    assert sample_names(tmp_path) == result.made
    for name, why in result.failed.items():
        assert f"{name} failed: the flow did not converge" in why
        assert any(why in text for text in said)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (dict(count=0), "count must be at least 1, got 0"),
        (dict(count=1, seed=-1), "seed must be at least 0"),
        (dict(count=1, seed=1.5), "seed must be an integer"),
        (dict(count=1, workers=0), "workers must be at least 1"),
        (dict(count=1, mesh=(3, 2)), "mesh must be three positive integers"),
        (dict(count=1, mesh=(3, 0, 9)), "mesh must be three positive integers"),
        (dict(count=1, max_reduction=1.0), "max_reduction must be at least 0.06 and below 1"),
    ],
)
def test_wrong_settings_are_told(tmp_path, wrong, told):
    with pytest.raises(ValueError, match=told):
        generate(tmp_path / "none", **wrong)
    assert not (tmp_path / "none").exists()


def test_the_command_makes_and_prepares_samples(tmp_path):
    out, options = tmp_path / "made", ["--mesh", "1", "1", "6", "--max-reduction", "0.06"]

    def run(*arguments):
        found = CliRunner().invoke(
            cli.application(), ["data", "arteries", "-f", str(out), *arguments]
        )
        return found.exit_code, f"{found.output} {found.exception or ''}"

    for arguments, text in (
        (["--synthetic", "1", "--source", "x"], "got both --source and --synthetic"),
        (["--source", "x", "--max-reduction", "0.3"], "--max-reduction goes with --synthetic"),
        (["--synthetic", "2"], "--synthetic must be at least 3"),
        (["--source", "x", "--seed", "1"], "--seed goes with --synthetic"),
    ):
        code, output = run(*arguments)
        assert code != 0
        assert text in output
    assert not out.exists()
    code, output = run("--synthetic", "3", "--seed", "7", "--workers", "1", *options)
    assert code == 0, output
    assert "sample_0000: 138 nodes" in output
    assert len(sample_names(out / "raw")) == 3
    assert "3 made, 0 kept, 0 failed" in output


def test_the_fixture_holds_the_vessels_it_says():
    assert sample_names(FIXTURE) == [f"sample_{i:04d}" for i in range(6)]
    assert sum(path.stat().st_size for path in FIXTURE.iterdir()) < 400_000
    for name in sample_names(FIXTURE):
        mesh = read_raw(FIXTURE, name)
        said = mesh.parameters
        tube = draw(np.random.default_rng([said["seed"], mesh.index]), max_reduction=0.35)
        grid = sweep(tube, tuple(said["mesh"]))
        nodes, face, inlet = surface(grid)
        assert said["stenoses"] == [asdict(x) for x in tube.stenoses]
        assert np.allclose(mesh.position, grid.node.reshape(-1, 3)[nodes], atol=1e-6)
        assert np.array_equal(mesh.face, face)
        assert np.array_equal(mesh.inlet, inlet)
        assert said["residual"] < 1e-6


@pytest.mark.slow
def test_the_fixture_can_be_made_again():
    known = read_raw(FIXTURE, "sample_0004")
    new = make(4, Settings(seed=5, mesh=(2, 2, 55), max_reduction=0.35))
    assert np.abs(new.wss - known.wss).max() < 1e-3 * np.abs(known.wss).max()
    assert np.abs(new.pressure - known.pressure).max() < 0.5


@pytest.mark.slow
def test_a_coarse_grid_first_gives_the_same_flow(monkeypatch):
    tube = draw(np.random.default_rng(5), max_reduction=0.2)
    first = solve(tube, (2, 2, 60))
    monkeypatch.setattr("flashgatr.experiments.arteries.synthetic.flow.MIN_COARSE", 1000)
    second = solve(tube, (2, 2, 60))
    assert second.steps > first.steps
    a, b = (sample(0, tube, flow, {}).wss for flow in (first, second))
    assert np.abs(a - b).max() < 1e-4 * np.abs(a).max()
