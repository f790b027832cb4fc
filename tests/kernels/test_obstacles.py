"""Where the plain layers serve, and what a network says about it."""

import contextlib
import functools
import os
import subprocess
import sys

import pytest
import torch

from flashgatr.algebra import BLADES
from flashgatr.fast import plan_of
from flashgatr.kernels import paths
from flashgatr.kernels.cpu import library as c_kernels
from flashgatr.kernels.paths import plain_kernels
from flashgatr.nn import (
    EquiLayerNorm,
    EquiLinear,
    GeometricAttention,
    GeometricBilinear,
    GeoMLP,
    SelfAttention,
)

from .networks import assert_fused_is_plain, make_data, make_net

pytestmark = pytest.mark.usefixtures("compiler")


def _assert_served(net, why, *items, context=contextlib.nullcontext, dtype=torch.float32):
    """The network says why it is not fused, works, and has gradients."""
    mv, s = make_data(net, *items, dtype=dtype)
    with context():
        assert why in net.obstacle(mv)
        loss = sum(x.float().square().sum() for x in net(mv, s))
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())
    assert net.linear_in.weight.grad.abs().sum() > 0


def test_dropout_is_an_obstacle_to_training_alone():
    net = make_net(dropout=0.3, dtype=torch.float32)
    assert net.obstacle(torch.zeros(1)) is None
    _assert_served(net.train(), "dropout", 3, 5)
    assert make_net(dtype=torch.float32).train().obstacle(torch.zeros(1)) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_of_16_bits_are_an_obstacle_on_a_cpu(dtype):
    _assert_served(make_net(dtype=dtype), f"do not compute in {dtype}", 3, 5)


def test_autocast_is_an_obstacle_on_a_cpu():
    context = functools.partial(torch.autocast, "cpu", torch.bfloat16)
    _assert_served(
        make_net(dtype=torch.float32), "do not compute in torch.bfloat16", 3, 5, context=context
    )


def test_plain_kernels_are_an_obstacle_until_they_end():
    net = make_net(dtype=torch.float32)
    _assert_served(net, "plain kernels were asked for", 3, 5, context=plain_kernels)
    with plain_kernels():
        with plain_kernels():
            pass
        assert "asked for" in net.obstacle(torch.zeros(1))
    with pytest.raises(KeyboardInterrupt), plain_kernels():
        raise KeyboardInterrupt
    assert net.obstacle(torch.zeros(1)) is None


def test_hooks_of_a_block_are_an_obstacle_while_they_last():
    net, seen = make_net(dtype=torch.float32), []
    hook = lambda module, given, out: seen.append([x.shape for x in out])  # noqa: E731
    handle = net.blocks[1].register_forward_hook(hook)
    _assert_served(net, "hooks", 3, 5)
    assert seen
    assert all(shapes == [(3, 5, 4, BLADES), (3, 5, 6)] for shapes in seen)
    handle.remove()
    assert net.obstacle(torch.zeros(1)) is None
    handle = net.blocks[0].register_forward_pre_hook(lambda module, given: None)
    assert "hooks" in net.obstacle(torch.zeros(1))
    handle.remove()
    net.blocks[0] = torch.compile(net.blocks[0], backend="eager")
    assert net.obstacle(torch.zeros(1)) is None
    net.blocks[0].register_forward_hook(hook)
    assert "hooks" in net.obstacle(torch.zeros(1))


def test_other_modules_in_place_of_blocks_or_maps_are_an_obstacle():
    net = make_net(dtype=torch.float32)
    net.blocks[0], net.blocks[1] = net.blocks[1], net.blocks[0]
    _assert_served(net, "replaced by another module", 3, 5)
    net = make_net(dtype=torch.float32)
    del net.blocks[1]
    _assert_served(net, "added or removed", 3, 5)
    for owner, name in (
        (lambda net: net, "linear_in"),
        (lambda net: net, "linear_out"),
        (lambda net: net.blocks[0].mlp, "linear"),
    ):
        net = make_net(dtype=torch.float32)
        setattr(owner(net), name, torch.nn.Identity())
        assert net.obstacle(torch.zeros(1)).endswith("EquiLinear as linear map, not Identity")


REPLACED = {
    "a wider mlp": ("mlp", lambda: GeoMLP(4, 6, hidden_mv_channels=5), "other widths"),
    "fewer hidden scalars": ("mlp", lambda: GeoMLP(4, 6, hidden_s_channels=0), "other widths"),
    "a new bilinear layer": ("mlp.bilinear", lambda: GeometricBilinear(4, 8, 6, 12), None),
    "another activation": ("mlp", lambda: GeoMLP(4, 6, activation="relu"), "other settings"),
    "more heads": ("attention", lambda: SelfAttention(4, 6, 4), "other widths"),
    "another epsilon": ("norm", lambda: EquiLayerNorm(0.5), "other settings"),
    "no bias": ("mlp.linear", lambda: EquiLinear(8, 4, 12, 6, bias=False), "without a bias"),
    "a new attention": ("attention.attention", lambda: GeometricAttention(2, 4, 6), None),
}


@pytest.mark.parametrize("case", REPLACED)
def test_a_module_of_other_widths_or_settings_in_a_block_is_an_obstacle(case):
    name, make, why = REPLACED[case]
    net = make_net()
    parent, _, child = name.rpartition(".")
    setattr(net.blocks[0].get_submodule(parent), child, make().double())
    mv, s = make_data(net, 3, 5)
    if why is None:  # the same widths: the kernels run with the new module's parameters
        assert net.obstacle(mv) is None
    else:
        assert why in net.obstacle(mv)
    expected = net(mv, s)
    with plain_kernels():
        torch.testing.assert_close(net(mv, s), expected, rtol=1e-10, atol=1e-10)


def test_a_wider_map_at_the_end_of_the_network_is_an_obstacle():
    net = make_net()
    net.linear_out = EquiLinear(4, 3, 6, 0).double()
    mv, s = make_data(net, 3, 5)
    assert "expected 4 mv + 6 s -> 1 mv + 2 s, got 4 mv + 6 s -> 3 mv + 0 s" in net.obstacle(mv)
    out, t = net(mv, s)
    assert (out.shape, t.shape) == ((3, 5, 3, BLADES), (3, 5, 0))


def test_another_kind_of_layer_in_a_block_is_an_obstacle():
    net = make_net()
    net.blocks[1].mlp = torch.nn.Identity()
    assert net.obstacle(torch.zeros(1)).endswith("not SelfAttention and Identity")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")
def test_a_sharded_network_stays_on_the_fast_path(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = make_net()
    mv, s = (x.detach() for x in make_data(net, 3, 5))
    expected = net(mv, s)
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for module in (*net.blocks, net):
            fully_shard(module, mesh=mesh)
        for _ in range(3):  # sharding registers hooks of its own
            assert net.obstacle(mv) is None
            found = net(mv, s)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
            found[0].sum().backward()
        assert net.blocks[0].mlp.linear.weight.grad is not None
        net.blocks[0].register_forward_hook(lambda module, given, out: None)
        assert "hooks" in net.obstacle(mv)
    finally:
        torch.distributed.destroy_process_group()


def _one_head(features):
    """A network whose queries have this many features: twelve per multivector, and scalars."""
    mv = (features - 4) // 12
    sizes = dict(hidden_mv_channels=mv, hidden_s_channels=features - 12 * mv)
    net = make_net(num_heads=1, attention_width=1, num_blocks=1, **sizes)
    assert plan_of(net.blocks[0]).heads.features == features
    return net


def test_queries_wider_than_the_kernels_are_an_obstacle():
    net = _one_head(c_kernels.MOST_FEATURES + 8).float()
    _assert_served(net, "wider than", 2, 3)


def test_the_widest_query_that_the_kernels_take_equals_the_plain_layers():
    net = _one_head(c_kernels.MOST_FEATURES)
    assert_fused_is_plain(net, *make_data(net, 2, 3))


def test_other_devices_have_no_kernels():
    net = make_net(dtype=torch.float32).to("meta")
    mv, s = (x.to("meta") for x in make_data(net, 3, 5, dtype=torch.float32))
    assert net.obstacle(mv) == "there are no kernels for meta"
    assert net(mv, s)[0].shape == (3, 5, 1, 16)


@pytest.mark.slow
def test_the_environment_asks_for_plain_kernels():
    code = (
        "import torch; from flashgatr import GATr; "
        "print(GATr(in_mv_channels=1, out_mv_channels=1).obstacle(torch.zeros(1)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "FLASHGATR_KERNELS": "plain"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "plain kernels were asked for"


def test_without_a_compiler_the_plain_layers_serve(monkeypatch):
    net = make_net()
    mv, s = make_data(net, 3, 5)
    expected = net(mv, s)
    monkeypatch.setattr(paths, "library", lambda: None)
    assert net.obstacle(mv) == "no C compiler was found"
    for found, x in zip(net(mv, s), expected, strict=True):
        torch.testing.assert_close(found, x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "true", "false"])
def test_a_compiler_that_fails_is_none(compiler, monkeypatch):
    monkeypatch.setenv("CC", compiler)
    assert c_kernels.library.__wrapped__() is None
