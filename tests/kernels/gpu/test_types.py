"""Networks with types on a GPU: exact mirrors, and parameters that stay zero."""

import contextlib
import copy

import pytest
import torch

from flashgatr import versors
from flashgatr.kernels.paths import plain_kernels
from flashgatr.nn import EquiLinear
from tests.typed.networks import VARIANTS, changed, masked_entries, network, scene

from .networks import ON_GPU, cast

pytestmark = ON_GPU
TYPES = ("oee", "oeo")


@pytest.mark.parametrize("items", [6, 40])
@pytest.mark.parametrize("path", ["fused", "plain"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_mirror_of_an_axis_changes_signs_only(name, precision, path, items):
    """x → -x is exact: outputs are equal bit for bit.

    Where they are not, `test_mirrors` tells which part of the network is the reason.
    """
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    net = changed(network(name, torch.float32)).cuda().eval()
    mv, s = (x.cuda() for x in scene(name, torch.float32, items))
    mirror = torch.zeros(16, device="cuda")
    mirror[2] = 1  # e1
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    with (
        torch.no_grad(),
        cast(dtype),
        plain_kernels() if path == "plain" else contextlib.nullcontext(),
    ):
        assert (net.obstacle(mv) is None) == (path == "fused")
        out, scalars = net(mv, s)
        moved, same = net(versors.apply(mirror, mv, TYPES[0]), s)
    torch.testing.assert_close(moved, versors.apply(mirror, out, TYPES[1]), rtol=0, atol=0)
    torch.testing.assert_close(same, scalars, rtol=0, atol=0)


@pytest.mark.parametrize("items", [6, 400])
def test_small_sets_with_frames_made_by_kernels_are_as_exact(items):
    """With and without gradients of the input, which decide who makes the frames."""
    net = changed(network(dtype=torch.float32)).cuda()
    mv, s = (x.cuda() for x in scene(dtype=torch.float32, items=items))
    wide = copy.deepcopy(net).double()
    exact = wide(mv.double(), s.double())[0]
    with plain_kernels():
        plain = net(mv, s)[0]
    for grows in (False, True):
        found = net(mv.clone().requires_grad_(grows), s)[0]
        assert (found - exact).norm() <= 2 * (plain - exact).norm() + 1e-7 * exact.norm()


def test_masked_parameters_stay_zero():
    net = network("reinserted", torch.float32).cuda()
    mv, s = (x.cuda() for x in scene(dtype=torch.float32))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    layers = [layer for layer in net.modules() if isinstance(layer, EquiLinear)]
    for _ in range(10):
        optimizer.zero_grad()
        out, scalars = net(mv, s)
        (out.square().mean() + scalars.square().mean()).backward()
        optimizer.step()
    for parameter, where in (pair for layer in layers for pair in masked_entries(layer)):
        assert not parameter[where.cuda()].any()
        assert not parameter.grad[where.cuda()].any()
