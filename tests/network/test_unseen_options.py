"""Choices that other tests would not miss: parity of motions, working centre, options of layers."""

import math

import pytest
import torch

from flashgatr import GATr, embed_plane, embed_point, versors
from flashgatr.batch import Sets
from flashgatr.functional import attention_scale, products
from flashgatr.nn import GradeDropout


def test_half_of_the_motions_are_mirrored():
    generator = torch.Generator().manual_seed(0)
    motions = versors.sample(4000, kind="E(3)", generator=generator)
    odd = (torch.linalg.det(versors.to_matrix(motions)[:, :3, :3]) < 0).double().mean()
    assert abs(odd.item() - 0.5) < 0.04


def test_the_working_centre_is_the_centroid_only_where_that_makes_coordinates_smaller():
    points = embed_point(torch.randn(6, 1, 3, dtype=torch.float64) + 50)
    planes = embed_plane(
        torch.nn.functional.normalize(torch.randn(6, 1, 3, dtype=torch.float64), dim=-1),
        torch.zeros(6, 1, 3, dtype=torch.float64),
    )
    slight = 1e-3 * embed_point(torch.full((6, 1, 3), 1000.0, dtype=torch.float64))
    sets = Sets((2, 6))
    mv = torch.stack([torch.cat([points, points], 1), torch.cat([planes, slight], 1)])
    centroids, centres = versors.centroid(mv, sets), versors.working_center(mv, sets)
    torch.testing.assert_close(centroids[1], torch.full((3,), 1000.0, dtype=torch.float64))
    assert torch.equal(centres[0], centroids[0])
    assert not centres[1].any()  # from the far centroid, the planes would look huge


def test_the_rotary_base_of_the_configuration_is_used():
    options = dict(
        in_mv_channels=1, out_mv_channels=1, hidden_mv_channels=2, hidden_s_channels=16,
        num_blocks=1, num_heads=1, rotary=True,
    )  # fmt: skip
    mv = torch.randn(9, 1, 16)
    outputs = []
    for base in (4096.0, 10.0):
        torch.manual_seed(0)
        net = GATr(**options, rotary_base=base)
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(0.5 * torch.randn_like(p))
            outputs.append(net(mv)[0])
        assert net.blocks[0].attention.rotary_base == base
    assert not torch.allclose(*outputs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("option", "value"), [("activation", "relu"), ("norm_epsilon", 2.0), ("distance_epsilon", 0.5)]
)
def test_options_of_layers_change_the_network(option, value):
    options = dict(
        in_mv_channels=1, out_mv_channels=1, hidden_mv_channels=2, hidden_s_channels=4,
        num_blocks=1, num_heads=1,
    )  # fmt: skip
    net, other = GATr(**options), GATr(**options, **{option: value})
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.5 * torch.randn_like(p))
    other.load_state_dict(net.state_dict())
    mv = embed_point(torch.randn(9, 1, 3))
    assert not torch.allclose(net(mv)[0], other(mv)[0], rtol=1e-3, atol=1e-3)


def test_the_logits_are_divided_by_the_root_of_the_number_of_features():
    assert attention_scale(3, 5, True) == pytest.approx(1 / math.sqrt(12 * 3 + 5))
    assert attention_scale(3, 5, False) == pytest.approx(1 / math.sqrt(8 * 3 + 5))


def test_dropping_everything_is_refused():
    for p in (1.0, -0.1):
        with pytest.raises(ValueError, match=r"must be in \[0, 1\)"):
            GradeDropout(p)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("operation", [products.product, products.join])
def test_products_of_sixteen_bits_are_summed_in_float32_and_rounded_once(operation, dtype):
    x, y = (torch.randn(50, 16).to(dtype) for _ in range(2))
    assert torch.equal(operation(x, y), operation(x.float(), y.float()).to(dtype))
