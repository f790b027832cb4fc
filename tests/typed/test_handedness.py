"""An odd output tells left from right, and a network learns to use it."""

import pytest
import torch

from flashgatr import GATr, embed_plane, embed_point, extract_direction, parity, versors
from flashgatr.testing import point_equivariance_error

from .networks import changed

SIZES = dict(hidden_mv_channels=8, hidden_s_channels=16, num_blocks=2, num_heads=4)


def reader(**options):
    """Four points as four channels of one item, to an odd number and even scalars."""
    torch.manual_seed(0)
    types = dict(in_mv_parity=parity(*["point"] * 4), out_mv_parity=parity("handed_scalar"))
    return GATr(in_mv_channels=4, out_mv_channels=1, out_s_channels=3, **SIZES, **types, **options)


def read(net, points):
    mv, s = net(embed_point(points)[:, None])
    return mv[:, 0, 0, 0], s[:, 0]


def test_mirror_images_are_opposite_and_flat_ones_are_zero():
    net = reader(initialization="geometric").double()
    points = torch.randn(20, 4, 3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    number, even = read(net, points)
    size = number.abs().max()
    assert size > 1e-6
    for kind, sign in (("reflection", -1), ("SE(3)", 1)):
        matrix = versors.to_matrix(versors.sample(20, kind=kind, generator=generator))
        moved = points @ matrix[:, :3, :3].mT + matrix[:, None, :3, 3]
        found, same = read(net, moved)
        assert (found - sign * number).abs().max() < min(1e-8 * size, 1e-12)
        assert (same - even).abs().max() < 1e-12 * even.abs().max()
    flat = points @ torch.randn(3, 2, dtype=torch.float64) @ torch.randn(2, 3, dtype=torch.float64)
    assert read(net, flat)[0].abs().max() < min(1e-8 * size, 1e-12)


@pytest.mark.slow
def test_a_signed_volume_is_learned():
    """Mean squared error, relative to that of zero, after 400 steps."""
    net, generator = reader(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def drawn(count):
        points = torch.randn(count, 4, 3, generator=generator)
        return points, torch.linalg.det(points[:, 1:] - points[:, :1])

    training = drawn(1000)
    for _ in range(400):
        chosen = torch.randint(1000, (128,), generator=generator)
        points, volume = (x[chosen] for x in training)
        loss = (read(net, points)[0] - volume).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    points, volume = drawn(500)
    with torch.no_grad():
        error = (read(net, points)[0] - volume).square().mean()
    assert error < 0.01 * volume.square().mean()


def test_a_point_that_is_declared_even_is_noticed():
    def displacement(letters):
        torch.manual_seed(0)
        types = dict(in_mv_parity=letters, out_mv_parity="o")
        net = changed(GATr(in_mv_channels=2, out_mv_channels=1, **SIZES, **types).double())

        def f(points):
            normal = points - points.roll(1, 0)
            plane = embed_plane(normal, points)
            mv = torch.stack([embed_point(points), plane], dim=-2)
            return extract_direction(net(mv)[0][:, 0])

        return f

    points = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def error(letters):
        shiftless = dict(group="reflection", distance=0.0)
        return point_equivariance_error(displacement(letters), points, **shiftless)

    assert error("oe") < 1e-10  # the types that points and planes have
    with pytest.warns(UserWarning, match="declares channels"):
        assert error("ee") > 1e-6
