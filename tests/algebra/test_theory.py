"""The paper's appendix A in numbers: the equivariant linear maps, and what the join adds."""

import pytest
import torch

from flashgatr.algebra import BLADES, E012, E12, E123, SCALAR
from flashgatr.functional.linear import MAPS, basis
from flashgatr.geometry import embed_point
from flashgatr.nn import EquiLinear, ScalarGate
from flashgatr.ops import equivariant_join, inner, product
from flashgatr.versors import apply, sample

IDENTITY = torch.eye(BLADES, dtype=torch.float64)


def commutant(kind):
    """Orthonormal basis (dimension, 256) of all M with M ρ(u) = ρ(u) M for six random versors."""
    versors = sample(6, kind=kind, generator=torch.Generator().manual_seed(0))
    actions = apply(versors[:, None], IDENTITY).mT.contiguous()
    system = torch.cat(
        [torch.kron(a, IDENTITY) - torch.kron(IDENTITY, a.T.contiguous()) for a in actions]
    )
    _, values, vectors = torch.linalg.svd(system)
    assert not ((values > 1e-10) & (values < 1e-2)).any()  # zero and not zero are well apart
    return vectors[values < 1e-10]


def test_equivariant_linear_maps_are_spanned_by_the_nine_of_proposition_1():
    solutions, nine = commutant("E(3)"), basis().flatten(1)
    assert len(solutions) == MAPS == 9
    assert torch.linalg.matrix_rank(nine) == 9
    torch.testing.assert_close(nine @ solutions.T @ solutions, nine, rtol=0, atol=1e-12)


def test_without_mirrors_there_are_more_linear_maps_than_nine():
    solutions, nine = commutant("SE(3)"), basis().flatten(1)
    assert len(solutions) == 16
    torch.testing.assert_close(nine @ solutions.T @ solutions, nine, rtol=0, atol=1e-12)


def test_the_nine_maps_are_orthonormal():
    nine = basis().flatten(1)
    torch.testing.assert_close(nine @ nine.T, torch.eye(9).double(), rtol=0, atol=1e-12)


# Expressivity (appendix A.3). Two points are two channels of one item.

CHANNELS = 4


class Stack(torch.nn.Module):
    """Residual layers of equivariant linear maps, products and gates, and of the join if wanted."""

    def __init__(self, depth, seed, join):
        super().__init__()
        torch.manual_seed(seed)
        self.start = EquiLinear(2, CHANNELS)
        self.layers = torch.nn.ModuleList(EquiLinear(CHANNELS, 2 * CHANNELS) for _ in range(depth))
        self.gate = ScalarGate("sigmoid")  # GELU is nearly closed for the small scalars here
        self.join = join
        self.double()

    def forward(self, points):
        reference = points.mean(-2, keepdim=True)
        mv, s = self.start(points)
        for layer in self.layers:
            x, y = layer(mv)[0].chunk(2, dim=-2)
            update = product(x, y)
            if self.join:
                update = update + equivariant_join(x, y, reference)
            mv = mv + self.gate(update, s)[0]
        return mv


def invariants(mv):
    """Scalar parts and inner products of all channels."""
    return torch.cat(
        [mv[..., SCALAR], inner(mv[..., :, None, :], mv[..., None, :, :]).flatten(-3)], -1
    )


def two_points(distance):
    direction = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    first = torch.tensor([0.1, -0.4, 0.3], dtype=torch.float64)
    return embed_point(torch.stack([first, first + distance * direction]))


every_stack = pytest.mark.parametrize(("depth", "seed"), [(1, 0), (2, 1), (3, 2), (5, 3)])


@every_stack
def test_products_alone_cannot_see_the_distance_of_two_points(depth, seed):
    net = Stack(depth, seed, join=False)
    near, far = (invariants(net(two_points(d))) for d in (1.0, 10.0))
    assert near.abs().max() > 1e-4
    torch.testing.assert_close(near, far, rtol=0, atol=1e-12)


@every_stack
def test_products_alone_see_the_weight_of_a_point(depth, seed):
    net, weights = Stack(depth, seed, join=False), torch.tensor([[1.0], [3.0]])
    plain, heavy = (invariants(net(x)) for x in (two_points(1.0), weights * two_points(1.0)))
    assert (plain - heavy).abs().max() > 1e-2 * plain.abs().max()


@every_stack
def test_with_the_join_the_distance_is_seen(depth, seed):
    net = Stack(depth, seed, join=True)
    near, far = (invariants(net(two_points(d))) for d in (1.0, 10.0))
    assert (near - far).abs().max() > 1e-4


@every_stack
@pytest.mark.parametrize("join", [False, True])
def test_both_stacks_are_equivariant_under_motions_and_mirrors(depth, seed, join):
    net, mv = Stack(depth, seed, join), two_points(1.0)
    u = sample(8, 1, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(net(apply(u, mv)), apply(u, net(mv)), rtol=1e-9, atol=1e-9)


def test_join_turns_a_null_vector_into_one_that_is_not():
    null, e123 = IDENTITY[E012], IDENTITY[E123]
    joined = equivariant_join(null, e123, e123)
    assert inner(null, null) == 0
    assert torch.equal(joined.abs(), IDENTITY[E12])
