"""Why last bits of a mirrored scene may differ in float32: each possible cause has a test.

The outputs of larger sets in float32 were not always equal bit for bit (`test_types`). A mirror of
one axis changes signs only, so something must round one sign in another way, or twice differently.
"""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashgatr import versors
from flashgatr.kernels.paths import plain_kernels
from flashgatr.nn import EquiLinear
from tests.typed.networks import VARIANTS, changed, network, scene

from .networks import ON_GPU

pytestmark = ON_GPU
DEVICE = "cuda"
TYPES = ("oee", "oeo")
PATHS = {"fused": contextlib.nullcontext, "plain": plain_kernels}
BACKENDS = {
    "math": (SDPBackend.MATH, torch.float32),
    "memory-efficient": (SDPBackend.EFFICIENT_ATTENTION, torch.float32),
    "memory-efficient, bfloat16": (SDPBackend.EFFICIENT_ATTENTION, torch.bfloat16),
    "flash": (SDPBackend.FLASH_ATTENTION, torch.bfloat16),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, torch.bfloat16),
}


def given(name, items):
    net = changed(network(name, torch.float32)).to(DEVICE).eval()
    return net, *(x.to(DEVICE) for x in scene(name, torch.float32, items))


def mirrored(mv, types):
    """The image under x → -x."""
    mirror = torch.zeros(16, device=DEVICE)
    mirror[2] = 1  # e1
    return versors.apply(mirror, mv, types)


def signs(*shape):
    return torch.where(torch.rand(*shape, device=DEVICE) < 0.5, -1.0, 1.0)


def assert_equal_bits(found, expected, **more):
    torch.testing.assert_close(found, expected, rtol=0, atol=0, **more)


@pytest.mark.parametrize("items", [6, 40, 400])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_second_call_of_a_network_gives_the_same_bits(name, path, items):
    """The control: if this fails, mirrors have nothing to do with the difference."""
    net, mv, s = given(name, items)
    with torch.no_grad(), PATHS[path]():
        assert_equal_bits(net(mv, s), net(mv, s))


@pytest.mark.parametrize("items", [40, 400])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", VARIANTS)
def test_with_attention_in_plain_products_the_mirror_of_an_axis_changes_signs_only(
    name, path, items
):
    """If this holds, and `test_types` not without its tolerance, the kernel of attention rounds."""
    net, mv, s = given(name, items)
    with torch.no_grad(), PATHS[path](), sdpa_kernel(SDPBackend.MATH):
        out, scalars = net(mv, s)
        moved, same = net(mirrored(mv, TYPES[0]), s)
    assert_equal_bits(moved, mirrored(out, TYPES[1]))
    assert_equal_bits(same, scalars)


@pytest.mark.parametrize("items", [6, 40, 400])
@pytest.mark.parametrize("name", ["multi_query", "multi_head"])
def test_the_mirror_of_an_axis_changes_signs_only_in_every_linear_map(name, items):
    """In the order of the network: an error names the first map whose output differs."""
    net, mv, s = given(name, items)
    found = []

    def keep(layer, _, out):
        found.append((layer.types[1], *out))

    for layer in net.modules():
        if isinstance(layer, EquiLinear):
            layer.register_forward_hook(keep)
    with torch.no_grad(), plain_kernels():
        net(mv, s)
        first, found = found, []
        net(mirrored(mv, TYPES[0]), s)
    assert len(first) == len(found) > 10
    for i, ((types, out, scalars), (_, moved, same)) in enumerate(zip(first, found, strict=True)):
        assert_equal_bits(moved, mirrored(out, types), msg=f"multivectors of map {i}")
        assert_equal_bits(same, scalars, msg=f"scalars of map {i}")


@pytest.mark.parametrize("items", [6, 40, 400])
@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_of_torch_treats_both_signs_alike(backend, items):
    """Signs of values go through; signs that queries and keys share change nothing."""
    torch.manual_seed(0)
    kind, dtype = BACKENDS[backend]
    q, k, v = torch.randn(3, 2, 4, items, 24, device=DEVICE).to(dtype)
    common, own = signs(24).to(dtype), signs(24).to(dtype)
    with sdpa_kernel(kind):
        found = F.scaled_dot_product_attention(q, k, v, scale=0.2)
        assert_equal_bits(F.scaled_dot_product_attention(q, k, v, scale=0.2), found)
        assert_equal_bits(F.scaled_dot_product_attention(q, k, -v, scale=0.2), -found)
        turned = F.scaled_dot_product_attention(q * common, k * common, v * own, scale=0.2)
    assert_equal_bits(turned, found * own)


@pytest.mark.parametrize("items", [6, 40, 400])
@pytest.mark.parametrize("precision", ["highest", "high", "bfloat16"])
@pytest.mark.parametrize("is_batch", [False, True])
def test_products_of_matrices_treat_both_signs_alike(precision, is_batch, items):
    """The signs of the columns of x go to those of x w if w connects columns of like signs only."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest" if precision == "bfloat16" else precision)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    x, w = torch.randn(16, 2 * items, 24, device=DEVICE), torch.randn(16, 24, 40, device=DEVICE)
    before, after = signs(24), signs(40)
    w = torch.where(before[:, None] == after, w, 0)
    x, w, before, after = (y.to(dtype) for y in (x, w, before, after))
    if not is_batch:
        x, w = x[0], w[0]
    found = x @ w
    assert_equal_bits(x @ w, found)
    assert_equal_bits(-x @ w, -found)
    assert_equal_bits(x * before @ w, found * after)


@pytest.mark.parametrize("items", [6, 40, 400])
def test_the_frame_of_a_mirrored_scene_is_the_mirrored_frame(items):
    net, mv, _ = given("multi_query", items)
    frame, moved = net.frame(mv), net.frame(mirrored(mv, TYPES[0]))
    assert_equal_bits(moved.center, frame.center * torch.tensor([-1.0, 1, 1], device=DEVICE))
    assert_equal_bits(moved.reference, frame.reference)
