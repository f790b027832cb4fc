"""Laws of the geometric Clifford algebra networks."""

import pytest
import torch
from torch.autograd import gradcheck

from flashgatr import embed_point, extract_direction, extract_point, ops, versors
from flashgatr.algebra import BLADES, E123, PGA, SCALAR
from flashgatr.batch import pack, pad
from flashgatr.experiments.baselines import GCAGNN, GCAMLP
from flashgatr.experiments.baselines.gca import ACTION, ConjugateLinear, MessagePassing
from flashgatr.experiments.nbody import EXPERIMENT
from flashgatr.experiments.nbody.models import fits

from .test_wigner import rotation


def _random(module):
    """The module in float64 with all parameters random, those that start at a constant too."""
    torch.manual_seed(0)
    module.double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def _gnn():
    return _random(GCAGNN(2, 1, 3, 4, 5, steps=2))


def _mv(*shape):
    return torch.randn(*shape, BLADES, dtype=torch.float64)


def _assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def test_sizes_are_those_of_the_authors():
    for net, expected in ((GCAMLP(4, 4), 161_284), (GCAGNN(1, 1), 1_498_435)):
        assert sum(p.numel() for p in net.parameters()) == expected


def _actions(layer):
    return layer.action.detach() @ torch.eye(BLADES, dtype=torch.float64)[list(ACTION)]


def _with_point_weights(layer, x):
    x = x.clone()
    x[..., E123] = layer.point_weight[:, 0]
    return x


def test_the_linear_map_is_the_formula():
    layer, x = _random(ConjugateLinear(3, 2)), _mv(5, 3)
    k = _actions(layer)  # (2, 3, 16)
    moved = ops.product(ops.product(k, _with_point_weights(layer, x)[:, None]), ops.reverse(k))
    _assert_same(layer(x), (layer.weight[..., None] * moved).sum(-2))


def test_a_unit_action_moves_points_rigidly():
    layer = ConjugateLinear(1, 1).double()
    motion = versors.sample(1, kind="SE(3)", dtype=torch.float64)[0]
    with torch.no_grad():
        layer.action[:] = motion[list(ACTION)]
        layer.weight[:] = 1
    x = embed_point(torch.randn(6, 1, 3, dtype=torch.float64))
    _assert_same(layer(x), versors.apply(motion, x))
    _assert_same(layer(x)[..., E123], torch.ones(6, 1).double())


def test_the_trivial_action_changes_nothing_but_the_weight_of_points():
    layer, x = _random(ConjugateLinear(1, 1)), _mv(4, 1)
    with torch.no_grad():
        layer.action[:] = torch.tensor([float(blade == SCALAR) for blade in ACTION])
        layer.weight[:] = 1
    _assert_same(layer(x), _with_point_weights(layer, x))


def test_the_weight_of_input_points_is_lost():
    net, x = _gnn(), _mv(3, 5, 2)
    heavier = x.clone()
    heavier[..., E123] += 1
    assert torch.equal(net(heavier), net(x))
    assert (net(x)[..., E123] - net(_mv(3, 5, 2))[..., E123]).abs().max() < 1e-12


def test_the_map_of_a_sum_is_the_sum_of_the_maps():
    layer, x = _random(ConjugateLinear(3, 2)), _mv(4, 5, 3)
    terms = torch.full((4, 1, 1), 5)
    _assert_same(layer(x.sum(1), terms), layer(x).sum(1))


def test_actions_start_as_rotations_and_maps_as_those_of_linear_layers():
    layer = ConjugateLinear(50, 40, fan_in=100)
    action = _actions(layer.double())
    assert not action[..., [i for i in ACTION if "0" in PGA.names[i]]].any()
    assert (ops.norm(action) - 1).abs().max() < 1e-6  # drawn in float32
    assert 0.09 < layer.weight.abs().max() <= 0.1
    assert (layer.point_weight == 1).all()


def test_messages_are_the_formula():
    """[x_i, x_j] through a network of one hidden layer, summed, and the update of [x_i, m_i]."""
    step, x = _random(MessagePassing(2, 3, 4, 5, 1.0)), _mv(4, 2)
    valid = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0]]).bool()
    messages = torch.zeros(4, 4, BLADES).double()
    for i, j in valid.nonzero().tolist():
        hidden = step.message_activation(step.receiver(x[i]) + step.sender(x[j]))
        messages[i] += step.message(hidden)
    hidden = step.update_activation(step.own(x) + step.received(messages))
    _assert_same(step(x, valid), step.update(hidden))


def test_the_mlp_is_the_formula():
    net, x = _random(GCAMLP(3, 2, hidden=4, layers=2)), _mv(5, 3)
    first, second, third = net.linears

    def act(activation, x):
        return x * ((x * activation.weight).sum(-1) + activation.bias).sigmoid().unsqueeze(-1)

    _assert_same(net(x), third(act(net.activations[1], second(act(net.activations[0], first(x))))))


def test_points_of_almost_no_weight_are_read_as_in_the_authors_code():
    """Their weight counts as 0.001, whatever its sign, and has no gradient."""
    model = EXPERIMENT.build("gca_gnn", dict(hidden_channels=3, message_channels=4, mlp_channels=5))
    mass, position, velocity = torch.rand(2, 4), *torch.randn(2, 2, 4, 3)
    last = model.net.steps[-1].update.point_weight
    predicted, regulariser = model(mass, position, velocity)
    (predicted.square().mean() + regulariser).backward()
    assert not last.grad.any()
    seen = []
    model.net.register_forward_hook(lambda net, given, out: seen.append(out[..., 0, :]))
    for weight in (0.0, -0.0005, 0.5, -2.0):
        with torch.no_grad():
            last.fill_(1.0)
            model(mass, position, velocity)
            last.fill_(weight / seen[-1][0, 0, E123].item())
            predicted, _ = model(mass, position, velocity)
        parts = predicted * (weight if abs(weight) > 1e-3 else 1e-3)
        torch.testing.assert_close(parts, extract_direction(seen[-1]))


def test_items_have_no_order_and_motions_do_not_commute():
    net, order = _gnn(), torch.randperm(5)
    position = torch.randn(3, 5, 2, 3, dtype=torch.float64)
    out = net(embed_point(position))
    _assert_same(net(embed_point(position)[:, order]), out[:, order])
    turned = net(embed_point(position @ rotation().T))
    expected = extract_point(out) @ rotation().T
    assert ((extract_point(turned) - expected).abs().max() / expected.abs().max()) > 1e-2


def test_a_sample_alone_padded_packed_or_in_a_batch_is_the_same():
    net = _gnn()
    samples = [_mv(n, 2) for n in (4, 1, 0, 6)]
    padded, mask = pad(samples)
    packed, offsets = pack(samples)
    junk = torch.where(mask[..., None, None], padded, torch.nan)
    from_padded, from_packed = net(junk, mask=mask), net(packed, offsets=offsets)
    assert not from_padded[~mask].any()
    _assert_same(from_padded[mask], from_packed)
    _assert_same(from_packed, net(packed, offsets=offsets, max_items=9))
    _assert_same(from_packed, torch.cat([net(x) for x in samples]))
    grid = net(padded.reshape(2, 2, 6, 2, BLADES), mask=mask.reshape(2, 2, 6))
    _assert_same(grid.flatten(0, 1), from_padded)


def test_gradients_are_the_derivatives_and_padding_has_none():
    net = _random(GCAGNN(1, 1, 2, 2, 2, steps=2))
    mask = torch.tensor([[True, True, False]])
    x = _mv(1, 3, 1)
    assert gradcheck(lambda x: net(x, mask=mask), x.clone().requires_grad_())
    x[~mask] = torch.nan
    x.requires_grad_()
    net(x, mask=mask).square().sum().backward()
    assert not x.grad[~mask].any()
    assert all(p.grad.isfinite().all() for p in net.parameters())


def test_autocast_rounds_nothing():
    for net, x in ((_gnn().float(), _mv(2, 4, 2)), (_random(GCAMLP(4, 4, 8)).float(), _mv(2, 4))):
        plain = net(x.float())
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(net(x.float()), plain)
        assert net.bfloat16()(x.bfloat16()).dtype == torch.float32


def _bodies(n):
    return torch.rand(3, n), *torch.randn(2, 3, n, 3)


def test_the_models_of_the_experiment_predict_points_and_regularise_their_weights():
    small = {"gca_gnn": dict(hidden_channels=3, message_channels=3, mlp_channels=4, steps=2)}
    for name in ("gca_gnn", "gca_mlp"):
        model = EXPERIMENT.build(name, small.get(name, dict(hidden=4)))
        out, regulariser = model(*_bodies(4))
        assert out.shape == (3, 4, 3)
        found = []
        model.net.register_forward_hook(lambda _m, _x, y, found=found: found.append(y))
        model(*_bodies(4))
        weights = found[0].flatten(1, -2)[..., E123]  # constants of the network
        torch.testing.assert_close(regulariser, (weights.abs() - 1).square().sum(1).mean())
        assert fits(model, 4)
        assert fits(model, 6) == (name == "gca_gnn")
    with pytest.raises(ValueError, match="made for 4 bodies and cannot take 6"):
        model(*_bodies(6))


def test_weights_of_points_start_at_zero_as_in_the_released_code():
    model = EXPERIMENT.build("gca_mlp", dict(hidden=4, point_weight=0.0))
    out, regulariser = model(*_bodies(4))
    assert out.isfinite().all()
    assert out.any()
    assert regulariser == 4


CALLS = {
    "wrong channels": (torch.zeros(2, 5, 3, BLADES), ValueError, "with 2 channels, got"),
    "no components": (torch.zeros(2, 5, 2), ValueError, r"\(..., N, 2, 16\)"),
    "double input": (torch.zeros(2, 5, 2, BLADES).double(), TypeError, r"x\.to\(torch\.float32\)"),
}


@pytest.mark.parametrize("case", CALLS, ids=str)
def test_a_wrong_call_is_refused_in_one_sentence(case):
    x, error, text = CALLS[case]
    with pytest.raises(error, match=text) as caught:
        GCAGNN(2, 1, 3, 4, 5)(x)
    assert "\n" not in str(caught.value)


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="steps must be an integer of at least 1, got 0"):
        GCAGNN(1, 1, steps=0)
    with pytest.raises(ValueError, match="layers must be an integer of at least 1, got 0"):
        GCAMLP(4, 4, layers=0)
