"""Defects of the sources that our baselines replace, and why they cannot occur here.

- Norms of NVIDIA's SE(3)-Transformer divide by the feature and break the symmetry:
  `test_nonlinearities_change_norms_and_keep_directions` in tests/nbody.
- GEM-CNN's skip connection has a bias on all components, which breaks gauge equivariance:
  `test_a_bias_of_higher_order_would_break_the_symmetry_of_the_skip` in tests/surfaces.
- GCA-MLP is called with the edges of a graph and fails; batches of it are tested here.
- Code that uses names that NumPy has removed (`product`, `object`, `int`): our baselines count with
  `math.prod` and do not use NumPy, but for scales of surfaces, and the tests run with NumPy 2.
- An error of evaluation that includes the regulariser and is a mean of roots over batches: tested
  here, for systems and for meshes.
- Early stopping that keeps references to the weights instead of copies, and so restores the last
  ones: `test_the_best_weights_are_restored_not_the_last` in tests/engine.
- Isolated nodes of SEGNN's graph make it fail: there is no graph, and
  `test_a_body_alone_at_rest_or_on_top_of_another_is_no_exception` has bodies without neighbours.
- SEGNN's positions relative to a mean over coordinates instead of bodies: then translations would
  change the output, see `test_vectors_turn_and_mirror_with_the_bodies_and_ignore_translations`.
- The reward of the robotics experiment reads the flag of the upper block for the lower one: ours
  does not depend on that of the lower one, `test_a_held_lower_block_does_not_matter`.
- Training and evaluation scale states with different epsilons: ours have one `Scale` without any,
  `test_the_scale_maps_lengths_and_flags_only_and_is_undone` in tests/robotics.
"""

import pytest
import torch

from flashgatr.experiments import runs
from flashgatr.experiments.arteries import EXPERIMENT as ARTERIES
from flashgatr.experiments.arteries import inference
from flashgatr.experiments.arteries.metrics import mesh_errors
from flashgatr.experiments.arteries.metrics import summarise as summarise_meshes
from flashgatr.experiments.config import override
from flashgatr.experiments.nbody import EXPERIMENT as NBODY
from flashgatr.experiments.nbody import task as nbody_task
from flashgatr.experiments.nbody.metrics import summarise

from ..arteries.walls import tube

CPU = torch.device("cpu")
SMALL = {
    "gca_gnn": dict(hidden_channels=3, message_channels=4, mlp_channels=5, steps=2),
    "gca_mlp": dict(hidden=4),
}


def bodies(*shape):
    return torch.rand(*shape), *torch.randn(2, *shape, 3)


@pytest.mark.parametrize("name", SMALL)
def test_systems_of_a_batch_are_predicted_as_they_are_alone(name):
    model = NBODY.build(name, SMALL[name]).double()
    systems = [x.double() for x in bodies(6, 4)]
    together, regulariser = model(*systems)
    alone = [model(*(x[i : i + 1] for x in systems)) for i in range(6)]
    torch.testing.assert_close(together, torch.cat([out for out, _ in alone]))
    torch.testing.assert_close(regulariser, torch.stack([own for _, own in alone]).mean())


@pytest.mark.parametrize("name", SMALL)
def test_errors_of_systems_do_not_depend_on_batches_and_know_no_regulariser(name, monkeypatch):
    monkeypatch.setattr(nbody_task, "require", lambda folder, name: None)  # reads no files
    options = [f"model.options.{key}={value}" for key, value in SMALL[name].items()]
    changes = [f"model.name={name}", *options]
    task = nbody_task.NBodyTask(override(runs.defaults("nbody"), changes), CPU)
    mass, position, velocity = bodies(11, 4)
    position[3] *= 100  # a few systems dominate the mean
    data = dict(mass=mass, position=position, velocity=velocity, target=1.1 * position)
    data = {key: x.double() for key, x in data.items()}
    predicted, regulariser = task.model(mass, position, velocity)
    assert regulariser > 1e-3
    expected = (predicted.double() - data["target"]).square().mean((-2, -1))
    for chunk in (1, 4, 11, 1000):
        found = task.errors(task.model, data, chunk)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        assert summarise(found)["mse"] == pytest.approx(expected.mean().item(), rel=1e-4)


def test_errors_of_meshes_do_not_depend_on_batches(monkeypatch):
    torch.manual_seed(0)
    small = dict(num_blocks=1, hidden_mv_channels=4, hidden_s_channels=8, num_heads=2)
    model, meshes = ARTERIES.build("gatr", small).eval(), [tube(k, 60 + 12 * k) for k in range(5)]
    found = []
    for together in (1, 2, 8):
        monkeypatch.setattr(inference, "TOGETHER", together)
        stress = list(inference.predict_meshes(model, meshes, CPU))
        errors = [
            mesh_errors(y, torch.from_numpy(mesh.wss), torch.from_numpy(mesh.mask))
            for y, mesh in zip(stress, meshes, strict=True)
        ]
        found.append(summarise_meshes(errors))
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-4)
