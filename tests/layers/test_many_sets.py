"""Many small packed sets on a CPU: those of one size are attended to together."""

import pytest
import torch
import torch.nn.functional as F

from flashgatr import GATr, embed_point
from flashgatr.batch import Sets, packed_to_padded
from flashgatr.functional import attention

SMALL = dict(
    in_mv_channels=2,
    out_mv_channels=2,
    hidden_mv_channels=4,
    hidden_s_channels=4,
    num_blocks=2,
    num_heads=2,
)


def offsets_of(lengths):
    return F.pad(torch.tensor(lengths).cumsum(0), (1, 0))


def drawn(count=200, most=9):
    return torch.randint(0, most, (count,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture
def calls(monkeypatch):
    """The shapes of queries and the masks that attention is called with."""
    found, own = [], F.scaled_dot_product_attention

    def count(q, *others, attn_mask=None, **options):
        found.append((tuple(q.shape), attn_mask))
        return own(q, *others, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", count)
    return found


@pytest.mark.parametrize("lengths", [drawn(), [5] * 100, [0] * 100, [0, 3] * 50])
def test_many_packed_sets_give_what_padded_ones_give(lengths):
    torch.manual_seed(0)
    net, offsets = GATr(**SMALL), offsets_of(lengths)
    points = torch.randn(sum(lengths), 2, 3, requires_grad=True)
    packed = net(embed_point(points), offsets=offsets)[0]
    padded, mask = packed_to_padded(embed_point(points), offsets)
    expected = net(padded, mask=mask)[0][mask]
    torch.testing.assert_close(packed, expected, rtol=1e-4, atol=1e-5)
    one, other = (torch.autograd.grad(x.square().sum(), points)[0] for x in (packed, expected))
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_there_is_one_call_per_size_without_masks_or_padding(calls):
    lengths = drawn()
    sets = Sets((sum(lengths),), offsets=offsets_of(lengths))
    x = torch.randn(sum(lengths), 2, 8)
    attention.attend(x, x, x, scale=1.0, sets=sets, context_sets=sets, attention_mask=None)
    assert len(calls) == len(set(lengths))
    assert sum(shape[0] * shape[2] for shape, _ in calls) == sum(lengths)
    assert all(mask is None for _, mask in calls)


def test_a_few_sets_are_attended_to_one_by_one_or_padded_as_before(calls):
    for lengths, expected in (([40, 90, 90], 3), ([4] * 40, 1)):
        calls.clear()
        sets = Sets((sum(lengths),), offsets=offsets_of(lengths))
        x = torch.randn(sum(lengths), 2, 8)
        attention.attend(x, x, x, scale=1.0, sets=sets, context_sets=sets, attention_mask=None)
        assert len(calls) == expected
