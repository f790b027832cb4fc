"""AxialGATr on packed samples, which differ in the length of their first axis."""

import contextlib

import pytest
import torch

from flashgatr import AxialGATr, pack, packed_to_padded, readout
from flashgatr.batch import Sets
from flashgatr.kernels.paths import plain_kernels

SMALL = dict(
    in_mv_channels=2, in_s_channels=1, out_mv_channels=2, out_s_channels=1, hidden_mv_channels=4,
    hidden_s_channels=8, num_blocks=3, num_heads=2,
)  # fmt: skip
OPTIONS = {
    "default": {},
    "rotary": dict(rotary=(True, False)),
    "rotary on both axes": dict(rotary=True),
    "multi-head": dict(multi_query=False, learned_weights="all"),
    "re-insertion": dict(reinsert_mv_channels=(1,), reinsert_s_channels=(0,)),
    "no scalars": dict(in_s_channels=0, out_s_channels=0, hidden_s_channels=0),
    "checkpoint": dict(checkpoint=True),
    "checkpointed attention": dict(checkpoint="attention"),
    "no recentring": dict(recenter=False),
}
TIMES = {"few": [3, 1, 0, 5], "equal": [4, 4], "one": [6], "uneven": [40, 2], "many": [1, 2] * 40}
PATHS = {"fused": contextlib.nullcontext, "plain": plain_kernels}


def _net(**options):
    net = AxialGATr(**{**SMALL, **options}).double()
    with torch.no_grad():
        for p in net.parameters():
            p += 0.2 * torch.randn_like(p)
    return net


def _data(times, objects=3, scalars=1):
    mvs = [torch.randn(n, objects, 2, 16).double() for n in times]
    ss = [torch.randn(n, objects, scalars).double() for n in times]
    (mv, offsets), (s, _) = pack(mvs), pack(ss)
    return mv.requires_grad_(), s.requires_grad_(), offsets


def _gradients(net, mv, s, out):
    loss = sum((x.sin() * (1 + i)).sum() for i, x in enumerate(out))
    leaves = [mv, s, *net.parameters()]
    found = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [*out, *found]


def _alone(net, mv, s, offsets, **given):
    parts = zip(*(x.split(offsets.diff().tolist()) for x in (mv, s)), strict=True)
    each = [net(*part, **{k: x[b] for k, x in given.items()}) for b, part in enumerate(parts)]
    return [torch.cat(x) for x in zip(*each, strict=True)]


def _close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def _assert_packed_is_alone(net, mv, s, offsets, path, **given):
    """Outputs and gradients; `given` has one value per sample."""
    with PATHS[path]():
        assert path == "plain" or net.config.has_rotary or net.obstacle(mv) is None
        found = _gradients(net, mv, s, net(mv, s, offsets=offsets, **given))
        expected = _gradients(net, mv, s, _alone(net, mv, s, offsets, **given))
    for x, y in zip(found, expected, strict=True):
        scale = max(1.0, y.abs().max().item()) if y.numel() else 1.0
        _close(x / scale, y / scale)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", OPTIONS)
def test_packed_samples_are_what_they_are_alone(name, path):
    net = _net(**OPTIONS[name])
    data = _data(TIMES["few"], scalars=net.config.in_s_channels)
    _assert_packed_is_alone(net, *data, path)


@pytest.mark.parametrize("objects", [0, 1, 4])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("times", TIMES)
def test_any_lengths_and_numbers_of_objects(times, path, objects):
    _assert_packed_is_alone(_net(), *_data(TIMES[times], objects), path)


@pytest.mark.parametrize("path", PATHS)
def test_references_and_centres_are_per_sample(path):
    net, data = _net(), _data([3, 2])
    references, centres = torch.randn(2, 16).double(), torch.randn(2, 3).double()
    _assert_packed_is_alone(net, *data, path, join_reference=references, center=centres)
    mv, s, offsets = data
    frame = net.frame(mv, Sets(mv.shape[:2], axes=2, offsets=offsets))
    _close(net(mv, s, offsets=offsets, frame=frame), net(mv, s, offsets=offsets))


@pytest.mark.parametrize("rotary", [False, (True, False)])
def test_packed_samples_are_what_they_are_padded(rotary):
    net, (mv, s, offsets) = _net(rotary=rotary), _data([3, 1, 5])
    out, t = net(mv, s, offsets=offsets, max_items=5)
    (padded, mask), (padded_s, _) = packed_to_padded(mv, offsets), packed_to_padded(s, offsets)
    mask = mask[..., None].expand(3, 5, 3)
    expected, u = net(padded, padded_s, mask=mask)
    _close((out, t), (expected[mask].view_as(out), u[mask].view_as(t)))
    for reduce in ("mean", "sum"):
        pooled = readout(out, t, reduce=reduce, offsets=offsets, item_axes=2)
        _close(pooled, readout(expected, u, reduce=reduce, mask=mask, item_axes=2))


def test_a_mask_of_the_objects_is_taken_and_one_of_the_packed_axis_refused():
    net, (mv, s, offsets) = _net(), _data([3, 2])
    among_objects = torch.ones(3, 3, dtype=torch.bool).tril()
    found = net(mv, s, offsets=offsets, attention_mask=(None, among_objects))
    parts = zip(mv.split([3, 2]), s.split([3, 2]), strict=True)
    alone = [net(*part, attention_mask=(None, among_objects))[0] for part in parts]
    _close(found[0], torch.cat(alone))
    with pytest.raises(ValueError, match="mask for the first axis"):
        net(mv, s, offsets=offsets, attention_mask=(torch.ones(5, 5).bool(), None))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (dict(offsets=[0, 3, 4]), "from 0 to the number of items, 5"),
        (dict(offsets=[0, 3, 5], max_items=2), "the largest set has 3 items"),
        (dict(offsets=[0, 3, 5], mask=torch.ones(5, 3).bool()), "both mask and offsets"),
        (dict(max_items=3), "goes with offsets"),
    ],
)
def test_wrong_arguments_are_refused(given, why):
    net, (mv, s, _) = _net(), _data([3, 2])
    if "offsets" in given:
        given = {**given, "offsets": torch.tensor(given["offsets"])}
    with pytest.raises(ValueError, match=why):
        net(mv, s, **given)


def test_batch_axes_are_refused():
    net, (mv, s, offsets) = _net(), _data([3, 2])
    with pytest.raises(ValueError, match="2 axes of items before the channels and no batch axes"):
        net(mv[None], s[None], offsets=offsets)


def test_rotary_positions_restart_at_each_sample():
    along = Sets((5, 2), axes=2, offsets=torch.tensor([0, 3, 5])).along_first()
    assert along.positions(torch.device("cpu")).tolist() == [0, 1, 2, 0, 1] * 2
    assert along.lengths == [3, 2, 3, 2]
