"""Networks with types export and have plans as others do; tests/network compiles them."""

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


def test_exported_networks_give_the_same():
    net, inputs = network("reinserted", torch.float32).eval(), scene(dtype=torch.float32)
    exported = torch.export.export(net, inputs)
    found = exported.module()(*inputs)
    torch.testing.assert_close(found, net(*inputs), rtol=1e-5, atol=1e-5)


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
