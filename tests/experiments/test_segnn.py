"""Laws of SEGNN: symmetries, the same meaning of sets as GATr's, errors."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashgatr.batch import pack, pad
from flashgatr.experiments.baselines import SEGNN, segnn
from flashgatr.experiments.baselines.segnn import balanced_channels
from flashgatr.experiments.baselines.steerable import (
    find_paths,
)
from flashgatr.experiments.nbody import EXPERIMENT as NBODY

from .segnn_nets import assert_same, random_bodies, small_net

VARIANTS = [
    {},
    dict(k=3),
    dict(norm="instance", charge_as_node_scalar=True),
    dict(degree=2, attribute_degree=2, k=3),
    dict(degree=1, attribute_degree=3),
    dict(degree=3, attribute_degree=1, norm="instance"),
]


def _weights(net):
    """The parameters; in some networks a map has no path from the highest degree."""
    return [p for p in net.parameters() if p.numel()]


def _rotation():
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    return turn * turn.det()


def test_sizes_are_the_papers():
    def parameters(**options):
        with torch.device("meta"):
            return sum(p.numel() for p in SEGNN(**options).parameters())

    assert parameters() == 147_424
    assert parameters(charge_as_node_scalar=True) == 147_424 + 2 * 32
    assert parameters(norm="instance") == 147_424 + 4 * 3 * 32
    assert "4 layers of 32 channels" in repr(SEGNN())


@pytest.mark.parametrize("degrees", [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2)], ids=str)
def test_hidden_maps_have_as_many_weights_as_the_linear_map_they_replace(degrees):
    paths = len(find_paths(degrees[0], degrees[1], degrees[0]))
    channels = balanced_channels(64, *degrees)
    assert (channels - 1) ** 2 * paths < 64**2 <= channels**2 * paths


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("sign", [1, -1], ids=["rotation", "reflection"])
def test_vectors_turn_and_mirror_with_the_bodies_and_ignore_translations(options, sign):
    net, (position, velocity, charge) = small_net(**options), random_bodies(3, 6)
    turn, shift = sign * _rotation(), torch.randn(3, 1, 3, dtype=torch.float64)
    out = net(position, velocity, charge)
    assert out.abs().max() > 1e-2
    assert_same(net(position @ turn + shift, velocity @ turn, charge), out @ turn)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_bodies_have_no_order(options):
    net, order = small_net(**options), torch.randperm(6)
    bodies = random_bodies(2, 6)
    assert_same(net(*(x[:, order] for x in bodies)), net(*bodies)[:, order])


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_sample_alone_padded_packed_or_in_a_batch_is_the_same(options):
    net = small_net(**options)
    samples = [random_bodies(n) for n in (4, 1, 0, 6)]
    padded = [pad(list(x)) for x in zip(*samples, strict=True)]
    mask = padded[0][1]
    junk = [torch.where(mask.reshape(*mask.shape, *[1] * (x.dim() - 2)), x, torch.nan)
            for x, _ in padded]  # fmt: skip
    packed = [pack(list(x)) for x in zip(*samples, strict=True)]
    offsets, packed = packed[0][1], [x for x, _ in packed]
    from_padded, from_packed = net(*junk, mask=mask), net(*packed, offsets=offsets)
    assert not from_padded[~mask].any()
    assert_same(from_padded[mask], from_packed)
    assert_same(from_packed, net(*packed, offsets=offsets, max_items=9))
    assert_same(from_packed, torch.cat([net(*x) for x in samples]))
    again = [x.reshape(2, 2, *x.shape[1:]) for x in junk]
    assert_same(net(*again, mask=mask.reshape(2, 2, 6)).flatten(0, 1), from_padded)


def test_predicted_positions_move_with_the_bodies():
    model = NBODY.build("segnn", dict(hidden_channels=12, mass_as_node_scalar=True)).double()
    position, velocity, mass = random_bodies(3, 6)
    turn, shift = -_rotation(), 100 * torch.randn(3, 1, 3, dtype=torch.float64)
    out, regulariser = model(mass, position, velocity)
    moved, _ = model(mass, position @ turn + shift, velocity @ turn)
    assert_same(moved, out @ turn + shift, 1e-11)
    assert regulariser == 0
    assert_same(out - position, model.net(position, velocity, mass))


def test_neighbours_are_the_nearest_others():
    position = torch.tensor([0.0, 1, 3, 7, 15, 31], dtype=torch.float64)[:, None] * torch.eye(3)[0]
    _, velocity, charge = random_bodies(6)
    net = SEGNN(12, 1, k=1).double()  # one layer: a body hears its neighbours and no one else
    # Positions are relative to the mean, so what is changed is the charge.
    out = net(position, velocity, charge)
    for body, nearest in enumerate([1, 0, 1, 2, 3, 4]):
        changed = {
            other
            for other in range(6)
            if other != body
            and (net(position, velocity, charge + 5 * torch.eye(6)[other]) - out)[body].any()
        }
        assert changed == {nearest}
    everyone = SEGNN(12, 1, k=5).double()
    everyone.load_state_dict(net.state_dict())
    dense = SEGNN(12, 1).double()
    dense.load_state_dict(net.state_dict())
    assert torch.equal(everyone(position, velocity, charge), dense(position, velocity, charge))


def test_a_large_sample_is_searched_in_parts_with_the_same_result(monkeypatch):
    position, mask = random_bodies(3, 40)[0], torch.rand(3, 40) < 0.8
    for k in (1, 7, 38):
        whole = segnn.find_neighbours(position, mask, k)
        for most in (0, 3 * 40 * 7, 3 * 40 * 39):  # a receiver, 7 receivers, all but one at a time
            monkeypatch.setattr(segnn, "MOST_DISTANCES", most)
            found = segnn.find_neighbours(position, mask, k)
            assert found.shape == whole.shape
            assert torch.equal(found.senders, whole.senders)
            assert torch.equal(found.valid, whole.valid)
        monkeypatch.undo()


def test_the_search_for_neighbours_has_no_tensor_for_all_pairs(monkeypatch):
    class Largest(TorchDispatchMode):
        """The number of entries of the largest result."""

        found = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for x in torch.utils._pytree.tree_leaves(out):
                if isinstance(x, torch.Tensor):
                    self.found = max(self.found, x.numel())
            return out

    monkeypatch.setattr(segnn, "MOST_DISTANCES", 5000)
    position, mask = random_bodies(2, 500)[0], torch.rand(2, 500) < 0.8
    with Largest() as largest:
        segnn.find_neighbours(position, mask, 4)
    assert largest.found <= max(3 * 5000, 2 * 500 * 4)


def test_charges_enter_as_products_unless_bodies_may_see_their_own():
    position, velocity, charge = random_bodies(2, 5)
    net = small_net()
    assert torch.equal(net(position, velocity, -charge), net(position, velocity, charge))
    seeing = small_net(charge_as_node_scalar=True)
    flipped = seeing(position, velocity, -charge) - seeing(position, velocity, charge)
    assert flipped.abs().max() > 1e-3


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_body_alone_at_rest_or_on_top_of_another_is_no_exception(options):
    """An isolated body has no neighbours, and zero vectors have no direction."""
    net = small_net(**options)
    alone = net(*random_bodies(3, 1))
    assert alone.isfinite().all()
    position, velocity, charge = random_bodies(2, 5)
    position[:, 1] = position[:, 0]
    velocity[:, 2] = 0
    inputs = [x.requires_grad_() for x in (position, velocity, charge)]
    out = net(*inputs)
    out.square().sum().backward()
    assert out.isfinite().all()
    for x in (*inputs, *_weights(net)):
        assert x.grad.isfinite().all()
        assert x.grad.abs().max() < 1e6
    turn = -_rotation()
    assert_same(net(position @ turn, velocity @ turn, charge), out @ turn)


def test_not_a_number_in_padding_reaches_no_gradient():
    for options in VARIANTS:
        net, bodies = small_net(**options), random_bodies(2, 5)
        mask = torch.tensor([[True, True, True, True, False], [False] * 5])
        for x in bodies:
            x[~mask] = torch.nan
            x.requires_grad_()
        net(*bodies, mask=mask).square().sum().backward()
        assert not any(x.grad[~mask].any() for x in bodies)
        assert all(p.grad.isfinite().all() for p in _weights(net))


def test_gradients_are_the_derivatives():
    for options in ({}, dict(degree=2, attribute_degree=2), dict(norm="instance", k=2)):
        net = SEGNN(4, 1, **options).double()
        bodies = [x.requires_grad_() for x in random_bodies(1, 4)]
        assert torch.autograd.gradcheck(net, bodies)


def test_the_residual_stream_has_full_precision():
    net, bodies = SEGNN(12, 2), [x.float() for x in random_bodies(2, 4)]
    exact = net(*bodies)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = net(*bodies)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.05 * exact.abs().max()
    halved = net.bfloat16()(*(x.bfloat16() for x in bodies))
    assert halved.dtype == torch.float32
    assert (halved - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0,), (1, 1)], ids=str)
def test_empty_and_single_sets(shape):
    for options in VARIANTS:
        bodies = [x.requires_grad_() for x in random_bodies(*shape)]
        out = small_net(**options)(*bodies)
        assert out.shape == (*shape, 3)
        out.sum().backward()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (dict(hidden_channels=0), ValueError, "hidden_channels .* at least 1, got 0"),
        (dict(degree=0), ValueError, "degree .* at least 1"),
        (dict(k=0), ValueError, "k must be an integer of at least 1, got 0"),
        (dict(norm="batch"), ValueError, "one of none, instance, got 'batch'"),
        (dict(charge_as_node_scalar=1), TypeError, "charge_as_node_scalar must be True or False"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_in_one_sentence(options, error, text):
    with pytest.raises(error, match=text):
        SEGNN(**options)


def test_a_wrong_call_is_refused_in_one_sentence():
    net, (position, velocity, charge) = SEGNN(12, 1), (x.float() for x in random_bodies(2, 5))
    with pytest.raises(ValueError, match=r"velocities of this shape .* got \(2, 4, 3\)"):
        net(position, velocity[:, :4], charge)
    with pytest.raises(ValueError, match=r"charges \(2, 5\), got .* \(2, 5, 1\)"):
        net(position, velocity, charge[..., None])
    with pytest.raises(TypeError, match="float64"):
        net(position.double(), velocity, charge)
    with pytest.raises(ValueError, match="mask must have shape"):
        net(position, velocity, charge, mask=torch.ones(2, 4).bool())


def test_recomputation_changes_neither_results_nor_gradients():
    net, bodies = small_net(k=3), random_bodies(2, 5)
    net(*bodies).square().sum().backward()
    expected = [p.grad.clone() for p in _weights(net)]
    for layer in net.layers:
        layer.checkpoint = True
    net.zero_grad()
    net(*bodies).square().sum().backward()
    for p, gradient in zip(_weights(net), expected, strict=True):
        assert_same(p.grad, gradient)
