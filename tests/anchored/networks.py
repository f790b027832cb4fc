"""Small anchored networks in float64, with data: points and other multivectors."""

import torch

from flashgatr import AnchoredGATr, embed_point
from tests.kernels.networks import REINSERT
from tests.network.networks import SMALL

VARIANTS = {
    "default": {},
    "multi-head": dict(multi_query=False),
    "reinsert": dict(REINSERT, learned_weights="all"),
    "reinsert multi-head": dict(REINSERT, multi_query=False),
    "blind": dict(distance_aware=False, attention_width=1),
    "length scale": dict(length_scale=3.0, checkpoint=True),
    "types": dict(in_mv_parity="oo", out_mv_parity="oe", reinsert_mv_channels=(0,)),
    "no recentring": dict(recenter=False, checkpoint="attention"),
}


def make_net(**options):
    net = AnchoredGATr(**{**SMALL, **options}).double().eval()
    with torch.no_grad():  # make the learned weights and biases take part
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return net


def make_data(*items):
    mv = torch.randn(*items, 2, 16, dtype=torch.float64)
    mv[..., 0, :] = embed_point(torch.randn(*items, 3, dtype=torch.float64))
    return mv, torch.randn(*items, 1, dtype=torch.float64)


def gap(found, expected):
    """The largest difference of several tensors, relative to the largest number of all.

    If all expected numbers are zero, as the gradients of masked parameters are, it is absolute.
    """
    found, expected = ([x.detach() for x in pair] for pair in (found, expected))
    size = max(float(x.abs().max()) for x in expected if x.numel()) or 1.0
    pairs = zip(found, expected, strict=True)
    return max(float((x - y).abs().max()) for x, y in pairs if y.numel()) / size


def largest_gap(found, expected):
    """The largest `gap` of a single tensor, so that small tensors count as much as large ones."""
    pairs = zip(found, expected, strict=True)
    return max(gap([x], [y]) for x, y in pairs if y.numel())
