"""Between channels of like types there are nine equivariant maps, between unlike ones seven."""

import torch

from flashgatr import versors
from flashgatr.functional.linear import basis
from flashgatr.ops import join, product

GAP = 1e-10


def motions():
    generator = torch.Generator().manual_seed(0)
    kinds = ("E(3)", "reflection", "SE(3)")
    return torch.cat([versors.sample(12, kind=kind, generator=generator) for kind in kinds])


def actions():
    """Matrices ρ (36, 16, 16) of motions, and their determinants on vectors."""
    u = motions()
    columns = versors.apply(u[:, None], torch.eye(16, dtype=torch.float64))
    return columns.mT.contiguous(), torch.where(versors.is_odd(u), -1.0, 1.0).double()


def null_space(equations):
    """An orthonormal basis (d, n) of the solutions x (n) of equations (m, n) x = 0."""
    _, values, rows = torch.linalg.svd(equations)
    small = torch.cat([values, values.new_zeros(len(rows) - len(values))]) < GAP * values.max()
    assert values[~small[: len(values)]].min() > 1e-3 * values.max()  # a clear gap
    return rows[small]


def maps(sign):
    """The maps L (d, 16, 16) with L ρ(g) = sign(g) ρ(g) L."""
    rho, _ = actions()
    one = torch.eye(16, dtype=torch.float64)
    equations = [
        torch.kron(one, r.mT.contiguous()) - s * torch.kron(r, one)
        for r, s in zip(rho, sign, strict=True)
    ]
    return null_space(torch.cat(equations)).view(-1, 16, 16)


def test_there_are_nine_maps_between_like_types_and_seven_between_unlike_ones():
    _, determinant = actions()
    like, unlike = maps(torch.ones_like(determinant)), maps(determinant)
    assert (len(like), len(unlike)) == (9, 7)
    ours, found = basis().flatten(1), like.flatten(1)
    torch.testing.assert_close(ours @ found.T @ found, ours, rtol=0, atol=1e-12)
    assert torch.linalg.matrix_rank(ours) == 9


def test_the_seven_are_products_and_joins_with_constants():
    """So a network with a bilinear layer and the odd constant e0123 loses nothing without them."""
    _, determinant = actions()
    unlike, every = maps(determinant).flatten(1), torch.eye(16, dtype=torch.float64)

    def as_map(f, constant):
        rows = [f(x[None], every[constant][None])[0] for x in every]
        return torch.stack(rows, dim=1).flatten()

    scalar, e0, pseudoscalar = 0, 1, 15
    made = [
        as_map(product, pseudoscalar), as_map(join, e0), as_map(join, scalar)
    ]  # fmt: skip
    for one in made:
        torch.testing.assert_close(unlike.T @ (unlike @ one), one, rtol=0, atol=1e-12)


def test_the_constants_of_even_and_odd_channels():
    rho, determinant = actions()
    one = torch.eye(16, dtype=torch.float64)
    even = null_space(torch.cat([r - one for r in rho]))
    pairs = zip(rho, determinant, strict=True)
    odd = null_space(torch.cat([d * r - one for r, d in pairs]))
    assert (len(even), len(odd)) == (2, 1)
    assert even[:, [0, 1]].norm() > 1.414  # 1 and e0
    assert odd[0, 15].abs() > 1 - 1e-12  # e0123
