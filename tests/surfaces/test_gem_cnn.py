"""GEM-CNN: its size, its convolution against the plain formula, and what turning frames changes."""

import pytest
import torch

from flashgatr.experiments.baselines import gem_cnn
from flashgatr.experiments.baselines.gem_cnn import GemBlock, GemCNN, hierarchy, pooled, seen
from flashgatr.experiments.baselines.surfaces.convolution import (
    GaugeConvolution,
    neighbourhood,
    transported,
)
from flashgatr.experiments.baselines.surfaces.frames import (
    directions,
    tangent_frames,
    transports,
    turned,
)

from .walls import CONVOLVING, motion, wall

SCALES = CONVOLVING


def surface(seed=0, nodes=150):
    return [torch.from_numpy(x) for x in wall(seed, nodes)]


def geometry(seed=0, angle=None):
    """Positions, frames (turned by an angle each), and the finest level of a surface."""
    position, normal, _ = surface(seed)
    level = SCALES.batch(position)[0]
    frames = tangent_frames(position, normal, level.linked[:, 1])
    return position, frames if angle is None else turned(frames, angle), level


def near(seed=0, angle=None, rings=2):
    position, frames, level = geometry(seed, angle)
    return neighbourhood(position, frames, level.linked, 0.25, rings)


def angles(seed, nodes=150):
    torch.manual_seed(seed)
    return 2 * torch.pi * torch.rand(nodes, dtype=torch.float64)


def features(channels, nodes=150):
    torch.manual_seed(2)
    return torch.randn(nodes, 5, channels, dtype=torch.float64)


def net(samples=7, training=False, **options):
    torch.manual_seed(0)
    return GemCNN(SCALES, 4, samples=samples, **options).double().train(training)


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def change(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def representation(z, order=2):
    """ρ(z) as matrices (..., D, D) for complex z."""
    blocks = torch.zeros(*z.shape, 2 * order + 1, 2 * order + 1, dtype=torch.float64)
    blocks[..., 0, 0] = 1
    for m in range(1, order + 1):
        a = z**m
        re, im = 2 * m - 1, 2 * m
        blocks[..., re, re], blocks[..., re, im] = a.real, -a.imag
        blocks[..., im, re], blocks[..., im, im] = a.imag, a.real
    return blocks


def test_it_has_as_many_parameters_as_the_authors_network():
    assert sum(p.numel() for p in GemCNN(hierarchy()).parameters()) == 1_024_522


@pytest.mark.parametrize(("out_order", "rings"), [(2, 2), (1, 2), (2, 3)])
def test_the_convolution_is_the_mean_of_its_messages(out_order, rings):
    torch.manual_seed(0)
    conv = GaugeConvolution(3, 4, 2, out_order, rings).double()
    torch.nn.init.normal_(conv.bias)
    x, (position, frames, level) = features(3), geometry()
    found = conv(x, near(rings=rings))
    turn = torch.tensor([[0.0, -1], [1, 0]], dtype=torch.float64)
    for p in range(0, 150, 11):
        messages = []
        for q in level.linked[p][level.linked[p] >= 0].tolist():
            if q == p:
                own = torch.zeros(2 * out_order + 1, 4, dtype=torch.float64)
                own[0] = x[p, 0] @ conv.self_weight[0] + conv.bias[:, 0]
                for m in range(1, out_order + 1):
                    z = x[p, 2 * m - 1 : 2 * m + 1]
                    own[2 * m - 1 : 2 * m + 1] = z @ conv.self_weight[2 * m - 1]
                    own[2 * m - 1 : 2 * m + 1] += turn @ z @ conv.self_weight[2 * m]
                messages.append(own)
                continue
            offset = position[q] - position[p]
            u, t = directions(offset, frames[p]), transports(frames[q, 0], frames[q, 2], frames[p])
            place = offset.norm() / 0.25 * (rings - 1)
            weights = [max(0.0, 1 - abs(place.item() - r)) for r in range(rings)]
            kernel = sum(w * own for w, own in zip(weights, conv.weight, strict=True))
            straight = representation(u.conj() * t) @ x[q]
            message = torch.einsum("dc,cdoe->eo", straight, kernel) + conv.bias.T
            messages.append(representation(u, out_order) @ message)
        same(found[p], torch.stack(messages).mean(0))


def test_turning_the_frames_turns_the_output_of_a_convolution():
    conv = GaugeConvolution(3, 4, 2, 2, 2).double()
    torch.nn.init.normal_(conv.bias)
    x, angle = features(3), angles(1)
    spin = torch.exp(-1j * angle)
    found = conv(transported(x, spin), near(angle=angle))
    same(found, transported(conv(x, near()), spin))


@pytest.mark.parametrize(("samples", "least", "most"), [(7, 0.03, 0.3), (101, 0.0, 1e-3)])
@pytest.mark.parametrize("out_channels", [8, 6], ids=["same channels", "other channels"])
def test_a_block_is_equivariant_to_the_number_of_its_samples(samples, least, most, out_channels):
    torch.manual_seed(0)
    block = GemBlock(8, out_channels, rings=2, samples=samples).double()
    if out_channels != 8:
        torch.nn.init.normal_(block.skip.bias)
    x, angle = features(8), angles(1)
    spin = torch.exp(-1j * angle)
    found = block(transported(x, spin), near(angle=angle))
    assert least <= change(found, transported(block(x, near()), spin)) <= most


def test_a_bias_of_higher_order_would_break_the_symmetry_of_the_skip(monkeypatch):
    torch.manual_seed(0)
    block = GemBlock(8, 6, rings=2, samples=101).double()
    torch.nn.init.normal_(block.skip.bias)
    monkeypatch.setattr(block.skip, "forward", lambda x: torch.nn.Linear.forward(block.skip, x))
    x, angle = features(8), angles(1)
    spin = torch.exp(-1j * angle)
    found = block(transported(x, spin), near(angle=angle))
    assert change(found, transported(block(x, near()), spin)) > 0.05


def test_the_input_turns_with_the_frames():
    angle = angles(1)
    plain, other = geometry(), geometry(angle=angle)
    geodesic = surface()[2]
    x = seen(plain[0], plain[1], geodesic, plain[2])
    assert x.shape == (150, 5, 8)
    same(seen(other[0], other[1], geodesic, other[2]), transported(x, torch.exp(-1j * angle)))
    offset = plain[0][plain[2].linked[7][plain[2].linked[7] >= 0].long()] - plain[0][7]
    same(x[7, 0, 1], (offset @ plain[1][7, 2]).square().mean())


def test_pooling_is_the_mean_over_the_nearest_nodes_in_the_coarse_frame():
    position, normal, _ = surface()
    levels = SCALES.batch(position)
    frames = tangent_frames(position, normal, levels[0].linked[:, 1])
    level, x = levels[1], features(3)
    toward = frames[level.kept.long()][level.near[:, 0].long()]
    found = pooled(x, transports(frames[:, 0], frames[:, 2], toward), level)
    for row in range(level.rows):
        own = torch.nonzero(level.near[:, 0] == row)[:, 0]
        t = transports(frames[own, 0], frames[own, 2], frames[level.kept[row]])
        same(found[row], transported(x[own], t).mean(0))


@pytest.mark.parametrize(("samples", "least", "most"), [(7, 1e-2, 1.0), (101, 0.0, 1e-2)])
def test_turned_surfaces_with_any_frames_have_turned_predictions(samples, least, most):
    position, normal, geodesic = surface()
    matrix, shift = (torch.from_numpy(x) for x in motion(0))
    made = net(samples, training=True)
    before = made(position, normal, geodesic, SCALES.batch(position))
    moved = position @ matrix.T + shift
    levels = SCALES.batch(moved)
    found = made(moved, normal @ matrix.T, geodesic, levels, gauge=angles(3))
    assert least <= change(found @ matrix, before) <= most


def test_with_its_own_frames_the_network_turns_exactly_and_a_mirror_changes_it():
    position, normal, geodesic = surface()
    made = net(training=True)
    before = made(position, normal, geodesic, SCALES.batch(position))
    for mirror in (False, True):
        matrix, shift = (torch.from_numpy(x) for x in motion(0, mirror))
        moved = position @ matrix.T + shift
        found = made(moved, normal @ matrix.T, geodesic, SCALES.batch(moved)) @ matrix
        if mirror:
            assert change(found, before) > 0.1
        else:
            assert change(found, before) < 1e-8


def test_renumbering_the_nodes_renumbers_the_result():
    position, normal, geodesic = surface()
    order = torch.randperm(len(position))
    made = net(training=True)
    mixed = position[order]
    found = made(mixed, normal[order], geodesic[order], SCALES.batch(mixed))
    assert change(found, made(position, normal, geodesic, SCALES.batch(position))[order]) < 1e-8


def test_surfaces_of_a_batch_do_not_mix():
    surfaces = [surface(k, 100 + 20 * k) for k in range(3)]
    sizes = torch.tensor([0, *(len(s[0]) for s in surfaces)])
    packed = [torch.cat(parts) for parts in zip(*surfaces, strict=True)]
    made = net()
    found = made(*packed, SCALES.batch(packed[0], sizes.cumsum(0)))
    same(found, torch.cat([made(*own, SCALES.batch(own[0])) for own in surfaces]))


def test_computing_convolutions_again_changes_neither_gradients_nor_averages():
    position, normal, geodesic = surface()
    gradients = []
    for checkpoint in (False, True):
        made = net(training=True, checkpoint=checkpoint)
        made(position, normal, geodesic, SCALES.batch(position)).square().sum().backward()
        gradients.append([p.grad for p in made.parameters()] + list(made.buffers()))
    same(*gradients)


def test_nodes_that_coincide_or_stand_alone_have_finite_gradients():
    position, normal, geodesic = surface()
    position[10:20] = position[10]
    position[0] = 50.0
    normal[30] = -normal[31]
    made = net(training=True)
    made(position, normal, geodesic, SCALES.batch(position)).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in made.parameters())


def test_under_autocast_the_output_has_the_streams_precision():
    position, normal, geodesic = (x.float() for x in surface())
    made = net(training=True).float()
    before = made(position, normal, geodesic, SCALES.batch(position))
    with torch.autocast("cpu", torch.bfloat16):
        found = made(position, normal, geodesic, SCALES.batch(position))
    assert found.dtype == torch.float32
    assert change(found, before) < 0.2


def test_the_nearest_other_node_is_found():
    linked = torch.tensor([[0, 2, 1], [0, 1, -1], [2, -1, -1]], dtype=torch.int32)
    assert gem_cnn._nearest(linked).tolist() == [2, 0, -1]
    assert gem_cnn._nearest(linked[:1, :1]).tolist() == [-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(samples=8), "odd"),
        (dict(samples=3), "at least 5"),
        (dict(rings=1), "at least 2"),
        (dict(hierarchy=hierarchy((1.0,), (1.0,))), "convolves on 3 scales"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GemCNN(**dict(hierarchy=SCALES) | options)
