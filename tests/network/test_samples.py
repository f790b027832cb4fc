"""Samples do not depend on each other or on their layout, and masks cut items off."""

import itertools

import pytest
import torch

from flashgatr import AxialGATr, GATr, pack, packed_to_padded

from .networks import SMALL, make_data, make_net


def test_a_sample_is_the_same_alone_batched_padded_packed_and_unbatched():
    net = GATr(**SMALL)
    sets = [make_data(items=n, dtype=torch.float32) for n in (3, 7, 1, 5)]
    alone = [net(*x) for x in sets]
    (mv, offsets), (s, _) = pack([x[0] for x in sets]), pack([x[1] for x in sets])
    packed = net(mv, s, offsets=offsets)
    (padded_mv, mask), (padded_s, _) = packed_to_padded(mv, offsets), packed_to_padded(s, offsets)
    padded = net(padded_mv, padded_s, mask=mask)
    two_axes = net(
        padded_mv.unflatten(0, (2, 2)),
        padded_s.unflatten(0, (2, 2)),
        mask=mask.unflatten(0, (2, 2)),
    )
    close = dict(rtol=1e-6, atol=1e-6)
    for b, (out, t) in enumerate(alone):
        items = slice(offsets[b], offsets[b + 1])
        n = len(out)
        torch.testing.assert_close((packed[0][items], packed[1][items]), (out, t), **close)
        torch.testing.assert_close((padded[0][b, :n], padded[1][b, :n]), (out, t), **close)
        torch.testing.assert_close(two_axes[0][b // 2, b % 2, :n], out, **close)
        torch.testing.assert_close(net(sets[b][0][None], sets[b][1][None])[0][0], out, **close)
    assert not padded[0][~mask].any()
    assert not padded[1][~mask].any()


@pytest.mark.parametrize("form", ["padded", "packed"])
def test_the_gradient_across_samples_is_exactly_zero(form):
    net = make_net()
    mv, s = make_data(3)
    mv.requires_grad_()
    if form == "packed":
        out, t = net(mv.flatten(0, 1), s.flatten(0, 1), offsets=torch.tensor([0, 6, 12, 18]))
        out, t = out.unflatten(0, (3, 6)), t.unflatten(0, (3, 6))
    else:
        out, t = net(mv, s)
    (out[1].sum() + t[1].sum()).backward()
    assert mv.grad[1].any()
    assert not mv.grad[0].any()
    assert not mv.grad[2].any()


def test_empty_and_single_item_sets_are_defined():
    net = GATr(**SMALL)
    for batch, items in (((), 0), ((2,), 0), ((0,), 4), ((2,), 1)):
        out, s = net(*make_data(*batch, items=items, dtype=torch.float32))
        assert out.shape == (*batch, items, 2, 16)
        assert out.isfinite().all()
    mv, s = make_data(items=4, dtype=torch.float32)
    whole, _ = net(mv, s)
    out, _ = net(mv, s, offsets=torch.tensor([0, 0, 4, 4]))  # an empty sample on either side
    torch.testing.assert_close(out, whole)
    out, _ = net(mv[None].requires_grad_(), s[None], mask=torch.zeros(1, 4, dtype=torch.bool))
    assert not out.any()
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


def test_attention_masks_cut_items_off():
    net, (mv, s) = make_net(recenter=False), make_data(2)
    allowed = torch.eye(6, dtype=torch.bool)
    reference = torch.ones(16, dtype=torch.float64)
    alone = torch.cat(
        [net(mv[:, [i]], s[:, [i]], join_reference=reference)[0] for i in range(6)], dim=1
    )
    additive = torch.zeros(6, 6, dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    for mask in (allowed, additive, allowed.expand(2, 6, 6), additive.expand(2, 2, 6, 6)):
        out, _ = net(mv, s, attention_mask=mask, join_reference=reference)
        torch.testing.assert_close(out, alone)
    nobody = allowed.clone()
    nobody[2] = False
    out, _ = net(mv.requires_grad_(), s, attention_mask=nobody, join_reference=reference)
    out.sum().backward()
    assert out.isfinite().all()
    assert mv.grad.isfinite().all()
    short, _ = net(mv, s, attention_mask=additive.bfloat16(), join_reference=reference)
    torch.testing.assert_close(short, alone)
    both, _ = net(
        mv,
        s,
        attention_mask=additive,
        mask=torch.ones(2, 6, dtype=torch.bool),
        join_reference=reference,
    )
    torch.testing.assert_close(both, alone)


def test_an_additive_mask_shifts_the_logits():
    net, (mv, s) = make_net(), make_data(2)
    constant, bias = torch.full((6, 6), 3.0).double(), torch.randn(2, 6, 6).double()
    torch.testing.assert_close(net(mv, s, attention_mask=constant), net(mv, s))
    assert not torch.allclose(net(mv, s, attention_mask=bias)[0], net(mv, s)[0])


def test_axial_masks_and_errors():
    net = AxialGATr(**SMALL).double()
    mv, s = (torch.randn(2, 3, 4, *last).double() for last in ((2, 16), (1,)))
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    mask[..., 2:] = False
    out, _ = net(torch.where(mask[..., None, None], mv, torch.nan), s, mask=mask)
    torch.testing.assert_close(out[..., :2, :, :], net(mv[..., :2, :, :], s[..., :2, :])[0])
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    out, _ = net(mv, s, attention_mask=(causal, None), join_reference="canonical")
    assert out.isfinite().all()
    with pytest.raises(TypeError, match="pair"):
        net(mv, s, attention_mask=causal)
    with pytest.raises(ValueError, match="no batch axes, got 3"):
        net(mv, s, offsets=torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="goes with offsets"):
        net(mv, s, max_items=3)


def test_samples_without_items_do_not_warn():
    mv, s = make_data(items=4)
    make_net()(mv, s, offsets=torch.tensor([0, 0, 4]))
    mask = torch.tensor([[True] * 4, [False] * 4])
    make_net()(mv.expand(2, 4, 2, 16), s.expand(2, 4, 1), mask=mask)


def test_packed_sets_of_very_unequal_size_are_attended_one_by_one():
    """If padding would cost more than one call per set; also with empty sets."""
    net = make_net()
    sizes = [120, 3, 0, 40, 1]
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    mv, s = make_data(items=sum(sizes))
    out_mv, out_s = net(mv, s, offsets=offsets)
    for begin, end in itertools.pairwise(offsets.tolist()):
        alone = net(mv[begin:end], s[begin:end])
        torch.testing.assert_close((out_mv[begin:end], out_s[begin:end]), alone)
