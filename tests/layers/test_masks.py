"""Padding with every kind of attention mask: the result is that of the sets without padding.

The fused and the plain path share the code that merges masks, so both are compared with softmax
written out here and with unpadded sets, not with each other.
"""

import math

import pytest
import torch

from flashgatr import GATr, functional
from flashgatr.batch import Sets
from flashgatr.nn import CrossAttention

LENGTHS, ITEMS, HEADS = (5, 2, 4), 5, 2
VALID = torch.arange(ITEMS) < torch.tensor(LENGTHS)[:, None]
SMALL = dict(
    in_mv_channels=2, in_s_channels=1, out_mv_channels=2, out_s_channels=2, hidden_mv_channels=4,
    hidden_s_channels=8, num_blocks=2, num_heads=HEADS,
)  # fmt: skip


def _boolean(*shape):
    """A random mask in which every item may attend to itself."""
    return (torch.rand(*shape, ITEMS, ITEMS) < 0.5) | torch.eye(ITEMS, dtype=torch.bool)


def _additive(*shape):
    bias = torch.randn(*shape, ITEMS, ITEMS, dtype=torch.float64)
    return bias.masked_fill(~_boolean(*shape), -math.inf)


MASKS = {
    "no mask": lambda: None,
    "boolean": _boolean,
    "boolean per sample": lambda: _boolean(3),
    "boolean per head": lambda: _boolean(3, HEADS),
    "additive": _additive,
    "additive per sample": lambda: _additive(3),
    "additive per head": lambda: _additive(3, HEADS),
}


def _part(mask, sample, n):
    """The mask of one sample without its padding."""
    if mask is None:
        return None
    return (mask if mask.dim() == 2 else mask[sample])[..., :n, :n]


def _written_out(q, k, v, scale, mask):
    """softmax(q kᵀ · scale + mask) v of one sample: q, k (N, H, D), v (N, H, V)."""
    logits = torch.einsum("nhd,mhd->hnm", q, k) * scale
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    return torch.einsum("hnm,mhv->nhv", logits.softmax(-1), v)


@pytest.mark.parametrize("kind", MASKS)
def test_attention_over_padded_sets_is_softmax_over_the_valid_items(kind):
    mask = MASKS[kind]()
    q, k, v = (torch.randn(3, ITEMS, HEADS, d, dtype=torch.float64) for d in (6, 6, 7))
    sets = Sets((3, ITEMS), mask=VALID)
    how = dict(scale=0.4, sets=sets, context_sets=sets, attention_mask=mask)
    found = functional.attend(q, k, v, **how)
    for b, n in enumerate(LENGTHS):
        expected = _written_out(q[b, :n], k[b, :n], v[b, :n], 0.4, _part(mask, b, n))
        torch.testing.assert_close(found[b, :n], expected)


@pytest.mark.parametrize("path", ["fused", "plain"])
@pytest.mark.parametrize("kind", MASKS)
def test_a_padded_network_equals_the_unpadded_one(kind, path):
    net = GATr(**SMALL).double()
    mv = torch.randn(3, ITEMS, 2, 16, dtype=torch.float64)
    s = torch.randn(3, ITEMS, 1, dtype=torch.float64)
    if path == "plain":  # a hook on a block keeps the fused kernels out
        net.blocks[0].register_forward_hook(lambda *_: None)
    assert (net.obstacle(mv) is None) == (path == "fused")
    mask = MASKS[kind]()
    out_mv, out_s = net(mv, s, mask=VALID, attention_mask=mask)
    for b, n in enumerate(LENGTHS):
        alone = net(mv[b, :n], s[b, :n], attention_mask=_part(mask, b, n))
        torch.testing.assert_close(out_mv[b, :n], alone[0])
        torch.testing.assert_close(out_s[b, :n], alone[1])
        assert not out_mv[b, n:].any()
        assert not out_s[b, n:].any()


@pytest.mark.parametrize("kind", MASKS)
def test_masks_matter_in_these_tests(kind):
    if kind == "no mask":
        return
    q, k, v = (torch.randn(3, ITEMS, HEADS, 6, dtype=torch.float64) for _ in range(3))
    sets = Sets((3, ITEMS), mask=VALID)
    with_mask, without = (
        functional.attend(
            q, k, v, scale=1.0, sets=sets, context_sets=sets, attention_mask=attention_mask
        )
        for attention_mask in (MASKS[kind](), None)
    )
    assert not torch.allclose(with_mask, without)


def _no_keys(form, padded):
    """Masks that leave query 1 of sample 0 without a key; in `padded`, with a padded key alone."""
    mask = torch.ones(2, ITEMS, ITEMS, dtype=torch.bool)
    mask[0, 1] = False
    mask[0, 1, ITEMS - 1] = padded
    if form == "boolean":
        return mask
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -math.inf)


@pytest.mark.parametrize("padded", [False, True], ids=["no key", "a padded key alone"])
@pytest.mark.parametrize("form", ["boolean", "additive"])
def test_a_query_without_allowed_keys_gives_zero_whatever_the_other_items_are(form, padded):
    q, k, v = (torch.randn(2, ITEMS, HEADS, 6, dtype=torch.float64) for _ in range(3))
    valid = torch.ones(2, ITEMS, dtype=torch.bool)
    valid[0, ITEMS - 1] = not padded
    sets = Sets((2, ITEMS), mask=valid if padded else None)
    how = dict(scale=1.0, sets=sets, context_sets=sets, attention_mask=_no_keys(form, padded))
    q.requires_grad_(), k.requires_grad_(), v.requires_grad_()
    found = functional.attend(q, k, v, **how)
    assert not found[0, 1].any()
    assert found[0, 0].all()
    assert found[1].all()
    (found[0, 1] * torch.randn(HEADS, 6)).sum().backward()
    for x in (q, k, v):
        assert not x.grad.any()  # neither NaN nor a trace of the others


@pytest.mark.parametrize("path", ["fused", "plain"])
@pytest.mark.parametrize("form", ["boolean", "additive"])
def test_an_item_without_allowed_keys_does_not_change_with_the_others(form, path):
    net = GATr(**SMALL).double()
    if path == "plain":
        net.blocks[0].register_forward_hook(lambda *_: None)
    mv = torch.randn(2, ITEMS, 2, 16, dtype=torch.float64)
    s = torch.randn(2, ITEMS, 1, dtype=torch.float64)
    how = dict(
        join_reference=torch.randn(16, dtype=torch.float64),
        center=torch.zeros(2, 3, dtype=torch.float64),
        attention_mask=_no_keys(form, padded=False),
    )
    out_mv, out_s = net(mv, s, **how)
    others = torch.arange(ITEMS) != 1
    mv[:, others] += torch.randn(2, ITEMS - 1, 2, 16, dtype=torch.float64)
    s[:, others] += 1.0
    changed_mv, changed_s = net(mv, s, **how)
    torch.testing.assert_close(changed_mv[0, 1], out_mv[0, 1], rtol=0, atol=1e-12)
    torch.testing.assert_close(changed_s[0, 1], out_s[0, 1], rtol=0, atol=1e-12)
    assert not torch.allclose(changed_mv[1, 1], out_mv[1, 1])


def test_a_sample_without_valid_context_gives_zero_attention():
    layer = CrossAttention(4, 3, HEADS).double()
    torch.nn.init.zeros_(layer.output.bias_mv), torch.nn.init.zeros_(layer.output.bias_s)
    x, context = ((torch.randn(2, n, 4, 16), torch.randn(2, n, 3)) for n in (ITEMS, 3))
    valid = torch.tensor([[True, True, False], [False, False, False]])
    mv, s = layer(*(y.double() for y in (*x, *context)), context_sets=Sets((2, 3), mask=valid))
    assert mv[0].any()
    assert s[0].any()
    assert not mv[1].any()
    assert not s[1].any()
