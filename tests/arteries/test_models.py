"""The models of the artery experiment: sizes, packing, and what turning, moving and mirroring a
wall does.
"""

import re
from pathlib import Path

import pytest
import torch

from flashgatr.experiments.arteries import EXPERIMENT, models
from flashgatr.experiments.arteries.unconstrained import AnyLinear, dense
from flashgatr.kernels.paths import plain_kernels
from flashgatr.nn import EquiLinear

from .walls import tube

SMALL = dict(num_blocks=2)


def inputs(*meshes):
    """Packed walls, float64."""
    parts = [
        torch.cat([torch.from_numpy(getattr(m, name)).double() for m in meshes])
        for name in ("position", "normal", "geodesic")
    ]
    offsets = torch.tensor([0, *(m.nodes for m in meshes)]).cumsum(0)
    return *parts, offsets, max(m.nodes for m in meshes)


def build(name="gatr", **options):
    torch.manual_seed(0)
    return EXPERIMENT.build(name, SMALL | options).eval()


@torch.no_grad()
def change(model, determinant):
    """How much turning and moving by 1e3 cm changes the float32 predictions, turned back."""
    torch.manual_seed(1)
    position, normal, geodesic, *sets = inputs(tube(0, 120), tube(1, 90))
    before = model(position.float(), normal.float(), geodesic.float(), *sets)
    worst = 0.0
    for _ in range(3):
        q, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
        q = q * torch.det(q) * determinant
        shift = torch.nn.functional.normalize(torch.randn(3, dtype=torch.float64), dim=0) * 1e3
        moved = ((position @ q.T + shift).float(), (normal @ q.T).float(), geodesic.float())
        back = model(*moved, *sets).double() @ q
        worst = max(worst, ((back - before).norm() / before.norm()).item())
    return worst


def test_the_networks_have_the_papers_sizes():
    sizes = {
        name: sum(p.numel() for p in EXPERIMENT.build(name, {}).parameters())
        for name in ("gatr", "transformer")
    }
    assert sizes["transformer"] == 1_674_563
    assert 0.15e6 < sizes["gatr"] < 0.25e6
    config = EXPERIMENT.build("gatr", {}).net.config
    assert (config.num_blocks, config.hidden_mv_channels, config.hidden_s_channels) == (10, 8, 32)
    assert (config.num_heads, config.multi_query, config.distance_aware) == (4, True, True)
    assert config.reinsert_mv_channels == (0,)


def test_the_page_lists_every_model_with_its_size():
    page = (Path(__file__).parents[2] / "docs" / "arteries.md").read_text()
    table = page.split("## The models")[1].split("\n\n")[1]
    sizes = re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) \|$", table, re.M)
    assert dict(sizes) == {name: f"{free_parameters(name):,}" for name in models.MODELS}


def free_parameters(name):
    """Types of channels leave some weights of linear maps without use."""
    with torch.device("meta"):
        model = EXPERIMENT.build(name, {})
    unused = sum(x.unused_parameters for x in model.modules() if isinstance(x, EquiLinear))
    return sum(p.numel() for p in model.parameters()) - unused


def test_moving_and_turning_turns_the_predictions():
    assert change(build(), 1) < 1e-3
    assert change(build("transformer"), 1) > 0.1


def handed():
    """A GATr that has learned a rule a mirror breaks: y = (x - x̄) × n."""
    torch.manual_seed(0)
    small = dict(num_blocks=2, hidden_mv_channels=4, hidden_s_channels=8)
    model = EXPERIMENT.build("gatr", small)
    position, normal, geodesic = torch.randn(80, 3), torch.randn(80, 3), torch.rand(80)
    normal = torch.nn.functional.normalize(normal, dim=-1)
    target = torch.linalg.cross(position - position.mean(0), normal)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(100):
        loss = (model(position, normal, geodesic) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def test_a_mirror_changes_the_predictions_unless_both_signs_are_averaged():
    model = handed()
    assert change(model, -1) > 0.1
    model.both_signs = True
    assert change(model, -1) < 1e-3
    assert change(model, 1) < 1e-3


@pytest.mark.parametrize(
    "name", sorted(models.MODELS.keys() - models.ON_SURFACES.keys() - {"segnn"})
)
def test_every_model_treats_packed_meshes_one_by_one_and_learns(name):
    torch.manual_seed(0)
    model = EXPERIMENT.build(name, {"num_blocks": 1})
    first, second = tube(0, 60), tube(1, 90)
    *parts, offsets, most = inputs(first, second)
    packed = model(*(x.float() for x in parts), offsets, most)
    *parts, _, _ = inputs(second)
    alone = model(*(x.float() for x in parts))
    assert packed.shape == (150, 3)
    torch.testing.assert_close(packed[60:], alone, rtol=1e-4, atol=1e-5)
    packed.square().mean().backward()
    assert all(p.grad is not None for p in model.net.linear_in.parameters())


def test_positions_may_be_left_out_of_queries_and_keys():
    assert build(reinsert_mv_channels=[]).net.blocks[0].attention.reinsert is None
    assert build().net.blocks[0].attention.reinsert is not None


def test_an_ablation_is_what_it_says():
    assert build("gatr_no_scalars").net.config.hidden_s_channels == 0
    narrow = build("gatr_narrow").net.config
    assert (narrow.hidden_mv_channels, narrow.hidden_s_channels) == (4, 8)
    assert EXPERIMENT.build("gatr_shallow", {}).net.config.num_blocks == 5
    free = build("gatr_unconstrained")
    assert not free.net.config.recenter
    assert not any(isinstance(layer, EquiLinear) for layer in free.modules())
    assert change(free, 1) > 0.1
    with pytest.raises(ValueError, match="must not recentre"):
        build("gatr_unconstrained", recenter=True)


def test_unconstrained_maps_include_the_equivariant_ones():
    """With the dense matrices of its equivariant maps, the unconstrained network is GATr."""
    equivariant, free = build(recenter=False), build("gatr_unconstrained")
    layers = {n: x for n, x in equivariant.named_modules() if isinstance(x, EquiLinear)}
    state = dict(free.state_dict())
    state |= {k: v for k, v in equivariant.state_dict().items() if k in state}
    for name, layer in layers.items():
        state[f"{name}.weight"], bias = dense(layer)
        if f"{name}.bias" in state:
            state[f"{name}.bias"] = bias
    free.load_state_dict(state)
    *parts, offsets, most = inputs(tube(0))
    parts = [x.float() for x in parts]
    with plain_kernels(), torch.no_grad():
        expected = equivariant(*parts, offsets, most)
    torch.testing.assert_close(free(*parts, offsets, most), expected, rtol=1e-3, atol=1e-4)


def test_an_unconstrained_map_starts_as_large_as_the_one_it_replaces():
    torch.manual_seed(0)
    layer = EquiLinear(8, 4, 16, 3, initialization="small")
    free, (weight, bias) = AnyLinear(layer), dense(layer)
    assert free.weight.norm().item() == pytest.approx(weight.norm().item(), rel=1e-5)
    assert (free.weight - weight).norm() > weight.norm()  # but is another one
    assert torch.equal(free.bias, bias)


def test_variants_accept_no_unknown_option():
    for name in (*models.VARIANTS, "gatr_unconstrained", "transformer"):
        with pytest.raises(TypeError, match="blocks"):
            EXPERIMENT.build(name, {"blocks": 3})
