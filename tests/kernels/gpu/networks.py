"""Networks on a GPU, their inputs, and what they compute."""

import contextlib

import pytest
import torch

from flashgatr import GATr
from flashgatr.kernels.paths import plain_kernels

from .. import networks as laws

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
OPTIONS = dict(
    in_mv_channels=2, in_s_channels=1, out_mv_channels=1, out_s_channels=2, hidden_mv_channels=8,
    hidden_s_channels=16, num_blocks=10, num_heads=4, reinsert_mv_channels=(0,),
)  # fmt: skip
ENDS = dict(reinsert_mv_channels=(), num_blocks=3)
"""A network whose first and last steps have kernels too, if its inputs need no gradient."""


def make_net(cls=GATr, **options):
    """A network with a large epsilon of distances.

    Random inputs have points with weights near zero. With a small epsilon, the rounding of a few
    distances would dominate all errors.
    """
    return laws.make_net(cls, torch.float32, **{"distance_epsilon": 0.3, **options}).cuda()


def make_data(*batch):
    return torch.randn(*batch, 2, 16, device="cuda"), torch.randn(*batch, 1, device="cuda")


def make_inputs(net, *items, grows=True):
    data = laws.make_data(net, *items)
    return [x.detach().float().cuda().requires_grad_(grows) for x in data]


def cast(dtype):
    """Autocast to 16 bits, or nothing."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast("cuda", dtype)


def outputs_and_gradients(net, mv, s, *, plain, dtype=torch.float32, **given):
    """All outputs in one vector, and all gradients of a fixed projection of them."""
    with plain_kernels() if plain else contextlib.nullcontext(), cast(dtype):
        assert plain or net.obstacle(mv) is None
        outputs = [x.flatten() for x in net(mv, s, **given) if x.requires_grad]
    outer = [torch.linspace(-1, 1, x.numel()).cos().to(x) for x in outputs]
    leaves = [x for x in (mv, s, *net.parameters()) if x.requires_grad]
    found = torch.autograd.grad(outputs, leaves, outer, allow_unused=True, materialize_grads=True)
    return torch.cat(outputs).detach(), torch.cat([x.flatten() for x in found])
