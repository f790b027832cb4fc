"""Products of multivectors as sums over their non-zero terms, and the bilinear layer's formula.

    bilinear(x₁, x₂, x₃, x₄; z) = ( x₁ x₂ , z · join(x₃, x₄) )

z is the e123 component of a reference multivector; it changes sign under reflections, which makes
the second part equivariant. The geometric product has 192 terms, the join 81.

A product is a trilinear form Σ s x_i y_j z_k over a table of terms. Each of its three gradients
is the same sum with the roles of x, y, z exchanged, so one operator computes the forward pass,
the backward pass and every higher derivative:

    trilinear(a, b, form, slot):  the derivative by `slot` (0 = x, 1 = y, 2 = z) at the other two

It is registered with torch.library, so that compilers and exporters see one operator. On a CPU it
is a loop of multiply-adds over whole components; on other devices it is the plain version in
`ops`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..algebra import BLADES, PGA, Term
from ..constants import is_wrapped
from ..ops import contract, left_matrix
from ..precision import at_least_float32

_FORMS: dict[str, tuple[Term, ...]] = {"product": PGA.product_terms, "join": PGA.join_terms}


PRODUCTS = ("ee", "oe", "oo", "eo")
"""Types of the two factors of products, in networks with types of channels."""
_JOINS = ("oo", "oe", "ee", "eo")


def _reslot(terms: tuple[Term, ...], slot: int) -> tuple[Term, ...]:
    """The terms (out, a, b, sign) by which the other two slots give this one."""
    orders = {0: (1, 2, 0), 1: (2, 1, 0), 2: (0, 1, 2)}  # positions of (out, a, b) in (k, i, j)
    out, a, b = orders[slot]
    return tuple(sorted((t[out], t[a], t[b], t[3]) for t in terms))


TERMS = {(f, slot): _reslot(terms, slot) for f, terms in _FORMS.items() for slot in range(3)}
_MATRICES = {key: left_matrix(terms) for key, terms in TERMS.items()}


def product(x: Tensor, y: Tensor) -> Tensor:
    """Geometric product of multivectors of one shape."""
    return _apply(x, y, "product")


def join(x: Tensor, y: Tensor) -> Tensor:
    """(x* ∧ y*)* of multivectors of one shape."""
    return _apply(x, y, "join")


def bilinear(projected: Tensor, reference: Tensor) -> Tensor:
    """Products and joins (..., 2 C, 16) of four groups of channels (..., 4 C, 16).

    reference: e123 of the join's reference, broadcastable to the items (...).
    """
    left, right, join_left, join_right = at_least_float32(projected).chunk(4, dim=-2)
    joined = reference[..., None, None] * join(join_left, join_right)
    return torch.cat([product(left, right), joined], dim=-2)


def factor_types(channels: int) -> tuple[str, str]:
    """Types of the four groups of `bilinear`, and of the products and joins that they give.

    A product multiplies types; a join also changes them. Channel by channel, the four combinations
    take turns.
    """
    products, joins = (
        [pattern[c % len(pattern)] for c in range(channels)] for pattern in (PRODUCTS, _JOINS)
    )
    factors = [pair[side] for pairs in (products, joins) for side in (0, 1) for pair in pairs]
    results = ["eo"[p[0] != p[1]] for p in products] + ["oe"[p[0] != p[1]] for p in joins]
    return "".join(factors), "".join(results)


def _apply(x: Tensor, y: Tensor, form: str) -> Tensor:
    if is_wrapped(x) or is_wrapped(y):  # torch.func cannot differentiate registered operators
        return reference(x, y, form, 2)
    out: Tensor = trilinear(x, y, form, 2)
    return out


def reference(a: Tensor, b: Tensor, form: str, slot: int) -> Tensor:
    """`trilinear` in plain operations of torch."""
    return contract(a, b, _MATRICES[form, slot])


@torch.library.custom_op("flashgatr::trilinear", mutates_args=())
def trilinear(a: Tensor, b: Tensor, form: str, slot: int) -> Tensor:
    """One slot of a trilinear form from the other two, (..., 16) each, of equal shapes."""
    return _component_major(reference(a, b, form, slot))


@trilinear.register_kernel("cpu")
def _loop(a: Tensor, b: Tensor, form: str, slot: int) -> Tensor:
    wide = torch.promote_types(a.dtype, torch.float32)  # 16-bit numbers are summed in float32
    parts_a, parts_b = (x.to(wide).movedim(-1, 0).contiguous().unbind() for x in (a, b))
    out = torch.zeros(BLADES, *a.shape[:-1], dtype=wide)
    sums = out.unbind()
    for k, i, j, sign in TERMS[form, slot]:
        sums[k].addcmul_(parts_a[i], parts_b[j], value=sign)
    return out.to(a.dtype).movedim(0, -1)


@trilinear.register_fake
def _shape(a: Tensor, b: Tensor, form: str, slot: int) -> Tensor:
    torch._check(a.shape == b.shape, lambda: f"shapes {a.shape} and {b.shape} differ")
    return a.new_empty(BLADES, *a.shape[:-1]).movedim(0, -1)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, str, int], output: Tensor) -> None:
    a, b, ctx.form, ctx.slot = inputs
    ctx.save_for_backward(a, b)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    a, b = ctx.saved_tensors
    values: dict[int, Tensor] = {ctx.slot: grad}
    first, second = (slot for slot in range(3) if slot != ctx.slot)
    values[first], values[second] = a, b

    def gradient(target: int) -> Tensor:
        left, right = (values[slot] for slot in range(3) if slot != target)
        found: Tensor = trilinear(left, right, ctx.form, target)
        return found

    return (
        gradient(first) if ctx.needs_input_grad[0] else None,
        gradient(second) if ctx.needs_input_grad[1] else None,
        None,
        None,
    )


trilinear.register_autograd(_backward, setup_context=_setup)


@trilinear.register_vmap
def _batched(
    info: Any, dims: tuple[int | None, ...], a: Tensor, b: Tensor, form: str, slot: int
) -> tuple[Tensor, int]:
    def leading(x: Tensor, dim: int | None) -> Tensor:
        return x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)

    return trilinear(leading(a, dims[0]), leading(b, dims[1]), form, slot), 0


def _component_major(x: Tensor) -> Tensor:
    """The same values with components outermost in memory, as the fake implementation has them."""
    return x.movedim(-1, 0).contiguous().movedim(0, -1)
