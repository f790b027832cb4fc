"""Names that users and saved files rely on: nobody may change one of these by accident."""

import ast
import dataclasses
import inspect
from pathlib import Path

import flashgatr
from flashgatr import GATr, GATrConfig

EMBEDDINGS = [
    "direction", "line", "plane", "point", "point_reflection", "pose", "pose_quaternion",
    "pseudoscalar", "ray", "reflection", "rotation", "scalar", "translation",
]  # fmt: skip
PUBLIC = [
    "AnchoredGATr", "Anchors", "AxialGATr", "GATr", "GATrBlock", "GATrConfig", "LoadError",
    "Processes", "Sets", "cell_weights", "choose_anchors", "from_pyg", "pack", "packed_to_padded",
    "pad", "padded_to_packed", "parity", "readout", "unpack", "unpad",
    *(f"{verb}_{name}" for verb in ("embed", "extract") for name in EMBEDDINGS),
]  # fmt: skip
MODULES = {"nn", "ops", "versors"}
FIELDS = [
    "in_mv_channels", "out_mv_channels", "hidden_mv_channels", "in_s_channels", "out_s_channels",
    "hidden_s_channels", "num_blocks", "num_heads", "multi_query", "attention_width",
    "distance_aware", "learned_weights", "rotary", "rotary_base", "reinsert_mv_channels",
    "reinsert_s_channels", "activation", "dropout", "checkpoint", "recenter", "length_scale",
    "norm_epsilon", "distance_epsilon", "initialization", "in_mv_parity", "out_mv_parity",
]  # fmt: skip
LINEAR = ["bias_mv", "bias_s", "mv2s", "s2mv", "s2s", "weight"]
KEYS = [
    *(f"blocks.0.attention.attention.log_{name}" for name in ("alpha", "beta", "gamma")),
    *(f"blocks.0.attention.output.{name}" for name in LINEAR),
    *(f"blocks.0.attention.qkv.{name}" for name in LINEAR),
    *(f"blocks.0.attention.reinsert.{name}" for name in LINEAR if "bias" not in name),
    *(f"blocks.0.mlp.bilinear.inputs.{name}" for name in ("bias_mv", "s2mv", "weight")),
    *(f"blocks.0.mlp.bilinear.output.{name}" for name in LINEAR),
    *(f"blocks.0.mlp.linear.{name}" for name in LINEAR),
    *(f"linear_in.{name}" for name in LINEAR),
    *(f"linear_out.{name}" for name in LINEAR),
]
FORWARD = [
    "self", "mv", "s", "mask", "attention_mask", "offsets", "max_items", "join_reference", "center",
    "frame",
]  # fmt: skip


def test_public_names():
    found = {name: getattr(flashgatr, name) for name in dir(flashgatr)}
    own = {n for n, x in found.items() if not n.startswith("_") and not inspect.ismodule(x)}
    assert own == set(PUBLIC)
    assert {n for n, x in found.items() if inspect.ismodule(x)} >= MODULES


def test_config_fields():
    assert [field.name for field in dataclasses.fields(GATrConfig)] == FIELDS


def test_state_dict_keys():
    net = GATr(
        in_mv_channels=1, in_s_channels=1, out_mv_channels=1, out_s_channels=1, num_blocks=1,
        learned_weights="all", reinsert_mv_channels=(0,), reinsert_s_channels=(0,),
    )  # fmt: skip
    assert sorted(net.state_dict()) == sorted(KEYS)


def test_forward_arguments():
    for network in (GATr, flashgatr.AxialGATr):
        assert list(inspect.signature(network.forward).parameters) == FORWARD


def test_parameter_counts_of_the_papers_configurations():
    counts = {}
    for name in ("nbody", "arteries", "scaling", "kuka"):
        cls = flashgatr.AxialGATr if name == "kuka" else GATr
        counts[name] = sum(p.numel() for p in cls.from_preset(name).parameters())
    assert counts == {
        "nbody": 3_011_538,
        "arteries": 191_597,
        "scaling": 115_169,
        "kuka": 1_107_033,
    }


def _imports(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
            yield from ("." * node.level + alias.name for alias in node.names)


def test_the_library_never_imports_the_experiments():
    root = Path(flashgatr.__file__).parent
    command = root / "__main__.py"  # `python -m flashgatr` is the experiments' command
    library = [f for f in root.rglob("*.py") if "experiments" not in f.parts and f != command]
    assert len(library) > 15
    for file in library:
        assert not [name for name in _imports(file) if "experiments" in name], file
