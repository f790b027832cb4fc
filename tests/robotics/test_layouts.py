"""Layouts of a state map onto each other; the scale of networks keeps rotations rotations."""

import numpy as np
import pytest
import torch

from flashgatr.experiments.robotics import evaluation, layouts, normalised
from flashgatr.experiments.robotics.layouts import Blocks
from flashgatr.experiments.robotics.normalised import Scale
from flashgatr.experiments.robotics.options import Options
from flashgatr.experiments.robotics.world import kinematics, rotations, scenes


def path(episodes=3, frames=12):
    """Smooth paths with tumbling blocks, some of them held."""
    chance = np.random.default_rng(0)
    share = np.linspace(0, 1, frames)[None, :, None]
    q = kinematics.HOME + 0.3 * share * chance.uniform(-1, 1, (episodes, 1, 7))
    quaternion = chance.normal(size=(episodes, frames, 4, 4))
    quaternion /= np.linalg.norm(quaternion, axis=-1, keepdims=True)
    quaternion *= np.where(quaternion[..., 3:] < 0, -1, 1)
    position = chance.normal(size=(episodes, frames, 4, 3))
    held = chance.integers(0, 2, (episodes, frames, 4)).astype(float)
    return layouts.join(q, Blocks(position, quaternion, held))


def test_the_joint_layout_is_interleaved():
    state = np.arange(39.0)
    q, blocks = layouts.split(state)
    assert q.tolist() == list(range(7))
    assert blocks.position[1].tolist() == [15, 16, 17]
    assert blocks.quaternion[1].tolist() == [18, 19, 20, 21]
    assert blocks.held.tolist() == [14, 22, 30, 38]
    assert (layouts.join(q, blocks) == state).all()


def test_the_geometric_layout_lists_poses_then_flags():
    state = path()
    flat = layouts.to_geometric(state)
    assert flat.shape == (3, 12, 49)
    position, rotation = kinematics.forward(state[..., :7])
    first, second = rotation[..., 0], rotation[..., 1]
    assert np.allclose(flat[..., :9], np.concatenate([position, first, second], axis=-1))
    assert np.allclose(flat[..., 9:12], state[..., 7:10])
    assert (flat[..., 45:] == state[..., [14, 22, 30, 38]]).all()


def test_parts_of_a_geometric_state_are_put_together_again():
    flat = layouts.to_geometric(path())
    for x in (flat, torch.tensor(flat)):
        position, directions, flags = layouts.objects(x)
        assert position.shape == (3, 12, 5, 3)
        assert directions.shape == (3, 12, 5, 2, 3)
        assert (layouts.from_objects(position, directions, flags) == x).all()


def test_released_states_hold_nothing_and_are_the_same_otherwise():
    state = path()
    free = layouts.released(state)
    assert not layouts.split(free)[1].held.any()
    assert (np.delete(free, [14, 22, 30, 38], -1) == np.delete(state, [14, 22, 30, 38], -1)).all()


def test_the_way_back_gives_the_same_blocks_and_poses():
    state = path()
    found, reached = layouts.to_joint(layouts.to_geometric(state), state[:, 0, :7])
    assert reached.all()
    assert np.abs(found[..., 7:] - state[..., 7:]).max() < 1e-12
    assert np.abs(found[:, 0] - state[:, 0]).max() < 0.03
    pairs = zip(kinematics.forward(found[..., :7]), kinematics.forward(state[..., :7]), strict=True)
    assert max(abs(a - b).max() for a, b in pairs) < 1e-10


def test_torch_gives_the_same_as_numpy():
    state = path()
    flat = layouts.to_geometric(torch.tensor(state))
    assert np.abs(flat.numpy() - layouts.to_geometric(state)).max() < 1e-14
    found, _ = layouts.to_joint(flat, torch.tensor(state[:, 0, :7]))
    expected, _ = layouts.to_joint(layouts.to_geometric(state), state[:, 0, :7])
    assert np.abs(found.numpy() - expected).max() < 1e-8
    assert layouts.to_geometric(torch.tensor(state).float()).dtype == torch.float32


def test_predicted_directions_and_flags_are_cleaned():
    state = path()
    flat = layouts.to_geometric(state)
    rows = flat[..., :45].reshape(3, 12, 5, 9)  # a view
    rows[..., 3:6] *= 1.7
    rows[..., 6:9] += 0.4 * rows[..., 3:6]
    flat[..., 45:] = 0.8 * flat[..., 45:] + 0.1
    found, _ = layouts.to_joint(flat, state[:, 0, :7])
    assert np.abs(found[..., 7:] - state[..., 7:]).max() < 1e-12


def test_the_scale_maps_lengths_and_flags_only_and_is_undone():
    scale, flat = Scale(0.25), layouts.to_geometric(path())
    seen = scale.normalize(flat)
    rows, own = seen[..., :45].reshape(3, 12, 5, 9), flat[..., :45].reshape(3, 12, 5, 9)
    assert np.allclose(rows[..., :3], 4 * own[..., :3])
    assert (rows[..., 3:] == own[..., 3:]).all()
    assert set(seen[..., 45:].ravel()) == {-1, 1}
    assert np.abs(scale.restore(seen) - flat).max() < 1e-14
    with pytest.raises(ValueError, match="length must be positive, got 0"):
        Scale(0)


def test_networks_see_positions_in_half_metres_unless_told():
    """Trained networks depend on it."""
    flat = layouts.to_geometric(path())
    assert np.allclose(Scale().normalize(flat)[..., :3], 2 * flat[..., :3])


def test_the_scale_commutes_with_rotations():
    """Rotating the world about the base and normalising can be exchanged."""
    turn = rotations.from_quaternion(np.array([0.1, 0.5, -0.3, 0.8]))

    def turned(flat):
        rows = flat[..., :45].reshape(*flat.shape[:-1], 15, 3) @ turn.T
        return np.concatenate([rows.reshape(*flat.shape[:-1], 45), flat[..., 45:]], axis=-1)

    scale, flat = Scale(), layouts.to_geometric(path())
    assert np.allclose(scale.normalize(turned(flat)), turned(scale.normalize(flat)))


def test_a_mirrored_world_is_that_of_the_networks():
    """Joints and frames of the mirrored arm are those that kinematics gives."""
    state = scenes.scenes("test", 5, setting=scenes.Setting(random_yaw=True, turned=True))
    state[:, :7] += np.linspace(-0.5, 0.5, 7)
    expected = normalised.mirrored(torch.from_numpy(layouts.to_geometric(state)))
    found = torch.from_numpy(layouts.to_geometric(layouts.mirrored(state)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert np.allclose(layouts.mirrored(layouts.mirrored(state)), state)
    assert abs(layouts.mirrored(state) - state).max() > 0.1


def test_mirrored_scenes_are_the_same_scenes_mirrored():
    assert Options(turned=True, mirrored=True).kinds == ("", "turned", "mirrored")
    plain, mirrored = (evaluation.draw("validation", 3, kind) for kind in ("", "mirrored"))
    assert np.array_equal(mirrored, layouts.mirrored(plain))
    assert abs(mirrored - plain).max() > 0.1


def test_a_turned_world_is_the_world_seen_from_elsewhere():
    state = scenes.scenes("test", 2)
    turned = layouts.rotated(state, 0.7)
    turn = rotations.about_z(np.array(0.7))
    rows = layouts.to_geometric(state)[:, :45].reshape(2, 15, 3) @ turn.T
    assert np.allclose(layouts.to_geometric(turned)[:, :45], rows.reshape(2, 45))
    with pytest.raises(ValueError, match=r"joint 1 cannot turn by 3\.000 rad"):
        layouts.rotated(state, 3.0)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: layouts.split(np.zeros(49)), r"shape \(49,\); the joint layout has 39"),
        (lambda: layouts.objects(np.zeros(39)), r"shape \(39,\); the geometric layout has 49"),
        (lambda: layouts.to_joint(np.zeros((2, 49)), np.zeros((2, 7))), r"expected \(E, T, 49\)"),
        (lambda: layouts.to_joint(np.zeros((1, 2, 49)), np.zeros(7)), r"and \(E, 7\)"),
    ],
)
def test_other_shapes_are_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()
