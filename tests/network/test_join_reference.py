"""The shapes of a join reference: one per sample, or broadcastable to the input."""

import pytest
import torch

from flashgatr import AxialGATr, GATr, embed_point

SMALL = dict(
    in_mv_channels=2,
    out_mv_channels=1,
    hidden_mv_channels=4,
    hidden_s_channels=4,
    num_blocks=2,
    num_heads=2,
)


def points(*shape):
    return embed_point(torch.randn(*shape, 3, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(
    ("kind", "items", "samples"),
    [
        (GATr, (3, 5), (3,)),
        (GATr, (5,), ()),
        (GATr, (2, 3, 5), (2, 3)),
        (GATr, (2, 3, 5), (3,)),
        (AxialGATr, (3, 4, 5), (3,)),
        (AxialGATr, (4, 5), ()),
    ],
)
def test_the_authors_shape_means_the_same(kind, items, samples):
    torch.manual_seed(0)
    net, mv = kind(**SMALL), points(*items, 2)
    reference = torch.randn(*samples, 16)
    theirs = reference.reshape(*samples, *[1] * (net.item_axes + 1), 16)
    found = net(mv, join_reference=theirs)[0]
    assert torch.equal(found, net(mv, join_reference=reference)[0])
    assert not torch.equal(found, net(mv, join_reference=2 * reference)[0])


@pytest.mark.parametrize("count", [3, 1])
def test_packed_sets_take_it_too(count):
    torch.manual_seed(0)
    net, mv, offsets = GATr(**SMALL), points(9, 2), torch.tensor([0, 2, 5, 9])
    reference = torch.randn(count, 16)
    theirs = net(mv, offsets=offsets, join_reference=reference[:, None, None])[0]
    assert torch.equal(theirs, net(mv, offsets=offsets, join_reference=reference)[0])


def test_a_reference_per_item_or_channel_is_still_refused():
    net, mv = GATr(**SMALL), points(3, 5, 2)
    for shape in ((3, 5, 1, 16), (3, 1, 2, 16), (4, 1, 1, 16), (3, 1, 1, 1, 16), (3, 1, 16)):
        with pytest.raises(ValueError, match="join_reference must be a multivector"):
            net(mv, join_reference=torch.randn(shape))
