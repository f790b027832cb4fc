"""Networks on a GPU, their inputs, and what they compute."""

import contextlib
import math

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


def assert_no_worse(make, *, dtype=torch.float32, draws=3, **given):
    """Against float64, the error of the kernels is at most twice that of the plain layers.

    Both have the same precision. The errors are those of all outputs and of the whole gradient. One
    draw may be exact by chance, so the test takes the geometric mean of some; `make` draws network
    and inputs.
    """
    logs = []
    for seed in range(draws):
        torch.manual_seed(seed)
        net, (mv, s) = make()
        with torch.no_grad():
            net(mv, s, **given)  # from the second call on, kernels run the network's two ends too
        found = [
            outputs_and_gradients(net, mv, s, plain=plain, dtype=dtype, **given)
            for plain in (False, True)
        ]
        wide = [x.detach().double().requires_grad_(x.requires_grad) for x in (mv, s)]
        exact = outputs_and_gradients(net.double(), *wide, plain=True, **_doubled(given))
        for results in found:
            for x, y in zip(results, exact, strict=True):
                assert x.shape == y.shape
                assert x.isfinite().all()
                logs.append(
                    math.log(max(((x - y).norm() / y.norm().clamp(min=1e-30)).item(), 1e-9))
                )
    ours, theirs = torch.tensor(logs).view(draws, 2, 2).mean(0).exp()
    assert (ours <= 2 * theirs + 1e-7).all(), (ours.tolist(), theirs.tolist())
    assert (theirs < 0.2).all()  # else nothing was compared


def _doubled(given):
    is_float = {k: isinstance(x, torch.Tensor) and x.is_floating_point() for k, x in given.items()}
    return {k: x.double() if is_float[k] else x for k, x in given.items()}
