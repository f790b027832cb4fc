"""A frame is a value, made from one set and applied to any; a block has one meaning."""

import contextlib
import copy
import pickle

import pytest
import torch

from flashgatr import AxialGATr, GATr, Sets, embed_point, versors
from flashgatr.frame import Frame, frame_of
from flashgatr.kernels.paths import plain_kernels
from flashgatr.nn import GATrBlock, Surroundings

OPTIONS = dict(
    in_mv_channels=1, in_s_channels=1, out_mv_channels=1, out_s_channels=1, num_blocks=2,
    hidden_mv_channels=4, hidden_s_channels=8, num_heads=2,
)  # fmt: skip


def data(*items):
    mv = embed_point(torch.randn(*items, 3, dtype=torch.float64) + 5).unsqueeze(-2)
    return mv, torch.randn(*items, 1, dtype=torch.float64)


@pytest.mark.parametrize("length", [1.0, 0.1])
def test_a_frame_is_left_as_it_was_entered(length):
    mv, _ = data(3, 7)
    sets = Sets((3, 7))
    frame = frame_of(mv, sets, length=length)
    inside = frame.enter(mv, sets)
    torch.testing.assert_close(frame.leave(inside, sets), mv)
    centre = versors.centroid(inside, sets)
    torch.testing.assert_close(centre, torch.zeros_like(centre), rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [GATr, AxialGATr])
@pytest.mark.parametrize("length_scale", [1.0, 0.3])
def test_a_network_in_its_own_frame_gives_what_it_gives_without_one(make, length_scale):
    net = make(**OPTIONS, length_scale=length_scale).double()
    mv, s = data(2, 4, 3)
    if make is GATr:
        mv, s = mv[:, 0], s[:, 0]
    expected = net(mv, s)
    found = net(mv, s, frame=net.frame(mv))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("plain", [False, True])
def test_a_decoder_takes_the_frame_of_the_set_it_reads(plain):
    """The frame's centre, unit and reference decide, whatever items are seen in it."""
    net = GATr(**OPTIONS, length_scale=0.5).double()
    mv, _ = data(2, 6)
    queries, q = data(2, 3)
    frame = net.frame(3 * mv)  # points of weight three: another join reference
    sets = Sets((2, 3))
    inside = frame.enter(queries, sets)
    at_origin = Frame(frame.reference)
    same = GATr(**OPTIONS, recenter=False).double()
    same.load_state_dict(net.state_dict())
    with plain_kernels() if plain else contextlib.nullcontext():
        out, out_s = net(queries, q, frame=frame)
        expected, expected_s = same(inside, q, frame=at_origin)
    torch.testing.assert_close(out, frame.leave(expected, sets))
    torch.testing.assert_close(out_s, expected_s)
    own, _ = net(queries, q)
    assert not torch.allclose(own, out)  # its own reference is another one


def test_a_frame_of_packed_sets_serves_packed_sets_of_other_sizes():
    net = GATr(**OPTIONS).double()
    (mv, _), (queries, q) = data(9), data(5)
    frame = net.frame(mv, Sets((9,), offsets=torch.tensor([0, 4, 9])))
    offsets = torch.tensor([0, 2, 5])
    out, _ = net(queries, q, offsets=offsets, frame=frame)
    for b in range(2):
        items = slice(*offsets[b : b + 2].tolist())
        alone = Frame(frame.reference[b], frame.center[b], frame.length)
        torch.testing.assert_close(out[items], net(queries[items], q[items], frame=alone)[0])


def test_a_frame_and_a_centre_or_reference_contradict_each_other():
    net = GATr(**OPTIONS).double()
    mv, s = data(4)
    frame = net.frame(mv)
    for more in (dict(center=torch.zeros(3)), dict(join_reference="canonical")):
        with pytest.raises(ValueError, match="pass it without others"):
            net(mv, s, frame=frame, **more)


# ---- one meaning per block ----


def test_a_block_maps_multivectors_and_scalars_to_the_same():
    net = GATr(**OPTIONS).double()
    block = net.blocks[0]
    assert isinstance(block, GATrBlock)
    assert not {"plan", "weights", "is_fused"} & vars(block).keys()
    mv, s = torch.randn(5, 4, 16).double(), torch.randn(5, 8).double()
    nothing = torch.zeros(5, 0, 16).double(), torch.zeros(5, 0).double()
    around = Surroundings(torch.ones(1).double(), nothing, Sets((5,)))
    out, out_s = block(mv, s, around)
    assert out.shape == mv.shape
    assert out_s.shape == s.shape


def test_hooks_of_a_block_see_multivectors_and_scalars():
    net = GATr(**OPTIONS)
    mv, s = (x.float() for x in data(3, 5))
    if net.obstacle(mv):
        pytest.skip(net.obstacle(mv))
    expected, _ = net(mv, s)
    seen = []
    hook = net.blocks[1].register_forward_hook(lambda block, given, found: seen.append(found))
    out, _ = net(mv, s)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert [x.shape for x in seen[0]] == [(3, 5, 4, 16), (3, 5, 8)]
    assert "hooks" in net.obstacle(mv)
    hook.remove()
    assert net.obstacle(mv) is None


def test_a_network_with_a_module_that_kernels_do_not_know_runs_it():
    net = GATr(**OPTIONS)
    mv, s = (x.float() for x in data(3, 5))

    class Other(torch.nn.Module):
        def __init__(self, block):
            super().__init__()
            self.block = block

        def forward(self, mv, s, around):
            return mv, s

    net.blocks[1] = Other(net.blocks[1])
    assert net.obstacle(mv) is not None
    assert net(mv, s)[0].shape == (3, 5, 1, 16)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_of_a_network_runs_on_its_own_parameters(again):
    net = GATr(**OPTIONS)
    mv, s = (x.float() for x in data(3, 5))
    expected, _ = net(mv, s)
    other = again(net)
    assert torch.equal(other(mv, s)[0], expected)
    with torch.no_grad():
        for p in other.blocks[0].parameters():
            p.mul_(2)
    assert not torch.allclose(other(mv, s)[0], expected)
    assert torch.equal(net(mv, s)[0], expected)
