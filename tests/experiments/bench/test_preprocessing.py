"""The benchmark of preprocessing runs on vessels of the published size."""

import numpy as np

from flashgatr.experiments.bench.data import artery_preprocessing as bench


def test_its_vessels_are_closed_and_as_large_as_the_published_ones():
    raw = bench.vessel(0)
    assert 8500 < raw.nodes < 10500
    assert len(raw.face) == 2 * raw.nodes - 4
    seconds, mesh = bench.timed(raw, "scipy")
    assert seconds > 0
    assert 0 < mesh.mask.sum() < mesh.nodes < raw.nodes


def test_differences_are_found_between_meshes_that_kept_other_nodes():
    _, mesh = bench.timed(bench.vessel(1), "scipy")
    keep = np.arange(mesh.nodes) % 3 > 0
    fields = dict(position=mesh.position[keep], geodesic=mesh.geodesic[keep] + np.float32(0.5))
    other = bench.Mesh(**{**vars(mesh), **fields})
    assert abs(bench.difference(mesh, other) - 0.5) < 1e-3
