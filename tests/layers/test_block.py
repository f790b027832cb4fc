"""A block has one meaning, whatever runs it."""

import copy
import pickle

import pytest
import torch

from flashgatr import GATr, Sets, embed_point
from flashgatr.nn import GATrBlock, Surroundings

OPTIONS = dict(
    in_mv_channels=1, in_s_channels=1, out_mv_channels=1, out_s_channels=1, num_blocks=2,
    hidden_mv_channels=4, hidden_s_channels=8, num_heads=2,
)  # fmt: skip


def data(*items):
    mv = embed_point(torch.randn(*items, 3, dtype=torch.float64) + 5).unsqueeze(-2)
    return mv, torch.randn(*items, 1, dtype=torch.float64)


def test_a_block_maps_multivectors_and_scalars_to_the_same():
    net = GATr(**OPTIONS).double()
    block = net.blocks[0]
    assert isinstance(block, GATrBlock)
    assert not {"plan", "weights", "is_fused"} & vars(block).keys()
    mv, s = torch.randn(5, 4, 16).double(), torch.randn(5, 8).double()
    nothing = torch.zeros(5, 0, 16).double(), torch.zeros(5, 0).double()
    around = Surroundings(torch.ones(1).double(), nothing, Sets((5,)))
    out, out_s = block(mv, s, around)
    assert out.shape == mv.shape
    assert out_s.shape == s.shape


def test_hooks_of_a_block_see_multivectors_and_scalars():
    net = GATr(**OPTIONS)
    mv, s = (x.float() for x in data(3, 5))
    if net.obstacle(mv):
        pytest.skip(net.obstacle(mv))
    expected, _ = net(mv, s)
    seen = []
    hook = net.blocks[1].register_forward_hook(lambda block, given, found: seen.append(found))
    out, _ = net(mv, s)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert [x.shape for x in seen[0]] == [(3, 5, 4, 16), (3, 5, 8)]
    assert "hooks" in net.obstacle(mv)
    hook.remove()
    assert net.obstacle(mv) is None


def test_a_network_with_a_module_that_kernels_do_not_know_runs_it():
    net = GATr(**OPTIONS)
    mv, s = (x.float() for x in data(3, 5))

    class Other(torch.nn.Module):
        def __init__(self, block):
            super().__init__()
            self.block = block

        def forward(self, mv, s, around):
            return mv, s

    net.blocks[1] = Other(net.blocks[1])
    assert net.obstacle(mv) is not None
    assert net(mv, s)[0].shape == (3, 5, 1, 16)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_of_a_network_runs_on_its_own_parameters(again):
    net = GATr(**OPTIONS)
    mv, s = (x.float() for x in data(3, 5))
    expected, _ = net(mv, s)
    other = again(net)
    assert torch.equal(other(mv, s)[0], expected)
    with torch.no_grad():
        for p in other.blocks[0].parameters():
            p.mul_(2)
    assert not torch.allclose(other(mv, s)[0], expected)
    assert torch.equal(net(mv, s)[0], expected)
