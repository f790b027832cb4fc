"""Padded and packed sets are two forms of the same data."""

import warnings

import pytest
import torch

from flashgatr import (
    from_pyg,
    pack,
    packed_to_padded,
    pad,
    padded_to_packed,
    readout,
    unpack,
    unpad,
)
from flashgatr.batch import Sets

SETS = [torch.randn(n, 3) for n in (4, 0, 2)]


def _same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_every_form_converts_to_every_other():
    padded, mask = pad(SETS)
    packed, offsets = pack(SETS)
    assert padded.shape == (3, 4, 3)
    assert offsets.tolist() == [0, 4, 4, 6]
    assert _same(unpad(padded, mask), SETS)
    assert _same(unpack(packed, offsets), SETS)
    assert _same(packed_to_padded(packed, offsets), (padded, mask))
    assert _same(padded_to_packed(padded, mask), (packed, offsets))
    wide, _ = packed_to_padded(packed, offsets, max_items=6)
    assert wide.shape == (3, 6, 3)
    assert not wide[:, 4:].any()


def test_sums_means_and_positions_agree():
    padded, mask = pad(SETS)
    packed, offsets = pack(SETS)
    a, b = Sets((3, 4), mask=mask), Sets((6,), offsets=offsets)
    torch.testing.assert_close(a.sum(padded), b.sum(packed))
    torch.testing.assert_close(a.mean(padded), b.mean(packed))
    assert not a.mean(padded)[1].any()
    assert b.positions(packed.device).tolist() == [0, 1, 2, 3, 0, 1]
    assert a.positions(padded.device)[mask].tolist() == [0, 1, 2, 3, 0, 1]
    holes = torch.tensor([[True, False, True, True], [False, False, True, False]])
    assert Sets((2, 4), mask=holes).positions(mask.device)[holes].tolist() == [0, 1, 2, 0]
    assert Sets((2, 4), mask=holes, axes=2).positions(mask.device).tolist() == [0, 1, 2, 3]
    assert (a.samples, b.samples) == ((3,), (3,))
    assert torch.equal(b.spread(b.sum(packed)), a.sum(padded)[[0, 0, 0, 0, 2, 2]])


def test_readout_of_plain_sets():
    mv, s = torch.randn(2, 5, 3, 16), torch.randn(2, 5, 4)
    torch.testing.assert_close(readout(mv, s), (mv.mean(1), s.mean(1)))
    torch.testing.assert_close(readout(mv, s, reduce="sum"), (mv.sum(1), s.sum(1)))
    with pytest.raises(ValueError, match="'mean' or 'sum'"):
        readout(mv, s, reduce="max")
    pooled, none = readout(mv)
    torch.testing.assert_close(pooled, mv.mean(1))
    assert none.shape == (2, 0)


def test_readout_of_two_item_axes():
    mv, s = torch.randn(2, 5, 4, 3, 16), torch.randn(2, 5, 4, 6)
    torch.testing.assert_close(readout(mv, s, item_axes=2), (mv.mean((1, 2)), s.mean((1, 2))))
    mask = torch.rand(2, 5, 4) < 0.5
    pooled, _ = readout(mv, s, item_axes=2, mask=mask)
    torch.testing.assert_close(pooled[1], mv[1][mask[1]].mean(0))
    with pytest.raises(ValueError, match="2 item axes"):
        readout(mv[0, 0], item_axes=2)


def test_pytorch_geometric_batches_give_their_offsets():
    with warnings.catch_warnings():  # its own, under recent torch
        warnings.simplefilter("ignore")
        data = pytest.importorskip("torch_geometric.data")
    graphs = [data.Data(pos=torch.randn(n, 3)) for n in (3, 5)]
    batch = data.Batch.from_data_list(graphs)
    assert from_pyg(batch).tolist() == [0, 3, 8]
    assert from_pyg(graphs[1]).tolist() == [0, 5]
    assert from_pyg(data.Data(pos=torch.zeros(5, 3, device="meta"))).device.type == "meta"
    with pytest.raises(TypeError, match="dict without `ptr`"):
        from_pyg({})


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: pad([]), "one per sample, got no samples"),
        (lambda: pad([[1.0], torch.zeros(1)]), "one per sample, got Tensor, list"),
        (lambda: pad(torch.zeros(2, 3)), r"got one tensor; .* list\(x\) splits it"),
        (lambda: pack([torch.zeros(2, 3), torch.zeros(2, 4)]), r"got shapes \(2, 3\), \(2, 4\)"),
        (lambda: unpad(torch.zeros(2, 3), torch.ones(3, 2).bool()), r"must have shape \(2, 3\)"),
        (lambda: unpad(torch.zeros(2, 3), torch.ones(2).bool()), r"must be \(batch, items\)"),
        (lambda: padded_to_packed(torch.zeros(2, 3), torch.ones(2).bool()), "batch, items"),
        (lambda: unpack(torch.zeros(2, 3), torch.tensor([0, 3])), r"of items, 2; got \[0, 3\]"),
        (lambda: unpack(torch.zeros(2, 3), torch.tensor([[0, 2]])), "1-d integer tensor"),
    ],
)
def test_wrong_sets_are_refused_in_a_sentence(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_no_samples_at_all():
    values, mask = packed_to_padded(torch.zeros(0, 3), torch.tensor([0]))
    assert values.shape == (0, 0, 3)
    assert mask.shape == (0, 0)


def test_a_largest_size_that_is_too_small_by_one_is_refused():
    offsets = torch.tensor([0, 3, 8])
    assert Sets((8,), offsets=offsets, max_items=5).max_items == 5
    with pytest.raises(ValueError, match="max_items=4, but the largest set has 5"):
        Sets((8,), offsets=offsets, max_items=4)


def test_items_in_the_order_of_sizes_come_back_in_their_own_order():
    offsets = torch.tensor([0, 3, 4, 7, 12])
    shapes, items, back = Sets((12,), offsets=offsets).by_length
    assert shapes == [(1, 1), (2, 3), (1, 5)]
    assert items.tolist() == [3, 0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11]
    assert items[back].tolist() == list(range(12))
