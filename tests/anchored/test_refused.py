"""What AnchoredGATr refuses with a sentence, and what it must not refuse."""

import dataclasses

import pytest
import torch

from flashgatr import AnchoredGATr, embed_point
from flashgatr.kernels.block import RowMemory
from flashgatr.kernels.paths import plain_kernels

from .networks import largest_gap, make_data, make_net

pytestmark = pytest.mark.usefixtures("path")


@pytest.mark.parametrize("gradients", [False, True])
def test_a_field_needs_a_value_for_every_query(gradients):
    net, (mv, s) = make_net(), make_data(6)
    state, points = net.encode(mv, s), torch.randn(20, 3).double()

    def embed(position):
        point = embed_point(position)
        return torch.stack([point, point], dim=-2), position[..., :1]

    field = net.field(state, embed, tile=8, extract=lambda mv, s: s.amax(0))
    with torch.set_grad_enabled(gradients), pytest.raises(ValueError, match="so 8 along axis 0"):
        field(points)


@pytest.mark.parametrize("extract", [lambda mv, s: s.tolist(), lambda mv, s: (mv, s)])
def test_a_field_needs_tensors(extract):
    net, (mv, s) = make_net(), make_data(6)
    field = net.field(net.encode(mv, s), lambda x: (mv, s), extract=extract)
    with pytest.raises(TypeError, match=r"extract must return a tensor, got (list|tuple)"):
        field(torch.zeros(6, 3).double())


def test_bad_arguments_are_refused():
    net, (mv, s), index = make_net(), make_data(5), torch.tensor([0, 1])
    state = net.encode(mv, s)
    masked = dict(anchors=index, attention_mask=torch.ones(5, 5).bool())
    offsets, packed = torch.tensor([0, 5]), dict(offsets=torch.tensor([0, 2, 5]))
    one = net.encode(mv, s, offsets=torch.tensor([0, 0, 5]))
    infinite, empty = torch.tensor([1.0, torch.inf]), index[:0]
    field = net.field(state, lambda x: (embed_point(x), x))
    no_input = net.field(state, lambda x: None)
    three = net.field(state, lambda x: (x, x, x))
    no_output = net.field(state, lambda x: (mv, s), extract=lambda mv, s: s.tolist())
    for call, error in (
        (lambda: net(mv, s, weights=torch.ones(2)), "pass anchors=…, too"),
        (lambda: net(mv, s, **masked), "attention_mask cannot be combined"),
        (lambda: net(mv, s, anchors=index, weights=torch.ones(3)), r"\(2,\); got \(3,\)"),
        (lambda: net(mv, s, anchors=index, weights=torch.zeros(2)), "weights must be positive"),
        (lambda: net(mv, s, anchors=torch.tensor([7])), "from 0 to 4; got 7 to 7"),
        (lambda: net.encode(mv[:0], s[:0]), "at least one anchor"),
        (lambda: net.decode(state, mv[None], s[None]), r"shape \(\), the queries \(1,\)"),
        (lambda: net.decode(state, mv, s, offsets=offsets), "only the queries are packed"),
        (lambda: net.decode(state, mv, s, tile=0), "tile must be an integer of at least 1"),
        (lambda: net.decode(state, mv, s, tile=True), "tile must be an integer of at least 1"),
        (lambda: no_input(torch.zeros(5, 3)), r"embed must return .* \(mv, s\); got NoneType"),
        (lambda: three(torch.zeros(5, 3)), r"embed must return .* \(mv, s\); got tuple"),
        (lambda: no_output(torch.zeros(5, 3)), "extract must return a tensor, got list"),
        (lambda: net.decode(state.mv, mv, s), "state must be what encode returned, got Tensor"),
        (lambda: net.field(state.mv, embed_point), "state must be what encode returned"),
        (lambda: net.field(state, embed_point, tile=0), "tile must be an integer of at least 1"),
        (lambda: field([[0.0, 0, 0]]), "position must be a tensor, got list"),
        (lambda: field(torch.zeros(3)), r"expected positions \(..., N, 3\), got \(3,\)"),
        (lambda: net(mv, s, anchors=index, weights=infinite), "positive and finite, but some are"),
        (lambda: net(mv, s, anchors=empty), "sample 0 has items, but no anchors to attend to"),
        (lambda: net(mv, s, anchors=index, **packed), "sample 1 has items, but no anchors"),
        (lambda: net.decode(one, mv, s, **packed), "sample 0 has items, but no anchors"),
        (lambda: one.sample(2), "there are 2 samples, numbered from 0; got the number 2"),
        (lambda: one.sample(-1), "numbered from 0; got the number -1"),
        (lambda: make_net(rotary=True), "queries have no place among the anchors"),
    ):
        with pytest.raises((TypeError, ValueError), match=error):
            call()


@pytest.mark.parametrize("weight", [1e300, 1e-300])
def test_weights_that_the_dtype_of_the_network_cannot_hold_are_refused(weight):
    """Rounded to zero or infinity, they would make outputs NaN, or wrong."""
    net, (mv, s) = make_net().float(), (x.float() for x in make_data(5))
    weights = torch.tensor([1, 1, 1, 1, weight], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"NaN in torch.float32; divide them by their mean"):
        net.encode(mv, s, weights=weights)


@pytest.mark.parametrize(
    "change",
    [
        dict(hidden_mv_channels=8),
        dict(hidden_s_channels=4),
        dict(num_blocks=3),
        dict(num_heads=1),
        dict(multi_query=False),
        dict(distance_aware=False),
        dict(attention_width=1),
        dict(in_mv_parity="oo", out_mv_parity="oe"),
    ],
    ids=str,
)
def test_the_anchors_of_another_network_are_refused(change):
    """Its keys have another layout, which the kernels would read beyond their end."""
    net, (mv, s) = make_net(), make_data(5)
    state, name = make_net(**change).encode(mv, s), min(change)
    for call in (lambda: net.decode(state, mv, s), lambda: net.field(state, embed_point)):
        with pytest.raises(ValueError, match=f"encoded by a network with {name}=.*, but this one"):
            call()


def test_options_without_effect_on_the_output_may_differ():
    net, (mv, s) = make_net(), make_data(5)
    other = AnchoredGATr(dataclasses.replace(net.config, checkpoint=True, dropout=0.5)).double()
    other.load_state_dict(net.state_dict())
    found = net.decode(other.eval().encode(mv, s), mv, s, tile=5)
    assert largest_gap(found, net.decode(net.encode(mv, s), mv, s, tile=5)) == 0


def test_samples_without_items_need_no_anchors():
    net, (mv, s), offsets = make_net(), make_data(5), torch.tensor([0, 0, 5])
    found = net(mv, s, anchors=torch.tensor([0, 3]), offsets=offsets)
    assert largest_gap(found, net(mv, s, anchors=torch.tensor([0, 3]))) < 1e-13
    state = net.encode(mv, s, offsets=offsets)
    assert largest_gap(net.decode(state, mv, s, offsets=offsets, tile=5), net(mv, s)) < 1e-13


def test_dropout_is_refused_while_training():
    net, (mv, s) = make_net(dropout=0.5), make_data(5)
    state = net.encode(mv, s)
    net.train()
    for call in (lambda: net.encode(mv, s), lambda: net.decode(state, mv, s)):
        with pytest.raises(ValueError, match="has no dropout"):
            call()
    assert net(mv, s, anchors=torch.tensor([0, 1]))[0].shape == (5, 2, 16)


def test_keys_of_the_kernels_are_not_read_by_the_modules(path):
    net, (mv, s) = make_net(), make_data(5)
    state = net.encode(mv, s)
    if path == "plain":
        assert not state.is_fused
        return
    with plain_kernels(), pytest.raises(ValueError, match="encode the anchors again"):
        net.decode(state, mv, s, tile=5)


def test_the_kernels_need_one_memory_for_each_block():
    net, (mv, s) = make_net(), make_data(5)
    memories = [RowMemory(net.encode(mv, s).sets, None)] * 3
    with pytest.raises(ValueError, match="memories of 3 blocks, expected one for each of the 2"):
        net._fast.run(mv, s, [], net.linear_in, net.linear_out, memories)
