"""Models with types map coordinates to coordinates under every motion and mirror of E(3)."""

import pytest
import torch

from flashgatr import versors
from flashgatr.experiments.arteries import EXPERIMENT as ARTERIES
from flashgatr.experiments.charges import EXPERIMENT as CHARGES
from flashgatr.experiments.nbody import EXPERIMENT as NBODY
from flashgatr.experiments.robotics import EXPERIMENT as ROBOTICS

from .networks import changed

SMALL = dict(num_blocks=2, hidden_mv_channels=4, hidden_s_channels=8, num_heads=2)
KINDS = ("reflection", "E(3)", "SE(3)", "inversion", "rotoreflection")
ITEMS = 6
TYPED = ("gatr_e3", "gatr_e3_wide")


def vectors(*shape):
    return torch.randn(*shape, 3, dtype=torch.float64)


def bodies(model, x, v):
    mass = torch.linspace(1, 2, ITEMS, dtype=x.dtype).expand(x.shape[:-1])
    out = model(mass, x, v)
    return out[0] if isinstance(out, tuple) else out


def wall(model, x, v):
    """The stress at nodes with these normals."""
    return model(x, v, torch.linspace(0, 1, ITEMS, dtype=x.dtype).expand(x.shape[:-1]))


MODELS = {
    "n-body": (NBODY, bodies, {}, "positions"),
    "charges": (CHARGES, bodies, {}, "positions"),
    "charges, directions": (CHARGES, bodies, dict(velocity="direction"), "positions"),
    "arteries": (ARTERIES, wall, {}, "vectors"),
}


def build(name, model="gatr_e3", **options):
    torch.manual_seed(0)
    experiment, run, own, _ = MODELS[name]
    net = changed(experiment.build(model, {**SMALL, **own, **options}).double()).eval()
    return lambda x, v: run(net.to(x.dtype), x, v)


def moved(name, matrix, x):
    """The output in another place: positions are also shifted."""
    x = x @ matrix[:3, :3].mT
    return x + matrix[:3, 3] if MODELS[name][-1] == "positions" else x


def error(name, kind, **options):
    model, x, v = build(name, **options), vectors(2, ITEMS), vectors(2, ITEMS)
    generator = torch.Generator().manual_seed(1)
    matrix = versors.to_matrix(versors.sample(kind=kind, generator=generator))
    with torch.no_grad():
        found = model(x @ matrix[:3, :3].mT + matrix[:3, 3], v @ matrix[:3, :3].mT)
        out = model(x, v)
    change = (found - moved(name, matrix, out)).abs().max()
    return float(change / (out - out.mean(-2, keepdim=True)).abs().max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_predictions_move_and_mirror_with_the_scene(name, kind):
    assert error(name, kind) < 1e-10


@pytest.mark.parametrize("name", ["n-body", "arteries"])
def test_without_types_they_do_not_mirror(name):
    assert error(name, "SE(3)", model="gatr") < 1e-10
    assert error(name, "reflection", model="gatr") > 1e-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_the_mirror_of_an_axis_changes_signs_only(name, dtype):
    model, x, v = build(name), vectors(2, ITEMS).to(dtype), vectors(2, ITEMS).to(dtype)
    sign = torch.tensor([-1, 1, 1], dtype=dtype)
    with torch.no_grad():
        assert torch.equal(model(x * sign, v * sign), model(x, v) * sign)


def test_both_signs_are_for_networks_without_types():
    with pytest.raises(ValueError, match="both_signs is for networks without types"):
        ARTERIES.build("gatr_e3", {"both_signs": True})


SET_BY_THE_MODEL = [
    *((ROBOTICS, name, {"mirrors": on}) for name in TYPED for on in (False, True)),
    *((ROBOTICS, name, {"in_mv_parity": "ooeoe"}) for name in TYPED),
    *((NBODY, name, {"in_mv_parity": "oe"}) for name in TYPED),
    *((ARTERIES, name, {"in_mv_parity": "oee"}) for name in TYPED),
    (CHARGES, "gatr_e3", {"in_mv_parity": "oe"}),
    (CHARGES, "gatr_e3", {"out_mv_parity": "o"}),
    (ARTERIES, "gatr_both_signs", {"both_signs": False}),
]


@pytest.mark.parametrize(
    ("experiment", "name", "options"),
    [pytest.param(e, name, o, id=f"{e.name} {name} {o}") for e, name, o in SET_BY_THE_MODEL],
)
def test_what_a_model_sets_itself_is_no_option(experiment, name, options):
    (option,) = options
    with pytest.raises(TypeError, match=f"sets {option} itself.*; leave it out of model.options"):
        experiment.build(name, options)
