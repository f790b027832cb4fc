"""A network works in its input's own frame, or in the frame of another set that it is given."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from flashgatr import AxialGATr, GATr, GATrConfig, Sets, embed_point, versors
from flashgatr.algebra import E123
from flashgatr.fast import FastPath
from flashgatr.frame import Frame, frame_of
from flashgatr.kernels.paths import plain_kernels
from flashgatr.kernels.small_sets import SMALL_SAMPLE
from flashgatr.versors import translate

OPTIONS = dict(
    in_mv_channels=2, in_s_channels=1, out_mv_channels=1, out_s_channels=1, hidden_mv_channels=4,
    hidden_s_channels=4, num_blocks=2, num_heads=2,
)  # fmt: skip
PATHS = [contextlib.nullcontext, plain_kernels]


def _input(*items, dtype=torch.float64):
    return torch.randn(*items, 2, 16, dtype=dtype), torch.randn(*items, 1, dtype=dtype)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("options", [{}, dict(recenter=False), dict(length_scale=3.0)])
def test_the_frame_of_the_input_changes_nothing(options, path):
    for cls, items in ((GATr, (3, 5)), (GATr, (5,)), (AxialGATr, (2, 3, 4))):
        net = cls(**OPTIONS, **options).double()
        mv, s = _input(*items)
        with path():
            found, expected = net(mv, s, frame=net.frame(mv)), net(mv, s)
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("path", PATHS)
def test_a_network_in_the_frame_of_another_set_moves_with_both(path):
    net = GATr(**OPTIONS).double()
    (mv, s), (other, _), by = _input(3, 5), _input(3, 7), torch.randn(3, 1, 1, 3).double()
    with path():
        out, _ = net(mv, s, frame=net.frame(other))
        moved, _ = net(translate(mv, by), s, frame=net.frame(translate(other, by)))
        assert not torch.allclose(out, net(mv, s)[0], rtol=1e-3)
    torch.testing.assert_close(moved, translate(out, by), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("recenter", [True, False])
def test_a_frame_of_another_precision_is_converted(recenter, path):
    net = GATr(**OPTIONS, recenter=recenter)
    mv, s = _input(3, 5, dtype=torch.float32)
    with path():
        found, expected = net(mv, s, frame=net.frame(mv.double())), net(mv, s)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        wide = net.double()(mv.double(), s.double(), frame=net.frame(mv))
    torch.testing.assert_close(wide, tuple(x.double() for x in expected), rtol=1e-4, atol=1e-4)


def test_a_frame_of_another_number_of_samples_is_refused():
    net = GATr(**OPTIONS).double()
    mv, s = _input(3, 5)
    for count in (2, 4):
        frame = net.frame(_input(count, 5)[0])
        with pytest.raises(ValueError, match=rf"frame's center .* got \({count}, 3\)"):
            net(mv, s, frame=frame)
        with pytest.raises(ValueError, match=rf"frame's center .* got \({count}, 3\)"):
            net(
                mv.flatten(0, 1), s.flatten(0, 1), offsets=torch.tensor([0, 5, 10, 15]), frame=frame
            )
    other = GATr(**OPTIONS, recenter=False).double()
    with pytest.raises(ValueError, match=r"frame's reference .* got \(2, 1\)"):
        other(mv, s, frame=other.frame(_input(2, 5)[0]))
    with pytest.raises(ValueError, match="pass it without center"):
        net(mv, s, frame=net.frame(mv), center=torch.zeros(3).double())


ONE_POINT = {**OPTIONS, "in_mv_channels": 1}


def _points(*items):
    mv = embed_point(torch.randn(*items, 3, dtype=torch.float64) + 5).unsqueeze(-2)
    return mv, torch.randn(*items, 1, dtype=torch.float64)


@pytest.mark.parametrize("length", [1.0, 0.1])
def test_a_frame_is_left_as_it_was_entered(length):
    mv, _ = _points(3, 7)
    sets = Sets((3, 7))
    frame = frame_of(mv, sets, length=length)
    inside = frame.enter(mv, sets)
    torch.testing.assert_close(frame.leave(inside, sets), mv)
    centre = versors.centroid(inside, sets)
    torch.testing.assert_close(centre, torch.zeros_like(centre), rtol=0, atol=1e-12)


@pytest.mark.parametrize("plain", [False, True])
def test_a_decoder_takes_the_frame_of_the_set_it_reads(plain):
    """The frame's centre, unit and reference decide, whatever items are seen in it."""
    net = GATr(**ONE_POINT, length_scale=0.5).double()
    mv, _ = _points(2, 6)
    queries, q = _points(2, 3)
    frame = net.frame(3 * mv)  # points of weight three: another join reference
    sets = Sets((2, 3))
    inside = frame.enter(queries, sets)
    at_origin = Frame(frame.reference)
    same = GATr(**ONE_POINT, recenter=False).double()
    same.load_state_dict(net.state_dict())
    with plain_kernels() if plain else contextlib.nullcontext():
        out, out_s = net(queries, q, frame=frame)
        expected, expected_s = same(inside, q, frame=at_origin)
    torch.testing.assert_close(out, frame.leave(expected, sets))
    torch.testing.assert_close(out_s, expected_s)
    own, _ = net(queries, q)
    assert not torch.allclose(own, out)  # its own reference is another one


def test_a_frame_of_packed_sets_serves_packed_sets_of_other_sizes():
    net = GATr(**ONE_POINT).double()
    (mv, _), (queries, q) = _points(9), _points(5)
    frame = net.frame(mv, Sets((9,), offsets=torch.tensor([0, 4, 9])))
    offsets = torch.tensor([0, 2, 5])
    out, _ = net(queries, q, offsets=offsets, frame=frame)
    for b in range(2):
        items = slice(*offsets[b : b + 2].tolist())
        alone = Frame(frame.reference[b], frame.center[b], frame.length)
        torch.testing.assert_close(out[items], net(queries[items], q[items], frame=alone)[0])


def test_the_reference_of_the_data_is_the_mean_of_e123_over_valid_items_and_channels():
    mv, _ = _input(3, 5)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [False] * 5])
    found = frame_of(mv, Sets((3, 5), mask=mask)).reference
    e123 = mv[..., E123]
    expected = torch.stack([e123[0].mean(), e123[1, :3].mean(), e123.new_zeros(())])
    torch.testing.assert_close(found, expected[:, None])


# ---- kernels that make the frame themselves ----


def test_kernels_make_only_the_frame_that_the_input_has_by_itself(monkeypatch):
    net = GATr(**OPTIONS)
    mv, s = embed_point(torch.randn(2, 5, 2, 3)), torch.randn(2, 5, 1)
    if net.obstacle(mv):
        pytest.skip(net.obstacle(mv))
    net(mv, s)  # the first call looks for dead joins, outside the kernels
    monkeypatch.setattr(FastPath, "takes_ends", lambda *_: True)
    monkeypatch.setattr(FastPath, "run_with_ends", lambda *_: "fused")
    assert net(mv, s) == "fused"
    for given in (
        {"center": torch.ones(2, 3)},
        {"frame": net.frame(mv)},
        {"join_reference": "canonical"},
        {"attention_mask": torch.ones(5, 5, dtype=torch.bool)},
    ):
        assert net(mv, s, **given) != "fused", given


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({}, {}),
        ({"is_cuda": False}, {}),
        ({"dtype": torch.float64}, {}),
        ({"requires_grad": True}, {}),
        ({"shape": (2, 0, 2, 16)}, {}),
        ({"shape": (2, SMALL_SAMPLE // 2 + 1, 2, 16)}, {}),
        ({}, {"recenter": False}),
        ({}, {"length_scale": 2.0}),
        ({}, {"out_mv_channels": 0}),
        ({}, {"reinsert_mv_channels": (0,)}),
        ({}, {"reinsert_s_channels": (0,)}),
    ],
    ids=str,
)
def test_kernels_make_frames_of_small_plain_sets_alone(change, options):
    """The conditions, with a stand-in for a tensor on a GPU."""
    net = GATr(GATrConfig(**{**OPTIONS, **options}))
    about = dict(is_cuda=True, shape=(2, SMALL_SAMPLE // 2, 2, 16), dtype=torch.float32)
    mv = SimpleNamespace(**{**about, "requires_grad": False, **change})
    s = SimpleNamespace(requires_grad=False)
    fast = net._fast
    assert fast.takes_ends(mv, s, Sets(mv.shape[:2])) == (not change and not options)
    with torch.no_grad():
        expected = not options and (not change or "requires_grad" in change)
        assert fast.takes_ends(mv, s, Sets(mv.shape[:2])) == expected
    mask = torch.ones(mv.shape[:2], dtype=torch.bool)
    mask[:, :1] = False
    assert not fast.takes_ends(mv, s, Sets(mv.shape[:2], mask=mask))
