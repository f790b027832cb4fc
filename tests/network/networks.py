"""Networks small enough for laws in float64, and data for them."""

import torch

from flashgatr import GATr

SMALL = dict(
    in_mv_channels=2, in_s_channels=1, out_mv_channels=2, out_s_channels=3, hidden_mv_channels=4,
    hidden_s_channels=8, num_blocks=2, num_heads=2,
)  # fmt: skip
TEN_BLOCKS = {**SMALL, "num_blocks": 10, "hidden_mv_channels": 8, "hidden_s_channels": 16}


def make_net(**options):
    net = GATr(**{**SMALL, **options}).double()
    with torch.no_grad():  # make the learned weights and biases take part
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return net


def make_data(*batch, items=6, dtype=torch.float64):
    mv = torch.randn(*batch, items, 2, 16, dtype=dtype)
    return mv, torch.randn(*batch, items, 1, dtype=dtype)
