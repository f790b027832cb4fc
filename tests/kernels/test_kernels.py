"""Every fast operation equals its plain reference, with gradients."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from flashgatr import ops
from flashgatr.functional import products as bilinear
from flashgatr.kernels.cuda import products as gpu
from flashgatr.kernels.rows import ZERO, linear_plan


@pytest.mark.parametrize("form", ["product", "join"])
@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 17), (2, 0, 3)])
def test_the_loop_over_terms_equals_the_plain_product(form, slot, shape):
    a, b = torch.randn(2, *shape, 16, dtype=torch.float64)
    found = bilinear.trilinear(a, b, form, slot)
    expected = bilinear.reference(a, b, form, slot)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
    if slot == 2:
        torch.testing.assert_close(found, getattr(ops, form)(a, b), rtol=1e-14, atol=1e-14)


def test_memory_order_of_the_inputs_does_not_matter():
    a, b = torch.randn(2, 16, 5, 3, dtype=torch.float64).permute(0, 2, 3, 1)
    torch.testing.assert_close(bilinear.product(a, b), ops.product(a.contiguous(), b.contiguous()))
    torch.testing.assert_close(bilinear.join(a[:, ::2], b[:, ::2]), ops.join(a, b)[:, ::2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_no_worse_than_twice_the_plain_products(dtype):
    a, b = torch.randn(2, 500, 16, dtype=torch.float64)
    a, b = a.to(dtype), b.to(dtype)
    exact = ops.product(a.double(), b.double())
    plain = (ops.product(a, b) - exact).abs().max()
    assert (bilinear.product(a, b) - exact).abs().max() <= 2 * plain


@pytest.mark.parametrize("form", ["product", "join"])
def test_first_and_second_derivatives(form):
    a, b = (x.clone().requires_grad_() for x in torch.randn(2, 3, 16, dtype=torch.float64))
    f = getattr(bilinear, form)
    assert gradcheck(f, (a, b))
    assert gradgradcheck(f, (a, b))


def test_the_operator_is_registered_correctly():
    a, b = (x.clone().requires_grad_() for x in torch.randn(2, 4, 3, 16))
    torch.library.opcheck(bilinear.trilinear, (a, b, "product", 2))
    torch.library.opcheck(bilinear.trilinear, (a, b, "join", 0))


def test_the_operator_can_be_mapped_over_a_batch():
    a, b = torch.randn(2, 5, 4, 16, dtype=torch.float64)
    mapped = torch.func.vmap(bilinear.trilinear, in_dims=(0, None, None, None))(
        a, b[0], "product", 2
    )
    torch.testing.assert_close(mapped, ops.product(a, b[0].expand_as(a)))
    mapped = torch.func.vmap(bilinear.join, in_dims=(1, 1), out_dims=1)(a, b)
    torch.testing.assert_close(mapped, ops.join(a, b))


def test_function_transforms_see_the_products():
    a, b = torch.randn(2, 3, 16, dtype=torch.float64)
    found = torch.func.jacrev(bilinear.product)(a, b)
    torch.testing.assert_close(
        found, torch.autograd.functional.jacobian(lambda a: bilinear.product(a, b), a)
    )


def test_with_the_table_of_several_blocks_theirs_are_made():
    """A captured step prepares blocks one by one, and cannot copy tables to the device."""
    blocks = tuple((linear_plan(n, 2, 3, 1), linear_plan(2, n, 1, 0)) for n in (2, 3))
    cpu = torch.device("cpu")
    gpu._on_device.cache_clear()
    gpu._tables.cache_clear()
    together = gpu._tables(blocks, cpu)
    made = gpu._on_device.cache_info().misses
    first, second = (gpu._tables((plans,), cpu) for plans in blocks)
    assert gpu._on_device.cache_info().misses == made
    start = sum(plan.parameters for plan in blocks[0])
    moved = torch.where(second == ZERO, second, second + 16 * start)
    assert torch.equal(together, torch.cat([first, moved]))
