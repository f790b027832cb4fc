"""Random orientations are the original's, and turn all that has a direction."""

import numpy as np
import pytest
from scipy.stats import ortho_group

from flashgatr.experiments.arteries.data.orientation import matrices, turned
from flashgatr.experiments.arteries.data.wall import normals, prepare

from .tubes import tube


def test_matrices_are_those_of_the_original_code():
    theirs = ortho_group.rvs(3, size=2000, random_state=np.random.RandomState(123))
    assert np.abs(matrices() - theirs).max() < 1e-12
    first = [-0.35529976, 0.91160084, 0.20675102]  # also where scipy draws others
    assert np.abs(matrices()[0, 0] - first).max() < 1e-7


def test_matrices_are_orthogonal_half_of_them_reflections_and_more_begin_with_the_same():
    found = matrices()
    assert np.abs(found @ found.transpose(0, 2, 1) - np.eye(3)).max() < 1e-12
    assert 900 < (np.linalg.det(found) < 0).sum() < 1100
    assert np.array_equal(matrices(2500)[:2000], found)
    assert not found.flags.writeable


def test_a_turned_mesh_is_the_mesh_of_the_turned_positions():
    mesh = prepare(tube(around=12), method="scipy")
    signs = set()
    for r in matrices()[:8]:
        new = turned(mesh, r)
        signs.add(np.linalg.det(r) > 0)
        assert new.position.dtype == new.normal.dtype == new.wss.dtype == np.float32
        for name in ("position", "normal", "wss"):
            expected = getattr(mesh, name).astype(float) @ r.T
            assert np.abs(getattr(new, name) - expected).max() < 1e-5
        inside = np.setdiff1d(np.arange(mesh.nodes), mesh.face[_at_rim(mesh.face)])
        again, used = normals(new.position, new.face), np.isin(np.arange(mesh.nodes), inside)
        assert (np.sum(again * new.normal, axis=1)[used] > 0.99).all()  # faces still face outward
        assert np.array_equal(new.geodesic, mesh.geodesic)
        assert np.array_equal(new.mask, mesh.mask)
    assert signs == {True, False}


def _at_rim(face):
    """Faces with an edge that no other face has."""
    edges = np.sort(np.stack([face, np.roll(face, 1, axis=1)], -1), axis=-1)
    _, which, count = np.unique(
        edges.reshape(-1, 2), axis=0, return_inverse=True, return_counts=True
    )
    return (count[which].reshape(face.shape) == 1).any(axis=1)


def test_only_orthogonal_matrices_turn():
    mesh = prepare(tube(around=6), method="scipy")
    for wrong in (2 * np.eye(3), np.eye(4), np.full((3, 3), np.nan)):
        with pytest.raises(ValueError, match="orthogonal"):
            turned(mesh, wrong)
