"""Weights of the authors' code give the authors' numbers."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from flashgatr import AxialGATr, GATr, LoadError
from flashgatr.kernels.cpu.library import library

from .plain_gatr import PlainGATr, random_state

GOLDENS = Path(__file__).parents[1] / "goldens"
NETWORKS = sorted(GOLDENS.glob("*gatr*.safetensors"))


def _golden(path):
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, file.metadata()


def _state(tensors):
    return {k.removeprefix("official."): v for k, v in tensors.items() if k.startswith("official.")}


def _difference(found, expected):
    return max(
        (a - b).abs().max().item() for a, b in zip(found, expected, strict=True) if b is not None
    )


def test_there_are_goldens():
    assert len(NETWORKS) == 4


@pytest.mark.parametrize("path", NETWORKS, ids=lambda p: p.stem)
def test_goldens_are_reproduced(path):
    tensors, meta = _golden(path)
    axial = meta["net"] == "AxialGATr"
    net = (AxialGATr if axial else GATr).from_original(_state(tensors))
    assert net.obstacle(tensors["input.mv"]) is None or library() is None  # the fused kernels run
    out = net(tensors["input.mv"], tensors["input.s"], join_reference=meta["join_reference"])
    limit = 1e-8 if "rotary" in path.stem else 1e-10
    assert _difference(out, (tensors["output.mv"], tensors["output.s"])) <= limit


@pytest.mark.parametrize("path", NETWORKS, ids=lambda p: p.stem)
def test_the_naive_network_reproduces_the_goldens_too(path):
    tensors, meta = _golden(path)
    heads = json.loads(meta["attention"])["num_heads"]
    naive = PlainGATr(_state(tensors), heads)
    canonical, axial = meta["join_reference"] == "canonical", meta["net"] == "AxialGATr"
    out = naive(tensors["input.mv"], tensors["input.s"], canonical=canonical, axial=axial)
    assert _difference(out, (tensors["output.mv"], tensors["output.s"])) <= 1e-8


VARIANTS = {
    "default": {},
    "multi-head": dict(multi_query=False),
    "one head": dict(heads=1),
    "one multi-head": dict(heads=1, multi_query=False),
    "width 1": dict(width=1),
    "width 5": dict(width=5),
    "many heads": dict(heads=8),
    "odd widths": dict(mv=5, s=7, heads=3),
    "no scalars in": dict(in_s=None),
    "zero scalars in": dict(in_s=0),
    "no scalars out": dict(out_s=None),
    "re-insertion": dict(in_mv=3, reinsert_mv=2),
    "re-insertion, multi-head": dict(in_mv=3, reinsert_mv=1, multi_query=False),
    "re-inserted scalars": dict(in_s=3, reinsert_s=2),
    "re-inserted both, multi-head": dict(in_s=2, reinsert_s=1, reinsert_mv=1, multi_query=False),
    "re-insertion, one head": dict(reinsert_mv=1, heads=1),
    "rotary": dict(rotary=(0, 1)),
    "rotary, few scalars": dict(rotary=(0, 1), s=6, heads=4, multi_query=False),
    "dropout": dict(dropout=True),
    "one block": dict(blocks=1),
}


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_agrees_with_the_naive_network(variant):
    options = VARIANTS[variant]
    state = random_state(**options)
    in_mv, in_s = options.get("in_mv", 2), options.get("in_s", 1)
    mv = torch.randn(3, 5, in_mv, 16, dtype=torch.float64)
    s = torch.randn(3, 5, in_s, dtype=torch.float64) if in_s else None
    naive = PlainGATr(
        state,
        options.get("heads", 2),
        reinsert_mv=range(options.get("reinsert_mv", 0)),
        reinsert_s=range(options.get("reinsert_s", 0)),
    )
    net = GATr.from_original(state)
    assert _difference(net(mv, s), naive(mv, s)) <= 1e-10
    assert (
        _difference(net(mv, s, join_reference="canonical"), naive(mv, s, canonical=True)) <= 1e-10
    )


@pytest.mark.parametrize("rotary", [(), (1, 3), (0, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("widths", [{}, dict(mv=4, s=32, heads=8, width=2)], ids=str)
def test_axial_variants_agree_with_the_naive_network(rotary, widths):
    state = random_state(blocks=4, rotary=rotary, in_mv=3, **widths)
    mv = torch.randn(2, 4, 3, 3, 16, dtype=torch.float64)
    s = torch.randn(2, 4, 3, 1, dtype=torch.float64)
    net = AxialGATr.from_original(state)
    assert net.config.rotary == (1 in rotary, 0 in rotary)
    naive = PlainGATr(state, widths.get("heads", 2))
    assert _difference(net(mv, s), naive(mv, s, axial=True)) <= 1e-10


def test_rotary_positions_in_some_blocks_belong_to_an_axial_network():
    with pytest.raises(LoadError, match=r"use AxialGATr\.from_original"):
        GATr.from_original(random_state(blocks=4, rotary=(0, 2)))
    for rotary in ((0, 1), (2,)):
        with pytest.raises(LoadError, match="all or none of its even blocks"):
            AxialGATr.from_original(random_state(blocks=4, rotary=rotary))


def test_which_channels_are_reinserted_and_the_activation_can_be_told():
    state = random_state(in_mv=3, reinsert_mv=2)
    mv, s = torch.randn(2, 4, 3, 16).double(), torch.randn(2, 4, 1).double()
    net = GATr.from_original(state, reinsert_mv_channels=(2, 0), activation="relu")
    naive = PlainGATr(state, 2, reinsert_mv=(2, 0), activation="relu")
    assert _difference(net(mv, s), naive(mv, s)) <= 1e-10


def test_wrappers_prefixes_are_dropped(tmp_path):
    state = random_state()
    mv, s = torch.randn(2, 4, 2, 16).double(), torch.randn(2, 4, 1).double()
    expected = GATr.from_original(state)(mv, s)
    wrapped = {f"net.{name}": x for name, x in state.items()}
    assert _difference(GATr.from_original(wrapped)(mv, s), expected) == 0
    torch.save(wrapped, tmp_path / "model_final.pt")
    assert _difference(GATr.from_original(tmp_path / "model_final.pt")(mv, s), expected) == 0
    assert _difference(GATr.from_original({"model": wrapped})(mv, s), expected) == 0


class _Bomb:
    def __reduce__(self):
        return print, ("code ran",)


def test_a_pickle_cannot_run_code(tmp_path, capsys):
    torch.save({"linear_in.weight": _Bomb()}, tmp_path / "bad.pt")
    with pytest.raises(LoadError, match="weights-only"):
        GATr.from_original(tmp_path / "bad.pt")
    assert "code ran" not in capsys.readouterr().out


def test_foreign_or_partial_weights_are_refused(tmp_path):
    with pytest.raises(LoadError, match="linear_in"):
        GATr.from_original({"conv.weight": torch.zeros(1)})
    state = random_state()
    del state["blocks.1.attention.out_linear.weight"]
    with pytest.raises(LoadError, match=r"blocks\.1\.attention\.out_linear\.weight"):
        GATr.from_original(state)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(LoadError, match="list"):
        GATr.from_original(tmp_path / "list.pt")
    with pytest.raises(LoadError, match="nothing"):
        GATr.from_original(tmp_path / "nothing.pt")


def test_options_that_the_tensors_tell_are_refused():
    with pytest.raises(TypeError, match=r"'in_mv_parity' is for new networks.* have no types"):
        GATr.from_original({}, in_mv_parity="o")
    with pytest.raises(TypeError, match=r"num_heads.*inferred from the tensors"):
        GATr.from_original(random_state(), num_heads=3)
    with pytest.raises(TypeError, match="unknown"):
        GATr.from_original(random_state(), head_count=3)
    with pytest.raises(ValueError, match="re-insert 1 channels"):
        GATr.from_original(random_state(reinsert_mv=1), reinsert_mv_channels=(0, 1))
    state = random_state()
    name = "blocks.0.attention.attention.log_weights"
    state[name] = torch.zeros(2, 1, 3).double()
    with pytest.raises(LoadError, match="do not follow"):
        GATr.from_original(state)


def test_an_unusual_rotary_base_is_found():
    state = random_state(rotary=(0, 1))
    for i in range(2):
        state[f"blocks.{i}.attention.pos_encoding.inv_freq"] = 10000 ** -(torch.arange(4) / 4)
    assert GATr.from_original(state).config.rotary_base == 10000


def _with(**tensors):
    return {**random_state(), **{name.replace("__", "."): x for name, x in tensors.items()}}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (_with(blocks__1__mlp__norm__gain=torch.ones(4)), r"blocks\.1\.mlp\.norm\.gain"),
        (_with(linear_in__bias=torch.ones(4, 1)), r"linear_in\.bias"),
        ({k: x for k, x in random_state().items() if "blocks" not in k}, "no blocks"),
        (_with(linear_in__weight=torch.ones(4, 2)), "expected 3 axes"),
        (_with(blocks__0__attention__attention__log_weights=torch.ones(2)), "expected 3 axes"),
        (_with(linear_in__mvs2s__weight=torch.ones(8)), "expected 2 axes"),
        (_with(epoch=3), "'epoch' is a int"),
        (_with(blocks__0__mlp__layers__0__linear_left__weight=torch.ones(4, 3, 9)), "do not fit"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_tensors_without_a_place_or_of_another_shape_are_refused(state, text):
    with pytest.raises(LoadError, match=text):
        GATr.from_original(state)
