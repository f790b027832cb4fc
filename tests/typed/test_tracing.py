"""Networks with types compile, export and load as others do."""

import pytest
import torch

from flashgatr import AxialGATr, GATr
from flashgatr.kernels.plan import read_plan

from .networks import network, scene


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def same(found, expected):
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["reinserted_heads", "axial"])
def test_compiled_networks_are_one_graph_with_the_same_gradients(name):
    net, (mv, s) = network(name, torch.float32), scene(name, torch.float32)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    gradients = []
    for f in (compiled, net):
        net.zero_grad()
        out, t = f(mv, s)
        (out.square().sum() + t.square().sum()).backward()
        gradients.append([p.grad for p in net.parameters()])
    same(*gradients)


def test_exported_networks_give_the_same():
    net, inputs = network("reinserted", torch.float32).eval(), scene(dtype=torch.float32)
    exported = torch.export.export(net, inputs)
    same(exported.module()(*inputs), net(*inputs))


@pytest.mark.parametrize(
    ("kind", "name"), [(GATr, "nbody"), (GATr, "arteries"), (AxialGATr, "kuka")]
)
def test_presets_take_types(kind, name):
    counts = (kind.from_preset(name).config.in_mv_channels, 1)
    types = dict(in_mv_parity="o" * counts[0], out_mv_channels=1, out_mv_parity="o")
    net = kind.from_preset(name, num_blocks=2, **types)
    for fast in net._fast.blocks:
        assert read_plan(fast.plan.text) is fast.plan
        assert fast.plan.is_typed


def test_plans_of_networks_without_types_do_not_mention_them():
    net = GATr.from_preset("arteries")
    numbers = "8 32 4 1 2 8 1 0 1 0 0 0.01 0.001 0.0"
    assert net._fast.blocks[0].plan.text == f"block {numbers}"
    assert net._fast._first.plan.text == "linear 3 8 1 32"
